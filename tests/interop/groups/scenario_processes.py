"""The processes of a scenario: members of a group, writers and the broker.

Owns their start, output, shutdown and kill. Must not know the invariants. Invariants: no process outlives its ``close``; the output
of a process stays readable after its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.end_to_end.programs import LISTENING, OTTLA, environment
from tests.interop.groups.invariants import MemberReport, parse_report
from tests.interop.groups.member_program import Settings
from tests.interop.other_clients import LIBRDKAFKA_PATIENT
from tests.interop.real_kafka import TOOL

PROGRAM = Path(__file__).with_name("member_program.py")
ROOT = Path(__file__).parents[3]
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"


def surroundings() -> dict[str, str]:
    """The environment of a process: a user's, and where Kafka's jars are, for those in Java."""
    return environment() | {name: value for name, value in os.environ.items() if name == "OTTLA_KAFKA_HOME"}


class ClientProcess:
    """A process that prints one JSON object per line; its stderr goes to a file."""

    def __init__(self, command: list[str], errors: Path) -> None:
        with errors.open("a") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=surroundings(), cwd=ROOT
            )
        self.errors = errors
        self.ended = False
        """Whether someone has ended it."""
        self.frozen = False
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:  # the last line of one that was killed may be half a line; Java's log may come in between
                with self.errors.open("a") as errors:
                    errors.write(line)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask_to_end(self) -> None:
        self.ended = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: the member does not leave its group."""
        self.ended = True
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def freeze(self) -> None:
        """Send SIGSTOP."""
        self.frozen = True
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        self.frozen = False

    def wait(self, seconds: float) -> int:
        """Wait for the end of the process and return its exit code. Kill it if that takes too long."""
        try:
            self._process.wait(seconds)
        finally:
            self.kill()
        return self._process.returncode


class MemberProcess(ClientProcess):
    """A member of a group in a separate process."""

    def __init__(self, client: str, settings: Settings, folder: Path) -> None:
        self.client = client
        self.name = settings.member
        command = JAVA_COMMANDS.get(client, python_member)(client, settings, folder)
        super().__init__(command, folder / f"{settings.member}.errors")

    def report(self) -> MemberReport:
        return parse_report(self.name, list(self.events))


def python_member(client: str, settings: Settings, folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.interop.groups.member_program", client, json.dumps(asdict(settings))]


def java_member(client: str, settings: Settings, folder: Path) -> list[str]:
    """Kafka's VerifiableConsumer. It takes its session time-out on the command line only from classic members."""
    command = [str(TOOL), "run", VERIFIABLE_CONSUMER, "--bootstrap-server", settings.servers, "--topic", settings.topic]
    command += ["--group-id", settings.group, "--group-protocol", settings.protocol]
    more = {"client.id": settings.member, "reconnect.backoff.max.ms": "500"}
    if settings.protocol == "classic":
        command += ["--session-timeout", str(settings.session_timeout_ms)]
        command += ["--assignment-strategy", JAVA_ASSIGNORS[settings.assignor]]
        more["heartbeat.interval.ms"] = str(settings.heartbeat_interval_ms)
    if settings.instance:
        command += ["--group-instance-id", settings.instance]
    properties = folder / f"{settings.member}.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in more.items()))
    return [*command, "--command-config", str(properties)]


JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
JAVA_COMMANDS: Mapping[str, Callable[[str, Settings, Path], list[str]]] = {"java": java_member}
"""The clients that are no Python program of ours."""


class Writer:
    """Writes to the partitions of a topic evenly with librdkafka until closed, and records the acknowledgements."""

    def __init__(self, servers: str, topic: str, partitions: int, folder: Path, rate: int) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                **LIBRDKAFKA_PATIENT,
            }
        )
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._acknowledged: dict[int, list[int]] = {number: [] for number in range(partitions)}
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def acknowledged(self) -> Mapping[int, list[int]]:
        """The offsets that were acknowledged, by partition."""
        return self._acknowledged

    def close(self) -> None:
        """Write no more, and wait for what is on its way."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(max(1, self._rate // 50)):
                self._producer.produce(self._topic, b"%d" % number, partition=number % self._partitions, on_delivery=self._note)
                number += 1
            self._producer.poll(0.02)

    def _note(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self._acknowledged[message.partition()].append(message.offset())


class JavaWriter(ClientProcess):
    """Kafka's VerifiableProducer."""

    def __init__(self, servers: str, topic: str, partitions: int, folder: Path, rate: int) -> None:
        self._partitions = partitions
        command = [str(TOOL), "run", VERIFIABLE_PRODUCER, "--bootstrap-server", servers, "--topic", topic]
        super().__init__([*command, "--throughput", str(rate)], folder / "writer.errors")

    def acknowledged(self) -> Mapping[int, list[int]]:
        """The offsets that were acknowledged, by partition."""
        found: dict[int, list[int]] = {number: [] for number in range(self._partitions)}
        for event in list(self.events):
            if event["name"] == "producer_send_success":
                found[event["partition"]].append(event["offset"])
        return found

    @property
    def failed(self) -> list[str]:
        """Nothing counts as failed: this producer never tries again, so that a broker that ends takes some sends with it."""
        return []

    def close(self) -> None:
        """Write no more, and wait for what is on its way."""
        self.ask_to_end()
        self.wait(30)


@dataclass
class BrokerProcess:
    """``ottla broker start`` on one folder and one port, over any number of lives."""

    folder: Path
    settings: Mapping[str, object]
    port: int = 0

    def __post_init__(self) -> None:
        self.start()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it serves."""
        command = [OTTLA, "broker", "start", "--data-dir", str(self.folder / "data"), "--port", str(self.port)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with (self.folder / "broker.errors").open("a") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = LISTENING.fullmatch(line)
        assert found is not None, f"{line}{(self.folder / 'broker.errors').read_text()}"
        self.port = int(found[1].rsplit(":", 1)[1])

    def restart(self, *, kill: bool) -> None:
        """End it, with SIGTERM or SIGKILL, and start it again."""
        self.close(kill=kill)
        time.sleep(0.5)  # long enough that clients see it gone
        self.start()

    def close(self, *, kill: bool = False) -> None:
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        code = self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert code == (-signal.SIGKILL if kill else os.EX_OK), f"the broker ended with {code}"

    def complaints(self) -> str:
        """Its tracebacks, if it had any."""
        said = (self.folder / "broker.errors").read_text()
        return said if "Traceback" in said else ""
