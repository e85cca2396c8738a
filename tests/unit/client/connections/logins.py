"""Connections with a login on a virtual network, and a broker that accepts it.

Must not know what is tested.
"""

from __future__ import annotations

from typing import Any

from ottla.client.connections.node_connections import NodeState
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import sasl_authenticate_response, sasl_handshake_response
from ottla.protocol.sasl import SaslChallenge, SaslResponse
from tests.simulation.network import NoAnswer, Peer
from tests.unit.client.connections.harness import ANSWER, ConnectionsOnNetwork

SETTINGS = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "right"}


class Gate:
    """A broker that accepts logins with the right password."""

    def __init__(self, *, lifetime: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> None:
        self.lifetime = lifetime
        self.mechanisms = mechanisms
        self.password = b"right"
        self.renewing = False
        """Whether the broker does not respond to logins for now."""
        self.held: list[tuple[Any, Any]] = []

    def __call__(self, header: Any, message: Any) -> Any:
        match header.api:
            case Api.SASL_HANDSHAKE:
                known = message.mechanism in self.mechanisms
                code = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
                return sasl_handshake_response.SaslHandshakeResponse(error_code=code, mechanisms=self.mechanisms)
            case Api.SASL_AUTHENTICATE:
                if self.renewing:
                    self.held.append((header, message))
                    raise NoAnswer
                right = message.auth_bytes == self.password
                return sasl_authenticate_response.SaslAuthenticateResponse(
                    error_code=ErrorCode.none if right else ErrorCode.sasl_authentication_failed,
                    error_message=None if right else "who are you?",
                    auth_bytes=b"welcome",
                    session_lifetime_ms=self.lifetime,
                )
        return ANSWER


class LoginsOnNetwork(ConnectionsOnNetwork):
    """Connections with a login on a virtual network."""

    def __init__(self, servers: str = "10.0.0.1:9092", password: bytes = b"right", **settings: Any) -> None:
        super().__init__(servers, **{**SETTINGS, **settings})
        self.network.respond = self.respond
        self.password = password
        self.asked: list[SaslChallenge] = []
        self.no_token: OttlaError | None = None

    def respond(self, challenge: SaslChallenge) -> SaslResponse | OttlaError:
        self.asked.append(challenge)
        if self.no_token is not None:
            return self.no_token
        if challenge.exchange is None:
            assert challenge.challenge == b""
            return SaslResponse("exchange", self.password)
        assert challenge == SaslChallenge("exchange", b"welcome")
        return SaslResponse("exchange", None)

    def apis(self, peer: Peer) -> list[Api]:
        return [api for api, _ in peer.requests]

    @property
    def states(self) -> list[NodeState]:
        return [link.state for link in self.connections.brokers]
