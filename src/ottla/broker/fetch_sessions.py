"""Fetch sessions (KIP-227): requests name only changed partitions, and responses contain only partitions with news.

Owns the sessions, their epochs, and the eviction of sessions. Must not know logs or how a fetch is served. Invariants: an
incremental request fetches all partitions of its session; a response omits a partition only if it has nothing new for the client;
there are no more sessions than ``max.incremental.fetch.session.cache.slots``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.messages import fetch_request, fetch_response
from ottla.types import Now

NO_SESSION, FINAL_EPOCH, FIRST_EPOCH = 0, -1, 0
"""The session id of a full fetch, and the special epochs of a request: -1 ends the session, 0 begins one. Positive epochs continue
a session."""

EVICTION_MS = 120_000
"""Any new session may evict one that was unused for so many milliseconds, and a larger new session one of that age."""

_LAST_EPOCH = 2**31 - 1

PartitionKey = tuple[uuid.UUID | None, str, int]
"""A partition: its topic by id or by name, and its number."""


@dataclass(slots=True)
class _CachedPartition:
    """The requested fetch of a partition, and the data last sent for it; ``None`` if the next response must contain it."""

    wanted: fetch_request.FetchPartition
    last_sent: fetch_response.PartitionData | None = None


@dataclass(slots=True)
class _CachedSession:
    by_id: bool
    created: int
    used: int
    epoch: int
    partitions: dict[PartitionKey, _CachedPartition]

    def topics(self) -> tuple[fetch_request.FetchTopic, ...]:
        """Return all partitions of the session, in the order in which they are served."""
        return tuple(
            fetch_request.FetchTopic(topic_id=topic_id, topic=name, partitions=tuple(part.wanted for _, part in parts))
            for (topic_id, name), parts in groupby(self.partitions.items(), lambda item: item[0][:2])
        )


class FetchSessionCache:
    """The sessions of a broker, the least recently used first (Kafka's ``FetchSessionCache``). ``new_id`` returns unguessable
    ids."""

    def __init__(self, slots: int, new_id: Callable[[], uuid.UUID]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, _CachedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        """Remove all sessions; clients begin new ones."""
        self._sessions.clear()

    def full_request(self, request: fetch_request.FetchRequest, by_id: bool, now: Now) -> fetch_request.FetchRequest:
        """Return the request with all partitions of its session. Raises ``ApiError`` if the session does not exist or is not in the
        state that the client expects."""
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            return request
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.fetch_session_id_not_found, f"There is no fetch session {request.session_id}.")
        if session.epoch != request.session_epoch:
            raise ApiError(
                ErrorCode.invalid_fetch_session_epoch,
                f"The fetch session is at epoch {session.epoch}, the request at {request.session_epoch}.",
            )
        if session.by_id is not by_id:
            raise ApiError(
                ErrorCode.fetch_session_topic_id_error, "The fetch session names topics by id, the request by name, or vice versa."
            )
        _update(session, request)
        if not session.partitions:
            del self._sessions[request.session_id]
            return replace(request, session_id=NO_SESSION, session_epoch=FINAL_EPOCH, topics=())
        session.epoch = _next_epoch(session.epoch)
        session.used = now.mono
        self._sessions[request.session_id] = self._sessions.pop(request.session_id)
        return replace(request, topics=session.topics())

    def incremental_response(
        self, request: fetch_request.FetchRequest, by_id: bool, answer: fetch_response.FetchResponse, now: Now
    ) -> fetch_response.FetchResponse:
        """Return the part of a response that is new to the client of a session."""
        if request.session_epoch == FINAL_EPOCH:
            return answer
        if request.session_epoch == FIRST_EPOCH:
            return replace(answer, session_id=self._open(request, by_id, answer, now))
        session = self._sessions.get(request.session_id)
        if session is None or session.epoch != _next_epoch(request.session_epoch):
            code = ErrorCode.fetch_session_id_not_found if session is None else ErrorCode.invalid_fetch_session_epoch
            return replace(answer, error_code=code, session_id=NO_SESSION, responses=())
        return replace(answer, session_id=request.session_id, responses=_changed_partitions(session, answer))

    def _open(self, request: fetch_request.FetchRequest, by_id: bool, answer: fetch_response.FetchResponse, now: Now) -> int:
        session = _CachedSession(by_id, now.mono, now.mono, FIRST_EPOCH + 1, {})
        _update(session, request)
        if not self._try_evict(len(session.partitions), now.mono):
            return NO_SESSION
        _changed_partitions(session, answer)
        number = NO_SESSION
        while number == NO_SESSION or number in self._sessions:
            number = self._new_id().int & _LAST_EPOCH
        self._sessions[number] = session
        return number

    def _try_evict(self, size: int, mono: int) -> bool:
        """Whether there is space for another session; evict one if necessary."""
        if len(self._sessions) < self._slots:
            return True
        number, oldest = next(iter(self._sessions.items()), (NO_SESSION, None))
        if oldest is None:
            return False
        if mono - oldest.used <= EVICTION_MS:
            aged = ((len(one.partitions), key) for key, one in self._sessions.items() if mono - one.created > EVICTION_MS)
            smallest, number = min(aged, default=(size, NO_SESSION))
            if smallest >= size:
                return False
        del self._sessions[number]
        return True


def _update(session: _CachedSession, request: fetch_request.FetchRequest) -> None:
    """Remove the forgotten partitions; add or update the named ones."""
    for gone in request.forgotten_topics_data:
        for number in gone.partitions:
            session.partitions.pop((gone.topic_id, gone.topic, number), None)
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.topic_id, topic.topic, wanted.partition)
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = _CachedPartition(wanted)
            else:
                known.wanted = wanted


def _changed_partitions(
    session: _CachedSession, answer: fetch_response.FetchResponse
) -> tuple[fetch_response.FetchableTopicResponse, ...]:
    """Return the partitions with news. The next fetch serves those with records in this response last."""
    topics = []
    served: list[PartitionKey] = []
    for topic in answer.responses:
        partitions = []
        for data in topic.partitions:
            key = (topic.topic_id, topic.topic, data.partition_index)
            part = session.partitions[key]
            if data is part.last_sent:
                continue
            if data.records:
                served.append(key)
            if data.records or data.error_code or _differs(part.last_sent, data):
                partitions.append(data)
            # After an error the next response must contain the partition. Records are not kept.
            part.last_sent = None if data.error_code else without_records(data)
        if partitions:
            topics.append(replace(topic, partitions=tuple(partitions)))
    _move_back(session.partitions, served)
    return tuple(topics)


def without_records(data: fetch_response.PartitionData) -> fetch_response.PartitionData:
    """Return the data without records, which would keep their files open."""
    return replace(data, records=b"") if data.records else data


def _differs(last_sent: fetch_response.PartitionData | None, data: fetch_response.PartitionData) -> bool:
    return last_sent is None or (last_sent.high_watermark, last_sent.log_start_offset) != (
        data.high_watermark,
        data.log_start_offset,
    )


def _move_back(partitions: dict[PartitionKey, _CachedPartition], served: Iterable[PartitionKey]) -> None:
    for key in served:
        partitions[key] = partitions.pop(key)


def _next_epoch(epoch: int) -> int:
    return FIRST_EPOCH + 1 if epoch == _LAST_EPOCH else epoch + 1
