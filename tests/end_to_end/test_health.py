"""Probes over HTTP: of a healthy consumer, one whose application hangs, a closed one, and one of the command line."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from ottla import Consumer, Health, MetricName, TopicPartition
from ottla.health import HealthServer, PrometheusCollector, serve
from tests.end_to_end.programs import started

MakeTopic = Callable[..., str]
PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""


class Answer(NamedTuple):
    status: int
    text: str


def get(port: int, path: str) -> Answer:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return Answer(response.status, response.read().decode())
    except urllib.error.HTTPError as refused:
        return Answer(refused.code, refused.read().decode())


def consumer(served: str, group: str | None, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=served, group_id=group, auto_offset_reset="earliest", **settings)


def poll_until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        consumer.poll(0.1)


def test_probes_of_a_member_until_it_is_closed(served: str, topic: MakeTopic) -> None:
    name = topic(2, "a:1", "b:2", "c:3")
    with consumer(served, f"group-of-{name}") as reader:
        with serve(reader, host="127.0.0.1") as server:
            assert get(server.port, "/live") == (200, "no call was made yet\n")
            assert get(server.port, "/ready").status == 503
            reader.subscribe([name])
            poll_until(reader, lambda: reader.health().healthy and sum(map(reader.position, reader.assignment())) == 3)
            for path in ("/live", "/ready"):
                assert get(server.port, path) == (200, "ok\n")
            status, text = get(server.port, "/health?verbose")
            said = json.loads(text)
            assert (status, said["healthy"], said["member_id"]) == (200, True, reader.group_metadata().member_id)
            assert said["partitions"].keys() == {f"{name}-0", f"{name}-1"}
            assert sum(part["position"] for part in said["partitions"].values()) == 3
            assert get(server.port, "/else") == (404, "try /live, /ready, /health, /metrics\n")
            check_metrics(server, reader, name)
            port = server.port
        with pytest.raises(urllib.error.URLError):
            get(port, "/live")
    closed = reader.health()
    assert (closed.live, closed.ready, closed.reasons) == (False, False, ("the consumer is closed",))
    assert reader.metrics() == {}


def check_metrics(server: HealthServer, reader: Consumer, name: str) -> None:
    status, text = get(server.port, "/metrics")
    assert status == 200
    samples = {
        (sample.name, sample.labels.get("topic"), sample.labels.get("partition")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["kafka_consumer_fetch_manager_records_consumed_total", None, None] == 3
    assert samples["kafka_consumer_fetch_manager_records_consumed_total", name, None] == 3
    assert samples["kafka_consumer_coordinator_rebalance_total", None, None] >= 1
    assert samples["kafka_consumer_fetch_manager_records_lag", name, "0"] == 0
    assert samples["ottla_consumer_healthy", None, None] == 1
    assert "# HELP kafka_consumer_fetch_manager_records_lag records from the position to the end" in text
    assert reader.metrics()[MetricName("records-lag-max", "consumer-fetch-manager-metrics")] == 0
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(reader))
    assert registry.get_sample_value("ottla_consumer_live", {"group_id": f"group-of-{name}"}) == 1


def test_probes_detect_an_application_that_hangs(served: str, topic: MakeTopic) -> None:
    name = topic(1, "a:1")
    with consumer(served, f"group-of-{name}", max_poll_interval=1, enable_auto_commit=False) as reader:
        reader.subscribe([name])
        poll_until(reader, lambda: bool(reader.assignment()))
        seen: list[Health] = []

        def look() -> None:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline and (not seen or seen[-1].live):
                seen.append(reader.health())

        probe = threading.Thread(target=look)
        probe.start()
        probe.join()  # on the application's thread, which does not poll meanwhile
        assert not seen[-1].live
        assert "no sign of life" in seen[-1].reasons[0]
        poll_until(reader, lambda: reader.health().ready)


def test_readiness_without_a_group_depends_on_assigned_partitions(served: str, topic: MakeTopic) -> None:
    name = topic(1, "a:1")
    with consumer(served, None) as reader:
        reader.assign([TopicPartition(name, 0)])
        poll_until(reader, lambda: reader.health().healthy)
        health = reader.health()
        assert (health.group_id, health.joined, health.last_heartbeat) == (None, False, None)
        assert reader.rebalances == ()


def test_probes_of_the_command_line(served: str, topic: MakeTopic) -> None:
    name = topic(1, "a:1")
    with started("consume", "-t", name, "-g", f"group-of-{name}", "--health-port", "0", bootstrap_servers=served) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = re.fullmatch(r"health: http://localhost:(\d+)/health\n", process.stderr.readline())
        assert found is not None
        assert process.stdout.readline() == "1\n"
        deadline = time.monotonic() + PATIENCE
        while get(int(found[1]), "/ready").status != 200:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, 128 + signal.SIGTERM)


def test_a_port_in_use_raises(served: str, topic: MakeTopic) -> None:
    name = topic(1)
    taken = served.rpartition(":")[2]
    with started("consume", "-t", name, "--health-port", taken, bootstrap_servers=served) as process:
        assert process.stderr is not None
        assert "--health-port" in process.stderr.read()
        assert process.wait(PATIENCE) == 1
