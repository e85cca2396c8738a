"""Terminal sessions with Kafka's own tools, as text files: commands, and their output with Apache Kafka.

Owns the parsing of a session, its run against a broker, and the comparison. Must not know the tools. Invariant: a session is
correct only if Apache Kafka passes it as well; ``...`` stands for output that differs between runs or clusters.

A session has lines ``$ COMMAND`` for the shell, each followed by its output, stdout and stderr together. A last line ``[1]`` is an
exit code other than 0. The tools have the names of Kafka's scripts, and the address of the broker is preset.
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
    """A command and its expected output."""

    command: str
    expected: str


def read(session: Path) -> list[Exchange]:
    """Return the commands of a session, in order."""
    first, *rest = re.split(r"^\$ ", session.read_text(), flags=re.MULTILINE)
    assert not first, f"{session} does not begin with a command"
    return [Exchange(*part.split("\n", 1)) for part in rest]


def make_tools(folder: Path, servers: str) -> None:
    """Create Kafka's scripts in a directory, each with the address of one broker."""
    folder.mkdir()
    for name, tool in TOOLS.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{TOOL}" run {tool} --bootstrap-server {servers} "$@"\n')
        script.chmod(0o755)


def run(command: str, folder: Path, tools: Path) -> str:
    """Run a command and return its output, without log lines, and its exit code if that is not 0."""
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
    """Run a session. Fails at the first command with another output."""
    tools = folder / "tools"
    make_tools(tools, servers)
    for command, expected in read(session):
        printed = run(command, folder, tools)
        assert doctest.OutputChecker().check_output(expected, printed, OPTIONS), (
            f"$ {command}\nexpected:\n{expected}\nprinted:\n{printed}"
        )
