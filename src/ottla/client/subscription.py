"""The subscription of a consumer: its topics, its assigned partitions, and the fetch position of each.

Owns the subscription and the fetch positions, on the network thread; the application sees immutable ``Snapshot``s of it. Must
not know how records are fetched, offsets looked up or groups joined. Invariants: a partition is fetched only while it has a
position, is neither paused nor being revoked, and ``on_assign`` has run for it; each time that its position is *set* (not merely
advanced) it gets an epoch that was never used before, so that responses for an older position can be recognized.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.types import ConsumerGroupMetadata, FrozenMapping, Leader, OffsetAndMetadata, TopicPartition

EARLIEST = -2
LATEST = -1
"""The timestamps that mean the first offset and the end in ListOffsets."""


class Ago(NamedTuple):
    """A reset to the first record that is at most so many milliseconds old at the time of the look-up (KIP-1106)."""

    milliseconds: int


Reset = int | Ago
"""The target of a reset: ``EARLIEST``, ``LATEST``, or a time ago."""


class Mode(enum.Enum):
    """How the partitions are assigned. The modes exclude each other."""

    NONE = "none: neither subscribed nor assigned"
    TOPICS = "the group, for the topics subscribed to"
    MANUAL = "the application, with assign()"


class Phase(enum.Enum):
    """The state of a partition's position."""

    INITIALIZING = "the committed position is to be looked up"
    RESETTING = "the first or the last offset is to be looked up"
    FETCHING = "the position is known"
    VALIDATING = "the position is known, but another leader has to confirm that its log still has what was read before it"


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as the application sees it.

    ``position`` is where the epoch began, ``None`` while it is not known; ``fetchable`` whether its records may be delivered.
    ``problem`` is the reason why no records of the partition arrive, until the application changes something. ``since`` is the
    oldest epoch since which the position was only advanced: older than ``epoch`` if the partition was paused meanwhile.
    """

    epoch: int
    position: OffsetAndMetadata | None
    paused: bool
    fetchable: bool
    since: int
    problem: OttlaError | None = None

    def follows(self, epoch: int) -> bool:
        """Whether the records returned in ``epoch`` come right before the position: no seek or reset since."""
        return self.since <= epoch


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The subscription at one moment. With a ``pattern``, ``topics`` are the known topics that it matches.

    ``failure`` is a permanent error of the membership. ``problem`` is why no records will arrive until something changes
    outside: no broker can be reached, or no topic subscribed to exists.
    """

    mode: Mode = Mode.NONE
    topics: frozenset[str] = frozenset()
    partitions: Mapping[TopicPartition, PartitionView] = field(default_factory=lambda: MappingProxyType({}))
    group: ConsumerGroupMetadata | None = None
    failure: OttlaError | None = None
    problem: OttlaError | None = None
    was_connected: bool = False
    """Whether the cluster has answered at least once."""
    pattern: str | None = None
    threads: Mapping[TopicPartition, int] = FrozenMapping()
    """In a ZooKeeper or central group, the number of the consumer thread that owns each partition."""

    @property
    def problems(self) -> dict[TopicPartition, OttlaError]:
        """The problems of partitions."""
        return {tp: view.problem for tp, view in self.partitions.items() if view.problem is not None}


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far the application has come in a partition: offsets, and a monotonic time in ms; ``None``: not known."""

    position: int | None
    end: int | None
    progress_at: int | None
    begin: int | None = None


LEAST_RECORD, LEAST_FETCH = 16, 16 << 10
"""Bytes: of a record, compressed, at the least, as a first guess; and what a fetch asks for at the least, as producers fill batches
of so many by default: only of the first partition in a response, a broker sends a batch that is larger than the limit."""


class RangeSizes(NamedTuple):
    """A range that was read to its end: the bytes fetched for it, those of a record, and those of its largest batch."""

    fetched: int
    record: float
    batch: int


class FetchEnd:
    """The offset at which fetching ends, and the bytes that were fetched before it.

    A fetch brings up to as many bytes as it asks for, also from behind the end. So each one asks for what the rest seems to have,
    and for no more than all earlier ones together have brought: at most twice the bytes of the range are fetched, and a batch.

    A range of 500 records would need four such fetches, 40 ms of a micro-batch. So the first one asks for what the range ``before``
    in this topic suggests, and for no more than was fetched for that range.
    """

    __slots__ = ("_batch", "_before", "_fetched", "_offsets", "_start", "offset")

    def __init__(self, start: int, offset: int, before: RangeSizes | None = None) -> None:
        self.offset = offset
        self._start = start
        self._before = before
        self._fetched = self._offsets = 0
        self._batch = LEAST_FETCH

    def __repr__(self) -> str:
        return f"<FetchEnd {self.offset}, {self._fetched} bytes so far>"

    def fetched(self, size: int, batch: int, offsets: int) -> None:
        """Count the bytes of a response, and the ``offsets`` in it. From now on at least the bytes of its last ``batch`` are asked
        for."""
        self._fetched += size
        self._offsets += offsets
        self._batch = max(self._batch, batch)

    def limit(self, position: int) -> int:
        """The bytes to ask for at a position."""
        left, read = self.offset - position, position - self._start
        rest = 0
        if read > 0:
            rest = min(self._fetched * left // read + 1, self._fetched)
        elif self._before is not None:
            rest = min(_with_whole_batches(int(self._before.record * left), self._before.batch), self._before.fetched)
        return max(self._batch, LEAST_RECORD * left, rest)

    def sizes(self) -> RangeSizes:
        """What was learnt about the records, once some were fetched."""
        return RangeSizes(self._fetched, self._fetched / max(1, self._offsets), self._batch)


def _with_whole_batches(size: int, batch: int) -> int:
    """Add the rest of the first batch and of the last one, unless a range of this size is a part of one."""
    return size + 2 * batch if batch <= size else size


class PartitionState:
    """An assigned partition, on the network thread."""

    __slots__ = (
        "awaiting_acceptance",
        "end",
        "epoch",
        "fetch",
        "leader",
        "leader_epoch",
        "paused",
        "phase",
        "position",
        "problem",
        "reset_to",
        "retry_at",
        "revoking",
        "since",
        "topic_id",
        "unwanted",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.since = epoch
        """The oldest epoch since which the position was neither sought nor looked up."""
        self.phase = Phase.INITIALIZING
        self.position: OffsetAndMetadata | None = None
        """Where the epoch began."""
        self.fetch = -1
        """The next offset to fetch, ahead of the consumed position."""
        self.end: FetchEnd | None = None
        """Where fetching ends, if it does."""
        self.leader_epoch: int | None = None
        """The leader epoch of the batch before ``fetch``; ``None``: not known."""
        self.leader: Leader | None = None
        """The leader that has confirmed the position."""
        self.topic_id: uuid.UUID | None = None
        """The id of the topic in which the position was looked up or read, since a topic of the same name may succeed it.

        ``None`` after a seek, until records arrive: the metadata may be older than the offset that the application names.
        """
        self.reset_to: Reset = LATEST
        self.retry_at = 0
        self.problem: OttlaError | None = None
        self.paused = False
        self.revoking = False
        self.unwanted = False
        """Whether its topic is not subscribed to any more."""
        self.awaiting_acceptance = False

    @property
    def wanted(self) -> bool:
        """Whether its records may be delivered."""
        return not (self.paused or self.revoking or self.unwanted or self.awaiting_acceptance)

    @property
    def fetchable(self) -> bool:
        """Whether a fetch may include it."""
        return self.phase is Phase.FETCHING and self.wanted

    def view(self) -> PartitionView:
        """The partition as the application sees it."""
        deliverable = self.wanted and self.phase in (Phase.FETCHING, Phase.VALIDATING)
        return PartitionView(self.epoch, self.position, self.paused, deliverable, self.since, self.problem)


class SubscriptionState:
    """See the module. ``reset_to``: the position of a partition without a committed offset; ``None``: that is an error."""

    def __init__(self, reset_to: Reset | None) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: str | None = None
        """The pattern of a subscription by pattern."""
        self.is_black_list = False
        """Whether the subscription is to the topics that the pattern does not match."""
        self.streams: Mapping[str, int] = FrozenMapping()
        """The number of streams of each topic, or of the pattern, where it is not one. Only ZooKeeper and central groups use it."""
        self.threads: Mapping[TopicPartition, int] = FrozenMapping()
        """The consumer thread of each partition, in a ZooKeeper or central group."""
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.reset_to = reset_to
        self.version = 0
        """Grows with every change that the application can see."""
        self._paused_before: frozenset[TopicPartition] = frozenset()
        """Partitions that were paused when a rebalance revoked them: paused again if the next assignment contains them."""
        self._range_sizes: dict[str, RangeSizes] = {}
        """The last range of each topic that was read to its end."""
        self._last_epoch = 0
        self._phases: dict[Phase, tuple[tuple[TopicPartition, PartitionState], ...]] = {}
        self._phases_of = -1
        """The version for which ``_phases`` was computed."""

    def __repr__(self) -> str:
        return f"<SubscriptionState {self.mode.name} {sorted(self.topics)} {len(self.partitions)} partitions>"

    # -- what is read -----------------------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], pattern: str | None = None) -> None:
        """Subscribe to these topics; with a ``pattern`` they are the known topics that it matches, perhaps none yet.

        Partitions of other topics are not read any more; the next rebalance revokes them.
        """
        self.mode, self.topics, self.pattern = Mode.TOPICS, topics, pattern
        for tp, state in self.partitions.items():
            state.unwanted = tp.topic not in topics and (pattern is None or bool(topics))
        self._changed()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Those that were assigned before keep their positions."""
        self.mode = Mode.MANUAL
        self.topics, self.pattern = frozenset(tp.topic for tp in partitions), None
        self.set_partitions(partitions)

    def unsubscribe(self) -> None:
        """Remove all topics and partitions."""
        self.mode, self.topics, self.pattern = Mode.NONE, frozenset(), None
        self.partitions.clear()
        self._paused_before = frozenset()
        self._changed()

    def set_partitions(self, partitions: Iterable[TopicPartition], *, await_acceptance: bool = False) -> frozenset[TopicPartition]:
        """Assign exactly these partitions; return the new ones. With ``await_acceptance`` these are not fetched before
        ``accept``."""
        held = self.partitions
        self.partitions = {tp: held.get(tp) or PartitionState(self._next_epoch()) for tp in sorted(partitions)}
        added = frozenset(self.partitions.keys() - held.keys())
        for tp, state in self.partitions.items():
            state.revoking = False
            if tp in added:
                state.awaiting_acceptance, state.paused = await_acceptance, tp in self._paused_before
        if await_acceptance:
            self._paused_before = frozenset()
        elif self.mode is Mode.TOPICS:
            # An eager group revokes all partitions before a new assignment; those that it contains again stay paused.
            self._paused_before |= {tp for tp, state in held.items() if state.paused and tp not in self.partitions}
        self._changed()
        return added

    def accept(self) -> None:
        """Fetch the new partitions: ``on_assign`` has run."""
        for state in self.partitions.values():
            state.awaiting_acceptance = False
        self._changed()

    def suspend(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Stop fetching and delivering these partitions, or all: they are being revoked.

        Only the next assignment ends that: it removes partitions, or lets them be read on.
        """
        for tp in self.partitions if partitions is None else partitions:
            state = self.partitions.get(tp)
            if state is not None:
                state.revoking = True
        self._changed()

    # -- positions --------------------------------------------------------------------------------------------------------

    def seek(self, positions: Mapping[TopicPartition, OffsetAndMetadata], ends: Mapping[TopicPartition, int] | None = None) -> None:
        """Set these positions, and the ``ends`` of reading. Partitions that are not assigned any more are ignored."""
        for tp, position in positions.items():
            state = self.partitions.get(tp)
            if state is not None:
                self._set_position(state, position)
                if ends is not None and tp in ends:
                    state.end = FetchEnd(position.offset, ends[tp], self._range_sizes.get(tp.topic))
        self._changed()

    def read_to_end(self, topic: str, end: FetchEnd) -> None:
        """Remember what a range had, for the next ones in this topic."""
        self._range_sizes[topic] = end.sizes()

    def reset(self, partitions: Iterable[TopicPartition], to: Reset) -> None:
        """Have the first offset, the end, or the offset of a time looked up, and continue from there."""
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is not None:
                self._renew(state)
                state.phase, state.reset_to, state.position = Phase.RESETTING, to, None
        self._changed()

    def pause(
        self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]
    ) -> None:
        """Stop fetching these partitions, and return to the consumed ``positions``, each with its epoch.

        A position is ignored if a seek, of another task or of the validation, came after its epoch.
        """
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is None or state.paused:
                continue
            state.paused = True
            self._rewind(state, *positions.get(tp, (-1, None)))
        self._changed()

    def rewind(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        """Return to the consumed ``positions``, each with its epoch. One from before a seek is ignored."""
        for tp, (epoch, position) in positions.items():
            state = self.partitions.get(tp)
            if state is not None:
                self._rewind(state, epoch, position)
        self._changed()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is not None:
                state.paused = False
        self._changed()

    def found(self, tp: TopicPartition, epoch: int, position: OffsetAndMetadata, topic_id: uuid.UUID | None) -> bool:
        """Set a position that was looked up in a topic. Return False, without a change, if no look-up is pending any more."""
        state = self.current(tp, epoch)
        if state is None or state.phase not in (Phase.INITIALIZING, Phase.RESETTING):
            return False
        self._set_position(state, position)
        state.topic_id = topic_id
        self._changed()
        return True

    def not_committed(self, tp: TopicPartition, epoch: int, error: OttlaError) -> None:
        """Reset a partition without a committed offset as configured, or set its problem."""
        state = self.current(tp, epoch)
        if state is None or state.phase is not Phase.INITIALIZING:
            return
        if self.reset_to is None:
            state.problem = error
        else:
            state.phase, state.reset_to = Phase.RESETTING, self.reset_to
        self._changed()

    def advance(self, tp: TopicPartition, epoch: int, offset: int, leader_epoch: int | None = None) -> None:
        """Advance the fetch position to ``offset``, after records of ``leader_epoch``. The application does not see this."""
        state = self.current(tp, epoch)
        if state is not None:
            state.fetch, state.leader_epoch = offset, leader_epoch

    def validate(self, tp: TopicPartition, leader: Leader | None) -> None:
        """Stop fetching until a new leader has confirmed the position. Fetched records are still delivered."""
        state = self.partitions[tp]
        state.phase, state.leader, state.retry_at = Phase.VALIDATING, leader, 0
        self._changed()

    def confirm(self, tp: TopicPartition, leader: Leader) -> None:
        """Continue fetching: this leader has confirmed the position."""
        state = self.partitions[tp]
        state.leader = leader
        if state.phase is Phase.VALIDATING:
            state.phase, state.retry_at = Phase.FETCHING, 0
            self._changed()

    def drop_leader_epoch(self, tp: TopicPartition, above: int) -> None:
        """Drop the leader epoch of a position, since it is above the cluster's, so no leader can confirm it.

        Later commits of the position have no epoch either.
        """
        state = self.partitions[tp]
        state.leader_epoch = None
        if state.position is not None and (state.position.leader_epoch or 0) > above:
            state.position = state.position._replace(leader_epoch=None)
            self._changed()

    def set_problem(self, tp: TopicPartition, epoch: int, problem: OttlaError | None) -> None:
        """Set or clear the problem of a partition."""
        state = self.current(tp, epoch)
        if state is not None and (type(state.problem), str(state.problem)) != (type(problem), str(problem)):
            state.problem = problem
            self._changed()

    # -- queries ----------------------------------------------------------------------------------------------------------

    def current(self, tp: TopicPartition, epoch: int) -> PartitionState | None:
        """Return the state of a partition, if its epoch is still this one."""
        state = self.partitions.get(tp)
        return state if state is not None and state.epoch == epoch else None

    def topic_id(self, tp: TopicPartition) -> uuid.UUID | None:
        """Return the id of the topic in which a partition is read, if it is known."""
        state = self.partitions.get(tp)
        return None if state is None else state.topic_id

    def in_phase(self, phase: Phase) -> tuple[tuple[TopicPartition, PartitionState], ...]:
        """Return the partitions in one phase, in order. Computed only after a change, since every pass calls this."""
        if self._phases_of != self.version:
            by_phase: dict[Phase, list[tuple[TopicPartition, PartitionState]]] = {}
            for tp, state in self.partitions.items():
                by_phase.setdefault(state.phase, []).append((tp, state))
            self._phases = {of: tuple(items) for of, items in by_phase.items()}
            self._phases_of = self.version
        return self._phases.get(phase, ())

    def views(self) -> Mapping[TopicPartition, PartitionView]:
        """The partitions as the application sees them."""
        return MappingProxyType({tp: state.view() for tp, state in self.partitions.items()})

    def _set_position(self, state: PartitionState, position: OffsetAndMetadata | None) -> None:
        assert position is not None
        self._renew(state)
        state.phase, state.position = Phase.FETCHING, position
        state.fetch, state.leader_epoch = position.offset, position.leader_epoch
        state.leader = state.topic_id = None

    def _rewind(self, state: PartitionState, epoch: int, position: OffsetAndMetadata | None) -> None:
        """Move a position back within the fetched records, so that it keeps its topic and leader."""
        if state.phase in (Phase.FETCHING, Phase.VALIDATING):
            known = (state.leader if state.phase is Phase.FETCHING else None), state.topic_id, state.since
            # After another pause or rewind the epoch is newer, but ``position`` is still in the same run of records.
            self._set_position(state, position if state.since <= epoch else state.position)
            state.leader, state.topic_id, state.since = known

    def _renew(self, state: PartitionState) -> None:
        state.epoch = state.since = self._next_epoch()
        state.problem, state.retry_at, state.end = None, 0, None

    def _next_epoch(self) -> int:
        self._last_epoch += 1
        return self._last_epoch

    def _changed(self) -> None:
        self.version += 1
