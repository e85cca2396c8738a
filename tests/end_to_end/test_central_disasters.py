"""What befalls central groups: brokers killed, stopped and awake again, ZooKeeper restarted, connections lost, garbage.

Whatever happens: each record is handled at least once, no offset goes back, no commit of another than the owner is accepted, and no
partition has two owners (``central_history``). No broker and no member logs an error or a traceback, and each disconnection of a
broker from ZooKeeper is on one line.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla import Admin, Consumer, Producer
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import cluster_of, until
from tests.end_to_end.broker_processes import BrokerProcesses, broker_processes
from tests.end_to_end.central_consumers import Member, Process, feed, process
from tests.end_to_end.central_history import History, check
from tests.end_to_end.polling_members import members
from tests.end_to_end.zookeeper_proxy import Lose, lossy_proxy
from tests.raw_client import RawClient

pytestmark = pytest.mark.long

PARTITIONS = 6
SESSION = 2.0
"""Seconds: the time-out of a broker's session with ZooKeeper."""
MEMBER_SESSION, LONG_SESSION = 6.0, 15.0
"""Seconds: a member reads on while there is no coordinator if a third of its session is longer than that takes."""
MOST_COMPLAINTS = 12
"""The lines that a member logs in a disaster, however long that takes."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


@pytest.fixture(scope="module")
def started(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    folder = tmp_path_factory.mktemp("brokers")
    with broker_processes(server.connect_string, folder, count=3, session=int(SESSION * 1000)) as brokers:
        yield brokers


@pytest.fixture
def brokers(started: BrokerProcesses) -> BrokerProcesses:
    """Three brokers that run."""
    started.start_all()
    return started


class Logs:
    """What the brokers log from now on."""

    def __init__(self, brokers: BrokerProcesses) -> None:
        self._logs = [brokers.log(number) for number in brokers.running()]
        self._begun = [len(log.read_text()) for log in self._logs]

    def lines(self) -> list[list[str]]:
        """The lines of each broker."""
        return [log.read_text()[begun:].splitlines() for log, begun in zip(self._logs, self._begun, strict=True)]

    def check_disconnections(self) -> None:
        """Each is logged once by each broker, and so are its consequences, however often something is tried meanwhile."""
        until(lambda: all(lines_with(lines, _LOST) == lines_with(lines, _AGAIN) for lines in self.lines()))
        for lines in self.lines():
            assert lines_with(lines, _LOST) >= 1
            # Members of earlier tests were killed, and are evicted now.
            warnings = [line for line in lines if re.search(r" WARNING (?!ottla\.broker group )", line)]
            assert len(warnings) <= 5 * lines_with(lines, _LOST), warnings


_LOST, _AGAIN = "the connection to ZooKeeper .* is lost", "ZooKeeper .* is connected again"


def lines_with(lines: Sequence[str], pattern: str) -> int:
    return sum(re.search(pattern, line) is not None for line in lines)


class Group(NamedTuple):
    """A group that reads a topic of the same name, with the records that it must handle."""

    brokers: BrokerProcesses
    name: str
    leaders: dict[int, int]
    folder: Path
    stack: ExitStack
    processes: list[Process]
    logs: Logs

    def join(self, name: str, **more: Any) -> Process:
        made = process(
            self.brokers.addresses, self.name, name, self.folder / name, group=self.name, **{"session": MEMBER_SESSION, **more}
        )
        self.processes.append(self.stack.enter_context(made))
        return self.processes[-1]

    def shared(self) -> bool:
        """Whether the members have all partitions, each one of them."""
        owned = [partition for member in self.processes for partition in member.owned]
        return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in self.processes)

    def handled(self) -> set[str]:
        return set().union(*(member.handled() for member in self.processes))

    def check(self, server: ZooKeeperServer, produced: set[str], *, disasters: int = 1) -> History:
        """Wait until all is handled, then check how that came about."""
        self.brokers.start_all()
        until(lambda: self.handled() >= produced)
        self.check_logs(disasters)
        return check(server.data_dir / "node-1", self.brokers.chroot, self.name, self.processes)

    def check_logs(self, disasters: int = 1) -> None:
        logged = [*self.logs.lines(), *(member.complaints.splitlines() for member in self.processes)]
        assert [line for lines in logged for line in lines if re.search("Traceback| ERROR | CRITICAL ", line)] == []
        assert all(len(member.complaints.splitlines()) <= MOST_COMPLAINTS * disasters for member in self.processes), logged

    def live_partitions(self, but: int) -> list[int]:
        return [partition for partition, leader in self.leaders.items() if leader != but]


@pytest.fixture
def group(brokers: BrokerProcesses, tmp_path: Path) -> Iterator[Group]:
    name = f"disaster{next(_numbers)}"
    with ExitStack() as stack:
        yield Group(brokers, name, brokers.create_topic(name, PARTITIONS), tmp_path, stack, [], Logs(brokers))


def other_elected(brokers: BrokerProcesses, than: int) -> bool:
    return brokers.elected() not in (-1, than)


def gaps(handled: Sequence[Process], partitions: Sequence[int], since: float, until_: float) -> dict[int, float]:
    """Partition -> the longest time without a record of it (seconds)."""
    found = {}
    for partition in partitions:
        times = sorted(item["at"] for one in handled for item in one.said() if item.get("partition") == partition)
        within = [since, *(at for at in times if since <= at <= until_), until_]
        found[partition] = max(later - earlier for earlier, later in itertools.pairwise(within))
    return found


# -- brokers --------------------------------------------------------------------------------------------------------------


NOISE = 0.4
"""Seconds by which the time between two records may grow, on two cores on which a coordinator is elected and a member starts."""


class Measured(NamedTuple):
    """What a failure of the coordinator costs, in seconds."""

    usual: float
    """The longest time without a record of a partition that a live broker has, before the failure."""
    unread: float
    """The same after the failure."""
    commit: float
    """Until the next commit was accepted."""
    member: float
    """Until a member that joins had partitions."""

    def is_good(self, limit: float, spare: float = 1.0) -> bool:
        """Whether partitions were read on, and a coordinator served within ``limit``. ``spare``: the factor for a busy machine."""
        return self.unread < self.usual + NOISE * spare and max(self.commit, self.member) < limit * spare


def kill_and_measure(brokers: BrokerProcesses, group: Group, readers: list[Process], number: int) -> tuple[Measured, set[str]]:
    """Kill the coordinator. Returns what was measured, and the values of the records that were written meanwhile."""
    until(group.shared)
    victim = brokers.elected()
    live = group.live_partitions(victim)
    settings = {"group_id": group.name, "group_protocol": "central", "consumer_id": f"late{number}", "enable_auto_commit": False}
    before = [len(member.commits()) for member in readers]
    with feed(brokers.addresses, group.name, live) as produced:
        until(lambda: all(len(member.commits()) > count for member, count in zip(readers, before, strict=True)))
        flowing = time.time()
        until(lambda: all(len(member.commits()) > count + 100 for member, count in zip(readers, before, strict=True)))
        began = time.time()
        brokers.kill(victim)
        with Consumer(settings, bootstrap_servers=brokers.addresses, session_timeout=6) as late:
            late.subscribe([group.name])
            until(lambda: [late.poll(0.05)] and late.assignment())
            joined = time.time()
        values = produced.stop()
    # A commit that was under way when the broker was killed is answered within milliseconds, or never.
    accepted = min(item["at"] for member in readers for item in member.said() if "committed" in item and item["at"] > began + 0.5)
    # For the member that joins, the others stop.
    stopped = min(item["at"] for member in readers for item in member.said() if "revoked" in item and item["at"] > began)
    usual, unread = (max(gaps(readers, live, *period).values()) for period in ((flowing, began), (began, stopped)))
    return Measured(round(usual, 3), round(unread, 3), round(accepted - began, 2), round(joined - began, 2)), values


def failovers(
    server: ZooKeeperServer, group: Group, session: float, limit: float, capsys: pytest.CaptureFixture[str]
) -> list[Measured]:
    """Kill the coordinator up to three times, until a failover is good: a machine may be busy at that moment. ``session``: that
    of the members, in seconds."""
    both = [group.join(name, waits=False, session=session) for name in "ab"]
    produced: set[str] = set()
    found: list[Measured] = []
    while len(found) < 3 and not any(one.is_good(limit) for one in found):
        group.brokers.start_all()
        measured, values = kill_and_measure(group.brokers, group, both, len(found))
        produced |= values
        found.append(measured)
        with capsys.disabled():
            print(f"\n  {measured}, of at most {limit:g} s")
    assert not any("lost" in item for member in both for item in member.said())
    group.check(server, produced, disasters=len(found))
    return found


def test_after_sigkill_of_the_coordinator_members_read_on_and_another_is_in_charge_soon(
    server: ZooKeeperServer, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """The partitions of live brokers are read on, and a new coordinator serves soon: each at least once, also on a busy machine."""
    found = failovers(server, group, LONG_SESSION, SESSION + 2, capsys)
    assert Measured(*map(min, zip(*found, strict=True))).is_good(SESSION + 2, spare=2.5)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("session", "member_session", "tick", "limit"),
    [(2, 15, 500, 4.0), (18, 45, 500, 20.0), (18, 45, 2000, 22.0)],
    ids=["short", "default", "default and that of ZooKeeper"],
)
def test_a_failover_on_an_idle_machine(
    session: int, member_session: int, tick: int, limit: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Live brokers' partitions are read on, and another coordinator serves within the session and two seconds. In the last case
    within a tick more: only at a tick, which are two seconds apart by default, does ZooKeeper end a session."""
    with (
        ZooKeeperServer(settings={"tickTime": tick, "maxSessionTimeout": 20_000}) as server,
        broker_processes(server.connect_string, tmp_path, count=3, session=session * 1000) as brokers,
        ExitStack() as stack,
    ):
        group = Group(brokers, "g", brokers.create_topic("g", PARTITIONS), tmp_path, stack, [], Logs(brokers))
        assert failovers(server, group, member_session, limit, capsys)[-1].is_good(limit)


