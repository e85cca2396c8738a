"""The child process that loads the flights and produces them.

Owns the producer and the outcomes of its records. Must not know which broker it uses. Invariant: it reports the number of flights
that the broker has acknowledged, not of those that were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ottla import Delivery, Producer
from ottla.demo import DemoFailed
from ottla.demo.data import Flights, load
from ottla.demo.processes import PROGRESS, Emit
from ottla.errors import OttlaError

SETTINGS = {"linger.ms": 20, "delivery.timeout.ms": 60_000}
REPORT_EVERY = 5_000


class ProducingFailed(DemoFailed):
    """The broker did not acknowledge every flight."""


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Load and produce. Reports ``loaded`` with the expected totals, ``progress`` and ``produced``."""
    flights = load(arguments["limit"])
    emit(
        "loaded",
        flights=len(flights),
        by_carrier=flights.by_carrier,
        departed=flights.departed,
        distance=flights.distance,
        departure_delay=flights.departure_delay,
    )
    count = produce(arguments["bootstrap_servers"], arguments["topic"], flights, lambda done: emit(PROGRESS, done=done))
    emit("produced", count=count)


def produce(bootstrap_servers: str, topic: str, flights: Flights, on_progress: Callable[[int], None]) -> int:
    """Produce all flights and return the number of acknowledged ones, which ``on_progress`` gets while it grows."""
    outcomes: deque[Delivery] = deque()
    acknowledged = 0
    refused: list[OttlaError] = []

    def count() -> None:
        nonlocal acknowledged
        while outcomes:
            error = outcomes.popleft().error()
            if error is None:
                acknowledged += 1
            else:
                refused.append(error)
        on_progress(acknowledged)

    try:
        with Producer({"bootstrap.servers": bootstrap_servers, **SETTINGS}) as producer:
            for number, message in enumerate(flights.messages()):
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    timestamp=message.timestamp,
                    headers=message.headers,
                    on_delivery=outcomes.append,
                )
                if number % REPORT_EVERY == 0:
                    count()
            producer.flush()
    except OttlaError as error:
        raise ProducingFailed(f"the flights cannot be produced: {error}") from error
    count()
    if refused:
        raise ProducingFailed(f"{len(refused):,} of {len(flights):,} flights were not acknowledged; the first error: {refused[0]}")
    return acknowledged
