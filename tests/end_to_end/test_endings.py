"""User code runs on the application's thread, and ``close()`` ends in time even if the cluster is dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from ottla import Consumer
from tests.end_to_end.programs import broker

PATIENCE = 60.0
SLACK = 20.0
"""Seconds beyond the timeout that a busy machine may take."""


def test_close_does_not_hang_when_the_cluster_is_dead(tmp_path: Path) -> None:
    with broker("--data-dir", str(tmp_path), "--set", "group.initial.rebalance.delay.ms=0") as (process, address):
        producer = Producer({"bootstrap.servers": address})
        producer.produce("orders", b"one")
        assert producer.flush(PATIENCE) == 0
        consumer = Consumer(bootstrap_servers=address, group_id="billing", auto_offset_reset="earliest")
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + PATIENCE
        while not len(consumer.poll(0.5)):
            assert time.monotonic() < deadline
        process.kill()
        process.wait(PATIENCE)
    began = time.monotonic()
    consumer.close(timeout=2)
    assert time.monotonic() - began < 2 + SLACK
    assert [thread.name for thread in threading.enumerate() if thread is consumer._network._thread] == []


def test_user_code_runs_on_the_application_thread(served: str, topic: Callable[..., str]) -> None:
    name = topic(1, "key:value")
    threads: dict[str, int] = {}

    def note(what: str) -> None:
        threads[what] = threading.get_ident()

    def decoded(data: bytes | None) -> bytes | None:
        note("deserializer")
        return data

    with Consumer(
        bootstrap_servers=served, group_id=f"group-of-{name}", auto_offset_reset="earliest", value_deserializer=decoded
    ) as consumer:
        consumer.subscribe([name], on_assign=lambda *_: note("on_assign"), on_revoke=lambda *_: note("on_revoke"))
        deadline = time.monotonic() + PATIENCE
        while not (records := consumer.poll(0.5)):
            assert time.monotonic() < deadline
        assert [record.value for record in records] == [b"value"]
        consumer.commit_async(callback=lambda offsets, error: note("callback"))
        while "callback" not in threads:
            consumer.poll(0.1)
            assert time.monotonic() < deadline
    assert threads == dict.fromkeys(("deserializer", "on_assign", "callback", "on_revoke"), threading.get_ident())
