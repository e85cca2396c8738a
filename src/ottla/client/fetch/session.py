"""A fetch session (KIP-227) on the client: what the broker already knows, so that a request need only contain what changed.

Owns the partitions wanted from one broker, those in that broker's session, the session's id and epoch, and the shape of Fetch. Must
not know positions, leaders or memory, nor what becomes of the records. Invariants: after each accepted answer, the broker's session
contains exactly what the latest request meant; after any doubt about that the next request is a full one; a request's cost depends
on what changed, not on what is wanted; a request whose session names topics by name carries no topic id.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ottla.config import ConsumerConfig
from ottla.protocol import ErrorCode, duration
from ottla.protocol.messages import fetch_request as messages, fetch_response
from ottla.types import Node, TopicPartition

NO_SESSION = 0
"""The session id of a request or an answer without a session."""

FINAL_EPOCH, FULL_EPOCH, FIRST_EPOCH = -1, 0, 1
"""Epochs of a request: end the session; begin a new one with all listed partitions; the first request in a new session."""

LAST_EPOCH = 2**31 - 1
"""The epoch after this one is ``FIRST_EPOCH``."""


class Phase(enum.Enum):
    """What the next request does to the session."""

    NEW = "begin a session"
    OPEN = "continue the session"
    REPLACING = "end the session, whose content is in doubt, and begin another"


class Outcome(enum.Enum):
    """What an answer, or a missing answer, means for the session."""

    KEPT = "the broker has the session that the client expects"
    REFUSED = "the broker keeps no session for this client"
    LOST = "the broker no longer knows the session"
    DOUBTFUL = "the broker's state is unknown"


TRANSITIONS: Mapping[Phase, Mapping[Outcome, Phase]] = {
    Phase.NEW: {
        Outcome.KEPT: Phase.OPEN,
        Outcome.REFUSED: Phase.NEW,
        Outcome.LOST: Phase.NEW,
        Outcome.DOUBTFUL: Phase.NEW,
    },
    Phase.OPEN: {
        Outcome.KEPT: Phase.OPEN,
        Outcome.REFUSED: Phase.NEW,
        Outcome.LOST: Phase.NEW,
        Outcome.DOUBTFUL: Phase.REPLACING,
    },
    Phase.REPLACING: {
        Outcome.KEPT: Phase.OPEN,
        Outcome.REFUSED: Phase.NEW,
        Outcome.LOST: Phase.NEW,
        Outcome.DOUBTFUL: Phase.REPLACING,
    },
}


class Wanted(NamedTuple):
    """What is to be fetched of a partition. ``leader_epoch`` -1: not known; ``topic_id`` ``None``: the topic goes by its name;
    ``limit``: how many bytes of it an answer may hold.
    """

    offset: int
    leader_epoch: int
    topic_id: uuid.UUID | None
    limit: int


class SessionRequest(NamedTuple):
    """The part of a Fetch that concerns the session. ``all`` is what it stands for, ``named`` what of that has to be said."""

    session_id: int
    epoch: int
    named: Mapping[TopicPartition, Wanted]
    forgotten: tuple[tuple[TopicPartition, uuid.UUID | None], ...]
    all: Mapping[TopicPartition, Wanted]
    by_id: bool

    @property
    def full(self) -> bool:
        """Whether the answer has to speak of every partition."""
        return self.epoch == FULL_EPOCH


class FetchSession:
    """See the module. One request is in flight at a time."""

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.wanted: dict[TopicPartition, Wanted] = {}
        """What the next request stands for; what was served longest ago comes first (KIP-74)."""
        self.names: dict[uuid.UUID, str] = {}
        """Topics by their ids, for answers."""
        self._told: dict[TopicPartition, Wanted] = {}
        self._unnamed: set[TopicPartition] = set()
        """Wanted partitions of topics whose id is not known."""
        self._changed: dict[TopicPartition, None] = {}
        self._by_id = True
        self._session_id = NO_SESSION
        self._epoch = FULL_EPOCH
        self._in_flight: SessionRequest | None = None

    def __repr__(self) -> str:
        return f"<FetchSession {self._session_id} {self.phase.name} epoch {self._epoch}, {len(self.wanted)} partitions>"

    # -- what is wanted ---------------------------------------------------------------------------------------------------

    def want(self, tp: TopicPartition, wanted: Wanted) -> None:
        """Have the next request ask for this partition."""
        if self.wanted.get(tp) != wanted:
            self.wanted[tp] = wanted
            self._changed[tp] = None
            if wanted.topic_id is None:
                self._unnamed.add(tp)
            else:
                self._unnamed.discard(tp)
                self.names[wanted.topic_id] = tp.topic

    def drop(self, tp: TopicPartition) -> None:
        """Have the next request ask for this partition no more."""
        if self.wanted.pop(tp, None) is not None:
            self._changed[tp] = None
            self._unnamed.discard(tp)

    def served(self, tp: TopicPartition) -> None:
        """Records came: others are to be looked at first."""
        wanted = self.wanted.pop(tp, None)
        if wanted is not None:
            self.wanted[tp] = wanted

    # -- requests and answers ---------------------------------------------------------------------------------------------

    def request(self) -> SessionRequest:
        """What the next Fetch says."""
        by_id = not self._unnamed
        if by_id is not self._by_id:
            self._move(Outcome.DOUBTFUL)
        self._by_id = by_id
        if self.phase is Phase.OPEN:
            epoch, named, forgotten = self._epoch, self._news(), self._gone()
        else:
            epoch, named, forgotten = FULL_EPOCH, dict(self.wanted), ()
            self._told = {}
        for tp, _ in forgotten:
            self._told.pop(tp, None)
        self._told.update(named)
        self._changed.clear()
        self._in_flight = SessionRequest(self._session_id, epoch, named, forgotten, self._told, by_id)
        return self._in_flight

    def answered(
        self,
        request: SessionRequest,
        error_code: int,
        session_id: int,
        partitions: Collection[TopicPartition | None],
        *,
        throttled: bool = False,
    ) -> bool:
        """Take note of an answer, which spoke of ``partitions`` (``None``: one of an unknown topic); whether it may be used."""
        if request is not self._in_flight:
            return False
        self._in_flight = None
        outcome = self._outcome(request, error_code, session_id, partitions)
        # A broker that wants to be left alone answers a full request with nothing at all (KIP-219).
        muted = outcome is Outcome.DOUBTFUL and throttled and not error_code and not partitions
        self._settle(Outcome.REFUSED if muted else outcome, session_id, request)
        return outcome in (Outcome.KEPT, Outcome.REFUSED)

    def failed(self) -> None:
        """No answer came."""
        if self._in_flight is not None:
            request, self._in_flight = self._in_flight, None
            self._settle(Outcome.DOUBTFUL, request.session_id, request)

    def end(self) -> SessionRequest | None:
        """The request that ends the session on the broker; ``None`` where there is none. Nothing is to be asked afterwards."""
        self._in_flight = None
        if self.phase is not Phase.OPEN:
            return None
        return SessionRequest(self._session_id, FINAL_EPOCH, {}, (), {}, self._by_id)

    # -- how it works -----------------------------------------------------------------------------------------------------

    def _news(self) -> dict[TopicPartition, Wanted]:
        """What the request must contain: partitions that are new or changed."""
        news = {tp: self.wanted[tp] for tp in self._changed if tp in self.wanted and self.wanted[tp] != self._told.get(tp)}
        if not news and not self._by_id and self.wanted:
            # Whether topics go by name shows in what a request names: one that names nothing would go out as one with ids.
            tp = next(iter(self.wanted))
            news[tp] = self.wanted[tp]
        return news

    def _gone(self) -> tuple[tuple[TopicPartition, uuid.UUID | None], ...]:
        """What the broker has to forget: what is not wanted, and what is wanted of another topic of the same name."""
        gone = []
        for tp in self._changed:
            told, wanted = self._told.get(tp), self.wanted.get(tp)
            if told is not None and (wanted is None or (self._by_id and wanted.topic_id != told.topic_id)):
                gone.append((tp, told.topic_id))
        return tuple(gone)

    def _outcome(
        self, request: SessionRequest, error_code: int, session_id: int, partitions: Collection[TopicPartition | None]
    ) -> Outcome:
        if error_code:
            return Outcome.LOST if error_code == ErrorCode.fetch_session_id_not_found else Outcome.DOUBTFUL
        known = all(tp in request.all for tp in partitions)
        if not known or (request.full and len(set(partitions)) != len(request.all)):
            return Outcome.DOUBTFUL
        if not request.full and session_id not in (NO_SESSION, request.session_id):
            return Outcome.DOUBTFUL
        return Outcome.REFUSED if session_id == NO_SESSION else Outcome.KEPT

    def _settle(self, outcome: Outcome, session_id: int, request: SessionRequest) -> None:
        if outcome is Outcome.KEPT:
            self._session_id = session_id
            self._epoch = FIRST_EPOCH if request.epoch in (FULL_EPOCH, LAST_EPOCH) else request.epoch + 1
        self._move(outcome)

    def _move(self, outcome: Outcome) -> None:
        self.phase = TRANSITIONS[self.phase][outcome]
        if self.phase is Phase.NEW:
            self._session_id = NO_SESSION
        if self.phase is not Phase.OPEN:
            self._epoch = FULL_EPOCH


def fetch_request(config: ConsumerConfig, session: SessionRequest, max_bytes: int) -> messages.FetchRequest:
    """One Fetch for at most ``max_bytes``.

    Without any topic id it is sent in a version that has names.
    """
    topics: dict[tuple[str, uuid.UUID | None], list[messages.FetchPartition]] = {}
    for tp, wanted in session.named.items():
        topics.setdefault((tp.topic, wanted.topic_id if session.by_id else None), []).append(
            messages.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.offset,
                partition_max_bytes=wanted.limit,
            )
        )
    forgotten: dict[tuple[str, uuid.UUID | None], list[int]] = {}
    for tp, topic_id in session.forgotten:
        forgotten.setdefault((tp.topic, topic_id if session.by_id else None), []).append(tp.partition)
    return messages.FetchRequest(
        max_wait=duration(config.fetch_max_wait_ms),
        min_bytes=config.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(config.isolation_level),
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=tuple(
            messages.FetchTopic(topic=topic, topic_id=topic_id, partitions=tuple(items))
            for (topic, topic_id), items in topics.items()
        ),
        forgotten_topics_data=tuple(
            messages.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=tuple(numbers))
            for (topic, topic_id), numbers in forgotten.items()
        ),
        rack_id=config.client_rack,
    )


def partitions_of(
    response: fetch_response.FetchResponse, names: Mapping[uuid.UUID, str]
) -> Iterator[tuple[TopicPartition | None, fetch_response.PartitionData]]:
    """Each partition of an answer with its data; ``None`` for one of a topic that is known by no name."""
    for topic in response.responses:
        name = topic.topic or (names.get(topic.topic_id) if topic.topic_id is not None else None)
        for data in topic.partitions:
            yield (TopicPartition(name, data.partition_index) if name else None), data


def leaders_of(
    response: fetch_response.FetchResponse, names: Mapping[uuid.UUID, str]
) -> tuple[dict[TopicPartition, tuple[int, int]], list[Node]]:
    """The leaders (node id, epoch) that an answer names beside its errors, and their nodes (KIP-951)."""
    leaders = {
        tp: (int(data.current_leader.leader_id), int(data.current_leader.leader_epoch))
        for tp, data in partitions_of(response, names)
        if tp is not None and data.error_code and data.current_leader.leader_id >= 0
    }
    return leaders, [Node(item.node_id, item.host, item.port, item.rack) for item in response.node_endpoints]
