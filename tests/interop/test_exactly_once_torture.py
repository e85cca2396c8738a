"""Exactly once under torture: members of a group read, process and write, while they, their brokers and coordinators are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from ottla import Admin, OttlaError, Producer
from tests.end_to_end.broker_process import PROGRAM, broker_process
from tests.interop.cluster.cluster_admin import Operator
from tests.interop.exactly_once_workers import GROUP, PARTITIONS, Workers, all_processed, check
from tests.interop.real_kafka import KafkaCluster

pytestmark = pytest.mark.interop

RECORDS_A_KILL = 1_000
"""As many as keep the workers busy between two kills."""
KILLS = int(os.environ.get("OTTLA_KILLS", "50"))
"""Of workers, of coordinators and of leaders each (our broker is both), in each of the long tests."""
Blow = Callable[[], None]
PATIENCE = 300.0
"""Seconds after the last kill for the rest of the records."""
SESSIONS = {
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
}
"""With the default, the partitions of a killed member would be without one for 45 s."""


def fill(servers: str, count: int) -> None:
    with Producer(bootstrap_servers=servers, batch_size=100_000) as producer:
        for number in range(count):
            producer.send("in", b"%d" % number, partition=number % PARTITIONS)


def finish(workers: Workers, servers: str) -> None:
    """Let the workers process the rest."""
    deadline = time.monotonic() + PATIENCE
    with Admin(bootstrap_servers=servers, default_api_timeout=10, request_timeout=10) as admin:
        while True:
            with suppress(OttlaError):
                if all_processed(admin):
                    return
            assert time.monotonic() < deadline, workers.errors
            workers.watch(0.5)


def on_our_broker(folder: Path, seed: int, kills: int, protocol: str) -> None:
    rng, data = random.Random(seed), folder / "data"
    with broker_process(data, settings=SESSIONS) as (process, servers):
        port = int(servers.rsplit(":", 1)[1])
        current: list[subprocess.Popen[str]] = [process]

        def restart() -> None:
            os.kill(current[0].pid, signal.SIGKILL)
            current[0].wait()
            command = [sys.executable, "-c", PROGRAM, str(data), str(port), json.dumps(SESSIONS)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            current[0] = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
            assert current[0].stdout is not None
            current[0].stdout.readline()

        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics({"in": PARTITIONS, "out": PARTITIONS})
        try:
            torment(servers, folder, rng, kills, protocol, {restart: kills})
        finally:
            current[0].kill()
            current[0].communicate()


def torment(servers: str, folder: Path, rng: random.Random, kills: int, protocol: str, blows: Mapping[Blow, int]) -> None:
    """Process records while ``kills`` workers are killed, some are stopped for a while, and ``blows`` fall on brokers, in a random
    order."""
    count = RECORDS_A_KILL * (kills + sum(blows.values()))
    fill(servers, count)
    workers = Workers(servers, folder, protocol)
    all_blows: dict[Blow, int] = {
        lambda: workers.kill(rng.randrange(3)): kills,
        lambda: workers.suspend(rng.randrange(3), rng.uniform(1, 14)): kills // 5,
        **blows,
    }
    order = [blow for blow, number in all_blows.items() for _ in range(number)]
    rng.shuffle(order)
    try:
        workers.watch(2)
        for blow in order:
            workers.watch(rng.uniform(0.2, 2.0))
            blow()
        finish(workers, servers)
        workers.end()
        check(servers, count)
    except BaseException as error:
        error.add_note(workers.errors)
        raise
    finally:
        workers.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_on_our_broker(tmp_path: Path, protocol: str) -> None:
    on_our_broker(tmp_path, seed=1, kills=5, protocol=protocol)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "protocol"), [(2, "classic"), (3, "consumer")])
def test_on_our_broker_for_long(tmp_path: Path, seed: int, protocol: str) -> None:
    on_our_broker(tmp_path, seed, kills=KILLS, protocol=protocol)


def on_kafka(cluster: KafkaCluster, folder: Path, seed: int, kills: int, protocol: str) -> None:
    rng, operator = random.Random(seed), Operator(cluster.bootstrap_servers)
    for topic in ("in", "out"):
        operator.create(topic, PARTITIONS, 3)

    def kill(node: int) -> None:
        cluster.kill(node)
        time.sleep(rng.uniform(0, 8))
        cluster.again(node)
        operator.wait_until_whole((1, 2, 3))

    def kill_a_coordinator() -> None:
        """That of the group, or of a transaction."""
        of_transactions = rng.random() < 0.5
        kill(operator.leader("__transaction_state", rng.randrange(5)) if of_transactions else operator.coordinator(GROUP))

    def kill_a_leader() -> None:
        kill(operator.leader("out", rng.randrange(PARTITIONS)))

    def restart_all() -> None:
        for node in (1, 2, 3):
            cluster.end(node)
            cluster.again(node)
            operator.wait_until_whole((1, 2, 3))

    blows = {kill_a_coordinator: kills, kill_a_leader: kills, restart_all: max(1, kills // 10)}
    try:
        torment(cluster.bootstrap_servers, folder, rng, kills, protocol, blows)
    finally:
        operator.close()


KAFKA_SETTINGS = (
    "transaction.state.log.num.partitions=5",
    "transaction.state.log.replication.factor=3",
    "offsets.topic.num.partitions=5",
    "offsets.topic.replication.factor=3",
    "min.insync.replicas=2",
    *(f"{name}={value}" for name, value in SESSIONS.items()),
)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("seed", "protocol"), [(4, "classic"), (5, "consumer")])
@pytest.mark.usefixtures("kafka_tool")
def test_on_three_nodes_of_kafka(tmp_path: Path, seed: int, protocol: str) -> None:
    cluster = KafkaCluster(3, *KAFKA_SETTINGS)
    try:
        on_kafka(cluster, tmp_path, seed, kills=KILLS, protocol=protocol)
    finally:
        cluster.stop()
