"""The SASL mechanisms, against their RFCs and against the SCRAM server of ``scramp``."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from scramp import ScramMechanism

from ottla.config import ClientConfig
from ottla.errors import AuthenticationError
from ottla.protocol.sasl import SaslChallenge, SaslResponse
from ottla.runtime.login import Logins, OAuthBearer, Plain, SaslFailed, SaslResponseReady, Scram, TokenCache, create_logins
from ottla.types import OAuthToken


def test_plain_is_one_message() -> None:
    exchange = Plain("alicé", "pass")
    assert exchange.answer(b"") == "\0alicé\0pass".encode()
    assert exchange.answer(b"") is None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "a,b=c"])
def test_scram_client_and_server_authenticate_each_other(mechanism: str, user: str) -> None:
    server_side = ScramMechanism(mechanism)
    salt, stored_key, server_key, iterations = server_side.make_auth_info("secret", iteration_count=4096)
    server = server_side.make_server(lambda name: (salt, stored_key, server_key, iterations) if name == user else None)
    exchange = Scram(mechanism, user, "secret")
    server.set_client_first((exchange.answer(b"") or b"").decode())
    response = exchange.answer(server.get_server_first().encode())
    server.set_client_final((response or b"").decode())
    assert exchange.answer(server.get_server_final().encode()) is None


@pytest.mark.parametrize("last", [b"v=AAAA", b"e=other-error", b"\xff", b""])
def test_scram_fails_if_the_server_does_not_know_the_password(last: bytes) -> None:
    server_side = ScramMechanism("SCRAM-SHA-256")
    info = server_side.make_auth_info("secret", iteration_count=4096)
    server = server_side.make_server(lambda name: info)
    exchange = Scram("SCRAM-SHA-256", "alice", "secret")
    server.set_client_first((exchange.answer(b"") or b"").decode())
    exchange.answer(server.get_server_first().encode())
    with pytest.raises(AuthenticationError, match="could not prove"):
        exchange.answer(last)


def test_oauthbearer_sends_the_token_and_its_extensions() -> None:
    exchange = OAuthBearer(TokenCache(lambda: OAuthToken("abc", None, {"logicalCluster": "lkc-1"})))
    assert exchange.answer(b"") == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01\x01"
    assert exchange.answer(b"") is None


def test_oauthbearer_responds_to_the_challenge_that_refuses_its_token() -> None:
    exchange = OAuthBearer(TokenCache(lambda: "abc"))
    exchange.answer(b"")
    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"


def outcome(logins: Logins, challenge: SaslChallenge) -> SaslResponseReady | SaslFailed:
    """Return the report, and check that it came from a helper thread."""
    reports: list[Any] = []
    done = threading.Event()

    def report(item: SaslResponseReady | SaslFailed) -> None:
        reports.append((item, threading.current_thread().name))
        done.set()

    logins.respond_in_background(7, challenge, report)
    assert done.wait(10)
    (found,) = reports
    assert found[1] == "ottla-login-7"
    assert found[0].connection_id == 7
    result: SaslResponseReady | SaslFailed = found[0]
    return result


def test_responses_are_computed_on_a_helper_thread() -> None:
    config = ClientConfig.parse(
        bootstrap_servers="a:1", security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p"
    )
    logins = create_logins(config)
    assert logins is not None
    first = outcome(logins, SaslChallenge(None, b""))
    assert isinstance(first, SaslResponseReady)
    assert first.response.token == b"\0u\0p"
    second = outcome(logins, SaslChallenge(first.response.exchange, b""))
    assert second == SaslResponseReady(7, SaslResponse(first.response.exchange, None))


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
def test_a_failing_mechanism_is_reported(kind: type[BaseException]) -> None:
    def broken() -> Plain:
        raise kind

    failed = outcome(Logins(broken), SaslChallenge(None, b""))
    assert isinstance(failed, SaslFailed)
    assert isinstance(failed.error, AuthenticationError)
    assert isinstance(failed.error.cause, kind)


def test_without_sasl_there_is_no_login() -> None:
    assert create_logins(ClientConfig.parse(bootstrap_servers="a:1")) is None
