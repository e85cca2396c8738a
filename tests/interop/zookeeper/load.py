"""Numbered records, produced into some topics all the time.

Owns the producer. Must not know who reads them. Invariant: no number is produced twice.
"""

from __future__ import annotations

import threading

from confluent_kafka import Producer


class Load:
    """Produces one record into each of ``topics`` every 20 ms, until it is ended. More topics may be appended."""

    def __init__(self, broker: str, *topics: str) -> None:
        self.topics = list(topics)
        self.produced = 0
        """How many records have been produced; the next one has this number."""
        self._producer = Producer({"bootstrap.servers": broker, "linger.ms": 5})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for topic in tuple(self.topics):
                self._producer.produce(topic, str(self.produced).encode())
                self.produced += 1
            self._producer.poll(0)

    def end(self) -> set[str]:
        """End, and return the values of all records."""
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return {str(number) for number in range(self.produced)}
