"""What is read and from where: topics wanted, partitions held, and the position that each is fetched from.

Owns the subscription and the fetch positions, for the network thread; the application sees immutable ``Snapshot``s of it. Must
not know how anything is fetched, looked up or joined. Invariants: a partition is fetched only while it has a position, is not
paused, is not about to be revoked and ``on_assign`` has run for it; each time that its position is *set* (not merely advanced) it
gets an epoch that was never used before, so requests for an older position can be distinguished from current ones.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.types import ConsumerGroupMetadata, Leader, OffsetAndMetadata, TopicPartition

EARLIEST = -2
LATEST = -1
"""Timestamps that ask ListOffsets for the first offset and for the end."""


class Ago(NamedTuple):
    """Where to begin: with what is not older than so many milliseconds, when it is looked up (KIP-1106)."""

    milliseconds: int


Reset = int | Ago
"""Where a reset leads to: ``EARLIEST``, ``LATEST``, or some time ago."""


class Mode(enum.Enum):
    """How the partitions are chosen. The three do not mix."""

    NONE = "none: neither subscribed nor assigned"
    TOPICS = "the group, for the topics subscribed to"
    MANUAL = "the application, with assign()"


class Phase(enum.Enum):
    """How far a partition is on its way to a position."""

    INITIALIZING = "the committed position is to be looked up"
    RESETTING = "the first or the last offset is to be looked up"
    FETCHING = "the position is known"
    VALIDATING = "the position is known, but another leader has to confirm that its log still has what was read before it"


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as the application sees it.

    ``position`` is where the epoch began, ``None`` while it is not known; ``fetchable`` whether its records may be handed out.
    ``problem`` is why nothing comes of the partition and nothing will until the application does something about it. ``since`` is
    the oldest epoch from whose records the position has come without a jump: an older one than ``epoch`` if the partition was only
    paused.
    """

    epoch: int
    position: OffsetAndMetadata | None
    paused: bool
    fetchable: bool
    since: int
    problem: OttlaError | None = None

    def follows(self, epoch: int) -> bool:
        """Whether what was handed out in an epoch comes right before the position."""
        return self.since <= epoch


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The subscription at one moment. With a ``pattern``, ``topics`` are those that it is known to match.

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

    @property
    def problems(self) -> dict[TopicPartition, OttlaError]:
        """What keeps partitions from being read."""
        return {tp: view.problem for tp, view in self.partitions.items() if view.problem is not None}


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far the application has come in a partition: offsets, and a monotonic time in ms; ``None``: not known."""

    position: int | None
    end: int | None
    progress_at: int | None
    begin: int | None = None


class PartitionState:
    """One partition as the network thread holds it."""

    __slots__ = (
        "awaiting_acceptance",
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
        """The oldest epoch from which no position was sought or looked up again."""
        self.phase = Phase.INITIALIZING
        self.position: OffsetAndMetadata | None = None
        """Where the epoch began."""
        self.fetch = -1
        """The next offset to ask a broker for: ahead of what the application has consumed."""
        self.leader_epoch: int | None = None
        """The epoch of the batch before ``fetch``, as far as it is known."""
        self.leader: Leader | None = None
        """Whose log the position is known to fit."""
        self.topic_id: uuid.UUID | None = None
        """The topic that the position was found in or has been read in: one of the same name may come after it. None: what a
        seek has named, and nothing came from there yet. What is known of the cluster then may be older than what was named."""
        self.reset_to: Reset = LATEST
        self.retry_at = 0
        self.problem: OttlaError | None = None
        self.paused = False
        self.revoking = False
        self.unwanted = False
        """Its topic is not subscribed to any more."""
        self.awaiting_acceptance = False

    @property
    def wanted(self) -> bool:
        """Whether its records may be handed out."""
        return not (self.paused or self.revoking or self.unwanted or self.awaiting_acceptance)

    @property
    def fetchable(self) -> bool:
        """Whether a fetch may include it."""
        return self.phase is Phase.FETCHING and self.wanted

    def view(self) -> PartitionView:
        """What the application is to see."""
        deliverable = self.wanted and self.phase in (Phase.FETCHING, Phase.VALIDATING)
        return PartitionView(self.epoch, self.position, self.paused, deliverable, self.since, self.problem)


class Subscription:
    """See the module. ``reset_to`` is what becomes of a partition without a committed position; ``None``: an error does."""

    def __init__(self, reset_to: Reset | None) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: str | None = None
        """What the topics were, or are to be, found by, in place of names."""
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.reset_to = reset_to
        self.version = 0
        """Grows with every change that an application can see."""
        self._paused_before: frozenset[TopicPartition] = frozenset()
        """What was paused when all was given up for a rebalance: paused again if the next assignment gives it back."""
        self._last_epoch = 0
        self._phases: dict[Phase, tuple[tuple[TopicPartition, PartitionState], ...]] = {}
        self._phases_of = -1
        """The version that ``_phases`` was made of."""

    def __repr__(self) -> str:
        return f"<Subscription {self.mode.name} {sorted(self.topics)} {len(self.partitions)} partitions>"

    # -- what is read -----------------------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], pattern: str | None = None) -> None:
        """Let the group choose partitions of these topics; with a ``pattern`` they are those that it is known to match by now.

        Those of other topics are read no more, and go with the next rebalance; what a pattern matches may not be known at all yet.
        """
        self.mode, self.topics, self.pattern = Mode.TOPICS, topics, pattern
        for tp, state in self.partitions.items():
            state.unwanted = tp.topic not in topics and (pattern is None or bool(topics))
        self._changed()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these; what was read before and still is keeps its position."""
        self.mode = Mode.MANUAL
        self.topics, self.pattern = frozenset(tp.topic for tp in partitions), None
        self.set_partitions(partitions)

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.mode, self.topics, self.pattern = Mode.NONE, frozenset(), None
        self.partitions.clear()
        self._paused_before = frozenset()
        self._changed()

    def set_partitions(self, partitions: Iterable[TopicPartition], *, await_acceptance: bool = False) -> frozenset[TopicPartition]:
        """Hold exactly these and return those that are new; with ``await_acceptance`` the new ones are not fetched before
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
            # All is given up before a new assignment: what comes back with that was not taken away.
            self._paused_before |= {tp for tp, state in held.items() if state.paused and tp not in self.partitions}
        self._changed()
        return added

    def accept(self) -> None:
        """``on_assign`` has run: fetch what was assigned."""
        for state in self.partitions.values():
            state.awaiting_acceptance = False
        self._changed()

    def suspend(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """These, or all, are about to be revoked: fetch and hand out nothing more of them.

        There is no way back but an assignment that does without them. Those that stay are read on.
        """
        for tp in self.partitions if partitions is None else partitions:
            state = self.partitions.get(tp)
            if state is not None:
                state.revoking = True
        self._changed()

    # -- positions --------------------------------------------------------------------------------------------------------

    def seek(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Go on from these positions. Partitions that are not held any more are passed over."""
        for tp, position in positions.items():
            state = self.partitions.get(tp)
            if state is not None:
                self._set_position(state, position)
        self._changed()

    def reset(self, partitions: Iterable[TopicPartition], to: Reset) -> None:
        """Look up the first or the last offset, or that of a time, and go on from there."""
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is not None:
                self._renew(state)
                state.phase, state.reset_to, state.position = Phase.RESETTING, to, None
        self._changed()

    def pause(
        self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]
    ) -> None:
        """Fetch these no more and forget what was fetched beyond ``positions``, each with its epoch.

        One of an older epoch does not count: a seek of another task, or of the validation, has overtaken it.
        """
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is None or state.paused:
                continue
            state.paused = True
            self._rewind(state, *positions.get(tp, (-1, None)))
        self._changed()

    def rewind(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        """Forget what was fetched beyond ``positions``, each with its epoch; one of an older epoch does not count."""
        for tp, (epoch, position) in positions.items():
            state = self.partitions.get(tp)
            if state is not None:
                self._rewind(state, epoch, position)
        self._changed()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these again."""
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is not None:
                state.paused = False
        self._changed()

    def found(self, tp: TopicPartition, epoch: int, position: OffsetAndMetadata, topic_id: uuid.UUID | None) -> bool:
        """A look-up gave a position in a topic. False, and nothing happens, where that is not what is wanted any more."""
        state = self.current(tp, epoch)
        if state is None or state.phase not in (Phase.INITIALIZING, Phase.RESETTING):
            return False
        self._set_position(state, position)
        state.topic_id = topic_id
        self._changed()
        return True

    def not_committed(self, tp: TopicPartition, epoch: int, error: OttlaError) -> None:
        """Nothing is committed: reset as configured, or leave it as a problem."""
        state = self.current(tp, epoch)
        if state is None or state.phase is not Phase.INITIALIZING:
            return
        if self.reset_to is None:
            state.problem = error
        else:
            state.phase, state.reset_to = Phase.RESETTING, self.reset_to
        self._changed()

    def advance(self, tp: TopicPartition, epoch: int, offset: int, leader_epoch: int | None = None) -> None:
        """Records up to ``offset`` are fetched, the last of ``leader_epoch``: ask from there on. No matter to the application."""
        state = self.current(tp, epoch)
        if state is not None:
            state.fetch, state.leader_epoch = offset, leader_epoch

    def validate(self, tp: TopicPartition, leader: Leader | None) -> None:
        """Another leader: fetch nothing more before it has confirmed the position. What was fetched is still handed out."""
        state = self.partitions[tp]
        state.phase, state.leader, state.retry_at = Phase.VALIDATING, leader, 0
        self._changed()

    def confirm(self, tp: TopicPartition, leader: Leader) -> None:
        """The position fits the log of this leader: fetch on."""
        state = self.partitions[tp]
        state.leader = leader
        if state.phase is Phase.VALIDATING:
            state.phase, state.retry_at = Phase.FETCHING, 0
            self._changed()

    def drop_leader_epoch(self, tp: TopicPartition, above: int) -> None:
        """The position of a partition has a leader epoch above any that the cluster knows, so it cannot be checked.

        Later commits of the position have no epoch either.
        """
        state = self.partitions[tp]
        state.leader_epoch = None
        if state.position is not None and (state.position.leader_epoch or 0) > above:
            state.position = state.position._replace(leader_epoch=None)
            self._changed()

    def set_problem(self, tp: TopicPartition, epoch: int, problem: OttlaError | None) -> None:
        """Why nothing comes of a partition; ``None``: all is well again."""
        state = self.current(tp, epoch)
        if state is not None and (type(state.problem), str(state.problem)) != (type(problem), str(problem)):
            state.problem = problem
            self._changed()

    # -- looking ----------------------------------------------------------------------------------------------------------

    def current(self, tp: TopicPartition, epoch: int) -> PartitionState | None:
        """The state of a partition if its epoch is still this one."""
        state = self.partitions.get(tp)
        return state if state is not None and state.epoch == epoch else None

    def topic_id(self, tp: TopicPartition) -> uuid.UUID | None:
        """The topic that a partition is read in, where it is held and that is known."""
        state = self.partitions.get(tp)
        return None if state is None else state.topic_id

    def in_phase(self, phase: Phase) -> tuple[tuple[TopicPartition, PartitionState], ...]:
        """The partitions in one phase, in order. Searched again only after a change: this is called in every pass."""
        if self._phases_of != self.version:
            found: dict[Phase, list[tuple[TopicPartition, PartitionState]]] = {}
            for tp, state in self.partitions.items():
                found.setdefault(state.phase, []).append((tp, state))
            self._phases = {of: tuple(items) for of, items in found.items()}
            self._phases_of = self.version
        return self._phases.get(phase, ())

    def views(self) -> Mapping[TopicPartition, PartitionView]:
        """The partitions as the application is to see them from now on."""
        return MappingProxyType({tp: state.view() for tp, state in self.partitions.items()})

    def _set_position(self, state: PartitionState, position: OffsetAndMetadata | None) -> None:
        assert position is not None
        self._renew(state)
        state.phase, state.position = Phase.FETCHING, position
        state.fetch, state.leader_epoch = position.offset, position.leader_epoch
        state.leader = state.topic_id = None

    def _rewind(self, state: PartitionState, epoch: int, position: OffsetAndMetadata | None) -> None:
        """The position moves back within what was fetched, so it remains one of the same topic and the same log."""
        if state.phase in (Phase.FETCHING, Phase.VALIDATING):
            known = (state.leader if state.phase is Phase.FETCHING else None), state.topic_id, state.since
            self._set_position(state, position if epoch == state.epoch else state.position)
            state.leader, state.topic_id, state.since = known

    def _renew(self, state: PartitionState) -> None:
        state.epoch = state.since = self._next_epoch()
        state.problem, state.retry_at = None, 0

    def _next_epoch(self) -> int:
        self._last_epoch += 1
        return self._last_epoch

    def _changed(self) -> None:
        self.version += 1
