"""Whatever is killed, a reader of committed records counts each row once: drivers, executors, and drivers between two commits.

Records are produced while the processes die. The JVM of a driver is killed, and with it go its Python processes and executors; then
a new driver goes on from the checkpoint. ``make torture`` kills 45 times on each cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker
from ottla.spark.jobs.session import use_installed_pyspark
from tests.interop.real_kafka import QUICK_JVM, OwnKafka, free_port_pair
from tests.spark.conftest import SETTINGS, Kafka
from tests.spark.read_committed import counts
from tests.spark.standalone import SETTINGS_OF_CLUSTER, Standalone
from tests.spark.stream_progress import wait_until

KILLS = int(os.environ.get("OTTLA_SPARK_KILLS", "15"))
"""How many drivers are killed, how many executors, and how many drivers between two commits."""

PARTITIONS = 4
READERS_WAIT = 10.0
"""Seconds after the start of a query within which it has aborted the transactions of the run before."""
TIMEOUT = 240.0
"""Seconds in which a restarted query must end a batch."""

DRIVER = Path(__file__).with_name("exactly_once_driver.py")


class Source(threading.Thread):
    """Produces numbers until it is stopped."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = kafka.producer()
        self._topic = topic
        self._stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            for _ in range(50):
                self._producer.produce(self._topic, str(self.count).encode(), partition=self.count % PARTITIONS)
                self.count += 1
            assert self._producer.flush(120) == 0
            self._stopped.wait(0.05)

    def stop(self) -> int:
        """Return how many numbers were produced."""
        self._stopped.set()
        self.join(120)
        return self.count


