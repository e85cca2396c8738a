"""Initial positions of partitions, and the offsets of timestamps, by ListOffsets.

Owns the ListOffsets requests and the choice of each partition's position: the committed offset, else a reset as configured. Must
not know how committed offsets are stored. Invariants: a position is set only on a partition that still waits for it, in the same
epoch; a failed look-up of committed offsets never leads to a reset.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.effects import AnySend, Poll, Send, ToNode, Unreachable
from ottla.client.events import Reply
from ottla.client.subscription import LATEST, Ago, Phase, Reset, SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import DisconnectedError, NoOffsetForPartitionError, OttlaError, OttlaTimeoutError, broker_error, timeout_error
from ottla.protocol import ErrorCode, duration, rpcs
from ottla.protocol.messages import list_offsets_request, list_offsets_response
from ottla.types import Now, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, short_list

_CONSUMER = -1
"""The replica id of clients."""

_NAMED = 5
"""The number of partitions that an error names."""


class ListOffsetsReaction(enum.Enum):
    """The reaction to the error code of a partition."""

    NO_SUCH_OFFSET = "there is no such offset"
    FATAL = "the caller gets the error"
    RETRY = "request metadata and retry"


_REACTIONS: Mapping[int, ListOffsetsReaction] = {
    ErrorCode.topic_authorization_failed: ListOffsetsReaction.FATAL,
    ErrorCode.unsupported_version: ListOffsetsReaction.FATAL,
    ErrorCode.unsupported_for_message_format: ListOffsetsReaction.NO_SUCH_OFFSET,
}
"""Error codes of a partition in ListOffsets -> reaction. Any other code is retried."""


LeaderEpochs = Mapping[TopicPartition, int | None]
"""The partitions of a request, with the leader epoch that it contains for each."""


@dataclass(slots=True, eq=False)
class Query:
    """Timestamps whose offsets are looked up, for a call or for partitions that need a position."""

    wanted: dict[TopicPartition, int]
    deadline: int | None
    reply: Callable[[dict[TopicPartition, OffsetAndTimestamp | None] | None, OttlaError | None], None]
    found: dict[TopicPartition, OffsetAndTimestamp | None] = field(default_factory=dict)
    in_flight: set[TopicPartition] = field(default_factory=set)
    attempts: int = 0
    not_before: int = 0
    waits_for_version: int = sys.maxsize
    """Metadata newer than this may contain the leader that was missing, and ends the back-off."""
    failure: OttlaError | None = None

    @property
    def missing(self) -> list[TopicPartition]:
        """Partitions not requested yet, or to be requested again."""
        return [tp for tp in self.wanted if tp not in self.found and tp not in self.in_flight]


class CommittedOffsets(Protocol):
    """Looks up the committed offsets of the group."""

    def fetch(self, partitions: frozenset[TopicPartition], deadline: int | None, reply: Reply) -> None:
        """Call ``reply`` with the committed offset of each partition, or ``None``. With an error, partitions may be missing."""


class OffsetsManager:
    """Looks up offsets, and sets the initial positions. ``store`` is ``None`` without a group."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        metadata: MetadataManager,
        store: CommittedOffsets | None,
        backoff: ExponentialBackoff,
        unreachable: Unreachable,
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._store = store
        self._backoff = backoff
        self._unreachable = unreachable
        self._queries: list[Query] = []
        self._looking_up: dict[TopicPartition, int] = {}
        self._resetting: dict[TopicPartition, int] = {}
        self._unsent: list[AnySend] = []
        """Requests already noted as in flight. If the next step of a poll raises, the next poll returns them."""
        metadata.on_fatal(self._give_up)

    def __repr__(self) -> str:
        return f"<OffsetsManager {len(self._queries)} queries, {len(self._resetting)} resets>"

    def list_offsets(self, timestamps: Mapping[TopicPartition, int], deadline: int | None, reply: Reply, now: Now) -> None:
        """Look up the offsets of timestamps until ``deadline``. ``reply`` gets ``None`` for a partition without such an offset."""
        del now
        if not timestamps:
            return reply({}, None)
        self._metadata.add_transient({tp.topic for tp in timestamps})
        return self._queries.append(Query(dict(timestamps), deadline, reply))

    def look_up_again(self) -> None:
        """Look up the committed offsets of partitions again that had none."""
        for tp, state in self._subscription.in_phase(Phase.INITIALIZING):
            if isinstance(state.problem, NoOffsetForPartitionError):
                self._subscription.set_problem(tp, state.epoch, None)

    def poll(self, now: Now) -> Poll:
        """Return the look-ups that are due."""
        if not (self._queries or self._subscription.in_phase(Phase.INITIALIZING) or self._subscription.in_phase(Phase.RESETTING)):
            return Poll()  # the case of nearly every pass
        self._initialize(now)
        self._reset(now)
        self._expire(now)
        for query in list(self._queries):
            if query.missing and (query.not_before <= now.mono or self._metadata.current.version > query.waits_for_version):
                self._request_offsets(query, now)
        sends, self._unsent = tuple(self._unsent), []
        return Poll(sends, self._wake_at(now))

    def _on_response(
        self, query: Query, requested: LeaderEpochs, response: list_offsets_response.ListOffsetsResponse, now: Now
    ) -> None:
        """Store the offsets of a response; partitions with a retriable error are requested again."""
        query.in_flight -= requested.keys()
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if tp in requested:
                    self._note_epoch(tp, int(part.error_code), requested[tp], now)
                    self._on_partition(query, tp, part)
        self._settle(query, requested, now)

    def _on_failure(self, query: Query, requested: LeaderEpochs, error: OttlaError, now: Now) -> None:
        """Request metadata and retry, since another broker may be the leader now; a permanent error is reported."""
        query.in_flight -= requested.keys()
        query.failure = error
        if not error.retriable and not isinstance(query, _ResetQuery):
            return self._finish(query, error)
        if not error.retriable and isinstance(query, _ResetQuery):
            for tp in requested:
                self._subscription.set_problem(tp, query.epochs[tp], error)
        return self._settle(query, requested, now)

    # -- positions --------------------------------------------------------------------------------------------------------

    def _initialize(self, now: Now) -> None:
        """Look up the committed offsets of partitions without a position. Without a group there are none: reset them at once."""
        new = {
            tp: state.epoch
            for tp, state in self._subscription.in_phase(Phase.INITIALIZING)
            if self._looking_up.get(tp) != state.epoch
            and state.retry_at <= now.mono
            and not isinstance(state.problem, NoOffsetForPartitionError)
        }
        if not new:
            return
        if self._store is None:
            no_offset = _no_offset(new)
            for tp, epoch in new.items():
                self._subscription.not_committed(tp, epoch, no_offset)
            return
        self._looking_up.update(new)

        def committed(result: Mapping[TopicPartition, OffsetAndMetadata | None] | None, error: OttlaError | None) -> None:
            offsets = result or {}
            no_offset = _no_offset(tp for tp in new if offsets.get(tp) is None)
            # First: after an error at one partition, the others are looked up again.
            for tp, epoch in new.items():
                if self._looking_up.get(tp) == epoch:
                    del self._looking_up[tp]
            for tp, epoch in new.items():
                # An error may concern some partitions only: the others are in the result.
                self._committed(tp, epoch, offsets.get(tp), error if error is not None and tp not in offsets else no_offset, now)

        # The look-up must not time out before its request. Otherwise: 1. A slow coordinator has not answered when the look-up times
        # out. 2. The partition has a problem, and another look-up starts while the coordinator still processes the first. No call
        # depends on this timeout: a call that waits for a position has its own.
        timeout = max(self._config.default_api_timeout_ms, self._config.request_timeout_ms)
        self._store.fetch(frozenset(new), now.mono + timeout, committed)

    def _committed(self, tp: TopicPartition, epoch: int, offset: OffsetAndMetadata | None, error: OttlaError, now: Now) -> None:
        """Handle the end of a look-up: a committed offset, or ``error``, which may say that there is none."""
        state = self._subscription.current(tp, epoch)
        if state is None:
            return
        if offset is not None:
            if offset.leader_epoch is not None:
                self._metadata.observe_epoch(tp, offset.leader_epoch)
            self._subscription.found(tp, epoch, offset, self._metadata.current.topic_id(tp.topic))
        elif isinstance(error, NoOffsetForPartitionError):
            self._subscription.not_committed(tp, epoch, error)
        else:
            state.retry_at = now.mono + self._config.retry_backoff_max_ms
            self._subscription.set_problem(tp, epoch, error)

    def _reset(self, now: Now) -> None:
        new = {
            tp: state
            for tp, state in self._subscription.in_phase(Phase.RESETTING)
            if self._resetting.get(tp) != state.epoch and state.retry_at <= now.mono
        }
        for tp, state in new.items():
            self._resetting[tp] = state.epoch
        # One query for all partitions, so that those with the same leader share a request.
        if new:
            epochs = {tp: state.epoch for tp, state in new.items()}
            wanted = {tp: _timestamp(state.reset_to, now) for tp, state in new.items()}
            self._queries.append(_ResetQuery(wanted, None, self._ignored, epochs=epochs))

    @staticmethod
    def _ignored(found: object, error: OttlaError | None) -> None:
        """Do nothing: ``_on_partition`` has handled each partition of a reset."""

    def _on_reset(self, query: _ResetQuery, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        if leader_epoch >= 0:
            self._metadata.observe_epoch(tp, leader_epoch)
        self._subscription.found(tp, query.epochs[tp], OffsetAndMetadata(offset), self._metadata.current.topic_id(tp.topic))

    # -- requests ---------------------------------------------------------------------------------------------------------

    def _request_offsets(self, query: Query, now: Now) -> None:
        self._forget_stale(query)
        query.waits_for_version = sys.maxsize
        by_node: dict[int, dict[str, list[list_offsets_request.ListOffsetsPartition]]] = {}
        requested: dict[int, dict[TopicPartition, int | None]] = {}
        for tp in query.missing:
            leader = self._metadata.current.leader(tp)
            if leader is None:
                self._without_leader(query, tp)
                continue
            item = list_offsets_request.ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=-1 if leader.epoch is None else leader.epoch,
                timestamp=query.wanted[tp],
            )
            by_node.setdefault(leader.node.node_id, {}).setdefault(tp.topic, []).append(item)
            requested.setdefault(leader.node.node_id, {})[tp] = leader.epoch
        for node_id, topics in by_node.items():
            message = list_offsets_request.ListOffsetsRequest(
                replica_id=_CONSUMER,
                isolation_level=int(self._config.isolation_level),
                topics=tuple(
                    list_offsets_request.ListOffsetsTopic(name=name, partitions=tuple(items)) for name, items in topics.items()
                ),
                timeout=duration(self._config.request_timeout_ms),
            )
            query.in_flight |= requested[node_id].keys()
            self._unsent.append(self._send(node_id, message, query, requested[node_id]))
        if query.missing:
            self._back_off(query, now)

    def _send(
        self, node_id: int, message: list_offsets_request.ListOffsetsRequest, query: Query, requested: LeaderEpochs
    ) -> AnySend:
        return Send(
            rpcs.LIST_OFFSETS,
            message,
            ToNode(node_id),
            self._config.request_timeout_ms,
            lambda response, now: self._on_response(query, requested, response, now),
            lambda error, now: self._on_failure(query, requested, error, now),
        )

    def _without_leader(self, query: Query, tp: TopicPartition) -> None:
        """Request metadata for a partition without a known leader; a permanent error ends the query."""
        query.waits_for_version = self._metadata.request_update()
        self._metadata.add_transient((tp.topic,))
        current = self._metadata.current
        topic = current.topics.get(tp.topic)
        refusal = None if topic is None else topic.error
        query.failure = current.absence(tp) or refusal or OttlaTimeoutError(f"no leader of {tp} is known")
        if isinstance(query, _ResetQuery):
            if self._metadata.current.version > 0:
                self._subscription.set_problem(tp, query.epochs[tp], query.failure)
        elif not query.failure.retriable:
            self._finish(query, query.failure)

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _note_epoch(self, tp: TopicPartition, code: int, epoch: int | None, now: Now) -> None:
        if not code:
            self._metadata.epoch_accepted(tp)
        elif code == ErrorCode.unknown_leader_epoch:
            self._metadata.epoch_refused(tp, epoch, now)

    def _on_partition(self, query: Query, tp: TopicPartition, part: list_offsets_response.ListOffsetsPartitionResponse) -> None:
        code = int(part.error_code)
        reaction = _REACTIONS.get(code, ListOffsetsReaction.RETRY) if code else None
        if reaction is ListOffsetsReaction.NO_SUCH_OFFSET or (reaction is None and part.offset < 0):
            if isinstance(query, _ResetQuery):
                # All records are older than the requested time: start at the end.
                query.wanted[tp] = LATEST
            else:
                query.found[tp] = None
        elif reaction is None:
            epoch = part.leader_epoch if part.leader_epoch >= 0 else None
            query.found[tp] = OffsetAndTimestamp(part.offset, part.timestamp, epoch)
            if isinstance(query, _ResetQuery):
                self._on_reset(query, tp, part.offset, part.leader_epoch)
        else:
            query.failure = broker_error(code, f"listing offsets of {tp}")
            query.failure.retriable = query.failure.retriable or reaction is ListOffsetsReaction.RETRY
            if isinstance(query, _ResetQuery):
                self._subscription.set_problem(tp, query.epochs[tp], query.failure)
            elif reaction is ListOffsetsReaction.FATAL:
                self._finish(query, query.failure)

    def _settle(self, query: Query, requested: LeaderEpochs, now: Now) -> None:
        if query not in self._queries:
            return
        if len(query.found) == len(query.wanted):
            self._finish(query, None)
        elif any(tp not in query.found for tp in requested):
            self._metadata.request_update()
            self._back_off(query, now)

    def _back_off(self, query: Query, now: Now) -> None:
        query.not_before = now.mono + self._backoff.delay(query.attempts)
        query.attempts += 1

    def _finish(self, query: Query, error: OttlaError | None) -> None:
        if query in self._queries:
            self._queries.remove(query)
            query.reply(None if error else query.found, error)
        if isinstance(query, _ResetQuery):
            for tp, epoch in query.epochs.items():
                if self._resetting.get(tp) == epoch:
                    del self._resetting[tp]

    def _forget_stale(self, query: Query) -> None:
        """Drop the partitions of a reset that no longer need it."""
        if isinstance(query, _ResetQuery):
            for tp in query.missing:
                state = self._subscription.current(tp, query.epochs[tp])
                if state is None or state.phase is not Phase.RESETTING:
                    query.found[tp] = None
            if len(query.found) == len(query.wanted):
                self._finish(query, None)

    def _expire(self, now: Now) -> None:
        for query in [query for query in self._queries if query.deadline is not None and query.deadline <= now.mono]:
            missing = [tp for tp in query.wanted if tp not in query.found]
            leaders = filter(None, map(self._metadata.current.leader, missing))
            listed = ", ".join(map(str, missing))
            cut_off = self._unreachable(f"the leader of {listed}", {ToNode(leader.node.node_id) for leader in leaders})
            error = cut_off or query.failure
            if error is None or (error is query.failure and isinstance(error, OttlaTimeoutError | DisconnectedError)):
                error = timeout_error(f"the offsets of {listed} could not be looked up in time", error, "no answer")
            self._finish(query, error)

    def _give_up(self, error: OttlaError) -> None:
        """Fail all waiting calls: after a permanent error of metadata requests the leaders remain unknown."""
        for query in [query for query in self._queries if not isinstance(query, _ResetQuery)]:
            self._finish(query, error)

    def _wake_at(self, now: Now) -> int | None:
        times = [at for query in self._queries for at in (query.deadline, query.not_before) if at is not None and at > now.mono]
        waiting = (*self._subscription.in_phase(Phase.INITIALIZING), *self._subscription.in_phase(Phase.RESETTING))
        times += [state.retry_at for _, state in waiting if state.retry_at > now.mono]
        return min(times, default=None)


@dataclass(slots=True, eq=False, kw_only=True)
class _ResetQuery(Query):
    """A query whose offsets become positions, if the partitions still need one in these epochs."""

    epochs: dict[TopicPartition, int]


def _timestamp(to: Reset, now: Now) -> int:
    return max(0, now.wall - to.milliseconds) if isinstance(to, Ago) else to


def _no_offset(partitions: Iterable[TopicPartition]) -> OttlaError:
    """Return one error for all partitions without an offset, as in Kafka's consumer: users fix them together."""
    names = short_list(list(partitions), _NAMED)
    return NoOffsetForPartitionError(f"no offset is committed and auto.offset.reset is none: {names}")
