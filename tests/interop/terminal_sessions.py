"""Sessions at a terminal with Kafka's own tools, as text: what is typed, and what a real Apache Kafka lets them print.

Owns how a session is read, played against a broker and compared. Must not know what any tool does. Invariant: a session is
right only if a real Kafka passes it too; what differs from run to run or from cluster to cluster is written ``...``.

A session is lines ``$ COMMAND`` for the shell, each with what it prints below, stdout and stderr together; a last line
``[1]`` is the exit code where that is not 0. The tools have the names of Kafka's scripts, and know the broker already.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.interop.real_kafka import TOOL

TOOLS = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""Kafka's script -> the class it runs."""

NOISE = re.compile(r"^\s+at \S+\(.*\)$|^\d\d:\d\d:\d\d\.\d+ \[.*\] [A-Z]+ |^\s*$")
"""Lines that say nothing of the broker: stack traces, the log, blank ones."""
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Exchange(NamedTuple):
    """A command, and what it is said to print."""

    command: str
    expected: str


def read(session: Path) -> list[Exchange]:
    """The exchanges of a session, in their order."""
    first, *rest = re.split(r"^\$ ", session.read_text(), flags=re.MULTILINE)
    assert not first, f"{session} does not begin with a command"
    return [Exchange(*part.split("\n", 1)) for part in rest]


def make_tools(folder: Path, servers: str) -> None:
    """Put Kafka's scripts into a folder, each bound to one broker."""
    folder.mkdir()
    for name, tool in TOOLS.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{TOOL}" run {tool} --bootstrap-server {servers} "$@"\n')
        script.chmod(0o755)


def run(command: str, folder: Path, tools: Path) -> str:
    """What a command prints, without the noise, and its exit code if that is not 0."""
    surroundings = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"({command}) 2>&1"],
        capture_output=True,
        text=True,
        timeout=60,
        env=surroundings,
        cwd=folder,
    )
    lines = [line for line in done.stdout.splitlines() if not NOISE.search(line)]
    return "".join(f"{line}\n" for line in [*lines, *([f"[{done.returncode}]"] if done.returncode else [])])


def play(session: Path, servers: str, folder: Path) -> None:
    """Type a session; fails at the first command that prints something else."""
    tools = folder / "tools"
    make_tools(tools, servers)
    for command, expected in read(session):
        printed = run(command, folder, tools)
        assert doctest.OutputChecker().check_output(expected, printed, OPTIONS), (
            f"$ {command}\nexpected:\n{expected}\nprinted:\n{printed}"
        )
