"""Ottla's broker and Apache Kafka, each in a separate process, with their processor time and memory."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from _cluster import TOOLS, tool

_BROKER = """
import sys
from ottla import Broker
settings = dict(pair.split("=") for pair in sys.argv[3:])
with Broker(sys.argv[1], int(sys.argv[2]), settings=settings) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""
_TICKS = os.sysconf("SC_CLK_TCK")


class Node:
    """A broker process."""

    name: str
    servers: str
    pid: int

    def cpu(self) -> float:
        """Return the seconds of processor time so far, of all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        return memory_of(self.pid)


class OttlaNode(Node):
    """Ottla's broker."""

    name = "Ottla"

    def __init__(self, folder: Path, port: int, *settings: str) -> None:
        self._command = [sys.executable, "-c", _BROKER, str(folder), str(port), *settings]
        self.start()

    def start(self) -> None:
        """Start the broker, for the first time or again."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip()
        self.pid = self._process.pid

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self._process.communicate()

    close = stop


class KafkaNode(Node):
    """Apache Kafka."""

    name = "Apache Kafka"

    def __init__(self, ports: Sequence[int], *settings: str) -> None:
        self._port = str(random.choice(ports))
        os.environ["OTTLA_KAFKA_OWNER"] = str(os.getpid())
        self.servers = tool("kafka", "start", self._port, *settings)
        home = Path(os.environ.get("OTTLA_KAFKA_HOME", TOOLS.parent / ".kafka"))
        self._pid_file = home / f"node-{self._port}" / "pid"
        self.pid = int(self._pid_file.read_text())
        self._again: subprocess.Popen[bytes] | None = None
        self._command = Path(f"/proc/{self.pid}/cmdline").read_bytes().decode().split("\0")[:-1]

    def start(self) -> None:
        """Start the broker again, with its data."""
        with (self._pid_file.parent / "again.out").open("wb") as out:
            self._again = process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.pid = process.pid
        self._pid_file.write_text(str(self.pid))
        host, port = self.servers.rsplit(":", 1)
        while True:
            try:
                socket.create_connection((host, int(port))).close()
                return
            except ConnectionRefusedError:
                assert process.poll() is None, "Kafka exited during its start; see again.out in its directory"
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop the broker cleanly and keep its data."""
        os.kill(self.pid, signal.SIGTERM)
        if self._again is not None:
            self._again.wait()
        while Path(f"/proc/{self.pid}").exists():  # the first process is not a child of this one, but of ``tools/kafka``
            time.sleep(0.1)

    def close(self) -> None:
        """Stop the broker and delete its data."""
        tool("kafka", "stop", self._port)


def memory_of(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no VmRSS")
