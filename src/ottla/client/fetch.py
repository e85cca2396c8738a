"""Fetching: which partitions to ask which broker for, and what to make of the answer.

Owns the Fetch requests and the account of what the application still holds. Must not know records (beyond where a batch ends) nor
who chose the partitions. Invariants: at most one Fetch per broker is in flight; a broker is asked again only while at most one of
its answers is not yet consumed, and never for more than ``fetch.max.bytes`` less what that answer holds. So a consumer never
holds more than ``fetch.max.bytes`` for each broker that it reads from, one oversized batch aside, and yet the next fetch is under
way while earlier records are being consumed (measured: twice the throughput of one at a time).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import Poll, Send, ToNode
from ottla.client.fetch_buffer import FetchedPartition, FetchedResponse
from ottla.client.metadata import MetadataManager
from ottla.client.notifications import Fetched
from ottla.client.subscription import PartitionState, Phase, Subscription
from ottla.config import ConsumerConfig
from ottla.errors import CorruptRecordError, OttlaError, broker_error
from ottla.protocol import duration
from ottla.protocol.apis import Api
from ottla.records import iter_headers
from ottla.types import IsolationLevel, Node, Now, TopicPartition

_log = logging.getLogger(__name__)

HELD_RESPONSES = 2
"""Answers of one broker, consumed or under way, at the same time."""

_NO_SESSION = (0, -1)
"""Session id and epoch of a Fetch without a session (KIP-227)."""


class Reaction(enum.Enum):
    """What an error of one partition calls for."""

    NEW_LEADER = "ask for metadata and try again"
    OUT_OF_RANGE = "reset as configured, once what was fetched is consumed"
    AGAIN = "try again"
    PROBLEM = "tell the application, and try again"


_REACTIONS: Mapping[int, Reaction] = {
    -1: Reaction.AGAIN,
    1: Reaction.OUT_OF_RANGE,
    3: Reaction.NEW_LEADER,
    5: Reaction.NEW_LEADER,
    6: Reaction.NEW_LEADER,
    9: Reaction.NEW_LEADER,
    56: Reaction.NEW_LEADER,
    74: Reaction.NEW_LEADER,
    75: Reaction.AGAIN,
    78: Reaction.NEW_LEADER,
    100: Reaction.NEW_LEADER,
    103: Reaction.NEW_LEADER,
}
"""Error code of a partition in a Fetch answer -> what to do; any other is a problem for the application."""


class _Asked(NamedTuple):
    """What a request was about: its number, and for each partition the epoch and the offset that it was asked from."""

    number: int
    node_id: int
    partitions: Mapping[TopicPartition, tuple[int, int]]
    names: Mapping[Any, str]


class _Held(NamedTuple):
    node_id: int
    size: int
    partitions: frozenset[TopicPartition]


class FetchManager:
    """See the module."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        metadata: MetadataManager,
        notify: Callable[[object], None],
        backoff: ExponentialBackoff,
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._notify = notify
        self._backoff = backoff
        self._number = 0
        self._in_flight: set[int] = set()
        self._held: dict[int, _Held] = {}
        self._out_of_range: dict[TopicPartition, int] = {}
        self._blocked: dict[TopicPartition, int] = {}
        self._served: dict[TopicPartition, int] = {}
        self._failures: dict[int, int] = {}
        self._node_retry_at: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<FetchManager in flight to {sorted(self._in_flight)}, {len(self._held)} responses held>"

    @property
    def held_bytes(self) -> int:
        """Bytes of records that were handed over and are not consumed yet."""
        return sum(held.size for held in self._held.values())

    def drained(self, numbers: Iterable[int]) -> None:
        """The application has consumed or dropped these responses."""
        for number in numbers:
            self._held.pop(number, None)

    def poll(self, now: Now) -> Poll:
        """One Fetch for each broker that may be asked."""
        wake_at = [now.mono] if self._reset_out_of_range() else []
        by_node: dict[int, list[tuple[TopicPartition, PartitionState]]] = {}
        for tp, state in self._subscription.in_phase(Phase.FETCHING):
            if not state.fetchable or self._is_halted(tp, state.epoch):
                continue
            if state.retry_at > now.mono:
                wake_at.append(state.retry_at)
                continue
            leader = self._metadata.current.leader(tp)
            if leader is None:
                self._metadata.request_update()
                continue
            by_node.setdefault(leader.node.node_id, []).append((tp, state))
        sends = []
        for node_id, partitions in by_node.items():
            room = self._room(node_id)
            if node_id in self._in_flight or room <= 0:
                continue
            if (retry_at := self._node_retry_at.get(node_id, 0)) > now.mono:
                wake_at.append(retry_at)
                continue
            sends.append(self._fetch(node_id, partitions, room))
        return Poll(tuple(sends), min(wake_at, default=None))

    def on_response(self, tag: _Asked, message: Any, now: Now) -> None:
        """Hand the records over; note what went wrong."""
        self._in_flight.discard(tag.node_id)
        self._failures.pop(tag.node_id, None)
        if message.error_code:
            return self._refused(tag, broker_error(int(message.error_code), "the broker refused a Fetch"), now)
        self._learn_leaders(tag, message)
        fetched: list[FetchedPartition] = []
        for topic in message.responses:
            name = topic.topic or tag.names.get(topic.topic_id, "")
            for data in topic.partitions:
                part = self._partition(tag, TopicPartition(name, data.partition_index), data, now)
                if part is not None:
                    fetched.append(part)
        if fetched:
            self._hand_over(tag, tuple(fetched))
        return None

    def on_failure(self, tag: _Asked, error: OttlaError, now: Now) -> None:
        """The broker gave no answer: ask for metadata, and again after a while. What waiting does not mend is a problem, too."""
        self._in_flight.discard(tag.node_id)
        if not error.retriable:
            for tp, (epoch, _) in tag.partitions.items():
                self._subscription.set_problem(tp, epoch, error)
        self._refused(tag, error, now)

    # -- asking -----------------------------------------------------------------------------------------------------------

    def _room(self, node_id: int) -> int:
        """How many bytes a broker may be asked for now; 0: none."""
        held = [held.size for held in self._held.values() if held.node_id == node_id]
        if not held:
            return self._config.fetch_max_bytes
        room = self._config.fetch_max_bytes - sum(held)
        return room if len(held) < HELD_RESPONSES and room >= self._config.fetch_max_bytes // 2 else 0

    def _is_halted(self, tp: TopicPartition, epoch: int) -> bool:
        return self._blocked.get(tp) == epoch or self._out_of_range.get(tp) == epoch

    def _fetch(self, node_id: int, partitions: list[tuple[TopicPartition, PartitionState]], room: int) -> Send:
        from ottla.protocol.messages import fetch_request

        # Those that were served longest ago come first: the broker fills its answer from the front (KIP-74).
        partitions.sort(key=lambda item: self._served.get(item[0], 0))
        current = self._metadata.current
        topics: dict[str, list[Any]] = {}
        for tp, state in partitions:
            leader = current.leader(tp)
            epoch = leader.epoch if leader is not None else None
            topics.setdefault(tp.topic, []).append(
                fetch_request.FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=-1 if epoch is None else epoch,
                    fetch_offset=state.fetch,
                    partition_max_bytes=self._config.max_partition_fetch_bytes,
                )
            )
        ids = {topic: current.topic_id(topic) for topic in topics}
        session_id, session_epoch = _NO_SESSION
        message = fetch_request.FetchRequest(
            max_wait=duration(self._config.fetch_max_wait_ms),
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=room,
            isolation_level=int(self._config.isolation_level),
            session_id=session_id,
            session_epoch=session_epoch,
            topics=tuple(
                fetch_request.FetchTopic(topic=topic, topic_id=ids[topic], partitions=tuple(items))
                for topic, items in topics.items()
            ),
            forgotten_topics_data=(),
        )
        self._number += 1
        self._in_flight.add(node_id)
        asked = {tp: (state.epoch, state.fetch) for tp, state in partitions}
        names = {topic_id: topic for topic, topic_id in ids.items() if topic_id is not None}
        return Send(
            Api.FETCH, message, ToNode(node_id), _Asked(self._number, node_id, asked, names), self._config.request_timeout_ms
        )

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _partition(self, tag: _Asked, tp: TopicPartition, data: Any, now: Now) -> FetchedPartition | None:
        """What there is to hand over of one partition; nothing of one that is wanted from elsewhere by now."""
        epoch, offset = tag.partitions.get(tp, (-1, -1))
        state = self._subscription.current(tp, epoch)
        if state is None or not state.fetchable or state.fetch != offset:
            return None
        if data.error_code:
            self._partition_failed(tp, state, int(data.error_code), now)
            return None
        self._subscription.set_problem(tp, epoch, None)
        committed_only = self._config.isolation_level is IsolationLevel.READ_COMMITTED
        end = data.last_stable_offset if committed_only and data.last_stable_offset >= 0 else data.high_watermark
        records = data.records or b""
        if records:
            self._served[tp] = tag.number
            self._advance(tp, epoch, records)
        aborted = tuple((item.producer_id, item.first_offset) for item in data.aborted_transactions or ())
        return FetchedPartition(tp, epoch, offset, records, end, aborted)

    def _advance(self, tp: TopicPartition, epoch: int, records: bytes | memoryview) -> None:
        """Go on behind the last whole batch; where there is none, or no batch at all, only a seek can help."""
        after = None
        try:
            for _, header in iter_headers(records):
                after = header.next_offset
        except CorruptRecordError:
            after = None
        if after is None:
            self._blocked[tp] = epoch
        else:
            self._subscription.advance(tp, epoch, after)

    def _hand_over(self, tag: _Asked, fetched: tuple[FetchedPartition, ...]) -> None:
        size = sum(len(part.data) for part in fetched)
        if size:
            self._held[tag.number] = _Held(tag.node_id, size, frozenset(part.tp for part in fetched if part.data))
        self._notify(Fetched(FetchedResponse(tag.number, tag.node_id, fetched, size)))

    def _partition_failed(self, tp: TopicPartition, state: PartitionState, code: int, now: Now) -> None:
        reaction = _REACTIONS.get(code, Reaction.PROBLEM)
        state.retry_at = now.mono + self._backoff.delay(0)
        if reaction is Reaction.NEW_LEADER:
            self._metadata.request_update()
        elif reaction is Reaction.OUT_OF_RANGE and self._subscription.reset_to is not None:
            _log.info("offset %d of %s is out of range: resetting the position", state.fetch, tp)
            self._out_of_range[tp] = state.epoch
        elif reaction is Reaction.AGAIN:
            _log.warning("fetching %s from offset %d failed: %s", tp, state.fetch, broker_error(code))
        else:
            self._subscription.set_problem(tp, state.epoch, broker_error(code, f"fetching {tp} from offset {state.fetch}"))

    def _reset_out_of_range(self) -> bool:
        """Reset the partitions whose earlier records are all consumed; whether there were any."""
        version = self._subscription.version
        for tp, epoch in list(self._out_of_range.items()):
            if self._subscription.current(tp, epoch) is None:
                del self._out_of_range[tp]
            elif not any(tp in held.partitions for held in self._held.values()) and self._subscription.reset_to is not None:
                del self._out_of_range[tp]
                self._subscription.reset((tp,), self._subscription.reset_to)
        return self._subscription.version != version

    def _learn_leaders(self, tag: _Asked, message: Any) -> None:
        """Errors may name the leader that the client should have asked (KIP-951)."""
        leaders = {
            TopicPartition(topic.topic or tag.names.get(topic.topic_id, ""), data.partition_index): (
                int(data.current_leader.leader_id),
                int(data.current_leader.leader_epoch),
            )
            for topic in message.responses
            for data in topic.partitions
            if data.error_code and data.current_leader.leader_id >= 0
        }
        if leaders:
            self._metadata.update_leaders(
                leaders, [Node(item.node_id, item.host, item.port, item.rack) for item in message.node_endpoints]
            )

    def _refused(self, tag: _Asked, error: OttlaError, now: Now) -> None:
        failures = self._failures.get(tag.node_id, 0)
        self._failures[tag.node_id] = failures + 1
        self._node_retry_at[tag.node_id] = now.mono + self._backoff.delay(failures)
        self._metadata.request_update()
        _log.debug("fetching from node %d failed: %s", tag.node_id, error)
