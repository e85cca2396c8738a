"""Runs a scenario on a cluster: groups that read two topics, a writer, and one failure after the other.

Owns the order of the steps and the waits. Must not know the checks (``invariants``). Invariant: the groups have recovered from a
failure when the live members of each group share all partitions and have committed, for each, all records that were acknowledged
when the check began, and a newer one. A group that does not recover in time fails the test. The next failure starts when all nodes
are up and all replicas in sync.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from ottla.protocol.group_records import OffsetCommitKey, OffsetCommitValue, decode_record
from tests.interop.cluster import invariants as own
from tests.interop.cluster.cluster_admin import Operator
from tests.interop.cluster.member_program import Settings
from tests.interop.cluster.scenarios import (
    MEMBERS,
    Blackout,
    Fault,
    Freeze,
    Grow,
    Join,
    KillCoordinator,
    KillLeader,
    KillMember,
    Leave,
    MoveLeaders,
    Recreate,
    Restart,
)
from tests.interop.cluster.writer import Incarnation, writing
from tests.interop.groups import invariants as rules
from tests.interop.groups.invariants import Commit, MemberReport, parse_report
from tests.interop.groups.scenario_processes import ClientProcess
from tests.interop.groups.scenario_runner import everything
from tests.interop.real_kafka import KafkaCluster

_log = logging.getLogger(__name__)

STEADY, VOLATILE = "steady", "volatile"
"""The topic that stays, though it grows and moves, and the one that is deleted and recreated."""
PARTITIONS = {STEADY: 6, VOLATILE: 3}
MOST = 24
"""Partitions that a topic grows to at most."""
RATE = 100
"""Records a second to each topic."""
SESSION = 6_000
"""Milliseconds of a session, where the machine is not too busy for it."""
HEARTBEAT = 500
"""Milliseconds."""
STARTED = 120.0
"""Seconds after which a member that has said nothing never will."""
SETTLED = 10
"""Sessions after which a group that has not settled is stuck."""


def cluster_settings(session: int) -> tuple[str, ...]:
    """Return the settings of the nodes."""
    return (
        "auto.create.topics.enable=false",  # a consumer's metadata request must not recreate a deleted topic
        f"group.min.session.timeout.ms={session}",
        f"group.consumer.min.session.timeout.ms={session}",
        f"group.consumer.session.timeout.ms={session}",
        "group.consumer.min.heartbeat.interval.ms=100",
        f"group.consumer.heartbeat.interval.ms={HEARTBEAT}",
    )


@dataclass
class Group:
    """A group and its members, the oldest first."""

    protocol: str
    assignor: str
    session: int
    lives: list[ClientProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = f"{self.protocol}-{self.assignor}"
        self._names: dict[int, str] = {}

    def enter(self, servers: str, folder: Path) -> None:
        """Start another member."""
        member = f"{self.name}-{len(self.lives)}"
        settings = Settings(servers, [STEADY, VOLATILE], self.name, member, self.protocol, self.session, HEARTBEAT, self.assignor)
        command = [sys.executable, "-m", "tests.interop.cluster.member_program", json.dumps(asdict(settings))]
        process = ClientProcess(command, folder / f"{member}.errors")
        self._names[id(process)] = member
        self.lives.append(process)

    def name_of(self, process: ClientProcess) -> str:
        """Return the member's name in its output and commits."""
        return self._names[id(process)]

    def living(self) -> list[ClientProcess]:
        """Return the running members, the oldest first, without those that were stopped or frozen."""
        return [one for one in self.lives if one.running and not one.ended and not one.frozen]

    def report(self, process: ClientProcess) -> MemberReport:
        """Return the parsed output of a member so far."""
        return parse_report(self.name_of(process), list(process.events))


@dataclass
class Figures:
    """The figures of a run."""

    troubles: int = 0
    slowest: tuple[float, str] = (0.0, "")
    records: int = 0
    commits: int = 0
    refused: int = 0
    twice: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "troubles": self.troubles,
            "slowest": "{:.1f} s, {}".format(*self.slowest),
            "records": self.records,
            "consumed again": self.twice,
            "commits": self.commits,
            "refused": self.refused,
        }


