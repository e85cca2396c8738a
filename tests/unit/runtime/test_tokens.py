"""When a new token is fetched, and the request to an identity provider and its responses."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.config import ClientConfig
from ottla.errors import AuthenticationError
from ottla.runtime.login import OAuthBearer, TokenCache
from ottla.types import Now, OAuthToken


class Clock:
    def __init__(self) -> None:
        self.mono, self.wall = 5_000, 1_700_000_000_000

    def __call__(self) -> Now:
        return Now(self.mono, self.wall)

    def advance(self, milliseconds: int) -> None:
        self.mono += milliseconds
        self.wall += milliseconds


class Provider:
    """Numbered tokens with a lifetime in seconds."""

    def __init__(self, clock: Clock, life: float = 100) -> None:
        self.given = 0
        self._clock = clock
        self._life = life

    def __call__(self) -> OAuthToken:
        self.given += 1
        return OAuthToken(f"token {self.given}", self._clock.wall / 1000 + self._life)


def test_a_token_is_used_for_four_fifths_of_its_lifetime() -> None:
    clock = Clock()
    tokens = TokenCache(Provider(clock), clock)
    assert tokens.get().value == "token 1"
    clock.advance(79_000)
    assert tokens.get().value == "token 1"
    clock.advance(2_000)
    assert tokens.get().value == "token 2"


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_setting_the_wall_clock_does_not_extend_a_token(jump: int) -> None:
    clock = Clock()
    tokens = TokenCache(Provider(clock), clock)
    tokens.get()
    clock.wall += jump
    clock.advance(81_000)
    assert tokens.get().value == "token 2"
    clock.advance(79_000)
    assert tokens.get().value == "token 2"


def test_a_token_that_expired_while_the_machine_slept_is_replaced() -> None:
    """The monotonic clock stops during sleep."""
    clock = Clock()
    tokens = TokenCache(Provider(clock), clock)
    tokens.get()
    clock.wall += 90_000
    assert tokens.get().value == "token 2"


def test_a_token_that_tells_no_end_is_used_once() -> None:
    given = iter(["a", "b"])
    tokens = TokenCache(lambda: next(given), Clock())
    assert [tokens.get().value, tokens.get().value] == ["a", "b"]


def test_a_token_that_a_broker_refused_is_replaced_but_not_at_every_attempt() -> None:
    clock = Clock()
    tokens = TokenCache(Provider(clock, life=3_600), clock)
    logins: list[str] = []
    for _ in range(25):
        exchange = OAuthBearer(tokens)
        logins.append((exchange.answer(b"") or b"").decode())
        assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
        clock.advance(1_000)
    assert [number for number in range(1, 25) if logins[number] != logins[number - 1]] == [11, 22]
    for _ in range(2):  # this one is taken
        exchange = OAuthBearer(tokens)
        exchange.answer(b"")
        assert exchange.answer(b"") is None
        clock.advance(11_000)
    assert "token 3" in (OAuthBearer(tokens).answer(b"") or b"").decode()


def test_the_refusal_of_an_older_token_keeps_the_newer_one() -> None:
    clock = Clock()
    tokens = TokenCache(Provider(clock), clock)
    older = tokens.get()
    clock.advance(81_000)
    newer = tokens.get()
    clock.advance(20_000)
    tokens.on_refused(older)
    assert tokens.get() is newer


@pytest.mark.parametrize("given", [None, "", 7, b"token", OAuthToken("")])
def test_a_provider_that_returns_no_token_raises(given: Any) -> None:
    with pytest.raises(AuthenticationError, match="the token provider returned") as raised:
        TokenCache(lambda: given, Clock()).get()
    assert raised.value.hint


def test_the_exception_of_a_provider_is_the_cause() -> None:
    def sealed() -> str:
        raise RuntimeError("the vault is sealed")

    with pytest.raises(AuthenticationError, match="the vault is sealed") as raised:
        TokenCache(sealed, Clock()).get()
    assert isinstance(raised.value.cause, RuntimeError)


def test_many_threads_share_one_token() -> None:
    calls: list[int] = []
    begun = threading.Event()

    def provider() -> OAuthToken:
        calls.append(1)
        begun.wait(5)
        return OAuthToken("shared", 2_000_000_000.0)

    tokens = TokenCache(provider, Clock())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(tokens.get().value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join(10)
    assert found == ["shared"] * 8
    assert len(calls) == 1


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(OAuthToken("secret"))


@contextmanager
def identity_provider(status: int, answer: bytes) -> Iterator[tuple[str, list[tuple[str, dict[str, list[str]]]]]]:
    """Run a server; yield its URL and the list of its requests: authorization header and form."""
    asked: list[tuple[str, dict[str, list[str]]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.headers["Authorization"], urllib.parse.parse_qs(form)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()


def tokens_from(url: str, **more: str) -> TokenCache:
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": url}
    client = {f"sasl_oauthbearer_client_credentials_client_{part}": f"the {part}" for part in ("id", "secret")}
    return TokenCache.of(ClientConfig.parse(bootstrap_servers="a:1", **settings, **client, **more))


def test_client_credentials() -> None:
    answer = json.dumps({"access_token": "abc", "expires_in": 3600, "token_type": "Bearer"}).encode()
    with identity_provider(200, answer) as (url, asked):
        tokens = tokens_from(url, sasl_oauthbearer_scope="kafka read", sasl_oauthbearer_extensions="logicalCluster=lkc,pool=p")
        assert tokens.get().value == tokens.get().value == "abc"
        assert tokens.get().extensions == {"logicalCluster": "lkc", "pool": "p"}
    basic = base64.b64encode(b"the%20id:the%20secret").decode()
    assert asked == [(f"Basic {basic}", {"grant_type": ["client_credentials"], "scope": ["kafka read"]})]


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [
        (401, b'{"error": "invalid_client"}', "HTTP 401.*invalid_client"),
        (500, b"", "HTTP 500"),
        (200, b"<html>", "no token from"),
        (200, b'{"token": "abc"}', "without an access_token"),
        (200, b'["abc"]', "without an access_token"),
    ],
)
def test_an_identity_provider_that_gives_none(status: int, answer: bytes, says: str) -> None:
    with identity_provider(status, answer) as (url, _), pytest.raises(AuthenticationError, match=says) as raised:
        tokens_from(url).get()
    assert raised.value.cause is not None
    assert "the secret" not in str(raised.value)


def test_an_identity_provider_that_is_not_there() -> None:
    with pytest.raises(AuthenticationError, match=r"no token from http://127\.0\.0\.1:1/: .*refused"):
        tokens_from("http://127.0.0.1:1/").get()
