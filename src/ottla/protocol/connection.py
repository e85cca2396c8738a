"""The client's side of one connection, without the socket: requests become bytes, and bytes become responses.

Owns the opening of the connection (ApiVersions with its fallback, then the login), correlation ids, version negotiation, the order
of responses, and on the channel of a member the requests of the coordinator. Must not know sockets, time or the meaning of a
message. Invariant: responses arrive in the order of their requests, and a frame that was not requested only on a channel;
otherwise a ``ProtocolError`` is raised, and the connection must be closed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ottla.errors import ProtocolError, UnsupportedApiError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import PUSHED, SPOKEN, Api, VersionRange, VersionRule, version_rules_of, without
from ottla.protocol.codec import Message, RequestHeader, decode_pushed, decode_response, encode_answer, encode_request
from ottla.protocol.framing import MAX_FRAME, Frame, FrameReader, Piece
from ottla.protocol.messages import api_versions_request, offset_fetch_request
from ottla.protocol.sasl import Login, SaslChallenge, SaslRequest, SaslResponse, log_in, login_not_supported
from ottla.version import __version__


class Response(NamedTuple):
    """A neutral response, and the ticket of its request."""

    ticket: object
    message: Message


class Pushed(NamedTuple):
    """A request of the coordinator to a member. The member's answer has the same API and correlation id."""

    api: Api
    correlation_id: int
    message: Message


class ConnectionState(enum.Enum):
    """The progress of the opening of a connection."""

    HANDSHAKE = "ApiVersions was sent"
    LOGIN = "versions are known, the login is in progress"
    READY = "versions are known, requests may be sent"


_LOGIN = object()
"""The ticket of a login's requests, whose responses the connection handles itself."""


_CORRELATION_IDS = min(PUSHED) << 16
"""Correlation ids stay below this. So the first two bytes of a frame on a channel tell what it is: a response begins with its
correlation id, a request of the coordinator with its API key."""


class _InFlight(NamedTuple):
    header: RequestHeader
    ticket: object
    joins: bool
    """Whether a member registers, so that its success opens the channel."""


