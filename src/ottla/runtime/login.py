"""The SASL mechanisms of a client: PLAIN, SCRAM (with ``scramp``) and OAUTHBEARER compute the responses to a broker's challenges.

Owns the mechanisms and the helper threads they run on: to fetch a token may take seconds, and to derive a key from a password takes
milliseconds by design. Must not know connections. Invariant: each challenge is reported exactly once, from a helper thread, as
``SaslResponseReady`` or ``SaslFailed``; the threads do not keep the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ottla.config import ClientConfig
from ottla.errors import AuthenticationError, ConfigError, DisconnectedError, OttlaError
from ottla.protocol.sasl import SaslChallenge, SaslResponse
from ottla.runtime.tokens import TokenCache
from ottla.types import OAuthToken


@dataclass(frozen=True, slots=True)
class SaslResponseReady:
    """The mechanism's response to a challenge."""

    connection_id: int
    response: SaslResponse


@dataclass(frozen=True, slots=True)
class SaslFailed:
    """Why the mechanism has no response."""

    connection_id: int
    error: OttlaError


Report = Callable[[SaslResponseReady | SaslFailed], None]


class Exchange(Protocol):
    """One login of one connection. May block; raises ``AuthenticationError``."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the response to a challenge; the first challenge is empty. ``None``: the exchange has succeeded."""


class Plain:
    """RFC 4616: username and password in clear text, so it should be used with TLS only."""

    def __init__(self, username: str, password: str) -> None:
        self._message: bytes | None = b"\0".join((b"", username.encode(), password.encode()))

    def answer(self, challenge: bytes) -> bytes | None:
        """Return username and password; the next time, ``None``."""
        del challenge
        message, self._message = self._message, None
        return message


class Scram:
    """RFC 5802 and RFC 7677: client and broker prove to each other that they know the password, without sending it."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        from scramp import ScramClient, ScramException

        self._exception_type = ScramException
        self._step = 0
        try:
            self._client = ScramClient([mechanism], username, password)
        except ScramException as error:
            raise AuthenticationError(f"sasl.username or sasl.password cannot be used: {error}", cause=error) from error

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the client's first message, then its proof; then check the broker's proof."""
        self._step += 1
        try:
            if self._step == 1:
                return str(self._client.get_client_first()).encode()
            if self._step == 2:
                self._client.set_server_first(challenge.decode())
                return str(self._client.get_client_final()).encode()
            self._client.set_server_final(challenge.decode())
        except (self._exception_type, ValueError) as error:
            text = f"the broker could not prove that it knows the password: {error}"
            raise AuthenticationError(text, hint="check that bootstrap.servers names the right broker", cause=error) from error
        return None


class OAuthBearer:
    """RFC 7628: a token. A broker refuses it with a challenge, and fails the login once the client has responded to that."""

    def __init__(self, tokens: TokenCache) -> None:
        self._tokens = tokens
        self._sent: OAuthToken | None = None

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the token; then, if the broker refuses it, the response after which the broker fails the login."""
        if self._sent is not None:
            if not challenge:
                return None
            self._tokens.on_refused(self._sent)
            return b"\x01"
        token = self._sent = self._tokens.get()
        extensions = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
        return f"n,,\x01auth=Bearer {token.value}\x01{extensions}\x01".encode()


class Logins:
    """Runs the mechanism for all connections of one client, on helper threads."""

    def __init__(self, begin: Callable[[], Exchange]) -> None:
        self._begin = begin

    def respond_in_background(self, connection_id: int, challenge: SaslChallenge, report: Report) -> None:
        """Compute a response on a new thread, and call ``report`` there; if no thread can be started, call it here."""
        thread = threading.Thread(
            target=lambda: report(self._outcome(connection_id, challenge)), name=f"ottla-login-{connection_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            report(SaslFailed(connection_id, DisconnectedError(f"cannot start a thread for the login: {error}", cause=error)))

    def _outcome(self, connection_id: int, challenge: SaslChallenge) -> SaslResponseReady | SaslFailed:
        try:
            return SaslResponseReady(connection_id, self.respond(challenge))
        except OttlaError as error:
            return SaslFailed(connection_id, error)
        except BaseException as error:  # also SystemExit of a token provider: the connection waits for this report
            return SaslFailed(connection_id, AuthenticationError(f"the login failed: {error!r}", cause=error))

    def respond(self, challenge: SaslChallenge) -> SaslResponse:
        """Compute a response, on the calling thread."""
        exchange: Exchange = self._begin() if challenge.exchange is None else challenge.exchange  # type: ignore[assignment]
        return SaslResponse(exchange, exchange.answer(challenge.challenge))


def create_logins(config: ClientConfig) -> Logins | None:
    """Return the logins that the settings describe, if any. Raises ``ConfigError`` if ``scramp`` is needed and missing."""
    if not config.uses_sasl:
        return None
    mechanism, username, password = config.sasl_mechanism or "", config.sasl_username or "", config.sasl_password or ""
    if mechanism == "PLAIN":
        return Logins(lambda: Plain(username, password))
    if mechanism == "OAUTHBEARER":
        tokens = TokenCache.of(config)
        return Logins(lambda: OAuthBearer(tokens))
    try:
        import scramp  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"sasl.mechanism={mechanism} needs scramp", hint="pip install 'ottla[scram]'", cause=error) from error
    return Logins(lambda: Scram(mechanism, username, password))
