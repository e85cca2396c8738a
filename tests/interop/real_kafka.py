"""Apache Kafka for the tests: one node per test session, clusters of several nodes, and Kafka's own tools.

Owns the fixtures ``real_kafka``, ``own_kafka``, ``kafka_cluster`` and ``kafka_tool``, a plugin that ``tests/conftest.py`` loads for
all tests. Must not use Ottla, which is tested against it. Invariant: without Maven or Java a test is skipped with the reason
(``OTTLA_NO_SKIPS=1`` makes this a failure), and no node outlives the test process, however that ends.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "kafka"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives as long as a test or two: it would not get back what its second compiler takes from two cores."""
FETCH_TIMEOUT = 600.0
"""Seconds: the first call may have to bring 60 MB of jars."""
NODE_TIMEOUT = 360.0
"""Seconds for whatever starts or ends nodes: longer than ``tools/kafka`` itself waits, so that it can say what was wrong."""
Argument = str | os.PathLike[str]
PORTS = range(20_000, 30_000, 2)
"""Below the range from which an operating system takes ports for outgoing connections: what is free now stays free."""


class KafkaTool(Protocol):
    """Runs one of Kafka's own tools."""

    def __call__(self, tool: str, *args: Argument, stdin: str = "", timeout: float = 60.0) -> str:
        """What the class ``tool`` printed on stdout, fed with ``stdin``.

        ``timeout`` is in seconds. A tool that exits with anything but 0 fails the test and shows all it said.
        """
        ...


def free_port_pair(nodes: int = 1) -> int:
    """A port that is free on the loopback address, and so are those after it (a node needs two)."""
    for port in random.sample(PORTS, len(PORTS)):
        if all(_is_free(port + more) for more in range(2 * nodes)):
            return port
    raise RuntimeError(f"no {2 * nodes} free ports side by side between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def run_tool(
    *args: Argument, stdin: str = "", timeout: float, owner: int | None = None, jvm: str = QUICK_JVM, version: str = ""
) -> str:
    """Run ``tools/kafka`` with ``args`` and return its stdout. If it fails, the test fails with its output."""
    environment = {**os.environ, "KAFKA_JVM_PERFORMANCE_OPTS": jvm}
    if version:
        environment["OTTLA_KAFKA_VERSION"] = version
    if owner is not None:
        environment["OTTLA_KAFKA_OWNER"] = str(owner)
    done = subprocess.run([TOOL, *args], input=stdin, capture_output=True, text=True, timeout=timeout, env=environment)
    if done.returncode:
        command = " ".join(str(part) for part in ("tools/kafka", *args))
        pytest.fail(f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="session")