def state_of(brokers: BrokerProcesses, group: str) -> str:
    with Admin(bootstrap_servers=brokers.addresses) as admin:
        return admin.describe_groups([group])[group].state


@pytest.mark.parametrize(
    ("moment", "slow"), [("stopping", 1.0), pytest.param("starting", 3.0, marks=pytest.mark.slow)], ids=["stopping", "starting"]
)
def test_a_coordinator_is_killed_in_a_rebalance(
    server: ZooKeeperServer, brokers: BrokerProcesses, group: Group, moment: str, slow: float
) -> None:
    """``a`` is slow to stop. For ``starting``, ``b`` is frozen before it can be started."""
    one = group.join("a", slow=slow)
    until(group.shared)
    with feed(brokers.addresses, group.name, range(PARTITIONS), interval=0.2) as produced:
        until(lambda: len(one.commits()) > 3)
        victim, epoch = brokers.elected(), brokers.epoch
        generation = json_of(brokers, group.name)["generation"]
        two = group.join("b")
        if moment == "stopping":
            until(lambda: any("revoked" in item for item in one.said()))
            brokers.kill(victim)
            assert json_of(brokers, group.name)["generation"] == generation
        else:
            until(lambda: two.state == "STOPPED")
            two.freeze()
            assert json_of(brokers, group.name)["generation"] == generation, "it was frozen before it could be started"
            until(lambda: json_of(brokers, group.name)["generation"] == generation + 1)
            assert state_of(brokers, group.name) == "CompletingRebalance"
            brokers.kill(victim)
            two.go_on()
        until(lambda: brokers.epoch > epoch)
        until(group.shared)
        brokers.start(victim)
        until(lambda: len(brokers.ids()) == 3)
        values = produced.stop()
    group.check(server, values)


