"""Members of one ZooKeeper group on the model of ZooKeeper, where a test decides the order of everything.

Owns the members' cores, their connections and the stand-ins for their applications. Must not know what is tested. Invariant:
nothing happens by itself: operations are executed, answers and watches arrive, applications answer and time passes, each by a call.

As with kazoo, answers and watches reach a core by two queues without a common order. An operation that is handed over after the
connection broke, before the core knows, is executed in the next session.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from ottla.client import events
from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import AssignmentReceived, ErrorNotification, GivenUp, RebalanceNeeded
from ottla.client.groups.zookeeper.membership import ZooKeeperMembership
from ottla.client.groups.zookeeper.states import State
from ottla.config import ConsumerConfig
from ottla.errors import ConsumerRebalanceFailedError, KeeperCode, OttlaError, ZooKeeperError
from ottla.simulation.zookeeper import Executed, Fired, ZooKeeperModel
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.operations import Create, GetChildren, GetData, Multi, Operation, SetData
from ottla.zookeeper.session import Perform, Session, SessionReport, WatchType

GROUP = "g"
SESSION = 6_000
POLL_INTERVAL = 20_000
WALL = 1_800_000_000_000


class Member:
    """One member: its core, its connection to ZooKeeper, and its application."""

    def __init__(self, world: World, name: str, **settings: Any) -> None:
        self.world = world
        self.name = f"{GROUP}_{name}"
        config = ConsumerConfig.parse(
            {
                "zookeeper_connect": "zk:2181",
                "group_id": GROUP,
                "consumer_id": name,
                "enable_auto_commit": False,
                "max_poll_interval": POLL_INTERVAL / 1000,
                **settings,
            }
        )
        self.assembly = ConsumerAssembly(config, random.Random(name), SharedState())
        self.core = self.assembly.core
        assert self.core.session is not None
        self.session: Session = self.core.session
        assert isinstance(self.assembly.membership, ZooKeeperMembership)
        self.membership = self.assembly.membership
        self.session_id: int | None = None
        """The session of the connection; ``None``: it is broken."""
        self.last_session: int | None = None
        self.outgoing: deque[Perform] = deque()
        self.answers: deque[SessionReport] = deque()
        self.watches: deque[SessionReport] = deque()
        self.notifications: deque[Any] = deque()
        self.owned: frozenset[TopicPartition] = frozenset()
        """What ``on_assign`` got and was not given up."""
        self.topics: frozenset[str] = frozenset()
        self.errors: list[OttlaError] = []
        self.wake_at: int | None = None

    # -- the network thread -----------------------------------------------------------------------------------------------

    def run_pass(self) -> None:
        """One pass of the network thread."""
        poll = self.core.poll(self.world.now)
        self.outgoing += [effect for effect in poll.effects if isinstance(effect, Perform)]
        self.notifications += self.core.take_notifications()
        self.wake_at = poll.wake_at

    def report(self, apply: Callable[[Session, Now], None]) -> None:
        self.answers.append(SessionReport(apply))

    def take_answer(self) -> None:
        """The next answer, or change of the connection, reaches the core."""
        self.core.handle_command(self.answers.popleft(), self.world.now)

    def take_watch(self) -> None:
        """The next watch that has fired reaches the core."""
        self.core.handle_command(self.watches.popleft(), self.world.now)

    def deliver(self) -> None:
        """ZooKeeper executes all operations; their answers reach the core, then the watches that have fired."""
        while self.outgoing:
            self.execute()
        while self.answers:
            self.take_answer()
        while self.watches:
            self.take_watch()

    # -- the connection ---------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """ZooKeeper executes the next operation."""
        number, operation = self.outgoing.popleft()
        executed = self.world.execute(self, operation)
        if executed.error is not None:
            error = executed.error
            self.report(lambda session, now: session.on_failed(number, error, now))
        else:
            self.report(lambda session, now: session.on_answered(number, executed.result, now))

    def disconnect(self, executed: int) -> None:
        """The connection breaks after ZooKeeper has executed so many operations whose answers are lost."""
        for _ in range(min(executed, len(self.outgoing))):
            number, operation = self.outgoing.popleft()
            self.world.execute(self, operation)
            self._lose(number, operation)
        while self.outgoing:
            self._lose(*self.outgoing.popleft())
        assert self.session_id is not None
        self.world.model.drop_watches(self.session_id)
        self.watches.clear()
        self.session_id = None
        self.report(lambda session, now: session.on_disconnected())

    def _lose(self, number: int, operation: Operation[Any]) -> None:
        error = ZooKeeperError(KeeperCode.CONNECTIONLOSS, operation.path)
        self.report(lambda session, now: session.on_failed(number, error, now))

    def connect(self) -> None:
        """Connect again, with the same session if it is still there."""
        model, now = self.world.model, self.world.now
        if self.last_session is not None and not model.touch(self.last_session, now):
            self.report(lambda session, now: session.on_expired())
            self.last_session = None
        if self.last_session is None:
            self.last_session = model.open(SESSION, now)
        session_id = self.session_id = self.last_session
        self.report(lambda session, now: session.on_connected(session_id, now))

    # -- the application --------------------------------------------------------------------------------------------------

    def command(self, command: object) -> None:
        self.core.handle_command(command, self.world.now)

    def subscribe(self, *topics: str) -> None:
        self.topics = frozenset(topics)
        self.command(events.Subscribe(self.topics))
        self.poll()

    def unsubscribe(self) -> None:
        gone, self.owned, self.topics = self.owned, frozenset(), frozenset()
        self.notifications.clear()
        self.command(events.Unsubscribe("the test", GivenUp(gone)))

    def poll(self) -> None:
        """The application polls: it runs its listeners for what it finds."""
        self.command(events.Polled({}))
        while self.notifications:
            self.handle(self.notifications.popleft())

    def handle(self, item: object) -> None:
        if not self.topics:
            return
        if isinstance(item, RebalanceNeeded):
            # A newer notification in the queue replaces this one, as in the application's Rebalancing.
            if any(isinstance(later, RebalanceNeeded) for later in self.notifications):
                return
            gone = self.owned & item.partitions
            self.owned -= gone
            self.command(events.RebalancePrepared(item.token, GivenUp(gone, item.lost)))
        elif isinstance(item, AssignmentReceived):
            if any(isinstance(later, RebalanceNeeded) for later in self.notifications):
                return
            self.owned |= item.added
            self.command(events.AssignmentAccepted(item.token, item.added, 0))
        elif isinstance(item, ErrorNotification):
            self.errors.append(item.error)

    def commit(self) -> None:
        """Commit the next offset of each owned partition."""
        offsets = {tp: OffsetAndMetadata(self.world.next_offset()) for tp in sorted(self.owned)}
        if offsets:
            self.command(events.Commit(offsets, self.world.now.mono + 5_000))

    @property
    def readable(self) -> frozenset[TopicPartition]:
        """The partitions whose records the application may get now."""
        if not self.session.has_lease(self.world.now):
            return frozenset()
        return frozenset(tp for tp, state in self.assembly.subscription.partitions.items() if state.wanted)

    @property
    def held(self) -> frozenset[TopicPartition]:
        """The partitions whose records the application may be handling: the readable ones, and those that it has not given up yet.

        Others may own them before ``on_lost`` runs if the session has expired, or the application has not polled in time.
        """
        is_fenced = self.membership.state in (State.LOST, State.STALE) or not self.session.has_lease(self.world.now)
        return self.readable | (frozenset() if is_fenced else self.owned)


def fired_report(watch: WatchType, path: str) -> SessionReport:
    """The report of a watch."""
    return SessionReport(lambda session, now: session.on_watch_fired(watch, path))


class World:
    """ZooKeeper, the members, and what must hold at every moment."""

    def __init__(self, topics: dict[str, int], names: str) -> None:
        self.now = Now(1_000, WALL)
        self.model = ZooKeeperModel()
        self._kafka = self.model.open(10**12, self.now)
        self._offset = 0
        self.committed: dict[str, int] = {}
        self.members: list[Member] = []
        for path in ("/brokers", "/brokers/ids", "/brokers/topics"):
            self.write(Create(path))
        self.write(Create("/brokers/ids/1", b'{"host":"h","port":9092}'))
        self.topics: dict[str, int] = {}
        for topic, partitions in topics.items():
            self.resize(topic, partitions)
        self.members = [Member(self, name) for name in names]

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    def write(self, operation: Operation[Any]) -> None:
        """Change a node as Kafka does."""
        executed = self.model.execute(self._kafka, operation, self.now)
        assert executed.error is None, executed.error
        self._fire(executed.fired)

    def resize(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        data = json.dumps({"partitions": {str(number): [1] for number in range(partitions)}}).encode()
        path = f"/brokers/topics/{topic}"
        self.write(SetData(path, data) if topic in self.topics else Create(path, data))
        self.topics[topic] = partitions

    def execute(self, member: Member, operation: Operation[Any]) -> Executed:
        """Execute an operation of a member, and check what it may write."""
        assert member.session_id is not None
        owners = self.owners()
        executed = self.model.execute(member.session_id, operation, self.now)
        if executed.error is None and isinstance(operation, Multi):
            for write in operation.operations:
                if isinstance(write, Create | SetData) and "/offsets/" in write.path:
                    assert owners.get(write.path.replace("/offsets/", "/owners/")) == f"{member.name}-0", "a commit of a non-owner"
                    assert int(write.data) >= self.committed.get(write.path, 0), "an offset went back"
                    self.committed[write.path] = int(write.data)
        self._fire(executed.fired)
        return executed

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass; connected clients are heard by the server."""
        self.now = Now(self.now.mono + milliseconds, self.now.wall + milliseconds)
        for member in self.members:
            if member.session_id is not None:
                self.model.touch(member.session_id, self.now)
        for session_id in self.model.overdue(self.now):
            self._fire(self.model.close(session_id))

    def _fire(self, fired: tuple[Fired, ...]) -> None:
        for session_id, watch, path in fired:
            for member in self.members:
                if member.session_id == session_id:
                    member.watches.append(fired_report(watch, path))

    def children(self, path: str) -> list[str]:

        executed = self.model.execute(self._kafka, GetChildren(path), self.now)
        return [] if executed.error is not None else sorted(executed.result.names)

    def owners(self) -> dict[str, str]:
        """Owner node -> its data."""

        base = f"/consumers/{GROUP}/owners"
        found = {}
        for topic in self.children(base):
            for number in self.children(f"{base}/{topic}"):
                path = f"{base}/{topic}/{number}"
                found[path] = self.model.execute(self._kafka, GetData(path), self.now).result.data.decode()
        return found

    # -- what must hold ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No application may have a partition that its member does not own in ZooKeeper, so no two have the same."""
        for member in self.members:
            for tp in member.held:
                owner = self.model.data(paths.owner(GROUP, tp.topic, tp.partition))
                assert owner == f"{member.name}-0".encode(), f"{member.name} has {tp}, whose owner node is {owner!r}"

    def settle(self) -> None:
        """Connect everything and let all of it happen; then the group must be stable, by 0.8's formula."""
        for _ in range(400):
            for member in self.members:
                if member.session_id is None:
                    member.connect()
                self._run_to_rest(member)
            if self._is_stable():
                return
            self.pass_time(250)
        raise AssertionError([(member.name, member.membership, member.owned, member.errors[-1:]) for member in self.members])

    def _run_to_rest(self, member: Member) -> None:
        for _ in range(200):
            member.run_pass()
            if member.topics:
                member.poll()
            member.notifications.clear()
            self.check()
            if not (member.outgoing or member.answers or member.watches or member.wake_at == self.now.mono):
                member.run_pass()
                if not (member.outgoing or member.notifications):
                    return
            member.deliver()
            self.check()
        raise AssertionError(f"{member.membership} never comes to rest")

    def _is_stable(self) -> bool:
        active = sorted(member.name for member in self.members if member.topics)
        expected: dict[str, str] = {}
        for topic, partitions in self.topics.items():
            readers = sorted(member.name for member in self.members if topic in member.topics)
            size, more = divmod(partitions, max(1, len(readers)))
            for place, name in enumerate(readers):
                first = place * size + min(place, more)
                for number in range(first, first + size + (place < more)):
                    expected[f"/consumers/{GROUP}/owners/{topic}/{number}"] = f"{name}-0"
        claimed = {
            f"/consumers/{GROUP}/owners/{tp.topic}/{tp.partition}": f"{member.name}-0"
            for member in self.members
            for tp in member.owned & member.readable
        }
        return self.children(f"/consumers/{GROUP}/ids") == active and self.owners() == expected == claimed

    def vain_errors(self) -> list[OttlaError]:
        """Errors of members other than that they could not claim their partitions for a while."""
        return [error for member in self.members for error in member.errors if not isinstance(error, ConsumerRebalanceFailedError)]