class ScenarioRunner:
    """One run. ``kinds``: protocol and assignor of each group; ``session``: the session timeout in milliseconds."""

    def __init__(self, cluster: KafkaCluster, folder: Path, kinds: Iterable[tuple[str, str]], session: int) -> None:
        self._cluster, self._folder = cluster, folder
        self._incarnations = {name: Incarnation(name, 1) for name in PARTITIONS}
        self._partitions = dict(PARTITIONS)
        self._groups = [Group(*kind, session) for kind in kinds]
        self._settled = SETTLED * session / 1000
        self._downs = 0
        self.figures = Figures()

    def play(self, story: Iterable[tuple[Fault, ...]], seconds: float = float("inf")) -> list[str]:
        """Run the failures that begin within ``seconds``, then return the violated invariants in words."""
        until = time.monotonic() + seconds
        servers = self._cluster.bootstrap_servers
        with writing(servers, RATE) as self._writer, closing(Operator(servers)) as self._operator:
            return self._play(story, until)

    def _play(self, story: Iterable[tuple[Fault, ...]], until: float) -> list[str]:
        try:
            for name, count in PARTITIONS.items():
                self._operator.create(name, count, replicas=2)
                self._writer.begin(self._incarnations[name], count)
            for group in self._groups:
                for _ in range(MEMBERS):
                    group.enter(self._cluster.bootstrap_servers, self._folder)
            self._settle("the beginning")
            for row in story:
                if time.monotonic() > until:
                    break
                self._suffer(row)
            self._writer.close()
            self._settle("the end", news=0)
            return self._judge()
        finally:
            for group in self._groups:
                for process in group.lives:
                    process.kill()

    def _suffer(self, row: tuple[Fault, ...]) -> None:
        what = " and ".join(type(fault).__name__ for fault in row)
        self.figures.troubles += len(row)
        for fault in row:
            self._make(fault)
        self._settle(what)
        self._recover()
        self._settle(f"recovery from {what}")

    def _recover(self) -> None:
        """Resume frozen members and restart the nodes that are down."""
        for group in self._groups:
            for process in group.lives:
                if process.frozen:
                    process.thaw()
        self._start_nodes()
        self._operator.prefer()

    def _start_nodes(self) -> None:
        """Start the nodes that are down at the same time: one alone may lack a quorum for a controller."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._cluster.again, sorted(self._cluster.down)))
        self._operator.wait_until_whole(self._cluster.addresses)

    # -- troubles ---------------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _make(self, fault: Fault) -> None:
        raise TypeError(f"there is no implementation of {fault}")

    @_make.register
    def _(self, fault: KillCoordinator) -> None:
        group = self._groups[self._downs % len(self._groups)]
        self._downs += 1
        self._cluster.kill(self._operator.coordinator(group.name))

    @_make.register
    def _(self, fault: KillLeader) -> None:
        self._cluster.kill(self._operator.leader(STEADY, 0))

    @_make.register
    def _(self, fault: Restart) -> None:
        self._cluster.end(fault.node)
        self._cluster.again(fault.node)

    @_make.register
    def _(self, fault: Blackout) -> None:
        for node in self._cluster.addresses:
            self._cluster.kill(node)
        self._start_nodes()

    @_make.register
    def _(self, fault: MoveLeaders) -> None:
        self._operator.move(STEADY, self._cluster.addresses)

    @_make.register
    def _(self, fault: Recreate) -> None:
        self._writer.end(VOLATILE)
        self._operator.delete(VOLATILE)
        self._operator.create(VOLATILE, self._partitions[VOLATILE], replicas=2)
        self._incarnations[VOLATILE] = Incarnation(VOLATILE, self._incarnations[VOLATILE].number + 1)
        self._writer.begin(self._incarnations[VOLATILE], self._partitions[VOLATILE])

    @_make.register
    def _(self, fault: Grow) -> None:
        count = self._partitions[STEADY] + 2
        if count <= MOST:
            self._operator.grow(STEADY, count)
            self._partitions[STEADY] = count
            self._writer.grow(STEADY, count)

    @_make.register
    def _(self, fault: Join) -> None:
        for group in self._groups:
            group.enter(self._cluster.bootstrap_servers, self._folder)

    @_make.register
    def _(self, fault: Leave) -> None:
        for group in self._groups:
            self._replace_the_last(group)
            group.living()[0].ask_to_end()

    @_make.register
    def _(self, fault: Freeze) -> None:
        for group in self._groups:
            group.living()[0].freeze()

    @_make.register
    def _(self, fault: KillMember) -> None:
        for group in self._groups:
            self._replace_the_last(group)
            group.living()[0].kill()

    def _replace_the_last(self, group: Group) -> None:
        """Start another member if the group would become too small."""
        if len(group.living()) < MEMBERS:
            group.enter(self._cluster.bootstrap_servers, self._folder)

    # -- waiting ----------------------------------------------------------------------------------------------------------

    def _settle(self, what: str, news: int = 1) -> None:
        """Wait until each group shares all partitions, and has committed all currently acknowledged records and ``news`` more."""
        self._wait_for_starts(what)
        began = time.monotonic()
        acknowledged = self._writer.acknowledged()
        aims = {key: max(acknowledged.get(key, ()), default=-1) + 1 + news for key in self._live_keys()}
        while lacking := [why for group in self._groups for why in self._lacking(group, aims)]:
            passed = time.monotonic() - began
            assert passed < self._settled, f"{what}: stuck for {self._settled} s\n" + "\n".join([*lacking, self._last_words()])
            self._look_for_deaths(what)
            time.sleep(0.1)
        passed = time.monotonic() - began
        _log.info("%s: settled within %.1f s", what, passed)
        self.figures.slowest = max(self.figures.slowest, (passed, what))

    def _live_keys(self) -> dict[str, tuple[str, int]]:
        """Return all existing partitions: name with the incarnation -> topic and number."""
        return {
            self._incarnations[name].key(number): (name, number)
            for name, count in self._partitions.items()
            for number in range(count)
        }

    def _lacking(self, group: Group, aims: Mapping[str, int]) -> list[str]:
        names = [f"{name}-{number}" for name, number in self._live_keys().values()]
        lacking = own.shared_badly([group.report(process) for process in group.living()], names)
        reached: dict[str, int] = {}
        for process in group.lives:
            for key, offset, _, _ in group.report(process).committed:
                reached[str(key)] = max(reached.get(str(key), 0), offset)
        lacking += [f"{key}: committed {reached.get(key, 0)} of {aim}" for key, aim in aims.items() if reached.get(key, 0) < aim]
        return [f"{group.name}: {why}" for why in lacking]

    def _wait_for_starts(self, what: str) -> None:
        end = time.monotonic() + STARTED
        while [one for group in self._groups for one in group.living() if not one.events]:
            assert time.monotonic() < end, f"{what}: a member did not start within {STARTED} s\n{self._last_words()}"
            self._look_for_deaths(what)
            time.sleep(0.1)

    def _look_for_deaths(self, what: str) -> None:
        dead = [group.name_of(one) for group in self._groups for one in group.lives if not one.running and not one.ended]
        assert not dead, f"{what}: {dead} ended by themselves\n{self._last_words()}"

    def _last_words(self) -> str:
        lines = []
        for group in self._groups:
            for process in group.living():
                lines += [f"{group.name_of(process)} owns {sorted(map(str, group.report(process).owned))}"]
                lines += [f"    {event}"[:240] for event in process.events[-6:]]
                lines += [f"    {line}"[:240] for line in process.errors.read_text().splitlines()[-15:]]
        return "\n".join(lines)

    # -- the verdict ------------------------------------------------------------------------------------------------------

    def _judge(self) -> list[str]:
        acknowledged = self._writer.acknowledged()
        self.figures.records = sum(map(len, acknowledged.values()))
        found = [f"not written: {one}" for one in self._writer.failures()]
        log = everything(self._cluster.bootstrap_servers, "__consumer_offsets", "read_uncommitted")
        ends = {name: self._operator.ends(name) for name in PARTITIONS}
        for group in self._groups:
            commits = [commit for message in log if (commit := _commit(message, group.name)) is not None]
            lives = [group.report(process) for process in group.lives]
            self.figures.commits += sum(len(one.committed) for one in lives)
            self.figures.refused += sum(one.refused for one in lives)
            self.figures.twice += rules.twice(lives)
            answered = self._operator.committed(group.name)
            keys = self._live_keys()
            now = [commit for commit in commits if commit.partition in keys]
            read_periods = [
                one for process in group.lives for one in own.read_periods(group.name_of(process), list(process.events))
            ]
            broken = [
                *(f"two owners: {one}" for one in rules.two_owners(commits)),
                *(f"went back: {one}" for one in rules.going_back(commits)),
                *(f"forgotten: {one}" for one in rules.forgotten(commits, lives)),
                *(f"not read: {one}" for one in rules.unread(commits, lives)),
                *(f"missed: {one}" for one in rules.missed({k: v for k, v in acknowledged.items() if k in keys}, lives)),
                *(f"lost: {one}" for one in rules.lost(acknowledged)),
                *(
                    f"answered otherwise: {one}"
                    for one in rules.answered_otherwise(now, {k: answered.get(tp) for k, tp in keys.items()})
                ),
                *(f"wrong end: {one}" for one in rules.wrong_ends(now, {k: ends[tp[0]][tp[1]] for k, tp in keys.items()})),
                *(f"out of order: {one}" for one in own.out_of_order(read_periods)),
                *(f"begun elsewhere: {one}" for one in own.begun_elsewhere(read_periods, commits)),
                *(f"too late: {one}" for one in own.late_for_its_topic(str(commit.partition) for commit in commits)),
            ]
            found += [f"{group.name}: {one}" for one in broken]
        return found


def _commit(message: Any, group: str) -> Commit | None:
    """Return the commit in a record of ``__consumer_offsets``, or ``None`` if it is not a commit of this group."""
    key, value = decode_record(message.key(), message.value())
    if not isinstance(key, OffsetCommitKey) or not isinstance(value, OffsetCommitValue) or key.group != group:
        return None
    incarnation = Incarnation(key.topic, int(value.metadata.rsplit("/", 1)[1]))
    return Commit(incarnation.key(key.partition), value.offset, value.metadata, value.commit_timestamp)