@pytest.mark.slow
def test_a_deposed_coordinator_that_awakes_changes_nothing(server: ZooKeeperServer, brokers: BrokerProcesses, group: Group) -> None:
    both = [group.join(name, waits=False, session=LONG_SESSION) for name in "ab"]
    until(group.shared)
    old = brokers.elected()
    with feed(brokers.addresses, group.name, group.live_partitions(old), interval=0.01) as produced:
        until(lambda: all(len(member.commits()) > 3 for member in both))
        generation = int(json_of(brokers, group.name)["generation"])
        brokers.signal(old, signal.SIGSTOP)
        try:
            # The first thing that it finds: a commit of a member, which waits in its socket.
            with RawClient(brokers.addresses[old]) as client:
                question = client.send(Api.OFFSET_COMMIT, commit_of(group.name, f"{group.name}_a", generation), 9)
                until(lambda: other_elected(brokers, old))
                epoch = brokers.epoch
                new = {member.consumer_id: len(member.commits()) for member in both}
                until(lambda: all(len(member.commits()) > new[member.consumer_id] + 3 for member in both))
                brokers.signal(old, signal.SIGCONT)
                answer = client.receive(*question)[1].topics[0].partitions[0].error_code
        finally:
            brokers.signal(old, signal.SIGCONT)
        assert answer is ErrorCode.not_coordinator
        until(lambda: len(brokers.ids()) == 3)
        late = group.join("c", waits=False)
        until(lambda: late.owned)
        until(group.shared)
        values = produced.stop()
    assert brokers.epoch == epoch
    assert not any("lost" in item for member in both for item in member.said())
    group.check(server, values)


