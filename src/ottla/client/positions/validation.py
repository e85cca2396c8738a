"""Validates positions with each new leader, since a log may have been truncated or its topic recreated (KIP-320).

Owns the OffsetForLeaderEpoch requests, the reset of a position after a truncation, and the report that a partition does not exist.
Must not know how records are fetched. Invariants: a partition is not fetched from a leader that has not confirmed its position, if
the epoch of the position is known; a response counts only for the position and the leader of its request; a position is moved only
when all records fetched before are consumed, so no record is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.client.effects import AnySend, Poll, Send, ToNode
from ottla.client.subscription import EARLIEST, Mode, PartitionState, Phase, SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import BrokerError, LogTruncationError, OttlaError, UnsupportedApiError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import offset_for_leader_epoch_request, offset_for_leader_epoch_response
from ottla.types import Leader, Now, OffsetAndMetadata, TopicPartition, short_list

_log = logging.getLogger(__name__)

_CONSUMER = -1
"""The replica id of clients."""

_NAMED = 5
"""The number of partitions that a log line names; it only counts the others."""

_FATAL = frozenset({ErrorCode.topic_authorization_failed})
"""Error codes of a partition that the application gets. Any other code is retried."""


class _PositionCheck(NamedTuple):
    """The position that a leader is asked to confirm."""

    epoch: int
    offset: int
    leader: Leader


_Questions = Mapping[TopicPartition, _PositionCheck]


@dataclass(frozen=True, slots=True)
class _Truncation:
    """A position that is not in the leader's log: what was read before ``end`` is, as far as that is known."""

    epoch: int
    end: OffsetAndMetadata | None
    topic_recreated: bool = False


