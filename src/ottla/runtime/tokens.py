"""Tokens for OAUTHBEARER: from the user's callable, or from an identity provider by client credentials (RFC 6749, section 4.4).

Owns the current token and decides when to replace it. Must not know connections or SASL. Invariant: one token is fetched at a time;
a token that has reached four fifths of its lifetime, or that a broker refused, is not used for a new login.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from typing import Any

from ottla.config import ClientConfig
from ottla.errors import AuthenticationError
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
