"""Members of a group that poll in threads, with what they have seen.

Owns the threads. Must not know what is tested, nor the kind of the group. Invariant: a member that a test has started ends with the
test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ottla import Consumer
from ottla.types import TopicPartition

LIMIT = 60.0
"""Seconds: a machine that is busy is no reason to fail."""


class PollingMember:
    """A member that polls in a thread of its own. ``listeners`` are called beside those that note their calls."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *topics: str,
        pattern: str | None = None,
        listeners: Mapping[str, Callable[[Any, Any], None]] | None = None,
    ) -> None:
        self.consumer = Consumer(settings)
        self.handled: list[tuple[int, int]] = []
        self.calls: list[tuple[str, list[int]]] = []
        self.errors: list[Exception] = []
        self.asleep = threading.Event()
        self._stop = threading.Event()
        self._topics, self._pattern = topics, pattern
        self.listeners = dict(listeners or {})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _listener(self, name: str) -> Callable[[Any, list[TopicPartition]], None]:
        def note(consumer: Any, partitions: list[TopicPartition]) -> None:
            self.calls.append((name, [tp.partition for tp in partitions]))
            if name in self.listeners:
                self.listeners[name](consumer, partitions)

        return note

    def _run(self) -> None:
        with self.consumer as consumer:
            consumer.subscribe(
                self._topics,
                pattern=self._pattern,
                on_assign=self._listener("assign"),
                on_revoke=self._listener("revoke"),
                on_lost=self._listener("lost"),
            )
            while not self._stop.is_set():
                try:
                    for record in consumer.poll(0.1):
                        self.handled.append((record.partition, record.offset))
                except Exception as error:
                    self.errors.append(error)
                while self.asleep.is_set() and not self._stop.is_set():
                    time.sleep(0.01)

    @property
    def owned(self) -> list[int]:
        return sorted(tp.partition for tp in self.consumer.assignment()) if self._thread.is_alive() else []

    def close(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


MemberT = TypeVar("MemberT", bound=PollingMember)


@contextmanager
def members(*made: MemberT) -> Iterator[tuple[MemberT, ...]]:
    try:
        yield made
    finally:
        for member in made:
            member.close()
