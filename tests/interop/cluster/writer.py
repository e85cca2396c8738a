"""Writes numbered records evenly to the partitions of topics while the cluster fails, and records the acknowledgements.

Owns the producers and their process. Must not know the failures. Invariants: the value of every record contains the incarnation of
its topic; records that are never acknowledged are in ``failures``; an abort of librdkafka ends only that process.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager

import confluent_kafka

from tests.interop.other_clients import LIBRDKAFKA_PATIENT

TICK = 0.02
"""Seconds between two rounds of writing."""


@dataclass(frozen=True)
class Incarnation:
    """A topic from its creation to its deletion."""

    topic: str
    number: int

    def key(self, partition: int) -> str:
        """The name of a partition of this incarnation, in the members' lines and in the verdict."""
        return f"{self.topic}.{self.number}-{partition}"


@dataclass
class _Course:
    """The records of one incarnation."""

    of: Incarnation
    partitions: int
    producer: confluent_kafka.Producer
    written: int = 0
    acknowledged: dict[str, list[int]] = field(default_factory=dict)


class Writer:
    """Writes ``rate`` records per second to each topic, idempotently and with ``acks=all``."""

    def __init__(self, servers: str, rate: int) -> None:
        self._servers, self._each = servers, max(1, round(rate * TICK))
        self._lock = threading.Lock()
        self._courses: dict[str, _Course] = {}
        self._past: list[_Course] = []
        self._failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, incarnation: Incarnation, partitions: int) -> None:
        """Write to this topic from now on."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                **LIBRDKAFKA_PATIENT,
            }
        )
        with self._lock:
            self._courses[incarnation.topic] = _Course(incarnation, partitions, producer)

    def grow(self, topic: str, partitions: int) -> None:
        """Write to so many partitions of a topic from now on."""
        with self._lock:
            self._courses[topic].partitions = partitions

    def end(self, topic: str) -> None:
        """Stop writing to this topic, and wait for outstanding acknowledgements."""
        with self._lock:
            course = self._courses.pop(topic)
            self._past.append(course)
        left = course.producer.flush(120)
        if left:
            self._failed.append(f"{left} records for {topic} are still on their way")

    def acknowledged(self) -> Mapping[str, list[int]]:
        """The acknowledged offsets, by partition."""
        with self._lock:
            courses = [*self._courses.values(), *self._past]
            return {key: list(found) for course in courses for key, found in course.acknowledged.items()}

    def failures(self) -> list[str]:
        """The records that were not acknowledged, with the errors."""
        return list(self._failed)

    def close(self) -> None:
        """End everything."""
        for topic in list(self._courses):
            self.end(topic)
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(TICK):
            with self._lock:
                for course in self._courses.values():
                    self._write(course)

    def _write(self, course: _Course) -> None:
        for _ in range(self._each):
            partition = course.written % course.partitions
            value = b"%d:%d" % (course.of.number, course.written)
            course.written += 1
            # A partition that the producer has not heard of yet, or a full queue: there will be other records.
            with suppress(confluent_kafka.KafkaException, BufferError):
                course.producer.produce(course.of.topic, value, partition=partition, on_delivery=self._noted(course))
        course.producer.poll(0)

    def _noted(self, course: _Course) -> object:
        def note(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                self._failed.append(f"{course.of.key(message.partition())}: {error}")
            elif message.offset() is not None:  # of what was sent twice the leader says only that it has it
                course.acknowledged.setdefault(course.of.key(message.partition()), []).append(message.offset())

        return note


class _Process(BaseManager):
    """A process that writers live in."""


_Process.register("Writer", Writer)


@contextmanager
def writing(servers: str, rate: int) -> Iterator[Writer]:
    """A writer in a separate process, which ends with the ``with`` block."""
    with _Process(ctx=multiprocessing.get_context("spawn")) as process:
        yield process.Writer(servers, rate)  # type: ignore[attr-defined]