class Driver:
    """A driver process, and what it prints."""

    def __init__(self, home: Path, servers: str, source: str, target: str, **given: Any) -> None:
        settings = {**SETTINGS, "spark.sql.adaptive.streaming.stateless.enabled": "false", **given.pop("settings", {})}
        wanted = {
            "servers": servers, "source": source, "target": target, "checkpoint": str(home / "checkpoint"), "home": str(home),
            "master": "local[2]", "kind": "stream", "kill": 0, "rows": 2000, "stalls": False, "settings": settings, **given,
        }  # fmt: skip
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": QUICK_JVM}
        environment = {**os.environ, **python, "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[2]), *sys.path])}
        environment.pop("PYSPARK_GATEWAY_PORT", None)
        use_installed_pyspark(home, environment)
        self._log = (home / "driver.log").open("a")
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(wanted)], env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.jvm = int(self._next()["jvm"])
        self._session_at = time.monotonic()
        assert self._next() == {"starts": True}
        self._query_at = time.monotonic()
        self.speculative = 0
        """Speculative copies of tasks."""

    def _next(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError(f"the driver ended: {self._log.name}")

    def wait_for_batches(self, count: int) -> None:
        """Wait until so many batches have ended."""
        for _ in range(count):
            ended = self._next()
            self.speculative = ended["speculative"]
            assert ended["batch"] is not None, f"the query ended: {self._log.name}"

    def wait_for_end(self) -> None:
        """Wait until the driver is gone."""
        self._process.communicate(timeout=TIMEOUT)

    def ages(self) -> tuple[float, float, float]:
        """The seconds since the process was started, since there was a session, and since the query was started."""
        now = time.monotonic()
        return now - self._started_at, now - self._session_at, now - self._query_at

    def kill(self) -> None:
        """Kill the JVM; its Python parent notices."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.jvm, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def executors(self) -> list[int]:
        """The process ids of the executors of a ``local-cluster``."""
        pgrep = ["pgrep", "-P", str(self.jvm), "-f", "CoarseGrainedExecutorBackend"]
        return [int(each) for each in subprocess.run(pgrep, capture_output=True, text=True, check=True).stdout.split()]


class Cluster:
    """Apache Kafka, or the embedded broker in a process of its own, that can be restarted."""

    def __init__(self, kind: str, home: Path) -> None:
        self._kind = kind
        if kind == "kafka":
            self._own = OwnKafka(free_port_pair())
            self.kafka = Kafka(self._own.address)
        else:
            self._home = home / "broker"
            self._broker = Broker(data_dir=self._home)
            self._broker.start()
            self.kafka = Kafka(self._broker.bootstrap_servers)

    def restart(self) -> None:
        """Shut the broker down, and start it again with its data."""
        if self._kind == "kafka":
            self._own.end()
            self._own.again()
        else:
            port = int(self.kafka.servers.rpartition(":")[2])
            self._broker.close()
            self._broker = Broker(data_dir=self._home, port=port)
            self._broker.start()

    def end(self) -> None:
        """End it, and delete its data."""
        if self._kind == "kafka":
            self._own.stop()
        else:
            self._broker.close()


@pytest.fixture(params=["kafka", "broker"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path)
    yield made
    made.end()


class Copy:
    """A query that copies one topic to another, and the source that fills the first."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._kafka = cluster.kafka
        self.names = self._kafka.create(PARTITIONS), self._kafka.create(2)
        self._home = home
        self._source = Source(self._kafka, self.names[0])
        self._source.start()

    def driver(self, **given: Any) -> Driver:
        """Start a driver, which goes on from the checkpoint."""
        return Driver(self._home, self._kafka.servers, *self.names, **given)

    def open_transactions(self) -> dict[str, int | None]:
        """The ids with an open transaction, and when these have begun."""
        with Admin(bootstrap_servers=self._kafka.servers) as admin:
            names = [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
            found = admin.describe_transactions(names)
        return {name: each.transaction_start_time_ms for name, each in found.items() if each.state == "Ongoing"}

    def wait_for_readers(self, left: dict[str, int | None], driver: Driver) -> tuple[float, float, float]:
        """Return the ages of a restarted driver when it has ended the transactions of the one before."""
        while left.items() & self.open_transactions().items():
            assert driver.ages()[2] < READERS_WAIT
            time.sleep(0.1)
        return driver.ages()

    def check(self, **given: Any) -> None:
        """Copy the rest, and count each number once."""
        total = self._source.stop()
        driver = self.driver(rows=1_000_000, **given)
        driver.wait_for_batches(1)
        deadline = time.monotonic() + TIMEOUT
        while sum((found := counts(self._kafka, self.names[1])).values()) < total:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        driver.kill()
        assert found == Counter(range(total))


@pytest.fixture
def copy(cluster: Cluster, tmp_path: Path) -> Copy:
    return Copy(cluster, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["stream", "foreach"])
def test_drivers_are_killed(copy: Copy, kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(KILLS):
        driver = copy.driver(kind=kind)
        driver.wait_for_batches(chance.randint(1, 3))
        time.sleep(chance.uniform(0, 0.8))
        driver.kill()
    copy.check(kind=kind)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_drivers_are_killed_between_two_commits(copy: Copy) -> None:
    left: dict[str, int | None] = {}
    waits = []
    for number in range(KILLS):
        driver = copy.driver(kill=1 + number % 3)
        if left:
            waits.append(copy.wait_for_readers(left, driver))
        driver.wait_for_end()
        driver.kill()
        left = copy.open_transactions()
        assert left
    since = "start of the driver", "start of its session", "start of its query"
    for what, each in zip(since, zip(*waits, strict=True), strict=True):
        print(f"readers went on {min(each):.1f} to {max(each):.1f} s after the {what}, median {statistics.median(each):.1f} s")
    copy.check()


RESTARTS = {"spark.task.maxFailures": "100", "spark.executor.maxNumFailures": "1000", "spark.deploy.maxExecutorRetries": "-1"}
"""Settings with which an application survives the death of many executors."""


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_executors_are_killed(copy: Copy) -> None:
    chance = random.Random(4)
    driver = copy.driver(master="local-cluster[2,1,1024]", settings={**RESTARTS, "spark.executor.memory": "512m"})
    for _ in range(KILLS):
        driver.wait_for_batches(chance.randint(1, 2))
        time.sleep(chance.uniform(0, 0.5))
        os.kill(chance.choice(driver.executors()), signal.SIGKILL)
    driver.kill()
    copy.check()


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_executors_are_killed_with_speculation(copy: Copy, tmp_path: Path) -> None:
    """On a cluster of two hosts, since a copy of a task runs on another host than the original."""
    settings = {**RESTARTS, "spark.speculation": "true", "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3"}
    settings |= {"spark.speculation.interval": "50ms", "spark.speculation.minTaskRuntime": "50ms"}
    chance, copies, home = random.Random(4), 0, tmp_path / "standalone"
    home.mkdir()
    standalone = Standalone(home)
    given = {"master": standalone.url, "stalls": True, "settings": {**SETTINGS_OF_CLUSTER, **settings}}
    driver = copy.driver(**given)
    for _ in range(KILLS):
        wait_until(lambda: len(standalone.executors()) == 2, 120)  # a copy needs another host
        wanted = chance.randint(3, 6)
        while wanted:
            try:
                driver.wait_for_batches(1)
                wanted -= 1
            except AssertionError:  # a copy of a task has aborted the transaction of the original: the query fails
                driver.kill()
                copies += driver.speculative
                driver = copy.driver(**given)
        time.sleep(chance.uniform(0, 0.5))
        standalone.kill_executor()
    driver.kill()
    copies += driver.speculative
    standalone.stop()
    assert copies > 0
    copy.check()


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_the_broker_is_restarted(copy: Copy, cluster: Cluster) -> None:
    driver = copy.driver()
    for _ in range(max(1, KILLS // 5)):
        driver.wait_for_batches(2)
        cluster.restart()
    driver.wait_for_batches(2)
    driver.kill()
    copy.check()