def json_of(brokers: BrokerProcesses, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(brokers.data("consumers", group, "generation") or "{}")
    return found


def commit_of(group: str, member_id: str, generation: int) -> offset_commit_request.OffsetCommitRequest:
    """A commit of offset 0, which lets each partition go back."""
    parts = tuple(
        offset_commit_request.OffsetCommitRequestPartition(partition_index=number, committed_offset=0, committed_metadata="")
        for number in range(PARTITIONS)
    )
    return offset_commit_request.OffsetCommitRequest(
        group_id=group,
        member_id=member_id,
        generation_id_or_member_epoch=generation,
        topics=(offset_commit_request.OffsetCommitRequestTopic(name=group, partitions=parts),),
    )


# -- ZooKeeper ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_zookeeper_is_restarted(server: ZooKeeperServer, brokers: BrokerProcesses, group: Group) -> None:
    both = [group.join(name, waits=False) for name in "ab"]
    until(group.shared)
    with feed(brokers.addresses, group.name, range(PARTITIONS), interval=0.02) as produced:
        until(lambda: all(len(member.commits()) > 3 for member in both))
        server.restart()
        before = {member.consumer_id: len(member.commits()) for member in both}
        until(lambda: all(len(member.commits()) > before[member.consumer_id] + 3 for member in both))
        group.join("c", waits=False)
        until(group.shared)
        values = produced.stop()
    group.check(server, values)
    group.logs.check_disconnections()


@pytest.mark.slow
def test_the_leader_of_three_zookeepers_is_killed(tmp_path: Path) -> None:
    with (
        ZooKeeperServer(nodes=3, settings={"tickTime": 500}) as ensemble,
        broker_processes(ensemble.connect_string, tmp_path, count=2, session=6000) as brokers,
        ExitStack() as stack,
    ):
        group = Group(brokers, "g", brokers.create_topic("g", PARTITIONS), tmp_path, stack, [], Logs(brokers))
        both = [group.join(name, waits=False) for name in "ab"]
        until(group.shared)
        with feed(brokers.addresses, "g", range(PARTITIONS), interval=0.02) as produced:
            until(lambda: all(len(member.commits()) > 3 for member in both))
            leader = ensemble.leader()
            ensemble.kill(leader)
            before = {member.consumer_id: len(member.commits()) for member in both}
            until(lambda: all(len(member.commits()) > before[member.consumer_id] + 3 for member in both))
            group.join("c", waits=False)
            until(group.shared)
            values = produced.stop()
        until(lambda: group.handled() >= values)
        group.check_logs()
        group.logs.check_disconnections()
        survivor = ensemble.data_dir / f"node-{leader % 3 + 1}"
        check(survivor, brokers.chroot, "g", group.processes)


@pytest.mark.parametrize("loss", list(Lose), ids=lambda loss: loss.name)
def test_a_connection_is_lost_in_the_middle_of_a_multi(
    server: ZooKeeperServer, tmp_path: Path, loss: Lose, caplog: pytest.LogCaptureFixture
) -> None:
    """Elections, generations and commits are multis: whatever became of one, the group goes on, and nothing is lost."""
    with (
        lossy_proxy(server.connect_string) as proxy,
        cluster_of(1, server.connect_string, tmp_path, through=proxy.connect_string) as cluster,
        caplog.at_level(logging.INFO, "ottla"),
        caplog.at_level(logging.DEBUG, "ottla.broker.zookeeper.session_log"),  # it is short connections that are lost
    ):
        broker = cluster.brokers[0]
        cluster.create_topic("t", PARTITIONS)
        epoch = cluster.json("coordinator_epoch")
        proxy.losses.append(loss)
        servers = [broker.bootstrap_servers]
        with members(Member(servers, "t", consumer_id="a")) as (one,):
            until(lambda: len(one.owned) == PARTITIONS)
            proxy.losses += [loss, None, loss]
            with members(Member(servers, "t", consumer_id="b")) as (two,):
                until(lambda: one.owned == [0, 1, 2] and two.owned == [3, 4, 5])
                proxy.losses.append(loss)
                with Producer(bootstrap_servers=servers) as producer:
                    for number in range(60):
                        producer.send("t", b"", partition=number % PARTITIONS)
                until(lambda: len({*one.handled, *two.handled}) == 60)
            until(lambda: len(one.owned) == PARTITIONS)
        until(lambda: not proxy.losses)
        assert len(one.handled) + len(two.handled) == 60
        assert one.errors == two.errors == []
        until(lambda: cluster.children("consumers", "g", "owners", "t") == [])
        offsets = [cluster.json("consumers", "g", "offsets", "t", number) for number in range(PARTITIONS)]
        assert offsets == [10] * PARTITIONS
        assert cluster.json("coordinator_epoch") == epoch, "a lost connection is no reason for an election"
        # The election itself: 1. The node vanishes. 2. The multi that creates it again is lost.
        proxy.losses.append(loss)
        cluster.zookeeper.delete(f"{cluster.chroot}/consumers/coordinator")
        until(lambda: cluster.json("coordinator_epoch") > epoch and not proxy.losses)
        with members(Member(servers, "t", consumer_id="c")) as (three,):
            until(lambda: len(three.owned) == PARTITIONS)
        assert lines_with(caplog.messages, _LOST) == lines_with(caplog.messages, _AGAIN) >= 5
        assert [
            one for one in caplog.records if one.name.startswith("ottla") and (one.levelno >= logging.ERROR or one.exc_info)
        ] == []
        history = History(server.data_dir / "node-1", cluster.chroot, "g", "t")
        assert len(history.epochs) >= 2
        assert {commit.owner for commit in history.commits} >= {"g_a", "g_b"}
