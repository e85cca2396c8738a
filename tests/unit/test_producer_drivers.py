"""How the network thread wakes the thread of a call."""

from __future__ import annotations

import threading
import time

import pytest

from ottla import Producer, producer_drivers
from ottla.producer_drivers import Bell


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    """One that knows topic ``t``, and sends nothing."""
    monkeypatch.setattr(producer_drivers, "GIVE_WAY_TIME", 30)
    producer = Producer(bootstrap_servers="localhost:1")
    producer._accumulator.set_partitions("t", 2)
    return producer


def test_a_ring_lasts_until_the_thread_has_run(producer: Producer) -> None:
    bell = Bell(producer._accumulator)
    network = threading.Thread(target=bell.ring)
    network.start()
    assert bell.wait(30)
    assert network.is_alive()
    bell.release()
    network.join(20)
    assert not network.is_alive()


def test_a_ring_does_not_keep_other_batches_waiting(producer: Producer) -> None:
    for partition in (0, 1):
        producer.send("t", b"v", partition=partition)
    bell = Bell(producer._accumulator)
    began = time.monotonic()
    bell.ring()
    assert bell.wait(0)
    assert time.monotonic() - began < 20


def test_without_a_ring_the_wait_ends(producer: Producer) -> None:
    assert not Bell(producer._accumulator).wait(0)
