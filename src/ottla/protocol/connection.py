"""The client's side of one connection, without the socket: requests in, bytes out; bytes in, responses out.

Owns the opening dialogue (ApiVersions, with its fallback, then the login), correlation ids, version negotiation and the order of
responses. Must not know sockets, time or what a message means. Invariant: responses come back in the order of their requests;
anything else is a ``ProtocolError`` and the connection is of no more use.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ottla.errors import ProtocolError, UnsupportedApiError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api, VersionRange, VersionRule, version_rules_of, without
from ottla.protocol.codec import Message, RequestHeader, decode_response, encode_request
from ottla.protocol.framing import MAX_FRAME, Frame, FrameReader, Piece
from ottla.protocol.messages import api_versions_request, offset_fetch_request
from ottla.protocol.sasl import Ask, Login, Proof, Prove, log_in, no_logins
from ottla.version import __version__


class Response(NamedTuple):
    """An answer: the ticket that its request was sent with, and the neutral message."""

    ticket: object
    message: Message


class ConnectionState(enum.Enum):
    """Where the opening dialogue stands."""

    HANDSHAKE = "ApiVersions was sent"
    LOGIN = "versions are known, the login is going on"
    READY = "versions are known, requests may be sent"


_LOGIN = object()
"""The ticket of the requests of a login: their answers are not for the managers."""


class _InFlight(NamedTuple):
    header: RequestHeader
    ticket: object


class ClientConnection:
    """One connection to a broker. ``start()`` first; ``send()`` once ``state`` is READY.

    With a SASL ``mechanism`` there is a login: what ``take_question()`` gives is to be answered by ``proved()``.
    """

    def __init__(self, client_id: str, *, mechanism: str | None = None, max_frame: int = MAX_FRAME) -> None:
        self.state = ConnectionState.HANDSHAKE
        self.versions: Mapping[Api, VersionRange] = {}
        self.features: Mapping[str, int] = {}
        """Feature -> the level that is in force in the cluster; brokers that know of none tell none."""
        self.lifetime = 0
        """For how many milliseconds the login is good, from its end on; 0: for ever."""
        self._mechanism = mechanism
        self._login: Login | None = None
        self._question: Prove | None = None
        self._client_id = client_id
        self._reader = FrameReader(max_frame)
        self._in_flight: deque[_InFlight] = deque()
        self._next_id = 0

    def __repr__(self) -> str:
        return f"<ClientConnection {self.state.name}, {len(self._in_flight)} in flight>"

    @property
    def proves(self) -> bool:
        """Whether the login waits for this side: for a token, say."""
        return self._login is not None and not self._in_flight

    def start(self) -> list[Piece]:
        """The first bytes to send: which versions do you speak?"""
        return self._ask_versions(SPOKEN[Api.API_VERSIONS].maximum)

    def renew(self) -> None:
        """Log in once more on the same connection (KIP-368). Requests may be sent until ``proved()`` gives bytes."""
        self._begin_login()

    def proved(self, proof: Proof) -> list[Piece]:
        """The bytes that follow from the answer to a question. Raises ``AuthenticationError``."""
        return self._go_on(proof)

    def take_question(self) -> Prove | None:
        """What the mechanism is asked, if anything; given once."""
        question, self._question = self._question, None
        return question

    def send(self, ticket: object, api: Api, message: Message) -> list[Piece]:
        """The bytes of a request; its answer will come with ``ticket``. Raises ``UnsupportedApiError``."""
        return self._send(ticket, api, self.version_for(api, message), message)

    def version_for(self, api: Api, message: Message) -> int:
        """The newest version that both sides speak and that can carry this message."""
        theirs = self.versions.get(api)
        common = SPOKEN[api].common(theirs) if theirs is not None else None
        if common is None:
            offered = f"{theirs.minimum} to {theirs.maximum}" if theirs is not None else "none"
            raise UnsupportedApiError(
                f"the broker offers {api.name} versions {offered}; Ottla supports {SPOKEN[api].minimum} to {SPOKEN[api].maximum}"
            )
        version = min(common.maximum, _newest_for(api, message))
        need = _NEEDS.get(api)
        if need is not None and need.fact not in version_rules_of(api, version) and need.applies(message):
            text = f"the broker offers {api.name} up to version {common.maximum}, and newer ones are needed: {need.fact.value}"
            raise UnsupportedApiError(text, hint=f"{need.instead}, or upgrade the brokers")
        if version < common.minimum:
            raise UnsupportedApiError(f"{api.name} by topic name needs version {version}, the broker starts at {common}")
        return version

    @property
    def awaits_answers(self) -> bool:
        """Whether anything more has to come."""
        return bool(self._in_flight)

    def get_buffer(self) -> memoryview:
        """Memory for the next bytes from the socket."""
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> tuple[Response | None, list[Piece]]:
        """Bytes arrived: the response they complete, if any, and what must be sent at once (the opening dialogue)."""
        frame = self._reader.buffer_updated(count)
        return (None, []) if frame is None else self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> tuple[Response | None, list[Piece]]:
        if not self._in_flight:
            raise ProtocolError(f"a response of {len(frame)} bytes arrived without a request")
        header, ticket = self._in_flight.popleft()
        if self.state is ConnectionState.HANDSHAKE:
            return None, self._on_versions(header, frame)
        correlation_id, message = decode_response(header.api, header.version, frame)
        self._check_order(header, correlation_id)
        if ticket is _LOGIN:
            return None, self._go_on(message)
        return Response(ticket, message), []

    def _ask_versions(self, version: int) -> list[Piece]:
        message = api_versions_request.ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        return self._send(None, Api.API_VERSIONS, version, message)

    def _on_versions(self, header: RequestHeader, frame: Frame) -> list[Piece]:
        # A broker that does not know our version answers in version 0, whose body begins with the error code after the id.
        refused = len(frame) >= 6 and int.from_bytes(frame[4:6], "big") == ErrorCode.unsupported_version
        if refused and header.version > 0:
            return self._ask_versions(0)
        correlation_id, message = decode_response(header.api, header.version, frame)
        self._check_order(header, correlation_id)
        if message.error_code:
            raise error_class(message.error_code)("the broker refused ApiVersions")
        self.versions = {
            Api(item.api_key): VersionRange(item.min_version, item.max_version)
            for item in message.api_keys
            if item.api_key in Api.__members__.values()
        }
        self.features = {item.name: item.max_version_level for item in message.finalized_features}
        self.state = ConnectionState.READY
        if self._mechanism is not None:
            if Api.SASL_HANDSHAKE not in self.versions:
                raise no_logins()
            self._begin_login()
        return []

    def _begin_login(self) -> None:
        assert self._mechanism is not None
        self.state = ConnectionState.LOGIN
        self._login = log_in(self._mechanism)
        self._go_on(None)

    def _go_on(self, answer: Message | Proof | None) -> list[Piece]:
        """The login's next step: bytes to send, or a question."""
        assert self._login is not None
        try:
            match self._login.send(answer):
                case Ask(api, message):
                    return self.send(_LOGIN, api, message)
                case Prove() as question:
                    self._question = question
        except StopIteration as done:
            self.lifetime, self._login, self.state = done.value, None, ConnectionState.READY
        return []

    def _send(self, ticket: object, api: Api, version: int, message: Message) -> list[Piece]:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        header = RequestHeader(api, version, self._next_id, self._client_id)
        pieces = encode_request(header, message)
        self._in_flight.append(_InFlight(header, ticket))
        return pieces

    def _check_order(self, header: RequestHeader, correlation_id: int) -> None:
        if correlation_id != header.correlation_id:
            raise ProtocolError(
                f"the response to {header.api.name} has correlation id {correlation_id}, expected {header.correlation_id}"
            )


