"""The judge of a run: what has to hold at any time, whatever goes wrong, and what has to hold in the end.

Owns the invariants, and what was handled and committed. Must not know faults or workloads. Invariant: it only looks; a broken
invariant raises ``BrokenInvariant``, with the facts that contradict it.

- Records of a partition are returned in order, without a gap or a repetition, and only to an owner; in a ZooKeeper group its node
  exists at that moment.
- A partition has one owner: no member gets it while another one may still read it. A static member that misses a join phase of a
  classic group is an exception: it stays in the group, and its partitions may be given away (KIP-345).
- Committed offsets never pass a record that was not handled, and never go back, with two exceptions, which are counted. In a
  ZooKeeper group brokers do not know the members, so a former owner can still commit to Kafka. And a request that was under way for
  so long that its member gave it up, and committed more over another connection, may arrive after all, as with any Kafka client.
- A commit in ZooKeeper is that of the owner.
- In a central group a record is returned only to the member that ZooKeeper names as the owner, and its operations obey the rules in
  ``central_rules``.
- The coordinator's groups obey their own rules (``group_rules``).
- Each call of a listener fits the earlier ones: assigned, then revoked or lost.
- In the end each record was handled at least once, all is committed, and the members share the partitions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any

from ottla.client.groups.central.states import HOLDING
from ottla.client.groups.zookeeper.states import State
from ottla.coordinator.classic.group import ClassicGroup
from ottla.errors import OttlaError
from ottla.protocol.apis import Api
from ottla.records import Record
from ottla.simulation.application import App
from ottla.simulation.broker import Asked, Exchange, Sender
from ottla.simulation.central_rules import CentralRules
from ottla.simulation.group_rules import GroupRules
from ottla.simulation.requests import offsets_in
from ottla.simulation.world import World
from ottla.simulation.zookeeper import Executed
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import decode_offset
from ottla.zookeeper.operations import Create, Multi, Operation, SetData

GROUP = "g"

_OFFSETS = paths.offsets(GROUP) + "/"


class BrokenInvariant(Exception):
    """What has to hold did not."""


class Store(enum.Enum):
    """Where a group keeps its offsets."""

    KAFKA = "Kafka"
    ZOOKEEPER = "ZooKeeper"


class Progress:
    """Which records of one partition were handled."""

    def __init__(self) -> None:
        self.committed: dict[Store, int] = {}
        self.next = 0
        """All records below were handled."""
        self._beyond: set[int] = set()

    def handle(self, offset: int) -> None:
        """Note that a record was handled."""
        self._beyond.add(offset)
        while self.next in self._beyond:
            self._beyond.remove(self.next)
            self.next += 1


class Judge:
    """See the module. All members are in one group."""

    def __init__(self, world: World, stores: frozenset[Store], *, is_fenced: bool, is_central: bool = False) -> None:
        """``is_fenced``: whether brokers refuse the commits of former owners. ``is_central``: whether it is a central group."""
        self.stores = stores
        self.is_fenced = is_fenced
        self.set_back = 0
        """The number of commits with which an offset went back, of those that may."""
        self.progress: dict[TopicPartition, Progress] = {}
        self.commits = 0
        """The number of times that a committed offset of a partition has changed."""
        self._world = world
        self._held: dict[str, set[TopicPartition]] = {}
        """Member -> the partitions that the calls of its listeners add up to."""
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        """Member and partition -> the offset of the next record."""
        self._rules = GroupRules()
        self._committed_by: dict[TopicPartition, str] = {}
        """The member that has committed last."""
        self._central: CentralRules | None = None
        """The rules of a central group, if it is one."""
        self._asked: list[tuple[Asked, dict[TopicPartition, int]]] = []
        """The commits to the central coordinator."""
        if is_central:
            assert world.brokers is not None
            self._central = CentralRules(GROUP, world.zookeeper.model)
            world.brokers.push_observers.append(self._on_push)
            world.brokers.request_observers.append(self._on_request)
            world.broker.observers.append(self._on_exchange)
        else:
            world.broker.turn_observers.append(self._on_turn)
        world.zookeeper.observers.append(self._on_operation)

    # -- members ----------------------------------------------------------------------------------------------------------

    def assigned(self, app: App, partitions: Iterable[TopicPartition]) -> None:
        """A member gets partitions, in ``on_assign``."""
        held = self._held.setdefault(app.name, set())
        # One that learns of its assignment only now may have lost it by then: the next call of a listener says so.
        others = [other for other in self._world.apps.values() if other is not app] if self._may_read(app) else []
        for tp in partitions:
            if tp in held:
                raise BrokenInvariant(f"{tp} was assigned to {app.name} twice")
            held.add(tp)
            self._positions.pop((app.name, tp), None)
            for other in others:
                if tp in other.calls.owned and self._may_read(other):
                    raise BrokenInvariant(f"{tp} has two owners: {app.name} gets it, and {other.name} has not given it up")

    def given_up(self, app: App, partitions: Iterable[TopicPartition]) -> None:
        """A member gives up partitions, in ``on_revoke`` or ``on_lost``."""
        held = self._held.setdefault(app.name, set())
        for tp in partitions:
            if tp not in held:
                raise BrokenInvariant(f"{tp} was revoked from {app.name}, to which it was not assigned")
            held.remove(tp)

    def returned(self, app: App, records: Iterable[Record]) -> None:
        """A poll has returned records."""
        session = app.assembly.core.session
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            if tp not in app.calls.owned:
                raise BrokenInvariant(f"{app.name} was given a record of {tp}, which it does not own")
            if session is not None and session.session_id not in self._world.zookeeper.ended_early:
                owner = self._world.zookeeper.model.owner(paths.owner(GROUP, *tp))
                if owner != session.session_id:
                    raise BrokenInvariant(
                        f"{app.name}, session {session.session_id}, was given a record of {tp}, owned by session {owner}"
                    )
            if self._central is not None and self._central.owners.get(tp) != app.membership.member_id:
                theirs = self._central.owners.get(tp)
                raise BrokenInvariant(f"{app.name}, {app.membership.member_id}, was given a record of {tp}, owned by {theirs}")
            expected = self._positions.get((app.name, tp), record.offset)
            if record.offset != expected:
                raise BrokenInvariant(f"{app.name} was given offset {record.offset} of {tp} instead of {expected}")
            self._positions[app.name, tp] = record.offset + 1

    def handled(self, records: Iterable[Record]) -> None:
        """A member is done with records."""
        for record in records:
            self._of(TopicPartition(record.topic, record.partition)).handle(record.offset)

    def failed(self, app: App, error: OttlaError) -> None:
        """A call has raised. An exception of another class in the core is a bug, and arrives as a plain ``OttlaError``."""
        if type(error) is OttlaError:
            raise BrokenInvariant(f"{app.name}: {error}") from error

    def _may_read(self, app: App) -> bool:
        """Whether a member that has not given up its partitions may still read them."""
        if not app.alive or app.has_ended:
            return False
        session = app.assembly.core.session
        if session is not None:
            # One that has to run on_lost gets no records before that. A session that an operator ends has no lease to rely on.
            must_lose = app.membership.state in (State.STALE, State.LOST)
            ended = session.session_id in self._world.zookeeper.ended_early
            return session.has_lease(self._world.now) and not must_lose and not ended
        if self._central is not None:
            return bool(self._world.now.mono < app.membership.lease_until) and app.membership.state in HOLDING
        group, own = self._rules.group, app.membership.metadata()
        if group is None or own.member_id not in group.members:
            return False
        is_late = isinstance(group, ClassicGroup) and own.generation_id != group.generation
        return not is_late or own.group_instance_id is None

    # -- commits ----------------------------------------------------------------------------------------------------------

    def _on_turn(self, sender: Sender | None) -> None:
        """Look at what the coordinator has stored, whether its response arrives or not."""
        state = self._world.broker.state_of(GROUP)
        if state is None:
            return
        group, offsets = state
        problem = self._rules.look(group)
        if problem is not None:
            raise BrokenInvariant(
                f"the coordinator's group, after a request of {'no client' if sender is None else sender.name}: {problem}"
            )
        for tp, progress in self.progress.items():
            if Store.KAFKA in progress.committed and tp not in offsets:
                raise BrokenInvariant(f"the committed offset of {tp} has disappeared")
        for tp, value in offsets.items():
            if self._of(tp).committed.get(Store.KAFKA) != value.offset:
                who, before = "an unknown sender" if sender is None else sender.name, self._committed_by.get(tp)
                own = sender is not None and sender.has_given_up and who == before
                self._commit(Store.KAFKA, tp, value.offset, who, may_go_back=own or not self.is_fenced)
                if not own:
                    self._committed_by[tp] = who

    def _on_operation(self, session_id: int, operation: Operation[object], executed: Executed) -> None:
        if executed.error is not None:
            return
        if self._central is not None:
            self._check_central(self._central.on_operation(session_id, operation))
            for tp, progress in self.progress.items():
                if progress.committed and self._world.zookeeper.model.data(paths.offset(GROUP, *tp)) is None:
                    raise BrokenInvariant(f"session {session_id} has deleted the committed offset of {tp}")
        for tp, write in offset_writes(operation):
            owner = self._world.zookeeper.model.owner(paths.owner(GROUP, *tp))
            if self._central is None and owner != session_id:
                raise BrokenInvariant(f"session {session_id} has committed {tp}, whose owner is session {owner}")
            offset = decode_offset(write.data, write.path)
            self._commit(Store.ZOOKEEPER, tp, offset, f"session {session_id}", may_go_back=self._is_given_up(tp, offset))

    def _on_request(self, asked: Asked) -> None:
        if asked.api is Api.OFFSET_COMMIT:
            self._asked.append((asked, dict(offsets_in(asked.request, self._world.broker.topic_name))))

    def _is_given_up(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the member has given up a commit to the central coordinator that had this offset."""
        return any(offsets.get(tp) == offset and asked.is_given_up for asked, offsets in self._asked)

    def _on_push(self, api: Api, message: Any) -> None:
        assert self._central is not None
        self._check_central(self._central.on_push(api, message))

    def _on_exchange(self, exchange: Exchange) -> None:
        assert self._central is not None
        if exchange.api is Api.OFFSET_COMMIT:
            name_of = self._world.broker.topic_name
            self._check_central(self._central.on_commit(exchange.request, exchange.response, name_of))

    def _check_central(self, problem: str | None) -> None:
        if problem is not None:
            raise BrokenInvariant(f"the central group: {problem}")

    def _commit(self, store: Store, tp: TopicPartition, offset: int, who: str, *, may_go_back: bool = False) -> None:
        progress = self._of(tp)
        self.commits += 1
        before = progress.committed.get(store, 0)
        if offset < before and not may_go_back:
            raise BrokenInvariant(f"{who} has committed offset {offset} of {tp}, after {before}")
        self.set_back += offset < before
        if offset > progress.next:
            raise BrokenInvariant(f"{who} has committed offset {offset} of {tp}, but {progress.next} was not handled")
        progress.committed[store] = offset

    # -- the end ----------------------------------------------------------------------------------------------------------

    def open_points(self) -> Iterator[str]:
        """What is left to do before the run may end; nothing, in the end."""
        world = self._world
        running = [app for app in world.apps.values() if app.alive and app.running]
        for app in running:
            if app.membership.state.name != "STABLE":
                yield f"{app.name} is {app.membership.state.name}"
        owned = [tp for app in running for tp in app.calls.owned]
        for tp, count in world.produced.items():
            if owned.count(tp) != 1:
                yield f"{tp} has {owned.count(tp)} owners"
            progress = self._of(tp)
            if progress.next < count:
                yield f"offset {progress.next} of {tp} was not handled"
            for store in self.stores:
                if progress.committed.get(store, 0) < count:
                    yield f"offset {progress.committed.get(store, 0)} of {tp} is committed in {store.value}, not {count}"

    def check_stored(self) -> None:
        """Check that what was committed is stored."""
        world = self._world
        for store in self.stores:
            read = world.committed_in_zookeeper if store is Store.ZOOKEEPER else world.committed
            for tp in world.produced:
                stored, committed = (
                    read(GROUP, tp.topic, tp.partition + 1).get(tp.partition, 0),
                    self._of(tp).committed.get(store, 0),
                )
                if stored != committed:
                    raise BrokenInvariant(f"offset {committed} of {tp} was committed, but {store.value} has {stored}")

    def _of(self, tp: TopicPartition) -> Progress:
        return self.progress.setdefault(tp, Progress())


def offset_writes(operation: Operation[object]) -> Iterator[tuple[TopicPartition, Create | SetData]]:
    """The parts of an operation in ZooKeeper that commit an offset, and the partition of each."""
    for write in operation.operations if isinstance(operation, Multi) else (operation,):
        if isinstance(write, Create | SetData) and write.path.startswith(_OFFSETS) and write.data:
            topic, _, partition = write.path.removeprefix(_OFFSETS).rpartition("/")
            yield TopicPartition(topic, int(partition)), write
