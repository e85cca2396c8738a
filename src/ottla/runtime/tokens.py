"""Tokens for OAUTHBEARER: from the user's callable, or from an identity provider by client credentials (RFC 6749, section 4.4).

Owns the token in use and the decision when a new one is due. Must not know connections or SASL. Invariant: one token is fetched
at a time, and one that has reached four fifths of its life, or that a broker refused, is not used for a new login.
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

USED_FOR = 0.8
"""The part of a token's life in which it is used for logins."""

REPLACED_AFTER = 10_000
"""Milliseconds before a refused token is replaced: a refused client retries every second, but must not ask the identity provider
that often."""

_PATIENCE = 10.0
"""Seconds that an identity provider gets to answer."""

_LONGEST_ANSWER = 1 << 20
_CHECK_URL = "check sasl.oauthbearer.token.endpoint.url"


class Tokens:
    """Gives tokens; safe to be asked by many threads."""

    def __init__(self, provider: Callable[[], Any], now: Callable[[], Now] = clock.now) -> None:
        self._provider = provider
        self._now = now
        self._lock = threading.Lock()
        self._token: OAuthToken | None = None
        self._fetched_at = 0
        self._good_until = Now(0, 0)
        """By either clock: the wall's may be set back, and the monotonic one may have slept with the machine."""

    @classmethod
    def of(cls, config: ClientConfig) -> Tokens:
        """The tokens that the settings describe."""
        return cls(config.sasl_oauthbearer_token_provider or (lambda: fetch_token(config)))

    def get(self) -> OAuthToken:
        """A token that is good for a while. May block; raises ``AuthenticationError``."""
        with self._lock:
            now = self._now()
            if self._token is None or now.mono >= self._good_until.mono or now.wall >= self._good_until.wall:
                token = self._ask()
                life = token.expires_at - now.wall / 1000 if token.expires_at is not None else 0.0
                used_for = round(life * USED_FOR * 1000)
                self._token, self._good_until = token, Now(now.mono + used_for, now.wall + used_for)
                self._fetched_at = now.mono
            return self._token

    def refused(self, token: OAuthToken) -> None:
        """A broker does not take this token, whatever is left of its life: a later login gets another."""
        with self._lock:
            if token is self._token and self._now().mono >= self._fetched_at + REPLACED_AFTER:
                self._token = None

    def _ask(self) -> OAuthToken:
        try:
            given = self._provider()
        except AuthenticationError:
            raise
        except Exception as error:
            hint = "it must return a token, or raise if there is none"
            raise AuthenticationError(f"the token provider raised {error!r}", hint=hint, cause=error) from error
        token = OAuthToken(given) if isinstance(given, str) else given
        if not isinstance(token, OAuthToken) or not token.value:
            wanted = "a string or an ottla.OAuthToken"
            raise AuthenticationError(f"the token provider gave a {type(given).__name__}", hint=f"it has to give {wanted}")
        return token


def fetch_token(config: ClientConfig) -> OAuthToken:
    """A token by client credentials. Raises ``AuthenticationError`` with what the identity provider said."""
    url = config.sasl_oauthbearer_token_endpoint_url or ""
    answer = _post(url, config)
    try:
        value, life = answer["access_token"], float(answer.get("expires_in", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise AuthenticationError(f"{url} answered without an access_token", cause=error) from error
    return OAuthToken(value, clock.now().wall / 1000 + life, dict(config.sasl_oauthbearer_extensions))


def _post(url: str, config: ClientConfig) -> Any:
    import urllib.error  # here: with HTTP and e-mail below it, it takes 9 ms to import, and few clients fetch tokens
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
        with urllib.request.urlopen(request, timeout=_PATIENCE, context=_context(url, config)) as response:
            return json.loads(response.read(_LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        said = error.read(_LONGEST_ANSWER).decode(errors="replace").strip()
        hint = "check client id, client secret and scope"
        raise AuthenticationError(f"{url} refused a token: HTTP {error.code} {said}".strip(), hint=hint, cause=error) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        trust = isinstance(reason, ssl.SSLCertVerificationError)
        hint = "set ssl.truststore.location to its CA, or renew its certificate" if trust else _CHECK_URL
        raise AuthenticationError(f"no token from {url}: {reason}", hint=hint, cause=error) from error


def _context(url: str, config: ClientConfig) -> ssl.SSLContext | None:
    """What the operating system trusts, and what the settings trust besides: identity providers are often private too."""
    if not url.startswith("https"):
        return None
    from ottla.runtime.tls import trust

    context = ssl.create_default_context()
    trust(context, config)
    return context
