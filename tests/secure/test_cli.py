"""``ottla produce`` and ``ottla consume`` with TLS and SASL: both have the same ``-X``."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from tests.end_to_end.programs import ottla
from tests.secure.kafka import PASSWORD, USER, Secured
from tests.secure.tokens import unsecured_token

pytestmark = pytest.mark.slow

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def settings_of(kind: str, secured: Secured) -> tuple[str, dict[str, str]]:
    """For each name, the listener and the ``-X`` options."""
    locked = str(secured.authority.issue("locked", password="open sesame"))
    trust = {"ssl.truststore.location": str(secured.authority.file)}
    kinds: dict[str, tuple[str, dict[str, str]]] = {
        "Java's names": (
            "MUTUAL",
            {
                "security.protocol": "SSL",
                **trust,
                "ssl.keystore.location": str(secured.authority.issue("client")),
                "ssl.endpoint.identification.algorithm": "https",
            },
        ),
        "librdkafka's names": (
            "MUTUAL",
            {
                "security.protocol": "ssl",
                "ssl.ca.pem": secured.authority.pem,
                "ssl.certificate.location": locked,
                "ssl.key.location": locked,
                "ssl.key.password": "open sesame",
            },
        ),
        "no check of the host": (
            "ELSEWHERE",
            {"security.protocol": "SSL", **trust, "ssl.endpoint.identification.algorithm": ""},
        ),
        "a line of JAAS": (
            "LOGINTLS",
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f'{SCRAM} required username="{USER}" password="{PASSWORD}";',
                **trust,
            },
        ),
        "underscores": (
            "LOGIN",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD},
        ),
    }
    return kinds[kind]


def flags(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]


def passes(address: str, topic: str, settings: dict[str, str]) -> None:
    """Send records with ``produce``, and read them with ``consume`` and the same settings."""
    produced = ottla("produce", "-t", topic, *flags(settings), bootstrap_servers=address, stdin="line\n")
    assert (produced.returncode, produced.stdout, produced.stderr) == (0, "", "")
    read = ottla("consume", "-t", topic, "-e", *flags(settings), bootstrap_servers=address)
    assert (read.returncode, read.stderr) == (0, "")
    assert set(read.stdout.splitlines()) == {"line"}


@pytest.mark.parametrize("kind", ["Java's names", "librdkafka's names", "no check of the host", "a line of JAAS", "underscores"])
def test_produce_and_consume_over_a_secure_connection(secured: Secured, topic: str, kind: str) -> None:
    listener, settings = settings_of(kind, secured)
    passes(secured.addresses[listener], topic, settings)


@pytest.fixture
def token_url() -> Iterator[str]:
    """An identity provider with unsigned tokens."""

    class Provider(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps({"access_token": unsecured_token(USER, 600).value, "expires_in": 600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def test_a_token_of_an_identity_provider(secured: Secured, topic: str, token_url: str) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token_url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "s3cret",
    }
    passes(secured.addresses["TOKEN"], topic, settings)


@pytest.mark.parametrize(
    ("listener", "settings", "said"),
    [
        ("TLS", {"security.protocol": "SSL"}, "CA"),
        ("LOGIN", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        (
            "LOGIN",
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": "wrong"},
            "login was refused",
        ),
        ("PLAINTEXT", {"security.protocol": "SSL"}, "TLS"),
        ("PLAINTEXT", {"enable.ssl.certificate.verification": "false"}, "always verified"),
        ("PLAINTEXT", {"ssl.keystore.location": "store.jks"}, "PEM"),
    ],
)
def test_errors_are_reported_as_by_the_other_commands(secured: Secured, listener: str, settings: dict[str, str], said: str) -> None:
    patience = {"request.timeout.ms": "2000"}
    errors = []
    for command in (["produce", "-t", "t-x"], ["topic", "list"]):
        ended = ottla(*command, *flags({**settings, **patience}), bootstrap_servers=secured.addresses[listener], stdin="line\n")
        assert (ended.returncode, ended.stdout) == (1, "")
        errors.append(ended.stderr.splitlines()[-1])
    assert all(said in error for error in errors), errors
