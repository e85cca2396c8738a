"""The planner process: an execution has one set of bounds, and only processes with the key get it. Real sockets, the embedded
broker."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql.datasource import InputPartition

from ottla import Admin, Broker, OttlaError
from ottla.spark import planner as planner_module
from ottla.spark.batch import OttlaBatchReader, UnboundPartition
from ottla.spark.batch_bounds import bounds_from_json
from ottla.spark.options import parse_options, planner_options
from ottla.spark.planner import DRIVER_CHECK_INTERVAL, IDLE_TIMEOUT, MAX_CONNECTED_TABLES, BoundsCache, Planner, serve
from ottla.spark.planner_client import PlannerAddress, has_local_master, register, request_bounds
from ottla.spark.planning import Bounds, Share, UnboundTask
from ottla.spark.signed_messages import SignedConnection, WrongSignatureError
from ottla.types import TopicPartition
from tests.closed_ports import closed_port

pytestmark = pytest.mark.long

KEY = b"k" * 32
SECONDS = 30.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({"t": 2})
    return "t"


def options_of(broker: Broker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t", **more}


def close(planner: Planner) -> None:
    """Close the connections of all tables."""
    planner.close_idle(time.monotonic() + 2 * IDLE_TIMEOUT)


def produce(broker: Broker, topic: str, count: int, *, partition: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(SECONDS) == 0


def test_an_execution_has_one_result() -> None:
    answers = BoundsCache(iter("abc").__next__)
    assert [answers.get(execution) for execution in (3, 3, 7, 3, 5, 7)] == ["a", "a", "b", "a", "c", "b"]


def test_concurrent_requests_get_the_same_result() -> None:
    begun = threading.Barrier(8)
    answers = BoundsCache(iter("abcdefgh").__next__)
    found: list[Any] = []

    def ask_once() -> None:
        begun.wait()
        found.append(answers.get(1))

    threads = [threading.Thread(target=ask_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["a"] * 8


def test_a_failed_plan_is_repeated_only_for_the_next_execution() -> None:
    """Spark runs each task up to four times. Each attempt would wait for the cluster as long as the first one did."""
    results: Iterator[OttlaError | str] = iter([OttlaError("no broker"), "plan"])

    def plan() -> str:
        result = next(results)
        if isinstance(result, OttlaError):
            raise result
        return result

    answers = BoundsCache(plan)
    for _ in range(4):
        with pytest.raises(OttlaError, match="no broker"):
            answers.get(1)
    assert answers.get(2) == "plan"
    with pytest.raises(OttlaError, match="no broker"):
        answers.get(1)


def test_evicted_bounds_are_not_resolved_again() -> None:
    answers = BoundsCache(iter("abcdef").__next__, most=2 * 201)
    assert [answers.get(execution) for execution in (1, 2, 1, 3)] == ["a", "b", "a", "c"]
    assert answers.get(2) is None
    assert [answers.get(1), answers.get(3), answers.get(4)] == ["a", "c", "d"]
    assert answers.get(1) is None


def test_the_cache_is_limited_by_size() -> None:
    """Small entries are kept long: a stream joined with the same table must not evict the bounds of a slow query."""
    small, large = BoundsCache(lambda: "[]", most=10_000_000), BoundsCache(lambda: "x" * 1_000_000, most=10_000_000)
    for answers in (small, large):
        for execution in range(10_000):
            answers.get(execution)
    assert [small.get(0), large.get(0)] == ["[]", None]
    assert large.get(9_992) is not None


def test_the_bounds_of_an_execution_stay_and_those_of_the_next_are_new(broker: Broker, topic: str, tmp_path: Path) -> None:
    planner = Planner(KEY, tmp_path)
    table = json.loads(planner.handle({"options": options_of(broker)}))["table"]

    def bounds(execution: int) -> Any:
        return json.loads(planner.handle({"table": table, "execution": execution}))["bounds"]["offsets"]

    assert bounds(1) == [["t", 0, 0, 0], ["t", 1, 0, 0]]
    produce(broker, "t", 3, partition=1)
    assert bounds(1) == [["t", 0, 0, 0], ["t", 1, 0, 0]]
    assert bounds(2) == [["t", 0, 0, 0], ["t", 1, 0, 3]]
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition("t", 1): 2})
    assert bounds(2) == [["t", 0, 0, 0], ["t", 1, 0, 3]]
    assert bounds(3) == [["t", 0, 0, 0], ["t", 1, 2, 3]]
    close(planner)


def test_a_restarted_planner_rejects_executions_of_its_predecessor(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Tasks of a running execution must not get different bounds than earlier tasks."""
    answers = []
    for executions in ((5, 3), (3, 4, 5, 6)):
        planner = Planner(KEY, tmp_path)
        table = json.loads(planner.handle({"options": options_of(broker)}))["table"]
        answers.append([json.loads(planner.handle({"table": table, "execution": execution})) for execution in executions])
        close(planner)
        produce(broker, "t", 3, partition=1)
    assert all("bounds" in answer for answer in answers[0])
    assert ["does not have the offsets" in answer.get("error", "") for answer in answers[1]] == [True, True, True, False]
    assert answers[1][-1]["bounds"]["offsets"] == [["t", 0, 0, 0], ["t", 1, 0, 3]]


