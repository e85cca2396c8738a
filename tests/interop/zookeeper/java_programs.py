"""Kafka's own programs of one version, in a JVM that starts once: each of them alone would take one to two seconds to start.

Owns the process. Must not know the programs. Invariant: the process ends with ``close()``, or with the test's process, which holds
the other end of its stdin.
"""

from __future__ import annotations

import os
import subprocess

from tests.interop.real_kafka import TOOL

PROGRAM = TOOL.with_name("OldPrograms.java")
END = "\x04\n"


class JavaPrograms:
    """``programs("kafka.tools.VerifyConsumerRebalance", "--group", "g", ...)`` is what that program prints."""

    def __init__(self, version: str) -> None:
        environment = {**os.environ, "OTTLA_KAFKA_VERSION": version}
        self._process = subprocess.Popen(
            [TOOL, "run", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def __call__(self, program: str, *arguments: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join((program, *arguments)) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line == END:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"{program} ended the JVM: {''.join(lines)}")

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.communicate()
