"""What the documents show is what happens: every command and every program in them is run.

``console`` blocks of a document are one session, in their order; their output is compared, ``...`` standing for
anything. A command that ends with ``&`` runs until the session is over. ``python`` blocks are whole programs, or tests
if they hold any; ``tests/spark`` runs those of Spark. Commands in ``sh`` blocks change the machine, so it is only checked that
what they name is there.
"""

from __future__ import annotations

import doctest
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from ottla import Broker
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.documents import DOCUMENTS, ROOT, blocks, is_for_spark, name_of, programs, with_blocks
from tests.end_to_end.programs import environment
from tests.end_to_end.zookeeper_cluster import registered

LINK = re.compile(r"\]\(([^)#]+)\)")
PORT, _, ZOOKEEPER_PORT = PORTS = "9092", "9093", "2181"


LONG_SESSIONS = ("docs/cli.md", "docs/leaving-0.8.md", "docs/backup.md")
"""Documents with dozens of commands, each of which starts a process: half a minute to a minute and a half."""


class Exchange(NamedTuple):
    """A command and what it is said to print."""

    command: str
    output: str


def session(document: Path) -> list[Exchange]:
    exchanges: list[Exchange] = []
    for line in "".join(blocks(document, "console")).splitlines():
        if line.startswith("$ "):
            exchanges.append(Exchange(line.removeprefix("$ "), ""))
        else:
            exchanges[-1] = exchanges[-1]._replace(output=exchanges[-1].output + line + "\n")
    return exchanges


def four_digit_ports(document: Path) -> Iterator[str]:
    """Free ports that are as wide as those in the documents, so that tables line up. Each document has a range of its own."""
    first = 2000 + 500 * with_blocks("console").index(document)
    for port in range(first, 10_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                yield str(port)


def agrees(documented: str, printed: str) -> bool:
    """Whether the output is the documented one, but for ``...`` and blanks at the end of lines."""
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return doctest.OutputChecker().check_output(documented, lines, doctest.ELLIPSIS)


@pytest.mark.parametrize(
    "document",
    [pytest.param(one, marks=pytest.mark.slow if name_of(one) in LONG_SESSIONS else ()) for one in with_blocks("console")],
    ids=name_of,
)
def test_a_session_at_a_terminal(document: Path, tmp_path: Path) -> None:
    ports = dict(zip(PORTS, four_digit_ports(document), strict=False))
    surroundings = environment(f"127.0.0.1:{ports[PORT]}")
    with ExitStack() as running:
        for exchange in session(document):
            command, documented = (re.sub("|".join(PORTS), lambda port: ports[port.group()], text) for text in exchange)
            if command.endswith("&"):
                assert running.enter_context(background(command.removesuffix("&"), tmp_path, surroundings)) == documented
                continue
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", f"({command}) 2>&1"],
                capture_output=True,
                text=True,
                timeout=60,
                env=surroundings,
                cwd=tmp_path,
            )
            assert agrees(documented, done.stdout), f"$ {command}\ndocumented:\n{documented}\nprinted:\n{done.stdout}"
            assert (done.returncode == 0) is not done.stdout.startswith("error:"), command


@contextmanager
def background(command: str, folder: Path, surroundings: dict[str, str]) -> Iterator[str]:
    """Run a command while the ``with`` lasts; the value is the first line it prints. SIGTERM has to end it well."""
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=subprocess.PIPE, text=True, env=surroundings, cwd=folder)
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def zookeeper_with_orders(kafka_broker: Broker, zookeeper_server: ZooKeeperServer) -> Iterator[str]:
    """The connect string of a ZooKeeper with a broker that has a topic ``orders`` with five records."""
    with registered(kafka_broker, zookeeper_server.connect_string) as cluster:
        cluster.create_topic("orders", 2)
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
        for number in range(5):
            producer.produce("orders", str(number), partition=number % 2)
        assert producer.flush(60) == 0
        yield cluster.connect


@pytest.mark.parametrize(
    ("document", "number"),
    [(document, number) for document, number, text in programs() if not is_for_spark(text)],
    ids=lambda part: name_of(part) if isinstance(part, Path) else str(part),
)
def test_a_program(document: Path, number: int, tmp_path: Path, served: str, request: pytest.FixtureRequest) -> None:
    text = blocks(document, "python")[number]
    if f"localhost:{ZOOKEEPER_PORT}" in text:
        text = text.replace(f"localhost:{ZOOKEEPER_PORT}", request.getfixturevalue("zookeeper_with_orders"))
        served = request.getfixturevalue("kafka_broker").bootstrap_servers
    text = text.replace(f"localhost:{PORT}", served)
    holds_tests = "def test_" in text
    program = tmp_path / ("test_program.py" if holds_tests else "program.py")
    program.write_text(text)
    command = (
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(program)]
        if holds_tests
        else [sys.executable, str(program)]
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("document", with_blocks("sh"), ids=name_of)
def test_what_commands_for_the_machine_name_is_there(document: Path) -> None:
    for command in "".join(blocks(document, "sh")).splitlines():
        program, *arguments = shlex.split(command)
        if program == "make":
            assert subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True).returncode == 0, command
        elif program == "pip":
            (extra,) = filter(None, (re.fullmatch(r"ottla(?:\[(\w+)\])?", argument) for argument in arguments))
            assert extra[1] is None or extra[1] in (metadata.metadata("ottla").get_all("Provides-Extra") or []), command
        else:
            assert program == "python", command
            assert (ROOT / arguments[0]).exists(), command


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
