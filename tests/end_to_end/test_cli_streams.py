"""All commands with closed, full and broken standard streams, and with invalid names: never a traceback."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.core import TyperGroup

from ottla import TopicPartition, ZooKeeperAdmin
from ottla.cli.app import Commands
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.programs import OTTLA, broker, environment, ottla, started

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
NOT_UTF8 = "caf\udce9"
"""What Python makes of an argument with the bytes ``caf\\xe9``."""


class Outcome(NamedTuple):
    """The result of a run."""

    code: int
    stdout: str
    stderr: str


class Command(NamedTuple):
    """A command line that succeeds and ends; ``NAME`` in it is a topic, ``NEW`` one that does not exist, ``GROUP`` a group.

    ``OLD`` is a group in the ZooKeeper at ``ZK``.
    """

    arguments: str
    prints: bool = True
    code: int = 0


COMMANDS = {
    "broker start": Command("broker start --set num.partitions=none", False, 1),
    "broker check": Command("broker check --data-dir NEW", False, 1),
    "topic create": Command("topic create NEW"),
    "topic list": Command("topic list"),
    "topic describe": Command("topic describe NAME"),
    "topic alter": Command("topic alter NAME --config retention.ms=1000000000"),
    "topic delete": Command("topic delete NAME"),
    "produce": Command("produce -t NAME", False),
    "consume": Command("consume -t NAME -e"),
    "group list": Command("group list --format json"),
    "group describe": Command("group describe GROUP"),
    "group reset-offsets": Command("group reset-offsets GROUP -o end"),
    "group delete": Command("group delete GROUP"),
    "group migrate": Command("group migrate GROUP --from kafka --to zookeeper --zookeeper ZK"),
    "checkpoint inspect": Command("checkpoint inspect NEW", False, 2),
    "checkpoint convert": Command("checkpoint convert NEW NEW", False, 2),
    "pipeline run": Command("pipeline run NEW --once --every 10s", False, 2),
    "pipeline check": Command("pipeline check NEW --sample -1", False, 2),
    "pipeline status": Command("pipeline status NEW", False, 1),
    "pipeline init": Command("pipeline init /dev/full", False, 1),
    "simulate": Command("simulate --generation classic --seed 1"),
    "compare": Command("compare --picture nowhere/p.png", False, 1),
    "demo": Command("demo --out /dev/full", False, 1),
    "zookeeper start": Command("zookeeper start --jars NEW", False, 1),
}
MORE = {
    "help": Command("--help"),
    "version": Command("--version"),
    "help of a command": Command("topic alter --help"),
    "consume in a group": Command("consume -t NAME -g NEW -e"),
    "group list --zookeeper": Command("group list --zookeeper ZK"),
    "group describe --zookeeper": Command("group describe OLD --zookeeper ZK --format json"),
    "group reset-offsets --zookeeper": Command("group reset-offsets OLD -o 0 --zookeeper ZK"),
    "group delete --zookeeper": Command("group delete OLD --zookeeper ZK"),
}
NAMED = {
    "topic create": "topic create {}",
    "topic create --config": "topic create NEW --config {}=1",
    "topic describe": "topic describe {}",
    "topic alter": "topic alter {} -p 9",
    "topic alter --config": "topic alter NAME --config {}=1",
    "topic alter --delete-config": "topic alter NAME --delete-config {}",
    "topic delete": "topic delete {}",
    "produce": "produce -t {}",
    "produce -H": "produce -t NAME -H {}=1",
    "consume": "consume -t {} -e",
    "consume -g": "consume -t NAME -e -g {}",
    "group describe": "group describe {}",
    "group reset-offsets": "group reset-offsets {} -o end",
    "group reset-offsets -t": "group reset-offsets GROUP -o end -t {}",
    "group delete": "group delete {}",
    "group delete -t": "group delete OLD -t {} --zookeeper ZK",
    "group migrate": "group migrate {} --from kafka --to zookeeper --zookeeper ZK",
    "--zookeeper": "group list --zookeeper {}",
    "broker start --set": "broker start --set {}=1",
    "zookeeper start --set": "zookeeper start --set {}=1",
    "-X": "topic list -X {}=1",
    "-b": "topic list -b {}",
}

Topic = Callable[..., str]
Runs = Callable[[dict[str, list[str]], dict[str, str]], dict[str, Outcome]]


@pytest.fixture(scope="module")
def name(served: str) -> str:
    """A topic with a record, which a group has read."""
    new = f"streams-{uuid.uuid4().hex[:8]}"
    assert ottla("topic", "create", new, "-p", "1", bootstrap_servers=served).returncode == 0
    assert ottla("produce", "-t", new, bootstrap_servers=served, stdin="line\n").returncode == 0
    assert ottla("consume", "-t", new, "-g", f"group-{new}", "-e", bootstrap_servers=served).returncode == 0
    return new


@pytest.fixture(scope="module")
def old_group(zookeeper_server: ZooKeeperServer, name: str) -> str:
    """A group in ZooKeeper; the address of that."""
    with ZooKeeperAdmin(zookeeper_server.connect_string) as admin:
        admin.alter_group_offsets(f"old-{name}", {TopicPartition(name, 0): 1})
    return zookeeper_server.connect_string


@pytest.fixture(scope="module")
def runs(served: str, name: str, old_group: str) -> Iterator[Runs]:
    """Runs command lines with these standard streams, and returns their outcomes by name."""
    command = [sys.executable, "-m", "tests.end_to_end.command_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(served)) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        into, out = server.stdin, server.stdout

        def run(lines: dict[str, list[str]], streams: dict[str, str]) -> dict[str, Outcome]:
            streams = {"stdin": "line\n", **streams}
            asked = [
                {"arguments": [_filled(word, name, old_group) for word in line], "streams": streams} for line in lines.values()
            ]
            into.write(f"{json.dumps(asked)}\n")
            into.flush()
            return dict(zip(lines, (Outcome(**each) for each in json.loads(out.readline())), strict=True))

        yield run
        into.close()


def _filled(word: str, name: str, zookeeper: str) -> str:
    words = {"NAME": name, "NEW": f"new-{uuid.uuid4().hex}", "GROUP": f"group-{name}", "OLD": f"old-{name}", "ZK": zookeeper}
    return words.get(word, word)


def lines_of(commands: dict[str, Command]) -> dict[str, list[str]]:
    return {title: command.arguments.split() for title, command in commands.items()}


def test_the_table_has_all_commands() -> None:
    found: set[str] = set()
    for name, command in Commands().items():
        found |= {f"{name} {verb}" for verb in command.commands} if isinstance(command, TyperGroup) else {name}
    assert set(COMMANDS) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "reason"), [({"stdout": "closed"}, "Bad file descriptor"), ({"stdout": "full"}, "No space left on device")]
)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(runs: Runs, streams: dict[str, str], reason: str) -> None:
    expected = f"error: cannot write to stdout: {reason}"
    commands = {**COMMANDS, **MORE}
    for title, ended in runs(lines_of(commands), streams).items():
        if commands[title].prints:
            assert (ended.code, ended.stderr.splitlines()[-1:]) == (1, [expected]), title
        else:
            assert ended.code == commands[title].code, title
        assert "Traceback" not in ended.stderr, title
        assert "ignored" not in ended.stderr, title


@pytest.mark.slow
def test_a_pipe_that_its_reader_has_closed_is_no_error(runs: Runs) -> None:
    commands = {title: command for title, command in {**COMMANDS, **MORE}.items() if command.prints}
    for title, ended in runs(lines_of(commands), {"stdout": "broken"}).items():
        assert ended.code == 0, (title, ended)
        assert ended.stderr in ("", "nothing was changed; add --execute to do it\n"), title


@pytest.mark.slow
@pytest.mark.parametrize("streams", [{"stdin": "closed", "stderr": "full"}, {"stderr": "closed"}])
def test_no_command_needs_other_streams_than_those_it_uses(runs: Runs, streams: dict[str, str]) -> None:
    commands = {**COMMANDS, **MORE}
    for title, ended in runs(lines_of(commands), streams).items():
        needs_stdin = title == "produce" and "stdin" in streams
        assert ended.code == (1 if needs_stdin else commands[title].code), (title, ended)
        assert "error:" not in ended.stdout, title
        assert "Traceback" not in ended.stderr, title


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["", NOT_UTF8], ids=["empty", "not UTF-8"])
def test_a_name_that_cannot_be_is_bad_usage(runs: Runs, wrong: str) -> None:
    lines = {title: [word.replace("{}", wrong) for word in line.split()] for title, line in NAMED.items()}
    for title, ended in runs(lines, {}).items():
        assert (ended.code, ended.stdout) == (2, ""), (title, ended)
        assert "Traceback" not in ended.stderr, title
        assert "Kafka port" not in ended.stderr, title


@pytest.mark.slow
def test_streams_that_the_shell_has_closed(served: str, runs: Runs, name: str) -> None:
    """The same with a new process per command, as a user starts it."""
    for line, code, said in (
        (f"produce -t {name} <&-", 1, "error: cannot read stdin: Bad file descriptor\n"),
        ("topic list >&-", 1, "error: cannot write to stdout: Bad file descriptor\n"),
        ("topic list >/dev/full", 1, "error: cannot write to stdout: No space left on device\n"),
        ("topic list <&- 2>&-", 0, ""),
    ):
        ended = subprocess.run(
            ["bash", "-c", f"{OTTLA} {line}"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(served),
            stdin=subprocess.DEVNULL,
        )
        assert (ended.returncode, ended.stderr) == (code, said), line


@pytest.mark.parametrize("line", ["topic list", "group delete g --execute", "produce -t t", "consume -t t"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_a_command_that_waits(line: str, number: signal.Signals, code: int) -> None:
    """For SIGTERM a shell reports 143. ``consume`` ends as it does while it reads."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with started(*line.split(), bootstrap_servers=address) as process:
            silent.settimeout(60)
            peer, _ = silent.accept()
            with peer:
                process.send_signal(number)
                assert process.wait(60) == (0 if line.startswith("consume") else code)
                assert "Traceback" not in process.communicate()[1]


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The write end of a pipe that is full and whose reader does not read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    yield writer
    os.close(writer)
    os.close(reader)


