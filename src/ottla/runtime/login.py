"""What a client says in a SASL login: the mechanisms, each answering one challenge after the other, on helper threads.

Owns PLAIN, SCRAM (by ``scramp``) and OAUTHBEARER as they speak, and the threads they run on: a token may take seconds to fetch, and
deriving a key from a password takes milliseconds on purpose. Must not know connections. Invariant: each question is reported
exactly once, from a helper thread, as ``Proved`` or as ``NotProved``; no thread keeps the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ottla.config import ClientConfig
from ottla.errors import AuthenticationError, ConfigError, DisconnectedError, OttlaError
from ottla.protocol.sasl import Proof, Prove
from ottla.runtime.tokens import Tokens
from ottla.types import OAuthToken


@dataclass(frozen=True, slots=True)
class Proved:
    """What the mechanism answered."""

    connection_id: int
    proof: Proof


@dataclass(frozen=True, slots=True)
class NotProved:
    """Why it has no answer."""

    connection_id: int
    error: OttlaError


Report = Callable[[Proved | NotProved], None]


class Exchange(Protocol):
    """One login of one connection. May block; raises ``AuthenticationError``."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The bytes that answer a challenge, the first of which is empty; ``None``: it was the last, and all is well."""


class Plain:
    """RFC 4616: name and password as they are; fit for TLS only."""

    def __init__(self, username: str, password: str) -> None:
        self._message: bytes | None = b"\0".join((b"", username.encode(), password.encode()))

    def answer(self, challenge: bytes) -> bytes | None:
        """The one message there is."""
        del challenge
        message, self._message = self._message, None
        return message


class Scram:
    """RFC 5802 and RFC 7677: both sides prove that they know the password, and neither tells it."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        from scramp import ScramClient, ScramException

        self._wrong = ScramException
        self._step = 0
        try:
            self._client = ScramClient([mechanism], username, password)
        except ScramException as error:
            raise AuthenticationError(f"sasl.username or sasl.password cannot be used: {error}", cause=error) from error

    def answer(self, challenge: bytes) -> bytes | None:
        """The client's first message, then its proof; at last the broker's proof is checked."""
        self._step += 1
        try:
            if self._step == 1:
                return str(self._client.get_client_first()).encode()
            if self._step == 2:
                self._client.set_server_first(challenge.decode())
                return str(self._client.get_client_final()).encode()
            self._client.set_server_final(challenge.decode())
        except (self._wrong, ValueError) as error:
            text = f"the broker could not prove that it knows the password: {error}"
            raise AuthenticationError(text, hint="is this the broker that was meant?", cause=error) from error
        return None


class OAuthBearer:
    """RFC 7628: a token. A broker that does not like it says so in a challenge, and fails the login when that is answered."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._sent: OAuthToken | None = None

    def answer(self, challenge: bytes) -> bytes | None:
        """The token; then whatever lets the broker come to an end."""
        if self._sent is not None:
            if not challenge:
                return None
            self._tokens.refused(self._sent)
            return b"\x01"
        token = self._sent = self._tokens.get()
        extensions = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
        return f"n,,\x01auth=Bearer {token.value}\x01{extensions}\x01".encode()


class Logins:
    """Answers the questions of all connections of one client."""

    def __init__(self, begin: Callable[[], Exchange]) -> None:
        self._begin = begin

    def prove_in_background(self, connection_id: int, question: Prove, report: Report) -> None:
        """Answer a question on a separate thread, and call ``report`` there with the outcome; here, if no thread can be started."""
        thread = threading.Thread(
            target=lambda: report(self._outcome(connection_id, question)), name=f"ottla-login-{connection_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            report(NotProved(connection_id, DisconnectedError(f"the login could not begin: {error}", cause=error)))

    def _outcome(self, connection_id: int, question: Prove) -> Proved | NotProved:
        try:
            return Proved(connection_id, self.prove(question))
        except OttlaError as error:
            return NotProved(connection_id, error)
        except BaseException as error:  # whatever ends this thread, a login waits for its report
            return NotProved(connection_id, AuthenticationError(f"the login failed: {error!r}", cause=error))

    def prove(self, question: Prove) -> Proof:
        """Answer a question here and now."""
        exchange: Exchange = self._begin() if question.exchange is None else question.exchange  # type: ignore[assignment]
        return Proof(exchange, exchange.answer(question.challenge))


def logins_of(config: ClientConfig) -> Logins | None:
    """The logins that the settings describe, if any. Raises ``ConfigError`` where a library is missing."""
    if not config.uses_sasl:
        return None
    mechanism, username, password = config.sasl_mechanism or "", config.sasl_username or "", config.sasl_password or ""
    if mechanism == "PLAIN":
        return Logins(lambda: Plain(username, password))
    if mechanism == "OAUTHBEARER":
        tokens = Tokens.of(config)
        return Logins(lambda: OAuthBearer(tokens))
    try:
        import scramp  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"sasl.mechanism={mechanism} needs scramp", hint="pip install 'ottla[scram]'", cause=error) from error
    return Logins(lambda: Scram(mechanism, username, password))
