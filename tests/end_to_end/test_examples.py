"""Each example runs as it stands and prints what it promises."""

from __future__ import annotations

import importlib
import itertools
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from ottla import Admin, Broker, TopicPartition
from tests.end_to_end.programs import environment

EXAMPLES = Path(__file__).parents[2] / "examples"
AMAZON = {"AWS_REGION": "eu-north-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "nobody's secret"}
"""Credentials of no one."""
LONG = 300.0
"""Seconds: an example with Spark starts a JVM or two."""
PRINTED = {
    "amazon_msk.py": ["a token for kafka.eu-north-1.amazonaws.com, signed by AKIDEXAMPLE, good for 15 minutes"],
    "at_least_once.py": ["served 30 orders"],
    "exactly_once.py": ["wrote 30 invoices"],
    "async_service.py": ["served 30 orders", "gives back orders-0 at 30"],
    "arrow.py": ["chocolate: 10", "coffee: 10", "tea: 10"],
    "from_timestamp.py": ["+20 s table 0: chocolate", "+29 s table 4: chocolate"],
    "rebalance.py": ["ada was given", "bea was given", "ada gives back", "bea leaves", "bea gives back"],
    "spark_aircraft.py": [
        "N14228: 3 reports from 10:00 to 10:12\n",
        "N24211: 1 reports from 10:02 to 10:02\n",
        "N24211: 1 reports from 10:20 to 10:20\n",
    ],
    "spark_orders.py": ["orders in the lake: 30", "and a run later: 42", "done with orders-0 up to offset 42", "chocolate: 14"],
    "test_orders.py": ["1 passed"],
    "thread_pool.py": ["served 30 orders"],
    "worker_threads.py": ["coffee for table 0", "committed: orders-0 at 30"],
}
"""What is printed, among other things."""
ALL_PRINTED = {"spark_aircraft.py"}
"""Examples that print nothing else, and each of these lines once."""


def run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, env=environment(), cwd=EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The documents on Spark start it as well.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=(pytest.mark.slow, pytest.mark.timeout(LONG)) if "spark" in name else ())
        for name in sorted(PRINTED)
    ],
)
def test_an_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in AMAZON.items():
        monkeypatch.setenv(variable, value)
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", name) if name.startswith("test_") else run(name)
    assert [line for line in PRINTED[name] if line not in printed] == []
    if name in ALL_PRINTED:
        assert sorted(printed.splitlines(keepends=True)) == sorted(PRINTED[name])


def test_what_is_committed_of_records_that_finish_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    pending, tp = importlib.import_module("worker_threads").Pending(), TopicPartition("orders", 0)
    futures: list[Future[None]] = [Future() for _ in range(5)]
    for offset, future in zip((0, 1, 4, 5, 6), futures, strict=True):  # compaction has left a gap
        pending.add(SimpleNamespace(topic="orders", partition=0, offset=offset), future)
    futures[1].set_result(None)
    assert pending.finished() == {}
    futures[0].set_result(None)
    assert pending.finished() == {tp: 2}
    futures[3].set_exception(ZeroDivisionError())
    futures[4].set_result(None)
    assert pending.finished() == {}
    futures[2].set_result(None)
    assert pending.finished() == {tp: 5}
    with pytest.raises(ZeroDivisionError):
        pending.check()
    assert pending.finished() == {}
    assert len(pending) == 2


def test_none_is_forgotten() -> None:
    assert {file.name for file in EXAMPLES.glob("[a-z]*.py")} == set(PRINTED)


def test_an_example_takes_a_cluster(served: str) -> None:
    assert "served 30 orders" in run("at_least_once.py", served)


def test_reading_from_timestamp_on_reads_nothing_before_it() -> None:
    seconds = [int(line.split()[0]) for line in run("from_timestamp.py").splitlines()]
    assert sorted(seconds) == list(range(20, 30))


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=lambda stop: stop.name)
def test_a_service_that_is_stopped_leaves_its_group_at_once(stop: signal.Signals) -> None:
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        command = [sys.executable, "async_service.py", broker.bootstrap_servers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=EXAMPLES) as service:
            assert service.stdout is not None
            printed = list(itertools.takewhile(lambda line: line != "served 30 orders\n", service.stdout))
            assert len(admin.describe_groups(["bar"])["bar"].members) == 1
            service.send_signal(stop)
            printed += service.stdout
            group = admin.describe_groups(["bar"])["bar"]
            assert service.wait(30) == 0
        assert (group.state, group.members) == ("Empty", ())
        assert printed[-2:] == ["gives back orders-0 at 30\n", "stopped\n"]
        assert admin.group_offsets("bar")[TopicPartition("orders", 0)].offset == 30
