"""The SASL mechanisms of a client: PLAIN, SCRAM (with ``scramp``) and OAUTHBEARER compute the responses to a broker's challenges.

Owns the mechanisms, the helper threads they run on (to fetch a token may take seconds, and to derive a key from a password takes
milliseconds by design), and the current token of OAUTHBEARER: from the user's callable, or from an identity provider by client
credentials (RFC 6749, section 4.4). Must not know connections. Invariants: each challenge is reported exactly once, from a helper
thread, as ``SaslResponseReady`` or ``SaslFailed``; the threads do not keep the process from ending; one token is fetched at a time,
and one that has reached four fifths of its lifetime, or that a broker refused, is not used for a new login.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.config import ClientConfig
from ottla.errors import AuthenticationError, ConfigError, DisconnectedError, OttlaError
from ottla.protocol.sasl import SaslChallenge, SaslResponse
from ottla.runtime import clock
from ottla.types import Now, OAuthToken

USABLE_LIFETIME = 0.8
"""The part of a token's lifetime in which it is used for logins."""

REPLACE_AFTER = 10_000
"""Milliseconds between two tokens, at least, if the broker refuses the first: a refused client retries every second, and must not
request a token from the identity provider each time."""

_TIMEOUT = 10.0
"""Seconds to wait for the identity provider."""

_MOST_RESPONSE_BYTES = 1 << 20
_CHECK_URL = "check sasl.oauthbearer.token.endpoint.url"


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


class TokenCache:
    """Fetches tokens and keeps the latest. Thread-safe."""

    def __init__(self, provider: Callable[[], Any], now: Callable[[], Now] = clock.now) -> None:
        self._provider = provider
        self._now = now
        self._lock = threading.Lock()
        self._token: OAuthToken | None = None
        self._fetched_at = 0
        self._usable_until = Now(0, 0)
        """By both clocks: the wall clock may be set back, and the monotonic clock stops while the machine sleeps."""

    @classmethod
    def of(cls, config: ClientConfig) -> TokenCache:
        """Create the cache for the provider or the endpoint of the settings."""
        return cls(config.sasl_oauthbearer_token_provider or (lambda: fetch_token(config)))

    def get(self) -> OAuthToken:
        """Return the current token, or a new one if it is due. May block; raises ``AuthenticationError``."""
        with self._lock:
            now = self._now()
            if self._token is None or now.mono >= self._usable_until.mono or now.wall >= self._usable_until.wall:
                token = self._call_provider()
                lifetime = token.expires_at - now.wall / 1000 if token.expires_at is not None else 0.0
                usable = round(lifetime * USABLE_LIFETIME * 1000)
                self._token, self._usable_until = token, Now(now.mono + usable, now.wall + usable)
                self._fetched_at = now.mono
            return self._token

    def on_refused(self, token: OAuthToken) -> None:
        """Drop a token that a broker has refused, unless it was fetched within ``REPLACE_AFTER``."""
        with self._lock:
            if token is self._token and self._now().mono >= self._fetched_at + REPLACE_AFTER:
                self._token = None

    def _call_provider(self) -> OAuthToken:
        try:
            returned = self._provider()
        except AuthenticationError:
            raise
        except Exception as error:
            hint = "the provider must return a token, or raise an AuthenticationError"
            raise AuthenticationError(f"the token provider raised {error!r}", hint=hint, cause=error) from error
        token = OAuthToken(returned) if isinstance(returned, str) else returned
        if not isinstance(token, OAuthToken) or not token.value:
            kind = type(returned).__name__
            raise AuthenticationError(f"the token provider returned a {kind}", hint="it must return a str or an ottla.OAuthToken")
        return token


def fetch_token(config: ClientConfig) -> OAuthToken:
    """Fetch a token by client credentials. Raises ``AuthenticationError`` with the identity provider's response."""
    url = config.sasl_oauthbearer_token_endpoint_url or ""
    response = _post(url, config)
    try:
        value, lifetime = response["access_token"], float(response.get("expires_in", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise AuthenticationError(f"{url} answered without an access_token", cause=error) from error
    return OAuthToken(value, clock.now().wall / 1000 + lifetime, dict(config.sasl_oauthbearer_extensions))


def _post(url: str, config: ClientConfig) -> Any:
    import urllib.error  # here, since it takes 9 ms to import (it imports http and email), and few clients fetch tokens
    import urllib.parse
    import urllib.request

    form = {"grant_type": "client_credentials"}
    if config.sasl_oauthbearer_scope:
        form["scope"] = config.sasl_oauthbearer_scope
    client_id = urllib.parse.quote(config.sasl_oauthbearer_client_credentials_client_id or "", safe="")
    secret = urllib.parse.quote(config.sasl_oauthbearer_client_credentials_client_secret or "", safe="")
    basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=_context(url, config)) as response:
            return json.loads(response.read(_MOST_RESPONSE_BYTES))
    except urllib.error.HTTPError as error:
        body = error.read(_MOST_RESPONSE_BYTES).decode(errors="replace").strip()
        hint = "check client id, client secret and scope"
        raise AuthenticationError(f"{url} refused a token: HTTP {error.code} {body}".strip(), hint=hint, cause=error) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        trust = isinstance(reason, ssl.SSLCertVerificationError)
        hint = "set ssl.truststore.location to its CA, or renew its certificate" if trust else _CHECK_URL
        raise AuthenticationError(f"no token from {url}: {reason}", hint=hint, cause=error) from error


def _context(url: str, config: ClientConfig) -> ssl.SSLContext | None:
    """Create a context that trusts the system's CAs and those of the settings: identity providers are often private, too."""
    if not url.startswith("https"):
        return None
    from ottla.runtime.tls import trust

    context = ssl.create_default_context()
    trust(context, config)
    return context