class ClientConnection:
    """One connection to a broker. ``start()`` first; ``send()`` once ``state`` is READY.

    With a SASL ``mechanism`` there is a login: the caller answers each challenge of ``take_challenge()`` with ``respond()``.
    """

    def __init__(self, client_id: str, *, mechanism: str | None = None, max_frame: int = MAX_FRAME) -> None:
        self.state = ConnectionState.HANDSHAKE
        self.versions: Mapping[Api, VersionRange] = {}
        self.features: Mapping[str, int] = {}
        """Feature -> its finalized level in the cluster; empty for brokers without features."""
        self.lifetime = 0
        """For how many milliseconds the login is valid after its end; 0: without limit."""
        self.is_channel = False
        """Whether a member has registered on it: from then on the coordinator sends requests on it."""
        self.has_left = False
        """Whether the member has left: nothing more happens on this channel, and the broker closes it."""
        self._mechanism = mechanism
        self._login: Login | None = None
        self._challenge: SaslChallenge | None = None
        self._client_id = client_id
        self._reader = FrameReader(max_frame)
        self._in_flight: deque[_InFlight] = deque()
        self._unanswered: dict[tuple[Api, int], RequestHeader] = {}
        """The coordinator's requests without an answer: API and correlation id -> header."""
        self._next_id = 0

    def __repr__(self) -> str:
        return f"<ClientConnection {self.state.name}, {len(self._in_flight)} in flight>"

    @property
    def awaits_sasl_response(self) -> bool:
        """Whether the login waits for ``respond()``, and not for the broker."""
        return self._login is not None and not self._in_flight

    def start(self) -> list[Piece]:
        """The first bytes to send: an ApiVersions request."""
        return self._request_api_versions(SPOKEN[Api.API_VERSIONS].maximum)

    def renew(self) -> None:
        """Log in again on the same connection (KIP-368). Requests may be sent until ``respond()`` returns bytes."""
        self._begin_login()

    def respond(self, response: SaslResponse) -> list[Piece]:
        """The bytes to send for the mechanism's response to a challenge. Raises ``AuthenticationError``."""
        return self._continue_login(response)

    def take_challenge(self) -> SaslChallenge | None:
        """The challenge to respond to, if there is one; it is returned once."""
        challenge, self._challenge = self._challenge, None
        return challenge

    def send(
        self,
        ticket: object,
        api: Api,
        message: Message,
        *,
        requires: VersionRule | None = None,
        excludes: VersionRule | None = None,
    ) -> list[Piece]:
        """The bytes of a request, whose response will have ``ticket``. Raises ``UnsupportedApiError``."""
        return self._send(ticket, api, self.version_for(api, message, requires=requires, excludes=excludes), message)

    def version_for(
        self, api: Api, message: Message, *, requires: VersionRule | None = None, excludes: VersionRule | None = None
    ) -> int:
        """The newest version that both sides support and that can express this message.

        The rule in ``requires`` holds for it, and the one in ``excludes`` does not.
        """
        offered = self.versions.get(api)
        common = SPOKEN[api].common(offered) if offered is not None else None
        if common is None:
            versions = f"{offered.minimum} to {offered.maximum}" if offered is not None else "none"
            raise UnsupportedApiError(
                f"the broker offers {api.name} versions {versions}; Ottla supports {SPOKEN[api].minimum} to {SPOKEN[api].maximum}"
            )
        version = min(common.maximum, _newest_for(api, message))
        if excludes is not None:
            version = min(version, without(api, excludes))
        if requires is not None and requires not in version_rules_of(api, version):
            text = f"the broker offers {api.name} up to version {common.maximum}; this needs a newer one: {requires.value}"
            raise UnsupportedApiError(text, hint="upgrade the brokers")
        need = _REQUIREMENTS.get(api)
        if need is not None and need.rule not in version_rules_of(api, version) and need.applies(message):
            text = f"the broker offers {api.name} up to version {common.maximum}; this needs a newer one: {need.rule.value}"
            raise UnsupportedApiError(text, hint=f"{need.alternative}, or upgrade the brokers")
        if version < common.minimum:
            raise UnsupportedApiError(f"{api.name} by topic name needs version {version}, the broker starts at {common}")
        return version

    @property
    def awaits_answers(self) -> bool:
        """Whether a request waits for its response."""
        return bool(self._in_flight)

    def answer(self, api: Api, correlation_id: int, message: Message) -> list[Piece]:
        """The bytes of the answer to a request of the coordinator; none if no such request on this connection waits for one."""
        header = self._unanswered.pop((api, correlation_id), None)
        return [] if header is None else encode_answer(header._replace(client_id=self._client_id), message)

    def get_buffer(self) -> memoryview:
        """Memory for the next bytes from the socket."""
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> tuple[Response | Pushed | None, list[Piece]]:
        """Bytes arrived. Return the response, or the request of the coordinator, that they complete, if any, and bytes to send at
        once while the connection opens."""
        frame = self._reader.buffer_updated(count)
        return (None, []) if frame is None else self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> tuple[Response | Pushed | None, list[Piece]]:
        if self.is_channel and int.from_bytes(frame[:2], "big") in PUSHED:
            return self._on_pushed(frame), []
        if not self._in_flight:
            raise ProtocolError(f"a response of {len(frame)} bytes arrived without a request")
        header, ticket, joins = self._in_flight.popleft()
        if self.state is ConnectionState.HANDSHAKE:
            return None, self._on_api_versions(header, frame)
        correlation_id, message = decode_response(header.api, header.version, frame)
        self._check_correlation_id(header, correlation_id)
        if ticket is _LOGIN:
            return None, self._continue_login(message)
        if joins and not message.error_code:
            self.is_channel = True
        elif header.api is Api.LEAVE and self.is_channel and not message.error_code:
            self.has_left = True
        return Response(ticket, message), []

    def _on_pushed(self, frame: Frame) -> Pushed:
        header, message = decode_pushed(frame)
        self._unanswered[header.api, header.correlation_id] = header
        return Pushed(header.api, header.correlation_id, message)

    def _request_api_versions(self, version: int) -> list[Piece]:
        message = api_versions_request.ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        return self._send(None, Api.API_VERSIONS, version, message)

    def _on_api_versions(self, header: RequestHeader, frame: Frame) -> list[Piece]:
        # A broker that does not support the version responds in version 0: the error code follows the correlation id (KIP-511).
        refused = len(frame) >= 6 and int.from_bytes(frame[4:6], "big") == ErrorCode.unsupported_version
        if refused and header.version > 0:
            return self._request_api_versions(0)
        correlation_id, message = decode_response(header.api, header.version, frame)
        self._check_correlation_id(header, correlation_id)
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
                raise login_not_supported()
            self._begin_login()
        return []

    def _begin_login(self) -> None:
        assert self._mechanism is not None
        self.state = ConnectionState.LOGIN
        self._login = log_in(self._mechanism)
        self._continue_login(None)

    def _continue_login(self, answer: Message | SaslResponse | None) -> list[Piece]:
        """The next step of the login: return bytes to send, or keep a challenge for ``take_challenge()``."""
        assert self._login is not None
        try:
            match self._login.send(answer):
                case SaslRequest(api, message):
                    return self.send(_LOGIN, api, message)
                case SaslChallenge() as challenge:
                    self._challenge = challenge
        except StopIteration as done:
            self.lifetime, self._login, self.state = done.value, None, ConnectionState.READY
        return []

    def _send(self, ticket: object, api: Api, version: int, message: Message) -> list[Piece]:
        self._next_id = (self._next_id + 1) % _CORRELATION_IDS
        header = RequestHeader(api, version, self._next_id, self._client_id)
        pieces = encode_request(header, message)
        joins = api is Api.REGISTER and (bool(message.topics) or message.pattern is not None)
        self._in_flight.append(_InFlight(header, ticket, joins))
        return pieces

    def _check_correlation_id(self, header: RequestHeader, correlation_id: int) -> None:
        if correlation_id != header.correlation_id:
            raise ProtocolError(
                f"the response to {header.api.name} has correlation id {correlation_id}, expected {header.correlation_id}"
            )


