"""Logins to Amazon MSK with IAM, with Amazon's signer and invented credentials, at a broker that checks the tokens.

What Amazon makes of a token cannot be seen from here; what arrives, and when, can.
"""

from __future__ import annotations

import base64
import datetime
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer

from ottla import Admin, OAuthToken
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import sasl_authenticate_response, sasl_handshake_response
from tests.secure.scripted_broker import pretending

LIFE = 4
"""Seconds for which a token is valid here. Amazon's tokens are valid for 15 minutes."""
PATIENCE = 60.0


class Arrived(NamedTuple):
    """A token that the broker has received."""

    at: float
    url: str

    @property
    def said(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.url).query).items()}

    @property
    def expires_at(self) -> float:
        signed_at = datetime.datetime.strptime(self.said["X-Amz-Date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
        return signed_at.timestamp() + int(self.said["X-Amz-Expires"])


class Broker:
    """Accepts every token; a login is valid as long as its token."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.answers = {Api.SASL_HANDSHAKE: self._handshake, Api.SASL_AUTHENTICATE: self._authenticate}

    def _handshake(self, request: Any) -> Any:
        del request
        return sasl_handshake_response.SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("OAUTHBEARER",))

    def _authenticate(self, request: Any) -> Any:
        found = re.fullmatch(rb"n,,\x01auth=Bearer ([A-Za-z0-9_-]+)\x01\x01", request.auth_bytes)
        assert found is not None
        url = base64.urlsafe_b64decode(found[1] + b"=" * (-len(found[1]) % 4)).decode()
        one = Arrived(time.time(), url)
        self.arrived.append(one)
        left = max(1, round(1000 * (one.expires_at - one.at)))
        return sasl_authenticate_response.SaslAuthenticateResponse(
            error_code=ErrorCode.none, error_message=None, auth_bytes=b"", session_lifetime_ms=left
        )


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody's secret")


@pytest.fixture
def broker() -> Iterator[tuple[Broker, str]]:
    one = Broker()
    with pretending(answers=one.answers) as address:
        yield one, address


def admin(address: str, provider: Any) -> Admin:
    return Admin(
        bootstrap_servers=address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_provider=provider,
    )


def test_the_program_of_the_docs_logs_in_with_a_signed_url(broker: tuple[Broker, str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (program,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "MSKAuthTokenProvider" in text]
    names: dict[str, Any] = {}
    exec(compile(program, "docs/security.md", "exec"), names)
    there, address = broker
    with admin(address, names["msk_token"]) as client:
        client.list_topics()
    token = there.arrived[0]
    assert urlsplit(token.url).hostname == "kafka.eu-central-1.amazonaws.com"
    assert token.said["Action"] == "kafka-cluster:Connect"
    assert token.said["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
    assert token.said["X-Amz-Signature"]


def test_a_new_token_arrives_before_the_last_one_expires(broker: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signer, "DEFAULT_TOKEN_EXPIRY_SECONDS", LIFE)

    def token() -> OAuthToken:
        value, expires_at_ms = signer.generate_auth_token("eu-central-1")
        return OAuthToken(value, expires_at_ms / 1000)

    there, address = broker
    in_time = 0
    give_up_at = time.monotonic() + PATIENCE
    with admin(address, token) as client:
        while in_time < 2:
            assert time.monotonic() < give_up_at, there.arrived
            client.list_topics()
            time.sleep(0.1)
            in_time = sum(new.url != old.url and new.at < old.expires_at for old, new in pairwise(there.arrived[:]))