class PositionValidator:
    """See the module. ``is_held`` returns whether fetched records of a partition are not consumed yet."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        metadata: MetadataManager,
        backoff: ExponentialBackoff,
        is_held: Callable[[TopicPartition], bool],
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._backoff = backoff
        self._is_held = is_held
        self._compared: tuple[int, Metadata] | None = None
        """The version of the subscription and the metadata at the latest comparison of leaders."""
        self._in_flight: dict[TopicPartition, _PositionCheck] = {}
        self._truncations: dict[TopicPartition, _Truncation] = {}
        self._unsent: list[AnySend] = []
        """Requests already noted as in flight. If the next step of a poll raises, the next poll returns them."""

    def __repr__(self) -> str:
        return f"<PositionValidator {len(self._in_flight)} in flight, {len(self._truncations)} truncated>"

    @property
    def awaits_consumption(self) -> bool:
        """Whether a position will be moved as soon as the application has consumed the records fetched before."""
        return bool(self._truncations)

    def poll(self, now: Now) -> Poll:
        """Compare leaders; return the requests to new ones."""
        self._compare_leaders()
        if self._truncations:
            self._settle_truncations()
            self._compare_leaders()
        by_leader: dict[Leader, dict[TopicPartition, PartitionState]] = {}
        wake_at = []
        for tp, state in self._subscription.in_phase(Phase.VALIDATING):
            if tp in self._truncations or state.leader is None or self._is_asked(tp, state):
                continue
            if state.retry_at > now.mono:
                wake_at.append(state.retry_at)
            else:
                by_leader.setdefault(state.leader, {})[tp] = state
        for leader, states in by_leader.items():
            self._unsent.append(self._ask(leader, states))
        sends, self._unsent = tuple(self._unsent), []
        return Poll(sends, min(wake_at, default=None))

    def _on_response(
        self, checks: _Questions, response: offset_for_leader_epoch_response.OffsetForLeaderEpochResponse, now: Now
    ) -> None:
        """Confirm positions, or note where their logs were truncated."""
        self._end(checks)
        answered = {TopicPartition(topic.topic, part.partition): part for topic in response.topics for part in topic.partitions}
        for tp, check in checks.items():
            state = self._state_of(tp, check)
            if state is None:
                continue
            part = answered.get(tp)
            if part is not None and not part.error_code:
                self._metadata.epoch_accepted(tp)
            elif part is not None and part.error_code == ErrorCode.unknown_leader_epoch:
                self._metadata.epoch_refused(tp, check.leader.epoch, now)
            if part is None or part.error_code:
                error = broker_error(int(part.error_code), f"validating the position of {tp}") if part is not None else None
                self._again(tp, state, error, now)
            elif part.end_offset < 0 or part.leader_epoch < 0:
                self._truncations[tp] = _Truncation(state.epoch, None)
            elif part.end_offset < state.fetch:
                self._truncations[tp] = _Truncation(state.epoch, OffsetAndMetadata(part.end_offset, leader_epoch=part.leader_epoch))
            else:
                self._subscription.set_problem(tp, state.epoch, None)
                self._subscription.confirm(tp, check.leader)
        self._settle_truncations()

    def _on_failure(self, checks: _Questions, error: OttlaError, now: Now) -> None:
        """Retry; if the broker is too old for the request, the positions count as confirmed."""
        self._end(checks)
        for tp, check in checks.items():
            state = self._state_of(tp, check)
            if state is None:
                continue
            if isinstance(error, UnsupportedApiError):
                self._subscription.confirm(tp, check.leader)
            else:
                self._again(tp, state, error, now)

    # -- leaders ----------------------------------------------------------------------------------------------------------

    def _compare_leaders(self) -> None:
        current = self._metadata.current
        if self._compared is not None and self._compared[0] == self._subscription.version and self._compared[1] is current:
            return
        for tp, state in (*self._subscription.in_phase(Phase.FETCHING), *self._subscription.in_phase(Phase.VALIDATING)):
            topic_id = current.topic_id(tp.topic)
            if state.topic_id is not None and topic_id is not None and topic_id != state.topic_id:
                self._truncations[tp] = _Truncation(state.epoch, None, topic_recreated=True)
                if state.phase is not Phase.VALIDATING:
                    self._subscription.validate(tp, current.leader(tp))
                continue
            leader = current.leader(tp)
            if leader is None or leader == state.leader:
                continue
            self._truncations.pop(tp, None)
            if state.leader_epoch is not None and leader.epoch is not None and state.leader_epoch > leader.epoch:
                # The epoch is not from this cluster. The leader's answer would look like that after a truncation.
                self._subscription.drop_leader_epoch(tp, above=leader.epoch)
            if state.leader_epoch is not None and leader.epoch is not None:
                self._subscription.validate(tp, leader)
            else:
                self._subscription.confirm(tp, leader)
        if self._subscription.mode is Mode.MANUAL:
            self._look_for_absent(current)
        self._compared = (self._subscription.version, current)

    def _look_for_absent(self, current: Metadata) -> None:
        """Report partitions from ``assign()`` that do not exist as problems. With ``subscribe()``, the group takes them away."""
        reported: list[TopicPartition] = []
        for tp, state in self._subscription.partitions.items():
            absent = isinstance(state.problem, BrokerError) and state.problem.code == ErrorCode.unknown_topic_or_partition
            problem = current.absence(tp)
            if problem is not None and (absent or state.problem is None):
                reported += () if absent else (tp,)
                self._subscription.set_problem(tp, state.epoch, problem)
            elif problem is None and absent:
                self._subscription.set_problem(tp, state.epoch, None)
        if reported:
            _log.warning("assigned partitions do not exist: %s", short_list(reported, _NAMED))

    def _is_asked(self, tp: TopicPartition, state: PartitionState) -> bool:
        return self._in_flight.get(tp) == _position_check(state)

    def _ask(self, leader: Leader, states: Mapping[TopicPartition, PartitionState]) -> AnySend:
        topics: dict[str, list[offset_for_leader_epoch_request.OffsetForLeaderPartition]] = {}
        for tp, state in states.items():
            item = offset_for_leader_epoch_request.OffsetForLeaderPartition(
                partition=tp.partition,
                current_leader_epoch=-1 if leader.epoch is None else leader.epoch,
                leader_epoch=-1 if state.leader_epoch is None else state.leader_epoch,
            )
            topics.setdefault(tp.topic, []).append(item)
        message = offset_for_leader_epoch_request.OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=tuple(
                offset_for_leader_epoch_request.OffsetForLeaderTopic(topic=name, partitions=tuple(items))
                for name, items in topics.items()
            ),
        )
        checks = {tp: _position_check(state) for tp, state in states.items()}
        self._in_flight.update(checks)
        return Send(
            rpcs.OFFSET_FOR_LEADER_EPOCH,
            message,
            ToNode(leader.node.node_id),
            self._config.request_timeout_ms,
            lambda response, now: self._on_response(checks, response, now),
            lambda error, now: self._on_failure(checks, error, now),
        )

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _end(self, checks: _Questions) -> None:
        """Note that these are no longer in flight, before any outcome is handled.

        After an error at one partition the others are asked about again. Otherwise they would wait until their leader changes.
        """
        for tp, check in checks.items():
            if self._in_flight.get(tp) == check:
                del self._in_flight[tp]

    def _state_of(self, tp: TopicPartition, check: _PositionCheck) -> PartitionState | None:
        """Return the state that a response is about; ``None`` if position or leader have changed since the request."""
        state = self._subscription.partitions.get(tp)
        if state is None or state.phase is not Phase.VALIDATING or _position_check(state) != check:
            return None
        return state

    def _again(self, tp: TopicPartition, state: PartitionState, error: OttlaError | None, now: Now) -> None:
        state.retry_at = now.mono + self._backoff.delay(0)
        self._metadata.request_update()
        known = isinstance(error, BrokerError) and error.code in _FATAL
        if error is not None and (known or not (error.retriable or isinstance(error, BrokerError))):
            self._subscription.set_problem(tp, state.epoch, error)

    def _settle_truncations(self) -> None:
        """Move truncated positions, once the records fetched before are consumed."""
        for tp, truncation in list(self._truncations.items()):
            state = self._subscription.current(tp, truncation.epoch)
            if state is None:
                del self._truncations[tp]
            elif not self._is_held(tp):
                self._settle(tp, state, truncation)

    def _settle(self, tp: TopicPartition, state: PartitionState, truncation: _Truncation) -> None:
        policy = self._subscription.reset_to
        what = _explain(tp, state, truncation)
        if policy is None:
            # The position stays, with its problem, until a seek gives it another epoch.
            divergent = truncation.end.offset if truncation.end is not None else None
            problem = LogTruncationError(what, tp.topic, tp.partition, state.fetch, divergent)
            return self._subscription.set_problem(tp, state.epoch, problem)
        del self._truncations[tp]
        _log.warning("%s", what)
        if truncation.end is not None:
            return self._subscription.seek({tp: truncation.end})
        # All records of a recreated topic are unread, whatever the policy for existing topics.
        return self._subscription.reset((tp,), EARLIEST if truncation.topic_recreated else policy)


def _position_check(state: PartitionState) -> _PositionCheck:
    assert state.leader is not None
    return _PositionCheck(state.epoch, state.fetch, state.leader)


def _explain(tp: TopicPartition, state: PartitionState, truncation: _Truncation) -> str:
    if truncation.topic_recreated:
        return f"{tp.topic} was deleted and recreated: offset {state.fetch} of {tp.partition} is no longer valid"
    if truncation.end is None:
        return f"the log of {tp} was truncated: nothing that was read before offset {state.fetch} is left in it"
    kept = f"only records before {truncation.end.offset} are left in it"
    return f"the log of {tp} was truncated: of what was read before offset {state.fetch}, {kept}"