def test_tables_with_the_same_options_are_one(broker: Broker, topic: str, tmp_path: Path) -> None:
    planner = Planner(KEY, tmp_path)
    endings = ["latest", "latest", '{"t": {"0": 5, "1": -1}}']
    given = [options_of(broker, endingoffsets=ending) for ending in endings]
    names = [json.loads(planner.handle({"options": options}))["table"] for options in given]
    assert names[0] == names[1] != names[2]


def test_a_failed_plan_is_an_error_response(broker: Broker, tmp_path: Path) -> None:
    planner = Planner(KEY, tmp_path)
    table = json.loads(planner.handle({"options": {**options_of(broker), "subscribe": "missing"}}))["table"]
    answer = json.loads(planner.handle({"table": table, "execution": 1}))
    assert answer == {"error": "topic missing does not exist (create it first, or check the name)"}
    assert "does not have this table" in json.loads(planner.handle({"table": "?", "execution": 1}))["error"]


def test_few_tables_keep_their_connections(broker: Broker, topic: str, tmp_path: Path) -> None:
    planner = Planner(KEY, tmp_path)
    previous = threading.active_count()
    for number in range(MAX_CONNECTED_TABLES + 4):
        given = options_of(broker, **{"kafka.client.id": str(number)})
        table = json.loads(planner.handle({"options": given}))["table"]
        assert "bounds" in json.loads(planner.handle({"table": table, "execution": number}))
    planner.close_idle(time.monotonic())
    assert threading.active_count() <= previous + MAX_CONNECTED_TABLES
    close(planner)
    assert threading.active_count() <= previous


@pytest.fixture
def served(tmp_path: Path) -> Iterator[int]:
    """The port of a planner in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    home = tmp_path / "home"
    home.mkdir()
    thread = threading.Thread(target=serve, args=(listening, KEY), kwargs={"driver": os.getpid(), "home": home})
    thread.start()
    yield listening.getsockname()[1]
    shutil.rmtree(home)
    thread.join(SECONDS)
    assert not any(one is thread or one.name == "ottla-spark-planner" for one in threading.enumerate())
    listening.close()


def test_a_task_asks_over_the_network(served: int, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SignedConnection(("127.0.0.1", served), KEY, timeout=SECONDS) as connection:
        table = connection.request({"options": options_of(broker)}, timeout=SECONDS)["table"]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "another machine's")
    address = PlannerAddress(served, KEY, table, "the driver's")
    bounds = bounds_from_json(request_bounds(address, 1, driver="localhost", timeout=SECONDS))
    assert bounds.offsets == {TopicPartition("t", 0): (0, 0), TopicPartition("t", 1): (0, 0)}
    assert [*bounds.topic_ids] == ["t"]
    with pytest.raises(OttlaError, match=r"does not have this table.*\(call load\(\) again, or set option planOnce to true\)"):
        request_bounds(address._replace(table="other"), 1, driver="localhost", timeout=SECONDS)


def test_requests_without_the_key_get_no_response(served: int) -> None:
    with SignedConnection(("127.0.0.1", served), b"x" * 32, timeout=SECONDS) as connection, pytest.raises(EOFError):
        connection.request({"hello": True}, timeout=SECONDS)
    with socket.create_connection(("127.0.0.1", served), timeout=SECONDS) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything, please\r\n\r\n")
        assert stranger.recv(1) == b""


def test_a_response_with_another_key_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            accepted, _ = impostor.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall((4).to_bytes(4, "big") + b"s" * 32 + b"{}{}")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            SignedConnection(("127.0.0.1", impostor.getsockname()[1]), KEY, timeout=SECONDS) as connection,
            pytest.raises(WrongSignatureError),
        ):
            connection.request({"hello": True}, timeout=SECONDS)
        thread.join()


def test_an_unreachable_planner_raises() -> None:
    with closed_port() as port, pytest.raises(OttlaError, match=rf"of this query: localhost:{port} \(.*refused\)") as raised:
        request_bounds(PlannerAddress(port, KEY, "t", "the driver's"), 1, driver="localhost", timeout=1)
    assert "planOnce" in str(raised.value.hint)


STARTER = """
import json, os, sys
from ottla.spark.planner_client import register
print(json.dumps([register({"kafka.bootstrap.servers": "localhost:1", "subscribe": word}).port for word in sys.argv[1:]]))
"""


def test_all_workers_share_one_process_that_restarts_on_its_port(tmp_path: Path) -> None:
    """Each call is from another worker process, as in Spark. This process is their parent, and so the driver."""
    folder = tmp_path / "blockmgr-1"
    folder.mkdir()

    def start() -> list[int]:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": f"/nowhere,{folder}"}
        command = [sys.executable, "-c", STARTER, "a", "b"]
        ports: list[int] = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        return ports

    ports = start()
    assert len({*ports, *start()}) == 1
    home = folder / "ottla-planner"
    assert (home.stat().st_mode & 0o777, (home / "address").stat().st_mode & 0o777) == (0o700, 0o600)
    [process] = planners(folder)
    os.kill(process, 9)
    wait_until_gone(folder)
    assert start() == ports
    for file in home.iterdir():
        file.unlink()
    home.rmdir()
    wait_until_gone(folder)


def planners(folder: Path) -> list[int]:
    listed = subprocess.run(["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ottla.spark.planner" in line and str(folder) in line]


def wait_until_gone(folder: Path) -> None:
    end = time.monotonic() + SECONDS
    while planners(folder):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_register_raises_if_the_process_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "blockmgr-1"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(OttlaError, match="cannot start the planner process") as raised:
        register({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"})
    assert "planOnce" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("words", "local"),
    [
        ("java -cp x SparkSubmit --conf spark.master=local[2] pyspark-shell", True),
        ("java SparkSubmit --master local[2,3] --name app app.py", True),
        ("java SparkSubmit --master=local pyspark-shell", True),
        ("java SparkSubmit pyspark-shell", False),
        ("java SparkSubmit --conf spark.master=local-cluster[1,1,512] pyspark-shell", False),
        ("java SparkSubmit --master yarn app.py local", False),
        ("java SparkSubmit --master spark://host:7077 app.py --environment local --user /usr/local", False),
        ("java SparkSubmit --master spark://host:7077 --conf spark.master=local[1] app.py", False),
    ],
)
def test_only_a_local_master_is_known_to_need_no_other_machine(words: str, local: bool) -> None:
    assert has_local_master(words.split()) == local


DAEMON = """
import os, signal, subprocess, sys
os.setpgid(0, 0)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
restore = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
subprocess.run([sys.executable, "-c", sys.argv[1], "a"], stdout=subprocess.DEVNULL, preexec_fn=restore, check=True)
os.kill(0, signal.SIGHUP)
"""


def test_the_process_outlives_the_daemon_of_its_worker(tmp_path: Path) -> None:
    """Spark starts another daemon when one has ended, and the driver's tables stay in use. This process is the driver."""
    folder = tmp_path / "blockmgr-1"
    folder.mkdir()
    command = [sys.executable, "-c", DAEMON, STARTER, "pyspark.daemon"]
    subprocess.run(command, env={**os.environ, "SPARK_LOCAL_DIRS": str(folder)}, check=True)
    time.sleep(2 * DRIVER_CHECK_INTERVAL)
    assert len(planners(folder)) == 1
    shutil.rmtree(folder)
    wait_until_gone(folder)