_TOPICS_OF: Mapping[Api, Any] = {
    Api.PRODUCE: lambda message: message.topic_data,
    Api.FETCH: lambda message: (*message.topics, *message.forgotten_topics_data),
    Api.OFFSET_COMMIT: lambda message: message.topics,
    Api.OFFSET_FETCH: lambda message: [topic for group in message.groups for topic in _requested_topics(group)],
}
"""APIs that name topics by id in their newest versions -> the topics of a request."""


class _Requirement(NamedTuple):
    """A rule that must hold for the version of the messages that it ``applies`` to, and the user's alternative to such messages."""

    rule: VersionRule
    applies: Callable[[Any], bool]
    alternative: str


_CODEC_AT, _CODECS, _ZSTD = 22, 0b111, 4
"""The byte of a record batch with the number of its codec, that number's bits, and the number of zstd."""


def _holds_zstd(message: Any) -> bool:
    return any(one.records[_CODEC_AT] & _CODECS == _ZSTD for topic in message.topic_data for one in topic.partition_data)


_STATIC = _Requirement(
    VersionRule.STATIC_MEMBERS, lambda message: message.group_instance_id is not None, "leave group_instance_id out"
)
_REQUIREMENTS: Mapping[Api, _Requirement] = {
    Api.CONSUMER_GROUP_HEARTBEAT: _Requirement(
        VersionRule.MATCHES_PATTERNS, lambda message: bool(message.subscribed_topic_regex), "subscribe to topics by name"
    ),
    Api.CREATE_TOPICS: _Requirement(
        VersionRule.CHOOSES_COUNTS,
        lambda message: any(-1 in (topic.num_partitions, topic.replication_factor) for topic in message.topics),
        "give the number of partitions and of replicas",
    ),
    Api.PRODUCE: _Requirement(VersionRule.ZSTD, _holds_zstd, "set another compression_type"),
    Api.JOIN_GROUP: _STATIC,
    Api.SYNC_GROUP: _STATIC,
    Api.HEARTBEAT: _STATIC,
    Api.OFFSET_COMMIT: _STATIC,
}
"""APIs whose older versions cannot express every message."""


def _requested_topics(group: Any) -> Any:
    """The topics of an OffsetFetch group; all topics count as one without an id, so that the response has names."""
    return group.topics if group.topics is not None else (offset_fetch_request.OffsetFetchRequestTopics(partition_indexes=()),)


def _newest_for(api: Api, message: Message) -> int:
    """The newest version of ``api`` that can express this message: one with names if a topic has no id."""
    topics = _TOPICS_OF.get(api)
    if topics is not None and not all(topic.topic_id for topic in topics(message)):
        return without(api, VersionRule.BY_TOPIC_ID)
    return SPOKEN[api].maximum
