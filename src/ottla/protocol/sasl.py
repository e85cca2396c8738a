"""The login of a connection: which mechanism, then challenges and answers until the broker is content (KIP-43, KIP-152, KIP-368).

Owns the order of SaslHandshake and SaslAuthenticate and what their errors mean. Must not know what a mechanism says, nor any
password: what answers a challenge is asked of the shell (``Prove``), since that may take long, run a user's code or need random
numbers. Invariant: a login that returns has succeeded on both sides; anything else raises ``AuthenticationError``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import AuthenticationError, broker_error
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import sasl_authenticate_request, sasl_handshake_request

_NOT_WANTED = "the port does not ask for a login: set security.protocol to PLAINTEXT or SSL"


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this request on the connection; go on with its answer."""

    api: Api
    message: Any


@dataclass(frozen=True, slots=True)
class Prove:
    """Have the mechanism answer a challenge; go on with a ``Proof``. Without an exchange it is the beginning of a new one."""

    exchange: object | None
    challenge: bytes


class Proof(NamedTuple):
    """What the mechanism said: its exchange, to be handed back with the next challenge, and the bytes for the broker.

    ``token`` is ``None`` where the challenge was the broker's last word, and it is satisfied with it.
    """

    exchange: object
    token: bytes | None


Login = Generator[Ask | Prove, Any, int]
"""A login under way; returns for how many milliseconds it is good, 0 for ever."""


def no_logins() -> AuthenticationError:
    """The error for a broker that does not know the requests of a login, as Ottla's: Kafka lists them on each port."""
    return AuthenticationError("the broker has no logins", hint=_NOT_WANTED)


def log_in(mechanism: str) -> Login:
    """A login from its beginning. The first token is made before the broker hears of it: a renewal stops requests shortly."""
    proof: Proof = yield Prove(None, b"")
    offered = yield Ask(Api.SASL_HANDSHAKE, sasl_handshake_request.SaslHandshakeRequest(mechanism=mechanism))
    if offered.error_code:
        raise _refused_mechanism(mechanism, offered)
    while proof.token is not None:
        answer = yield Ask(Api.SASL_AUTHENTICATE, sasl_authenticate_request.SaslAuthenticateRequest(auth_bytes=proof.token))
        if answer.error_code:
            refusal = broker_error(int(answer.error_code), answer.error_message or "")
            why = "check the credentials, and that the broker knows them for this mechanism"
            raise AuthenticationError(f"the {mechanism} login was refused: {refusal}", hint=why, cause=refusal)
        proof = yield Prove(proof.exchange, answer.auth_bytes)
    return int(answer.session_lifetime_ms)


def _refused_mechanism(mechanism: str, answer: Any) -> AuthenticationError:
    code = int(answer.error_code)
    cause = broker_error(code)
    if code == ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(sorted(answer.mechanisms)) or "none"
        hint = f"set sasl.mechanism to one of those that the broker offers: {offered}"
        return AuthenticationError(f"the broker does not offer the mechanism {mechanism}: {cause}", hint=hint, cause=cause)
    not_wanted = _NOT_WANTED if code == ErrorCode.illegal_sasl_state else None
    return AuthenticationError(f"the broker refused to begin a login: {cause}", hint=not_wanted, cause=cause)
