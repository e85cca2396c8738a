"""The frames of a member: what it sends, what a Start gives it, and what a Stop tells it.

Owns the fields of Register, Leave and the answers, the check of a Start, and the reason of a Stop. Must not know states,
connections or time. Invariants: a share that ``share_of`` returns has only partitions that can exist, each with one thread; a
reason is short, and has visible characters only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.messages import (
    leave_request,
    ping_request,
    ping_response,
    register_request,
    start_request,
    start_response,
    stop_request,
    stop_response,
)
from ottla.types import FrozenMapping, TopicPartition

Share = Mapping[TopicPartition, int]
"""Partition -> the thread of the member that reads it."""

CoordinatorRequest = ping_request.PingRequest | stop_request.StopRequest | start_request.StartRequest
"""What the coordinator sends on a channel."""

NOTHING: Share = FrozenMapping()

_MOST_OF_A_REASON = 500
"""The characters of the coordinator's reason that are shown."""


class Interest(NamedTuple):
    """What a member reads: topics with their numbers of streams, or a pattern with its number."""

    topics: tuple[tuple[str, int], ...]
    pattern: str | None
    streams: int


class Held(NamedTuple):
    """What a member holds, and of which generation; -1: nothing."""

    generation: int = -1
    share: Share = NOTHING


def interest_of(subscription: SubscriptionState) -> Interest:
    """Return what a member with this subscription reads."""
    pattern, streams = subscription.pattern, subscription.streams
    if pattern is not None:
        return Interest((), pattern, streams.get(pattern, 1))
    return Interest(tuple((topic, streams.get(topic, 1)) for topic in sorted(subscription.topics)), None, 1)


class Frames:
    """Makes the frames of one member. ``incarnation`` tells it from another process with the same ``member_id``."""

    def __init__(self, config: ConsumerConfig, member_id: str, incarnation: str) -> None:
        self.member_id = member_id
        self._incarnation = incarnation
        self._config = config
        self._group_id = config.group_id or ""

    def register(self, interest: Interest | None, held: Held, epoch: int, own: int = -1) -> register_request.RegisterRequest:
        """The request for a membership; ``None``: only for the coordinator to know the group. ``own``: see
        ``RegisterRequest.own_generation``."""
        topics, pattern, streams = interest or Interest((), None, 1)
        return register_request.RegisterRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            incarnation=self._incarnation,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.poll_interval("central"),
            assignor=str(self._config.partition_assignment_strategy[0]),
            topics=tuple(register_request.Subscription(topic=topic, streams=count) for topic, count in topics),
            pattern=pattern,
            streams=streams,
            coordinator_epoch=epoch,
            generation=held.generation,
            owned_topics=_by_topic(
                held.share,
                lambda number, thread: register_request.OwnedPartition(partition=number, thread=thread),
                lambda topic, items: register_request.OwnedTopic(topic=topic, partitions=items),
            ),
            own_generation=own,
        )

    def leave(self, epoch: int, generation: int, reason: str) -> leave_request.LeaveRequest:
        """The request to leave the group."""
        return leave_request.LeaveRequest(
            group_id=self._group_id, member_id=self.member_id, coordinator_epoch=epoch, generation=generation, reason=reason
        )

    def answer_to(
        self,
        request: CoordinatorRequest,
        epoch: int,
        generation: int,
        positions: Mapping[TopicPartition, int] = NOTHING,
        *,
        is_stale: bool = False,
    ) -> Any:
        """The answer to a request. Only that to a Stop has positions; one that ``is_stale`` has what the member knows instead."""
        fields: dict[str, Any] = {
            "error_code": ErrorCode.stale_member_epoch if is_stale else ErrorCode.none,
            "group_id": self._group_id,
            "member_id": self.member_id,
            "coordinator_epoch": epoch,
            "generation": generation,
        }
        if isinstance(request, ping_request.PingRequest):
            return ping_response.PingResponse(**fields)
        if isinstance(request, start_request.StartRequest):
            return start_response.StartResponse(**fields)
        topics = _by_topic(
            positions,
            lambda number, offset: stop_response.Position(partition=number, offset=offset),
            lambda topic, items: stop_response.TopicPositions(topic=topic, partitions=items),
        )
        return stop_response.StopResponse(**fields, topics=topics)

    def is_for_this_member(self, request: CoordinatorRequest) -> bool:
        """Whether a request names the group and the member."""
        return request.group_id == self._group_id and request.member_id == self.member_id


def share_of(request: start_request.StartRequest) -> Share:
    """Return the partitions in a Start, each with its thread. Raises ``ProtocolError`` for what cannot be a share."""
    if request.generation < 0:
        raise ProtocolError(f"the coordinator has started generation {request.generation}")
    share: dict[TopicPartition, int] = {}
    for topic in request.topics:
        for item in topic.partitions:
            tp = TopicPartition(topic.topic, item.partition)
            if not tp.topic or tp.partition < 0 or item.thread < 0 or tp in share:
                raise ProtocolError(f"the coordinator has assigned {tp} to thread {item.thread}, or twice: that cannot be")
            share[tp] = int(item.thread)
    return FrozenMapping(share)


def why_stopped(request: CoordinatorRequest) -> str:
    """Return why a member must stop, for its log and its records. The coordinator's text may have anything in it."""
    given = request.reason[: _MOST_OF_A_REASON + 1].strip() if isinstance(request, stop_request.StopRequest) else ""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in given)
    if len(shown) > _MOST_OF_A_REASON:
        shown = f"{shown[:_MOST_OF_A_REASON]}..."
    return f"the coordinator rebalances the group: {shown}" if shown else "the coordinator rebalances the group"


def _by_topic(
    values: Mapping[TopicPartition, int], item: Callable[[Any, Any], Any], whole: Callable[[str, tuple[Any, ...]], Any]
) -> tuple[Any, ...]:
    """The values of partitions, one item for each topic."""
    topics: dict[str, list[Any]] = {}
    for tp, value in sorted(values.items()):
        topics.setdefault(tp.topic, []).append(item(tp.partition, value))
    return tuple(whole(topic, tuple(items)) for topic, items in topics.items())
