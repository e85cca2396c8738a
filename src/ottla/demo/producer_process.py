"""The child process that loads the flights and produces them with confluent-kafka.

Owns the producer and its delivery reports. Must not know which broker it uses. Invariant: it reports the number of flights that the
broker has acknowledged, not of those that are queued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message as Delivered, Producer

from ottla.demo import DemoFailed
from ottla.demo.data import Flights, load
from ottla.demo.processes import PROGRESS, Emit

SETTINGS = {"linger.ms": 20, "enable.idempotence": True, "message.timeout.ms": 60_000}
REPORT_EVERY = 5_000
FLUSH_TIMEOUT = 90.0
"""Seconds; longer than ``message.timeout.ms``."""


class ProducingFailed(DemoFailed):
    """The broker did not acknowledge every flight."""


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Load and produce. Reports ``loaded`` with the expected totals, ``progress`` and ``produced``."""
    flights = load(arguments["limit"])
    emit(
        "loaded",
        flights=len(flights),
        by_carrier=flights.by_carrier,
        distance=flights.distance,
        departure_delay=flights.departure_delay,
    )
    count = produce(arguments["bootstrap_servers"], arguments["topic"], flights, lambda done: emit(PROGRESS, done=done))
    emit("produced", count=count)


def produce(bootstrap_servers: str, topic: str, flights: Flights, on_progress: Callable[[int], None]) -> int:
    """Produce all flights and return the number of acknowledged ones, which ``on_progress`` gets while it grows."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, **SETTINGS})
    acknowledged = 0
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Delivered) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            refused.append(error)

    for number, message in enumerate(flights.messages()):
        while True:
            try:
                producer.produce(
                    topic,
                    key=message.key,
                    value=message.value,
                    timestamp=message.timestamp,
                    headers=[*message.headers],
                    on_delivery=delivered,
                )
                break
            except BufferError:  # the producer's queue is full: wait for deliveries
                producer.poll(0.1)
        if number % REPORT_EVERY == 0:
            producer.poll(0)
            on_progress(acknowledged)
    producer.flush(FLUSH_TIMEOUT)
    on_progress(acknowledged)
    if refused:
        raise ProducingFailed(f"{len(refused):,} of {len(flights):,} flights were not acknowledged; the first error: {refused[0]}")
    return acknowledged
