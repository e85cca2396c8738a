"""Fetch sessions (KIP-227): what a client fetches, remembered, so that it need only say what changes and is only told what does.

Owns the sessions, their epochs and which is evicted when there are too many. Must not know logs or how a fetch is answered.
Invariants: a request of a session is carried out with all partitions of the session; a partition is left out of an answer only
if the client knows all of it already; no more sessions than ``max.incremental.fetch.session.cache.slots``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.messages import fetch_request, fetch_response
from ottla.types import Now

NO_SESSION, FINAL_EPOCH, FIRST_EPOCH = 0, -1, 0
"""Epochs in a request: end the session, fetch without one; begin a new one. All above are turns of one that there is."""

EVICTION_MS = 120_000
"""A session that was not used for so long can be replaced by any other, and one of that age by a larger one."""

_LAST_EPOCH = 2**31 - 1

Key = tuple[uuid.UUID | None, str, int]
"""A partition: its topic by id or by name, and its number."""


@dataclass(slots=True)
class _Partition:
    """What is wanted of a partition, and what its client got last; ``None`` if everything is new."""

    wanted: fetch_request.FetchPartition
    told: fetch_response.PartitionData | None = None


@dataclass(slots=True)
class _Session:
    by_id: bool
    created: int
    used: int
    epoch: int
    partitions: dict[Key, _Partition]

    def topics(self) -> tuple[fetch_request.FetchTopic, ...]:
        """All that is wanted, in the order in which it is to be looked at."""
        return tuple(
            fetch_request.FetchTopic(topic_id=topic_id, topic=name, partitions=tuple(part.wanted for _, part in parts))
            for (topic_id, name), parts in groupby(self.partitions.items(), lambda item: item[0][:2])
        )


class FetchSessions:
    """The sessions of a broker, the least recently used first. ``new_id`` returns unguessable numbers."""

    def __init__(self, slots: int, new_id: Callable[[], uuid.UUID]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        """Forget all; clients begin new ones."""
        self._sessions.clear()

    def begin(self, request: fetch_request.FetchRequest, by_id: bool, now: Now) -> fetch_request.FetchRequest:
        """The request with everything that it is about; raises ``ApiError`` where its session is not as its client believes."""
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            return request
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.fetch_session_id_not_found, f"There is no fetch session {request.session_id}.")
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.invalid_fetch_session_epoch, f"The session is at epoch {session.epoch}.")
        if session.by_id is not by_id:
            raise ApiError(ErrorCode.fetch_session_topic_id_error, "The session names topics otherwise.")
        _update(session, request)
        if not session.partitions:
            del self._sessions[request.session_id]
            return replace(request, session_id=NO_SESSION, session_epoch=FINAL_EPOCH, topics=())
        session.epoch = _after(session.epoch)
        session.used = now.mono
        self._sessions[request.session_id] = self._sessions.pop(request.session_id)
        return replace(request, topics=session.topics())

    def finish(
        self, request: fetch_request.FetchRequest, by_id: bool, answer: fetch_response.FetchResponse, now: Now
    ) -> fetch_response.FetchResponse:
        """The part of an answer that a client gets for a request in a session."""
        if request.session_epoch == FINAL_EPOCH:
            return answer
        if request.session_epoch == FIRST_EPOCH:
            return replace(answer, session_id=self._open(request, by_id, answer, now))
        session = self._sessions.get(request.session_id)
        if session is None or session.epoch != _after(request.session_epoch):
            code = ErrorCode.fetch_session_id_not_found if session is None else ErrorCode.invalid_fetch_session_epoch
            return replace(answer, error_code=code, session_id=NO_SESSION, responses=())
        return replace(answer, session_id=request.session_id, responses=_news(session, answer))

    def _open(self, request: fetch_request.FetchRequest, by_id: bool, answer: fetch_response.FetchResponse, now: Now) -> int:
        session = _Session(by_id, now.mono, now.mono, FIRST_EPOCH + 1, {})
        _update(session, request)
        if not self._has_room(len(session.partitions), now.mono):
            return NO_SESSION
        _news(session, answer)
        number = NO_SESSION
        while number == NO_SESSION or number in self._sessions:
            number = self._new_id().int & _LAST_EPOCH
        self._sessions[number] = session
        return number

    def _has_room(self, size: int, mono: int) -> bool:
        """Whether there can be one session more, after another has gone if need be."""
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


def _update(session: _Session, request: fetch_request.FetchRequest) -> None:
    """Take out what is not wanted any more, add or alter what is named."""
    for gone in request.forgotten_topics_data:
        for number in gone.partitions:
            session.partitions.pop((gone.topic_id, gone.topic, number), None)
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.topic_id, topic.topic, wanted.partition)
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = _Partition(wanted)
            else:
                known.wanted = wanted


def _news(session: _Session, answer: fetch_response.FetchResponse) -> tuple[fetch_response.FetchableTopicResponse, ...]:
    """The part of an answer that the client does not know yet. Partitions with records are served last the next time."""
    topics = []
    served: list[Key] = []
    for topic in answer.responses:
        partitions = []
        for data in topic.partitions:
            key = (topic.topic_id, topic.topic, data.partition_index)
            part = session.partitions[key]
            if data is part.told:
                continue
            if data.records:
                served.append(key)
            if data.records or data.error_code or _differs(part.told, data):
                partitions.append(data)
            # After an error all is news again; of records nothing is kept.
            part.told = None if data.error_code else without_records(data)
        if partitions:
            topics.append(replace(topic, partitions=tuple(partitions)))
    _move_back(session.partitions, served)
    return tuple(topics)


def without_records(data: fetch_response.PartitionData) -> fetch_response.PartitionData:
    """What is kept of an answer: its records would keep their files open."""
    return replace(data, records=b"") if data.records else data


def _differs(told: fetch_response.PartitionData | None, data: fetch_response.PartitionData) -> bool:
    return told is None or (told.high_watermark, told.log_start_offset) != (data.high_watermark, data.log_start_offset)


def _move_back(partitions: dict[Key, _Partition], served: Iterable[Key]) -> None:
    for key in served:
        partitions[key] = partitions.pop(key)


def _after(epoch: int) -> int:
    return FIRST_EPOCH + 1 if epoch == _LAST_EPOCH else epoch + 1