def test_the_process_exits_without_a_complete_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        command = [sys.executable, "-m", "ottla.spark.planner", str(number), str(os.getpid()), str(tmp_path)]
        done = subprocess.run(command, input=KEY[:5], stderr=subprocess.PIPE, pass_fds=[number], timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert b"received no key" in done.stderr


def test_the_process_updates_the_times_of_its_files(served: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems delete files in ``/tmp`` that are ten days old."""
    monkeypatch.setattr(planner_module, "TOUCH_INTERVAL", 0.0)
    home = tmp_path / "home"
    os.utime(home, (0, 0))
    end = time.monotonic() + SECONDS
    while home.stat().st_mtime == 0:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_timeout_is_not_reported_as_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PlannerAddress(silent.getsockname()[1], KEY, "t", "the driver's")
        with pytest.raises(OttlaError, match=r"did not resolve the offsets of this query within 0\.2 s") as raised:
            request_bounds(address, 1, driver="localhost", timeout=0.2)
    assert "kafka.default.api.timeout.ms" in str(raised.value.hint)


def test_an_rdd_warns_of_newer_records(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """A task outside of an execution, as here, belongs to an RDD."""
    produce(broker, "t", 2, partition=0)
    given = options_of(broker)
    reader = OttlaBatchReader(parse_options(given).for_batch(), ("offset",), planner_options(given))
    task = UnboundTask((Share("t", 0), Share("t", 1)), 0, 1, {"t": 0b11})
    planned = Bounds({TopicPartition("t", 0): (0, 2), TopicPartition("t", 1): (0, 0)})
    partition = InputPartition(UnboundPartition(task, planned, PlannerAddress(1, KEY, "t", "")))

    def offsets() -> list[int]:
        return [offset for batch in reader.read(partition) for offset in batch.column("offset").to_pylist()]

    with caplog.at_level(logging.WARNING):
        assert offsets() == [0, 1]
        assert caplog.messages == []
        produce(broker, "t", 1, partition=1)
        assert offsets() == [0, 1]
    assert [message.split(":")[0] for message in caplog.messages] == ["t-1"]


def test_an_rdd_is_read_if_the_check_for_newer_records_fails(broker: Broker, topic: str) -> None:
    given = options_of(broker, **{"kafka.default.api.timeout.ms": "1000"})
    reader = OttlaBatchReader(parse_options(given).for_batch(), ("offset",), planner_options(given))
    planned = Bounds({TopicPartition("t", 0): (0, 0)})
    partition = InputPartition(
        UnboundPartition(UnboundTask((Share("t", 0),), 0, 1, {"t": 1}), planned, PlannerAddress(1, KEY, "t", ""))
    )
    broker.close()
    assert list(reader.read(partition)) == []