def test_a_signal_ends_consume_when_no_one_reads_its_log(full_pipe: int) -> None:
    with broker("--set", "num.partitions=1") as (server, address):
        assert ottla("produce", "-t", "t", bootstrap_servers=address, stdin="v\n").returncode == 0
        with started("consume", "-t", "t", bootstrap_servers=address, stderr=full_pipe) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "v\n"
            server.kill()
            server.wait(60)
            time.sleep(0.5)  # the line that says that the connection is lost waits for space now
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_a_signal_ends_the_broker_when_no_one_reads_its_log(full_pipe: int) -> None:
    with started("broker", "start", stderr=full_pipe) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().rpartition(" ")[2].rpartition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port)), 60) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal that shows nothing until it is read: the side to read, and the program's side."""
    shown, written = os.openpty()
    yield shown, written
    os.close(shown)
    os.close(written)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_at_a_terminal_that_shows_nothing(
    served: str, topic: Topic, terminal: tuple[int, int], number: signal.Signals
) -> None:
    name = topic(1, *(f"k:{'x' * 1000}" for _ in range(200)))
    with started("consume", "-t", name, bootstrap_servers=served, stdout=terminal[1]) as process:
        waiting, before = array.array("i", [0]), -1
        while not waiting[0] or waiting[0] != before:  # until nothing more fits in
            before = waiting[0]
            time.sleep(1)
            fcntl.ioctl(terminal[0], termios.FIONREAD, waiting)
        process.send_signal(number)
        assert process.wait(30) == 128 + number


def test_a_terminal_that_is_slow_gets_everything(served: str, topic: Topic, terminal: tuple[int, int]) -> None:
    name = topic(1, *(f"k:{number:0500}" for number in range(200)))
    with started("consume", "-t", name, "-e", bootstrap_servers=served, stdout=terminal[1]) as process:
        shown = b""
        while len(shown) < 200 * 502:
            time.sleep(0.01)
            shown += os.read(terminal[0], 1000)
        assert process.wait(60) == 0
    assert shown.split() == [f"{number:0500}".encode() for number in range(200)]
