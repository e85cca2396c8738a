"""The client's side of a fetch session (KIP-227): a request contains only the partitions that have changed since the last one.

Owns the partitions to fetch from one broker, those in the broker's session, the session's id and epoch, and the fields of Fetch.
Must not know positions, leaders, memory or records. Invariants: after each accepted response, the broker's session contains exactly
the partitions of the latest request; if that is in doubt, the next request is a full one; the cost of a request depends on the
number of changes, not of partitions; a request whose session identifies topics by name has no topic id.
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
"""The session id of a request or a response without a session."""

FINAL_EPOCH, FULL_EPOCH, FIRST_EPOCH = -1, 0, 1
"""Epochs of a request: end the session; begin a new one with all listed partitions; the first request in a new session."""

LAST_EPOCH = 2**31 - 1
"""The epoch after this one is ``FIRST_EPOCH``."""


class SessionPhase(enum.Enum):
    """The effect of the next request on the session."""

    NEW = "begin a session"
    OPEN = "continue the session"
    REPLACING = "end the session, whose content is in doubt, and begin another"


class Outcome(enum.Enum):
    """The effect of a response, or of its absence, on the session."""

    KEPT = "the broker has the session that the client expects"
    REFUSED = "the broker keeps no session for this client"
    LOST = "the broker no longer knows the session"
    DOUBTFUL = "the broker's state is unknown"


TRANSITIONS: Mapping[SessionPhase, Mapping[Outcome, SessionPhase]] = {
    SessionPhase.NEW: {
        Outcome.KEPT: SessionPhase.OPEN,
        Outcome.REFUSED: SessionPhase.NEW,
        Outcome.LOST: SessionPhase.NEW,
        Outcome.DOUBTFUL: SessionPhase.NEW,
    },
    SessionPhase.OPEN: {
        Outcome.KEPT: SessionPhase.OPEN,
        Outcome.REFUSED: SessionPhase.NEW,
        Outcome.LOST: SessionPhase.NEW,
        Outcome.DOUBTFUL: SessionPhase.REPLACING,
    },
    SessionPhase.REPLACING: {
        Outcome.KEPT: SessionPhase.OPEN,
        Outcome.REFUSED: SessionPhase.NEW,
        Outcome.LOST: SessionPhase.NEW,
        Outcome.DOUBTFUL: SessionPhase.REPLACING,
    },
}


class Wanted(NamedTuple):
    """The parameters of a partition in Fetch. ``leader_epoch`` -1: not known; ``topic_id`` ``None``: the topic is identified by
    name; ``limit``: the bytes of it that a response may contain.
    """

    offset: int
    leader_epoch: int
    topic_id: uuid.UUID | None
    limit: int


class SessionRequest(NamedTuple):
    """The part of a Fetch that concerns the session: ``all`` partitions that it covers, and the ``named`` ones that it contains."""

    session_id: int
    epoch: int
    named: Mapping[TopicPartition, Wanted]
    forgotten: tuple[tuple[TopicPartition, uuid.UUID | None], ...]
    all: Mapping[TopicPartition, Wanted]
    by_id: bool

    @property
    def full(self) -> bool:
        """Whether the response has to contain every partition."""
        return self.epoch == FULL_EPOCH


class FetchSession:
    """See the module. One request is in flight at a time."""

    def __init__(self) -> None:
        self.phase = SessionPhase.NEW
        self.wanted: dict[TopicPartition, Wanted] = {}
        """The partitions that the next request covers. Those whose latest records are oldest come first (KIP-74)."""
        self.names: dict[uuid.UUID, str] = {}
        """The names of topics by id, for responses."""
        self._sent: dict[TopicPartition, Wanted] = {}
        self._unnamed: set[TopicPartition] = set()
        """Partitions of topics whose id is not known."""
        self._changed: dict[TopicPartition, None] = {}
        self._by_id = True
        self._session_id = NO_SESSION
        self._epoch = FULL_EPOCH
        self._in_flight: SessionRequest | None = None

    def __repr__(self) -> str:
        return f"<FetchSession {self._session_id} {self.phase.name} epoch {self._epoch}, {len(self.wanted)} partitions>"

    # -- partitions -------------------------------------------------------------------------------------------------------

    def want(self, tp: TopicPartition, wanted: Wanted) -> None:
        """Add or change a partition, for the next request."""
        if self.wanted.get(tp) != wanted:
            self.wanted[tp] = wanted
            self._changed[tp] = None
            if wanted.topic_id is None:
                self._unnamed.add(tp)
            else:
                self._unnamed.discard(tp)
                self.names[wanted.topic_id] = tp.topic

    def drop(self, tp: TopicPartition) -> None:
        """Remove a partition, for the next request."""
        if self.wanted.pop(tp, None) is not None:
            self._changed[tp] = None
            self._unnamed.discard(tp)

    def served(self, tp: TopicPartition) -> None:
        """Move a partition whose records have arrived to the end, so that the broker looks at the others first."""
        wanted = self.wanted.pop(tp, None)
        if wanted is not None:
            self.wanted[tp] = wanted

    # -- requests and answers ---------------------------------------------------------------------------------------------

    def request(self) -> SessionRequest:
        """Return the session's part of the next Fetch."""
        by_id = not self._unnamed
        if by_id is not self._by_id:
            self._move(Outcome.DOUBTFUL)
        self._by_id = by_id
        if self.phase is SessionPhase.OPEN:
            epoch, named, forgotten = self._epoch, self._changes(), self._removed()
        else:
            epoch, named, forgotten = FULL_EPOCH, dict(self.wanted), ()
            self._sent = {}
        for tp, _ in forgotten:
            self._sent.pop(tp, None)
        self._sent.update(named)
        self._changed.clear()
        self._in_flight = SessionRequest(self._session_id, epoch, named, forgotten, self._sent, by_id)
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
        """Apply a response, with its ``partitions`` (``None``: one of an unknown topic); return whether it may be used."""
        if request is not self._in_flight:
            return False
        self._in_flight = None
        outcome = self._outcome(request, error_code, session_id, partitions)
        # A broker that throttles this client answers even a full request without partitions (KIP-219).
        muted = outcome is Outcome.DOUBTFUL and throttled and not error_code and not partitions
        self._settle(Outcome.REFUSED if muted else outcome, session_id, request)
        return outcome in (Outcome.KEPT, Outcome.REFUSED)

    def failed(self) -> None:
        """Apply the failure of a request."""
        if self._in_flight is not None:
            request, self._in_flight = self._in_flight, None
            self._settle(Outcome.DOUBTFUL, request.session_id, request)

    def end(self) -> SessionRequest | None:
        """Return the request that ends the broker's session; ``None``: it has none. No other request may follow."""
        self._in_flight = None
        if self.phase is not SessionPhase.OPEN:
            return None
        return SessionRequest(self._session_id, FINAL_EPOCH, {}, (), {}, self._by_id)

    # -- internals --------------------------------------------------------------------------------------------------------

    def _changes(self) -> dict[TopicPartition, Wanted]:
        """The partitions that are new or have changed."""
        changes = {tp: self.wanted[tp] for tp in self._changed if tp in self.wanted and self.wanted[tp] != self._sent.get(tp)}
        if not changes and not self._by_id and self.wanted:
            # The version of the request follows from its partitions: an empty one would be sent in a version with topic ids.
            tp = next(iter(self.wanted))
            changes[tp] = self.wanted[tp]
        return changes

    def _removed(self) -> tuple[tuple[TopicPartition, uuid.UUID | None], ...]:
        """The partitions that the broker has to remove: those not fetched any more, and those whose topic was recreated."""
        removed = []
        for tp in self._changed:
            sent, wanted = self._sent.get(tp), self.wanted.get(tp)
            if sent is not None and (wanted is None or (self._by_id and wanted.topic_id != sent.topic_id)):
                removed.append((tp, sent.topic_id))
        return tuple(removed)

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
        if self.phase is SessionPhase.NEW:
            self._session_id = NO_SESSION
        if self.phase is not SessionPhase.OPEN:
            self._epoch = FULL_EPOCH


def fetch_request(config: ConsumerConfig, session: SessionRequest, max_bytes: int) -> messages.FetchRequest:
    """Return a Fetch for at most ``max_bytes``. Without topic ids it is sent in a version that has names."""
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
    """Yield each partition of a response with its data; ``None`` for a partition of an unknown topic."""
    for topic in response.responses:
        name = topic.topic or (names.get(topic.topic_id) if topic.topic_id is not None else None)
        for data in topic.partitions:
            yield (TopicPartition(name, data.partition_index) if name else None), data


def leaders_of(
    response: fetch_response.FetchResponse, names: Mapping[uuid.UUID, str]
) -> tuple[dict[TopicPartition, tuple[int, int]], list[Node]]:
    """Return the leaders (node id, epoch) that a response names beside its errors, and their nodes (KIP-951)."""
    leaders = {
        tp: (int(data.current_leader.leader_id), int(data.current_leader.leader_epoch))
        for tp, data in partitions_of(response, names)
        if tp is not None and data.error_code and data.current_leader.leader_id >= 0
    }
    return leaders, [Node(item.node_id, item.host, item.port, item.rack) for item in response.node_endpoints]
