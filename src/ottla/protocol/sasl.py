"""The login of a connection: the choice of a mechanism, then challenges and responses (KIP-43, KIP-152, KIP-368).

Owns the order of SaslHandshake and SaslAuthenticate and the meaning of their errors. Must not know the content of challenges, nor
any password: the shell computes the response to a ``SaslChallenge``, since that may take long, run a user's code or need random
numbers. Invariant: a login that returns has succeeded on both sides; otherwise it raises ``AuthenticationError``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import AuthenticationError, broker_error
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import sasl_authenticate_request, sasl_handshake_request

_NO_LOGIN_HINT = "the port does not ask for a login: set security.protocol to PLAINTEXT or SSL"


@dataclass(frozen=True, slots=True)
class SaslRequest:
    """A request to send on the connection; the login continues with its response."""

    api: Api
    message: Any


@dataclass(frozen=True, slots=True)
class SaslChallenge:
    """A challenge for the mechanism; the login continues with a ``SaslResponse``. ``exchange`` is ``None`` at the beginning."""

    exchange: object | None
    challenge: bytes


class SaslResponse(NamedTuple):
    """The mechanism's response: its exchange, which the next challenge contains, and the bytes for the broker.

    ``token`` is ``None`` if the challenge was the last one and the mechanism accepted it.
    """

    exchange: object
    token: bytes | None


Login = Generator[SaslRequest | SaslChallenge, Any, int]
"""A login in progress. Returns for how many milliseconds the login is valid; 0: without limit."""


def login_not_supported() -> AuthenticationError:
    """The error for a broker without the requests of a login, such as Ottla's. Kafka lists them on each port."""
    return AuthenticationError("the broker does not support logins", hint=_NO_LOGIN_HINT)


def log_in(mechanism: str) -> Login:
    """Log in. The first token is computed before the first request, so that a renewal delays other requests only briefly."""
    response: SaslResponse = yield SaslChallenge(None, b"")
    handshake = yield SaslRequest(Api.SASL_HANDSHAKE, sasl_handshake_request.SaslHandshakeRequest(mechanism=mechanism))
    if handshake.error_code:
        raise _refused_mechanism(mechanism, handshake)
    while response.token is not None:
        request = sasl_authenticate_request.SaslAuthenticateRequest(auth_bytes=response.token)
        answer = yield SaslRequest(Api.SASL_AUTHENTICATE, request)
        if answer.error_code:
            cause = broker_error(int(answer.error_code), answer.error_message or "")
            hint = "check the credentials, and that the broker has them for this mechanism"
            raise AuthenticationError(f"the {mechanism} login was refused: {cause}", hint=hint, cause=cause)
        response = yield SaslChallenge(response.exchange, answer.auth_bytes)
    return int(answer.session_lifetime_ms)


def _refused_mechanism(mechanism: str, handshake: Any) -> AuthenticationError:
    code = int(handshake.error_code)
    cause = broker_error(code)
    if code == ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(sorted(handshake.mechanisms)) or "none"
        hint = f"set sasl.mechanism to one of those that the broker offers: {offered}"
        return AuthenticationError(f"the broker does not offer the mechanism {mechanism}: {cause}", hint=hint, cause=cause)
    no_login = _NO_LOGIN_HINT if code == ErrorCode.illegal_sasl_state else None
    return AuthenticationError(f"the broker refused to begin a login: {cause}", hint=no_login, cause=cause)