_TOPICS_OF: Mapping[Api, Any] = {
    Api.PRODUCE: lambda message: message.topic_data,
    Api.FETCH: lambda message: (*message.topics, *message.forgotten_topics_data),
    Api.OFFSET_COMMIT: lambda message: message.topics,
    Api.OFFSET_FETCH: lambda message: [topic for group in message.groups for topic in _asked_for(group)],
}
"""APIs that name topics by id in their newest versions -> the topics of a request."""


class _Need(NamedTuple):
    """What has to hold of a version for the messages that it ``applies`` to, and what a user can do where it does not."""

    fact: VersionRule
    applies: Callable[[Any], bool]
    instead: str


_STATIC = _Need(VersionRule.STATIC_MEMBERS, lambda message: message.group_instance_id is not None, "leave group_instance_id out")
_NEEDS: Mapping[Api, _Need] = {
    Api.CONSUMER_GROUP_HEARTBEAT: _Need(
        VersionRule.MATCHES_PATTERNS, lambda message: bool(message.subscribed_topic_regex), "subscribe to topics by name"
    ),
    Api.CREATE_TOPICS: _Need(
        VersionRule.CHOOSES_COUNTS,
        lambda message: any(-1 in (topic.num_partitions, topic.replication_factor) for topic in message.topics),
        "give the number of partitions and of replicas",
    ),
    Api.JOIN_GROUP: _STATIC,
    Api.SYNC_GROUP: _STATIC,
    Api.HEARTBEAT: _STATIC,
    Api.OFFSET_COMMIT: _STATIC,
}
"""APIs whose older versions cannot say what a message says."""


def _asked_for(group: Any) -> Any:
    """The topics of an OffsetFetch group; one that asks for all counts as one without an id, so that the answer has names."""
    return group.topics if group.topics is not None else (offset_fetch_request.OffsetFetchRequestTopics(partition_indexes=()),)


def _newest_for(api: Api, message: Message) -> int:
    """The newest version of ``api`` that can carry this message: names only, if some topic has no id."""
    topics = _TOPICS_OF.get(api)
    if topics is not None and not all(topic.topic_id for topic in topics(message)):
        return without(api, VersionRule.BY_TOPIC_ID)
    return SPOKEN[api].maximum
