"""Every row of ``docs/errors.md``: the test causes the problem; ``poll`` and another call raise the error of the row.

A row without a test fails, and so does a test without a row.
"""

from __future__ import annotations

import http.server
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla import Consumer, OttlaError, TopicPartition, errors
from ottla.protocol.apis import SPOKEN, Api, VersionRange
from tests.closed_ports import closed_port
from tests.secure.broken_settings import NO_TOPIC, PATIENCE, Settings, only_the_cluster, sasl
from tests.secure.kafka import PASSWORD, READER, STRANGER, Secured
from tests.secure.scripted_broker import FAR_TOO_LARGE, TOPIC, loading, pretending

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


class Row(NamedTuple):
    """One row of the page."""

    trouble: str
    error: str
    says: str


ROWS = {
    found[0]: Row(*found) for found in re.findall(r"^\| (?!trouble|-)([^|`]+?) \| `(\w+)` \| `([^|`]+)` \|", PAGE, re.MULTILINE)
}


@contextmanager
def silent_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class Refusing(http.server.BaseHTTPRequestHandler):
    """A web server, or an identity provider that knows no client."""

    def do_POST(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"error": "invalid_client"}')

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def web_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def impatient_web_server() -> Iterator[str]:
    """A web server that responds with an error before the end of the first line."""

    class Complain(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Complain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def bearer(provider: Callable[[], Any]) -> Settings:
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": provider}


def out_of_order() -> str:
    raise RuntimeError("the vault is sealed")


def settings_for(trouble: str, secured: Secured, stack: ExitStack, folder: Path) -> Settings:
    """Cause the problem; return the settings of a client that runs into it."""
    at = secured.addresses
    tls = {"security_protocol": "SSL", "ssl_truststore_location": secured.authority.file}
    store = folder / "store.pem"
    store.write_bytes(b"\xfe\xed\xfe\xed and so on")

    def client_credentials() -> Settings:
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        url = f"http://{stack.enter_context(web_server())}/token"
        client = {f"sasl_oauthbearer_client_credentials_client_{part}": "x" for part in ("id", "secret")}
        return {"bootstrap_servers": at["TOKEN"], "sasl_oauthbearer_token_endpoint_url": url, **login, **client}

    makers: dict[str, Callable[[], Settings]] = {
        "nothing listens": lambda: {"bootstrap_servers": f"127.0.0.1:{stack.enter_context(closed_port())}"},
        "an unknown host name": lambda: {"bootstrap_servers": "no-such-host.invalid:9092"},
        "no answer": lambda: {"bootstrap_servers": stack.enter_context(silent_port())},
        "a web server": lambda: {"bootstrap_servers": stack.enter_context(impatient_web_server())},
        "TLS on a port without it": lambda: {"bootstrap_servers": at["PLAINTEXT"], **tls},
        "no TLS on a port with it": lambda: {"bootstrap_servers": at["TLS"]},
        "no login on a port that requires one": lambda: {"bootstrap_servers": at["LOGIN"]},
        "a login on a port without one": lambda: {"bootstrap_servers": at["PLAINTEXT"], **sasl()},
        "an expired certificate": lambda: {"bootstrap_servers": at["EXPIRED"], **tls},
        "a certificate of an unknown CA": lambda: {"bootstrap_servers": at["TLS"], "security_protocol": "SSL"},
        "a certificate for another host": lambda: {"bootstrap_servers": at["ELSEWHERE"], **tls},
        "no certificate of the client": lambda: {"bootstrap_servers": at["MUTUAL"], **tls},
        "a missing file": lambda: {"bootstrap_servers": at["TLS"], **tls, "ssl_truststore_location": folder / "none.pem"},
        "a Java key store": lambda: {"bootstrap_servers": at["TLS"], **tls, "ssl_truststore_location": store},
        "a wrong password": lambda: {"bootstrap_servers": at["LOGIN"], **sasl("SCRAM-SHA-256", password="wrong")},
        "a mechanism that is not offered": lambda: {"bootstrap_servers": at["SHORT"], **sasl("SCRAM-SHA-512")},
        "no token": lambda: {"bootstrap_servers": at["TOKEN"], **bearer(out_of_order)},
        "a token that is refused": lambda: {"bootstrap_servers": at["TOKEN"], **bearer(lambda: "a.b.c")},
        "an identity provider that refuses": client_credentials,
        "a topic without permission": lambda: {"bootstrap_servers": at["LOGIN"], **sasl(user=STRANGER), "group_id": None},
        "a group without permission": lambda: {"bootstrap_servers": at["LOGIN"], **sasl(user=READER)},
        "a topic that does not exist": lambda: {"bootstrap_servers": at["PLAINTEXT"], "allow_auto_create_topics": False},
        ABSENT: lambda: {"bootstrap_servers": at["PLAINTEXT"], "allow_auto_create_topics": False, "group_id": None},
        "partitions without a leader": lambda: {
            "bootstrap_servers": stack.enter_context(pretending()),
            "default_api_timeout": 1,
            "request_timeout": 1,
            "group_id": None,
        },
        "an address that only the cluster can reach": lambda: {**only_the_cluster(stack), "group_id": None},
        "a coordinator at such an address": lambda: only_the_cluster(stack),
        LOADS: lambda: {
            "bootstrap_servers": stack.enter_context(pretending(answers={Api.JOIN_GROUP: loading})),
            "default_api_timeout": 1,
            "request_timeout": 1,
            "group_protocol": "classic",
        },
        "a broker that is too old": lambda: {
            "bootstrap_servers": stack.enter_context(pretending({**SPOKEN, Api.METADATA: VersionRange(90, 91)}))
        },
        "an answer that is too large": lambda: {
            "bootstrap_servers": stack.enter_context(pretending(instead={Api.METADATA: FAR_TOO_LARGE}))
        },
    }
    assert makers.keys() == ROWS.keys()
    return makers[trouble]()


def poll(consumer: Consumer, trouble: str, topic: str) -> None:
    """Poll until a poll raises, for at most ``PATIENCE`` seconds."""
    if trouble in ASSIGNED:
        consumer.assign([TopicPartition(topic, 0)])
    else:
        consumer.subscribe([topic])
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        consumer.poll(0.6)


ABSENT = "a partition that was assigned and does not exist"
LOADS = "a coordinator that refuses again and again"
OF_A_PRETENDER = {
    LOADS,
    "partitions without a leader",
    "an address that only the cluster can reach",
    "a coordinator at such an address",
}
ASSIGNED = {"a topic without permission", ABSENT, "partitions without a leader", "an address that only the cluster can reach"}
ASKED_BY_POLL_ALONE = {"a group without permission", "a topic that does not exist", ABSENT, *OF_A_PRETENDER}


@pytest.mark.parametrize("trouble", ROWS)
def test_a_row(trouble: str, secured: Secured, topic: str, tmp_path: Path) -> None:
    row = ROWS[trouble]
    expected = getattr(errors, row.error)
    read = {"a topic that does not exist": NO_TOPIC, ABSENT: NO_TOPIC, **dict.fromkeys(OF_A_PRETENDER, TOPIC)}.get(trouble, topic)
    with ExitStack() as stack:
        settings = settings_for(trouble, secured, stack, tmp_path)
        consumer = Consumer({"group_id": "g", **settings}, auto_offset_reset="earliest")
        stack.callback(lambda: _close(consumer))
        with pytest.raises(expected) as raised:
            poll(consumer, trouble, read)
        check(raised.value, row)
        if not raised.value.retriable:
            # Another poll raises the same error, as long as nothing has changed.
            with pytest.raises(expected):
                poll(consumer, trouble, read)
        timeout = 0.6 if raised.value.retriable else PATIENCE
        if trouble not in ASKED_BY_POLL_ALONE:
            with pytest.raises(expected) as raised:
                consumer.partitions_for(read, timeout=timeout)
            check(raised.value, row)


def check(error: OttlaError, row: Row) -> None:
    assert row.says in str(error)
    assert error.hint
    assert not error.fatal
    secret = isinstance(error, errors.AuthenticationError)
    assert not secret or error.cause is not None
    assert PASSWORD not in str(error)


def _close(consumer: Consumer) -> None:
    with suppress(OttlaError):
        consumer.close(1)


def test_every_row_is_read() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| trouble")]
    assert len(rows) == len(ROWS) > 20
