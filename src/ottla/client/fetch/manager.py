"""Fetches records: chooses the broker of each partition, sends Fetch, and passes the responses to the application.

Owns the Fetch requests and the memory of responses that are not consumed yet. Must not know records (beyond where a batch ends) nor
how partitions are assigned. Invariants: at most one Fetch per broker is in flight; the bytes that are requested, or have arrived
and are not consumed, stay within ``fetch_buffer_bytes`` (see ``FetchMemory``); the next Fetch leaves while earlier records are
being consumed and continues after them, so that no partition leaves its session because its records are not consumed.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.client.effects import AnySend, Poll, Send, ToNode
from ottla.client.events import Fetched, FetchedPartition, FetchedResponse
from ottla.client.fetch.session import FetchSession, SessionRequest, Wanted, fetch_request, leaders_of, partitions_of
from ottla.client.subscription import FetchEnd, PartitionState, Phase, SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import CorruptRecordError, OttlaError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import fetch_response
from ottla.records import first_offset, last_header
from ottla.types import IsolationLevel, Leader, Now, TopicPartition

_log = logging.getLogger(__name__)

_SESSION_ERRORS = frozenset(
    {ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch, ErrorCode.fetch_session_topic_id_error}
)
"""Errors of a session that the broker does not have, or not as the client expects. A new session begins without a back-off."""


class FetchReaction(enum.Enum):
    """The reaction to the error code of a partition."""

    NEW_LEADER = "request metadata and retry"
    OUT_OF_RANGE = "reset as configured, once the records fetched before are consumed"
    RETRY = "retry"
    UNKNOWN_EPOCH = "the leader does not know the epoch yet, or never will: request metadata and retry"
    PROBLEM = "report a problem to the application, and retry"


_REACTIONS: Mapping[int, FetchReaction] = {
    ErrorCode.unknown_server_error: FetchReaction.RETRY,
    ErrorCode.offset_out_of_range: FetchReaction.OUT_OF_RANGE,
    ErrorCode.unknown_topic_or_partition: FetchReaction.NEW_LEADER,
    ErrorCode.leader_not_available: FetchReaction.NEW_LEADER,
    ErrorCode.not_leader_or_follower: FetchReaction.NEW_LEADER,
    ErrorCode.replica_not_available: FetchReaction.NEW_LEADER,
    ErrorCode.kafka_storage_error: FetchReaction.NEW_LEADER,
    ErrorCode.fenced_leader_epoch: FetchReaction.NEW_LEADER,
    ErrorCode.unknown_leader_epoch: FetchReaction.UNKNOWN_EPOCH,
    ErrorCode.offset_not_available: FetchReaction.NEW_LEADER,
    ErrorCode.unknown_topic_id: FetchReaction.NEW_LEADER,
    ErrorCode.inconsistent_topic_id: FetchReaction.NEW_LEADER,
}
"""Error codes of a partition in a Fetch response -> reaction. Any other code is a problem for the application."""


class _Node:
    """A broker from which the consumer fetches."""

    __slots__ = ("failures", "in_flight", "node_id", "retry_at", "session")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.session = FetchSession()
        self.in_flight = False
        self.failures = 0
        self.retry_at = 0


class _FetchInFlight(NamedTuple):
    """A Fetch in flight: its number, its broker, its session, and the part of it that concerns the session."""

    number: int
    node: _Node
    session: FetchSession
    request: SessionRequest


class FetchManager:
    """See the module."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        metadata: MetadataManager,
        notify: Callable[[object], None],
        backoff: ExponentialBackoff,
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._notify = notify
        self._backoff = backoff
        self.replicas = ReadReplicas(metadata, config.metadata_max_age_ms)
        self.memory = FetchMemory(config.fetch_buffer_bytes, config.fetch_max_bytes)
        self._number = 0
        self._nodes: dict[int, _Node] = {}
        self._held: dict[int, frozenset[TopicPartition]] = {}
        self._out_of_range: dict[TopicPartition, int] = {}
        self._blocked: dict[TopicPartition, int] = {}
        self._logged: dict[TopicPartition, int] = {}
        self._starved = False
        """Whether a Fetch waits for memory."""
        self._planned: tuple[int, Metadata] | None = None
        """The version of the subscription and the metadata for which partitions were last divided among the sessions."""
        self._plan_until: int | None = None
        self._ending = 0
        """The number of sessions whose end is requested and not confirmed."""
        self._when_ended: list[Callable[[], None]] = []
        self._unsent: list[AnySend] = []
        """Requests already noted as in flight. If the next step of a poll raises, the next poll returns them."""

    def __repr__(self) -> str:
        in_flight = sorted(node_id for node_id, node in self._nodes.items() if node.in_flight)
        return f"<FetchManager in flight to {in_flight}, {len(self._held)} responses held>"

    @property
    def awaits_memory(self) -> bool:
        """Whether something waits until the application has consumed responses: a Fetch, or the reset of a position."""
        return self._starved or bool(self._out_of_range)

    def is_held(self, tp: TopicPartition) -> bool:
        """Whether fetched records of a partition are not consumed yet."""
        return any(tp in partitions for partitions in self._held.values())

    def drained(self, numbers: Iterable[int]) -> None:
        """Release the memory of responses that the application has consumed or dropped."""
        for number in numbers:
            self._held.pop(number, None)
        self.memory.release(numbers)

    def poll(self, now: Now) -> Poll:
        """Return a Fetch for each broker that has none in flight and for which there is memory."""
        wake_at = [now.mono] if self._reset_out_of_range() else []
        self._starved = False
        if not self._subscription.partitions:
            self._end_sessions()
            self._report_ended()
            return Poll(self._take_unsent())
        self._plan(now)
        wanted = [node for node in self._nodes.values() if node.session.wanted]
        for node in wanted:
            if node.in_flight:
                continue
            if node.retry_at > now.mono:
                wake_at.append(node.retry_at)
            elif size := self.memory.available(node.node_id, len(wanted)):
                self._unsent.append(self._fetch(node, size))
            else:
                self._starved = True
        if self._plan_until is not None:
            wake_at.append(self._plan_until)
        return Poll(self._take_unsent(), min(wake_at, default=None))

    def _on_response(self, asked: _FetchInFlight, response: fetch_response.FetchResponse, now: Now) -> None:
        """Pass the records to the application; react to the errors of partitions."""
        node, names = asked.node, asked.session.names
        self._on_ended_fetch(node)
        if asked.session is not node.session:
            return
        parts = list(partitions_of(response, names))
        code = int(response.error_code)
        kept = asked.session.answered(
            asked.request, code, response.session_id, [tp for tp, _ in parts], throttled=bool(response.throttle_time)
        )
        if code or not kept:
            error = broker_error(code, "the broker refused a Fetch") if code else OttlaError("the response is not of the session")
            self._refused(node, error, now, patient=code != 0 and code not in _SESSION_ERRORS)
            return
        node.failures = 0
        if any(data.error_code for _, data in parts):
            self._learn_leaders(response, names)
        by_id = not any(topic.topic for topic in response.responses)  # from Fetch 13 on
        fetched: list[FetchedPartition] = []
        try:
            for tp, data in parts:
                assert tp is not None
                part = self._partition(asked, tp, data, now, by_id=by_id)
                if part is not None:
                    fetched.append(part)
        finally:
            # Also after an error in a later partition: the fetch positions are past these records, so they would be skipped.
            if fetched:
                self._deliver(asked, tuple(fetched))

    def _on_failure(self, asked: _FetchInFlight, error: OttlaError, now: Now) -> None:
        """Request metadata, and retry after the back-off. An error that no retry can solve is also a problem."""
        self._on_ended_fetch(asked.node)
        asked.session.failed()
        for tp in asked.request.all:
            if self.replicas.forget(tp):
                self._planned = None
            state = self._subscription.partitions.get(tp)
            if not error.retriable and state is not None:
                self._subscription.set_problem(tp, state.epoch, error)
        self._refused(asked.node, error, now, patient=True)

    # -- requests ---------------------------------------------------------------------------------------------------------

    def _plan(self, now: Now) -> None:
        """Divide the partitions among the sessions, if anything besides the positions has changed."""
        current, version = self._metadata.current, self._subscription.version
        fresh = self._planned is not None and self._planned[0] == version and self._planned[1] is current
        if fresh and (self._plan_until is None or self._plan_until > now.mono):
            return
        wake_at = []
        by_node: dict[int, dict[TopicPartition, tuple[int, int, FetchEnd | None]]] = {}
        for tp, state in self._subscription.in_phase(Phase.FETCHING):
            if not state.wanted or self._is_halted(tp, state.epoch) or (state.end is not None and state.fetch >= state.end.offset):
                continue
            if state.retry_at > now.mono:
                wake_at.append(state.retry_at)
                continue
            leader, node_id = current.leader(tp), self.replicas.choose(tp, now)
            if leader is not None and node_id is not None:
                by_node.setdefault(node_id, {})[tp] = (state.fetch, -1 if leader.epoch is None else leader.epoch, state.end)
        for node_id in by_node:
            self._nodes.setdefault(node_id, _Node(node_id))
        for node_id, node in self._nodes.items():
            mine = by_node.get(node_id, {})
            for tp in [tp for tp in node.session.wanted if tp not in mine]:
                node.session.drop(tp)
            limit = partition_limit(self._config.max_partition_fetch_bytes, len(mine))
            for tp, (offset, epoch, end) in mine.items():
                size = limit if end is None else min(limit, end.limit(offset))
                node.session.want(tp, Wanted(offset, epoch, current.topic_id(tp.topic), size))
        if (expires_at := self.replicas.expires_at) is not None:
            wake_at.append(expires_at)
        self._planned, self._plan_until = (version, current), min(wake_at, default=None)

    def _is_halted(self, tp: TopicPartition, epoch: int) -> bool:
        return self._blocked.get(tp) == epoch or self._out_of_range.get(tp) == epoch

    def _fetch(self, node: _Node, size: int) -> AnySend:
        self._number += 1
        request = node.session.request()
        try:
            message = fetch_request(self._config, request, size)
        except Exception:
            node.session.failed()
            raise
        node.in_flight = True
        self.memory.reserve(node.node_id, size)
        asked = _FetchInFlight(self._number, node, node.session, request)
        return Send(
            rpcs.FETCH,
            message,
            ToNode(node.node_id),
            self._config.request_timeout_ms,
            lambda response, now: self._on_response(asked, response, now),
            lambda error, now: self._on_failure(asked, error, now),
        )

    def _end_sessions(self) -> None:
        """Request the end of all sessions: no partition is assigned any more."""
        self._planned = None
        for node in self._nodes.values():
            last = node.session.end()
            if last is not None:
                message, timeout = fetch_request(self._config, last, 0), self._config.request_timeout_ms
                self._ending += 1
                self._unsent.append(Send(rpcs.FETCH, message, ToNode(node.node_id), timeout, self._on_ended, self._on_ended))
            node.session = FetchSession()

    def _take_unsent(self) -> tuple[AnySend, ...]:
        sends, self._unsent = tuple(self._unsent), []
        return sends

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the brokers have ended all sessions, or cannot be reached."""
        self._when_ended.append(callback)

    def _on_ended(self, outcome: fetch_response.FetchResponse | OttlaError, now: Now) -> None:
        """Count a session as ended: the request was answered, or has failed."""
        del outcome, now
        self._ending -= 1
        self._report_ended()

    def _report_ended(self) -> None:
        if not self._ending:
            waiting, self._when_ended = self._when_ended, []
            for callback in waiting:
                callback()

    def _on_ended_fetch(self, node: _Node) -> None:
        node.in_flight = False
        self.memory.unreserve(node.node_id)

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _partition(
        self, fetch: _FetchInFlight, tp: TopicPartition, data: fetch_response.PartitionData, now: Now, *, by_id: bool
    ) -> FetchedPartition | None:
        """Return the data of one partition; ``None`` after an error, and if its position or topic has changed since the request."""
        asked = fetch.request.all[tp]
        state = self._subscription.partitions.get(tp)
        if state is None or not state.fetchable or state.fetch != asked.offset:
            return None
        if None not in (asked.topic_id, state.topic_id) and asked.topic_id != state.topic_id:
            return None
        if data.error_code:
            self._partition_failed(tp, state, asked, int(data.error_code), now)
            return None
        self._metadata.epoch_accepted(tp)
        if state.problem is not None:
            self._subscription.set_problem(tp, state.epoch, None)
        state.topic_id = asked.topic_id or state.topic_id
        self._logged.pop(tp, None)
        if data.preferred_read_replica >= 0:
            self._prefer(tp, state, int(data.preferred_read_replica), now)
        committed_only = self._config.isolation_level is IsolationLevel.READ_COMMITTED
        end = data.last_stable_offset if committed_only and data.last_stable_offset >= 0 else data.high_watermark
        records = data.records or b""
        aborted = tuple([(item.producer_id, item.first_offset) for item in data.aborted_transactions or ()])
        topic_id = asked.topic_id if by_id else None
        fetched = FetchedPartition(tp, state.epoch, asked.offset, records, end, aborted, data.log_start_offset, topic_id)
        if records:
            self._advance(fetch.session, tp, state, records)  # last: what raises before it leaves the position
        return fetched

    def _advance(self, session: FetchSession, tp: TopicPartition, state: PartitionState, records: bytes | memoryview) -> None:
        """Advance the fetch position past the last whole batch. If there is none, stop fetching the partition until a seek."""
        try:
            last = last_header(records)
        except CorruptRecordError:
            last = None
        if last is None:
            self._blocked[tp] = state.epoch
            self._planned = None
            return None
        leader_epoch = last.leader_epoch if last.leader_epoch >= 0 else None
        self._subscription.advance(tp, state.epoch, last.next_offset, leader_epoch)
        session.served(tp)
        wanted = session.wanted.get(tp)
        if wanted is None:
            return None
        limit = wanted.limit
        if state.end is not None:
            state.end.fetched(len(records), last.size, last.next_offset - first_offset(records))
            if last.next_offset >= state.end.offset:
                self._subscription.read_to_end(tp.topic, state.end)
                return session.drop(tp)
            most = partition_limit(self._config.max_partition_fetch_bytes, len(session.wanted))
            limit = min(most, state.end.limit(last.next_offset))
        return session.want(tp, wanted._replace(offset=last.next_offset, limit=limit))

    def _prefer(self, tp: TopicPartition, state: PartitionState, node_id: int, now: Now) -> None:
        """Fetch from another replica, which the leader has named as closer."""
        if node_id not in self._metadata.current.nodes:
            self._metadata.request_update()
            state.retry_at = now.mono + self._backoff.delay(0)
            self._planned = None
        elif self.replicas.prefer(tp, node_id, now):
            self._planned = None

    def _deliver(self, asked: _FetchInFlight, fetched: tuple[FetchedPartition, ...]) -> None:
        size = sum([len(part.data) for part in fetched])
        if size:
            self._held[asked.number] = frozenset([part.tp for part in fetched if part.data])
            self.memory.hold(asked.number, asked.node.node_id, size)
        self._notify(Fetched(FetchedResponse(asked.number, asked.node.node_id, fetched, size)))

    # -- errors -----------------------------------------------------------------------------------------------------------

    def _partition_failed(self, tp: TopicPartition, state: PartitionState, asked: Wanted, code: int, now: Now) -> None:
        reaction = _REACTIONS.get(code, FetchReaction.PROBLEM)
        of_leaders = (FetchReaction.NEW_LEADER, FetchReaction.OUT_OF_RANGE, FetchReaction.UNKNOWN_EPOCH)
        from_replica = reaction in of_leaders and self.replicas.forget(tp)
        self._planned = None
        if reaction is FetchReaction.OUT_OF_RANGE and from_replica:
            return  # a follower may lag behind: the leader is asked next
        state.retry_at = now.mono + self._backoff.delay(0)
        if reaction is FetchReaction.NEW_LEADER:
            self._metadata.request_update()
        elif reaction is FetchReaction.UNKNOWN_EPOCH and asked.leader_epoch >= 0:
            if not from_replica:  # a follower may lag behind with the epoch, too
                self._metadata.epoch_refused(tp, asked.leader_epoch, now)
        elif reaction is FetchReaction.OUT_OF_RANGE and self._subscription.reset_to is not None:
            _log.info("offset %d of %s is out of range: resetting the position", state.fetch, tp)
            self._out_of_range[tp] = state.epoch
        elif reaction in (FetchReaction.RETRY, FetchReaction.UNKNOWN_EPOCH):
            if self._logged.get(tp) != code:
                _log.warning("fetching %s from offset %d failed and is retried: %s", tp, state.fetch, broker_error(code))
            self._logged[tp] = code
        else:
            self._subscription.set_problem(tp, state.epoch, broker_error(code, f"fetching {tp} from offset {state.fetch}"))

    def _reset_out_of_range(self) -> bool:
        """Reset the partitions whose earlier records are all consumed; return whether there were any."""
        version = self._subscription.version
        for tp, epoch in list(self._out_of_range.items()):
            if self._subscription.current(tp, epoch) is None:
                del self._out_of_range[tp]
            elif not self.is_held(tp) and self._subscription.reset_to is not None:
                del self._out_of_range[tp]
                self._subscription.reset((tp,), self._subscription.reset_to)
        return self._subscription.version != version

    def _learn_leaders(self, response: fetch_response.FetchResponse, names: Mapping[uuid.UUID, str]) -> None:
        """Pass the leaders that the response names beside errors to the metadata (KIP-951)."""
        leaders, nodes = leaders_of(response, names)
        if leaders:
            self._metadata.update_leaders(leaders, nodes)

    def _refused(self, node: _Node, error: OttlaError, now: Now, *, patient: bool) -> None:
        """Retry a Fetch that failed as a whole, after the back-off if ``patient``; otherwise the first retry is at once."""
        pause = self._backoff.delay(node.failures) if patient or node.failures else 0
        node.failures += 1
        node.retry_at = now.mono + pause
        self._metadata.request_update()
        _log.debug("fetching from node %d failed: %s", node.node_id, error)


RESPONSES = 2
"""Responses of one broker that are in flight or not consumed, at most: the next one is fetched while the last one is consumed
(measured: twice the throughput of one response at a time)."""

FULL_RESPONSE = 8 << 20
"""Bytes of a response beyond which larger ones are not faster (measured: 1.5 times the throughput of responses of 2 MB, and they
still fit into the caches of a processor)."""

MIN_PARTITION_LIMIT = 1 << 20
"""Bytes of one partition that a response may contain at least, however many partitions there are."""


def partition_limit(configured: int | None, partitions: int) -> int:
    """Bytes that a response may contain of each partition: as configured, or a share of ``FULL_RESPONSE``."""
    return configured if configured is not None else max(MIN_PARTITION_LIMIT, FULL_RESPONSE // max(1, partitions))


class _Held(NamedTuple):
    node_id: int
    size: int


class FetchMemory:
    """The memory of responses: bytes that are reserved by requests in flight, or held by responses that are not consumed.

    Reserved and held bytes together never exceed ``limit``, except for what a broker sends beyond the limit of its request (a first
    batch that is larger, KIP-74). Each broker has at most ``RESPONSES`` in flight or held, so a slow one takes no memory from the
    others; while no response is held there is always memory for one. ``largest``: the most bytes that one request reserves.
    """

    def __init__(self, limit: int, largest: int) -> None:
        self._limit = limit
        self._largest = largest
        self._reserved: dict[int, int] = {}
        self._held: dict[int, _Held] = {}
        self.held = 0
        """Bytes of responses that are not consumed yet."""
        self.reserved = 0
        """Bytes that requests in flight may bring."""

    def __repr__(self) -> str:
        return f"<FetchMemory {self.held} bytes held, {self.reserved} reserved, of {self._limit}>"

    def available(self, node_id: int, nodes: int) -> int:
        """Bytes that a request to one of ``nodes`` brokers may reserve now; 0: it has to wait."""
        responses = sum(held.node_id == node_id for held in self._held.values()) + (node_id in self._reserved)
        if responses >= RESPONSES:
            return 0
        share = max(1, min(self._largest, self._limit // (RESPONSES * nodes)))
        free = self._limit - self.held - self.reserved
        if free >= share:
            return share
        # If less than a share is free, a request takes half a share or more, and otherwise waits: small requests are slow.
        return free if free >= max(1, share // 2) else 0

    def reserve(self, node_id: int, size: int) -> None:
        """Reserve memory for the response to a request."""
        self.unreserve(node_id)
        self._reserved[node_id] = size
        self.reserved += size

    def unreserve(self, node_id: int) -> None:
        """Free the reservation of a request that was answered or has failed."""
        self.reserved -= self._reserved.pop(node_id, 0)

    def hold(self, number: int, node_id: int, size: int) -> None:
        """Hold the memory of a response until it is consumed."""
        self._held[number] = _Held(node_id, size)
        self.held += size

    def release(self, numbers: Iterable[int]) -> None:
        """Free the memory of responses that were consumed or dropped."""
        for number in numbers:
            held = self._held.pop(number, None)
            if held is not None:
                self.held -= held.size


class _Lease(NamedTuple):
    node_id: int
    until: int
    leader: Leader


class ReadReplicas:
    """The replica from which each partition is fetched: its leader, or the one that the leader named as closer (KIP-392).

    A replica is preferred for ``lease`` milliseconds, while the metadata contains its broker and the leader that named it is still
    the leader. Then, and after any error, the leader is asked again.
    """

    def __init__(self, metadata: MetadataManager, lease: int) -> None:
        self._metadata = metadata
        self._lease = lease
        self._leases: dict[TopicPartition, _Lease] = {}

    def __repr__(self) -> str:
        return f"<ReadReplicas {len(self._leases)} preferred>"

    @property
    def expires_at(self) -> int | None:
        """When the next lease ends."""
        return min((lease.until + 1 for lease in self._leases.values()), default=None)

    def choose(self, tp: TopicPartition, now: Now) -> int | None:
        """Return the node to fetch from. If none is known, request metadata and return ``None``."""
        current = self._metadata.current
        leader = current.leader(tp)
        if leader is None:
            self._metadata.request_update()
            return None
        lease = self._leases.get(tp)
        if lease is None:
            return leader.node.node_id
        if lease.leader == leader and lease.until >= now.mono and lease.node_id in current.nodes:
            return lease.node_id
        if lease.node_id not in current.nodes:
            self._metadata.request_update()
        del self._leases[tp]
        return leader.node.node_id

    def preferred(self, tp: TopicPartition) -> int | None:
        """The replica that is preferred to the leader, if there is one."""
        lease = self._leases.get(tp)
        return None if lease is None else lease.node_id

    def prefer(self, tp: TopicPartition, node_id: int, now: Now) -> bool:
        """Prefer a replica that the leader has named; return whether it is another one than before."""
        leader = self._metadata.current.leader(tp)
        current = self._leases.get(tp)
        if leader is None or (current is not None and current.node_id == node_id):
            return False
        self._leases[tp] = _Lease(node_id, now.mono + self._lease, leader)
        return True

    def forget(self, tp: TopicPartition) -> bool:
        """Return to the leader after an error; return whether another replica was preferred."""
        return self._leases.pop(tp, None) is not None
