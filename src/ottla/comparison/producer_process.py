"""The child process that produces the records that the group reads.

Owns the producer and the outcomes of its records. Must not know the group. Invariant: it reports the number of records in the
topic, or fails: each record is acknowledged once, since the producer is idempotent.
"""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from ottla import Delivery, Producer
from ottla.comparison.life import METADATA_MAX_AGE, RECORD_INTERVAL, TOPIC
from ottla.demo.processes import Emit
from ottla.signals import Stop, recorded_signals

SETTINGS = {"metadata_max_age_ms": METADATA_MAX_AGE}
"""By that time it knows of partitions that were added."""


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Produce until SIGTERM. Reports ``producing`` after the first records, and ``produced`` with ``count`` at the end."""
    with recorded_signals() as stop, Producer({**SETTINGS, "bootstrap_servers": arguments["bootstrap_servers"]}) as producer:
        deliveries = _send_all(producer)
        emit("producing")
        while _wait(stop, RECORD_INTERVAL):
            deliveries += _send_all(producer)
        producer.flush()
        for delivery in deliveries:
            error = delivery.error()
            if error is not None:
                raise error
        emit("produced", count=len(deliveries))


def _send_all(producer: Producer) -> list[Delivery]:
    """Send a record to each partition."""
    value = str(time.time())
    return [producer.send(TOPIC, value, partition=number) for number in producer.partitions_for(TOPIC)]


def _wait(stop: Stop, seconds: float) -> bool:
    """Wait; return whether no signal has arrived."""
    woken: SimpleQueue[None] = SimpleQueue()
    stop.wake = lambda: woken.put(None)
    if not stop:
        with suppress(Empty):
            woken.get(timeout=seconds)
    return not stop
