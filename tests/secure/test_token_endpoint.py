"""Client credentials over https: an identity provider with a private CA, and the errors of unusable ones."""

from __future__ import annotations

import asyncio
import http.server
import json
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ottla import AsyncConsumer, Consumer, OttlaError, TopicPartition
from ottla.errors import AuthenticationError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import sasl_authenticate_response, sasl_handshake_response
from tests.secure.certificates import Authority
from tests.secure.scripted_broker import TOPIC, pretending

TP = TopicPartition(TOPIC, 0)
PATIENCE = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def identity_provider(certificate: Path | None, status: int = 200, silent: bool = False) -> Iterator[str]:
    """Run an identity provider; yield its https address. ``silent``: it does not respond."""
    gone = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if silent:
                gone.wait()
                return
            self.send_response(status)
            self.end_headers()
            answer = {"access_token": "abc", "expires_in": 3600} if status == 200 else {"error": "invalid_client"}
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/token"
        gone.set()
        server.shutdown()


@contextmanager
def broker() -> Iterator[tuple[str, list[bytes]]]:
    """Run a broker that accepts all logins; yield its address and the list of logins."""
    arrived: list[bytes] = []

    def authenticate(request: Any) -> Any:
        arrived.append(request.auth_bytes)
        return sasl_authenticate_response.SaslAuthenticateResponse(
            error_code=ErrorCode.none, error_message=None, auth_bytes=b"", session_lifetime_ms=0
        )

    def handshake(request: Any) -> Any:
        del request
        return sasl_handshake_response.SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("OAUTHBEARER",))

    with pretending(answers={Api.SASL_HANDSHAKE: handshake, Api.SASL_AUTHENTICATE: authenticate}) as address:
        yield address, arrived


def settings(address: str, url: str, authority: Authority | None) -> dict[str, Any]:
    trusted = {} if authority is None else {"ssl.truststore.location": str(authority.file)}
    return {
        "bootstrap.servers": address,
        "group.id": "g",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "billing",
        "sasl.oauthbearer.client.credentials.client.secret": "the secret",
        **trusted,
    }


def test_a_token_of_a_provider_with_a_private_ca(authority: Authority) -> None:
    with identity_provider(authority.issue("idp", "127.0.0.1")) as url, broker() as (address, arrived):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the trust store has an effect here, so it must not warn
            consumer = Consumer(settings(address, url, authority))
        with consumer:
            assert consumer.partitions_for(TOPIC, timeout=PATIENCE)
    assert set(arrived) == {b"n,,\x01auth=Bearer abc\x01\x01"}


def unknown(authority: Authority) -> tuple[Path, Authority | None]:
    return authority.issue("unknown", "127.0.0.1"), None


def expired(authority: Authority) -> tuple[Path, Authority | None]:
    return authority.issue("expired", "127.0.0.1", days=-1), authority


def elsewhere(authority: Authority) -> tuple[Path, Authority | None]:
    return authority.issue("elsewhere", "login.example"), authority


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (unknown, "unable to get local issuer certificate.*ssl.truststore.location"),
        (expired, "certificate has expired.*ssl.truststore.location"),
        (elsewhere, "not valid for '127.0.0.1'"),
    ],
)
def test_an_invalid_certificate(authority: Authority, made: Callable[..., Any], says: str) -> None:
    certificate, trusted = made(authority)
    with identity_provider(certificate) as url:
        refused_by_every_call(url, trusted, f"no token from {url}: .*{says}")


def test_an_unknown_client(authority: Authority) -> None:
    with identity_provider(authority.issue("idp", "127.0.0.1"), status=401) as url:
        refused_by_every_call(url, authority, "HTTP 401.*invalid_client.*client secret")


def test_a_provider_without_tls(authority: Authority) -> None:
    with identity_provider(None) as url:
        refused_by_every_call(url, authority, f"no token from {url}.*token.endpoint.url")


def test_a_provider_that_does_not_respond_is_named_within_the_timeout(authority: Authority) -> None:
    with identity_provider(authority.issue("idp", "127.0.0.1"), silent=True) as url, broker() as (address, arrived):
        consumer = Consumer(settings(address, url, authority))
        try:
            consumer.assign([TP])
            for call in (
                lambda: poll_on(consumer),
                lambda: consumer.position(TP, timeout=1),
                lambda: consumer.commit({TP: 3}, timeout=1),
                lambda: consumer.partitions_for(TOPIC, timeout=1),
            ):
                # The request to the provider times out after ten seconds, which is the reason from then on.
                with pytest.raises(OttlaError, match=r"the login waits for a token|no token from .*timed out"):
                    call()
        finally:
            with suppress(OttlaError):
                consumer.close(1)
        assert arrived == []


def poll_on(consumer: Consumer) -> None:
    """Poll until a poll raises, for at most ``PATIENCE`` seconds."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        consumer.poll(0.5)


def refused_by_every_call(url: str, trusted: Authority | None, says: str) -> None:
    """Check that each call raises the reason long before its timeout."""
    with broker() as (address, arrived):
        consumer = Consumer(settings(address, url, trusted))
        try:
            consumer.assign([TP])
            for call in (
                lambda: consumer.poll(PATIENCE),
                lambda: consumer.position(TP, timeout=PATIENCE),
                lambda: consumer.committed([TP], timeout=PATIENCE),
                lambda: consumer.commit({TP: 3}, timeout=PATIENCE),
                lambda: consumer.partitions_for(TOPIC, timeout=PATIENCE),
                lambda: asyncio.run(poll_async(settings(address, url, trusted))),
            ):
                with pytest.raises(AuthenticationError, match=says) as raised:
                    call()
                assert "the secret" not in str(raised.value)
        finally:
            with suppress(OttlaError):
                consumer.close(1)
        assert arrived == []


async def poll_async(config: dict[str, Any]) -> None:
    consumer = AsyncConsumer(config)
    try:
        await consumer.assign([TP])
        await consumer.poll(PATIENCE)
    finally:
        with suppress(OttlaError):
            await consumer.close(1)