def kafka_tool() -> KafkaTool:
    """Kafka's own tools, each a call: ``kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--files", path)``."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path("java")
    if shutil.which(java) is None:
        pytest.skip("no Java for a real Kafka: install Java 17 or newer")
    if shutil.which("mvn") is None:
        pytest.skip("no Maven to fetch a real Kafka: install Maven")
    run_tool("fetch", timeout=FETCH_TIMEOUT)

    def run(tool: str, *args: Argument, stdin: str = "", timeout: float = 60.0) -> str:
        return run_tool("run", tool, *args, stdin=stdin, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def real_kafka(kafka_tool: KafkaTool) -> Iterator[str]:
    """The address (``127.0.0.1:PORT``) of a real, empty, single-node Apache Kafka that all tests of the session share.

    Use fresh names for topics and groups. Internal topics have 5 partitions, ``group.initial.rebalance.delay.ms`` is 0.
    """
    port = free_port_pair()
    address = run_tool("start", str(port), timeout=NODE_TIMEOUT, owner=os.getpid()).strip()
    try:
        yield address
    finally:
        run_tool("stop", str(port), timeout=NODE_TIMEOUT)


class OwnKafka:
    """An Apache Kafka for a single test, which may modify its data while the node is down."""

    def __init__(self, port: int, *settings: str, version: str = "") -> None:
        """``settings`` are lines of server.properties; ``version`` is an older one than that of all the other nodes."""
        self._port = port
        self.address = run_tool("start", str(port), *settings, timeout=NODE_TIMEOUT, owner=os.getpid(), version=version).strip()
        home = os.environ.get("OTTLA_KAFKA_HOME") or TOOL.parents[1] / ".kafka"
        self.data = Path(home, f"node-{port}", "data")
        """Where its logs are."""

    def end(self) -> None:
        """Shut down the node and keep its data."""
        run_tool("shutdown", str(self._port), timeout=NODE_TIMEOUT)

    def again(self) -> None:
        """Restart the node with its data."""
        run_tool("restart", str(self._port), timeout=NODE_TIMEOUT, owner=os.getpid())

    def stop(self) -> None:
        """Stop the node and delete its data."""
        run_tool("stop", str(self._port), timeout=NODE_TIMEOUT)


QUICK_HEARTBEATS = {"group.consumer.min.heartbeat.interval.ms": 100, "group.consumer.heartbeat.interval.ms": 400}
"""Settings of a broker whose consumer groups share partitions out soon: each step waits for the next heartbeat of a member."""


@pytest.fixture
def own_kafka(kafka_tool: KafkaTool) -> Iterator[OwnKafka]:
    """A node for a single test."""
    node = OwnKafka(free_port_pair(), *(f"{name}={value}" for name, value in QUICK_HEARTBEATS.items()))
    try:
        yield node
    finally:
        node.stop()


CLUSTER_SETTINGS = ("broker.session.timeout.ms=6000", "controller.quorum.fetch.timeout.ms=4000", "default.replication.factor=3")
"""A killed node is missed soon; a busy machine is no reason to elect another controller."""


class KafkaCluster:
    """A cluster of Apache Kafka nodes with the ids 1, 2, ..., which can be shut down, killed and restarted."""

    def __init__(self, size: int = 3, *settings: str, racks: Sequence[str] = ()) -> None:
        """``settings`` are lines of server.properties for all nodes, ``racks`` one for each."""
        port = free_port_pair(size)
        self._ports = {number: port + 2 * (number - 1) for number in range(1, size + 1)}
        self._racks = [f"{number}:broker.rack={rack}" for number, rack in enumerate(racks, 1)]
        self.addresses = {number: f"127.0.0.1:{port}" for number, port in self._ports.items()}
        """Node id -> its address."""
        self.bootstrap_servers = ",".join(self.addresses.values())
        self.down: set[int] = set()
        """The ids of the nodes that were ended or killed and have not come back."""
        try:
            self._run("cluster", port, str(size), *CLUSTER_SETTINGS, *self._racks, *settings)
        except BaseException:
            self.stop()
            raise

    def end(self, node: int) -> None:
        """Shut down a node."""
        self.down.add(node)
        self._run("shutdown", self._ports[node])

    def kill(self, node: int) -> None:
        """SIGKILL a node. The others notice once its session of ``broker.session.timeout.ms`` is over."""
        self.down.add(node)
        self._run("kill", self._ports[node])

    def again(self, node: int) -> None:
        """Restart a node with its data."""
        self._run("restart", self._ports[node])
        self.down.discard(node)

    def stop(self) -> None:
        """Stop all nodes and delete their data."""
        # None cleanly: the last ones would wait for those that have gone.
        for verb in ("kill", "stop"):
            for port in self._ports.values():
                self._run(verb, port)

    def _run(self, verb: str, port: int, *args: str) -> None:
        run_tool(verb, str(port), *args, timeout=NODE_TIMEOUT, owner=os.getpid(), jvm=f"{QUICK_JVM} -Xmx256m")


@pytest.fixture
def kafka_cluster(kafka_tool: KafkaTool) -> Iterator[KafkaCluster]:
    """Three nodes for a single test, in the racks a, b and c. Their start takes ten seconds or more."""
    cluster = KafkaCluster(3, racks=("a", "b", "c"))
    try:
        yield cluster
    finally:
        cluster.stop()
