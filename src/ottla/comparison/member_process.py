"""The child process that runs a member of the group.

Owns the consumer: its loop, its commits and its listeners. Must not know the other members. Invariant: it reports that records are
handled before it commits them, so a record whose handling a kill leaves unreported is handled again by another member.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ottla import Consumer, OffsetAndMetadata, Record, TopicPartition
from ottla.comparison.life import COMMIT_INTERVAL, TOPIC
from ottla.demo.processes import Emit
from ottla.errors import OttlaError, WakeupError
from ottla.signals import stop_on_signals

POLL = 0.1
"""Seconds that a poll waits for records."""

_log = logging.getLogger(__name__)


class Member:
    """Reads records and commits. Reports to the parent what it has, handles and commits."""

    def __init__(self, consumer: Consumer, emit: Emit) -> None:
        self._consumer, self._emit = consumer, emit

    def run(self) -> None:
        """Handle records until SIGTERM."""
        with stop_on_signals(self._consumer):
            self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            commit_at = time.monotonic() + COMMIT_INTERVAL
            while True:
                self._handle(self._consumer.poll(POLL))
                if time.monotonic() >= commit_at:
                    commit_at = time.monotonic() + COMMIT_INTERVAL
                    self._consumer.commit_async(callback=partial(self._committed, time.time()))

    def _handle(self, records: Iterable[Record]) -> None:
        """Report the records. The offsets of a partition are consecutive: no record is deleted, and there are no transactions."""
        offsets: dict[int, list[int]] = {}
        for record in records:
            offsets.setdefault(record.partition, []).append(record.offset)
        for partition, each in offsets.items():
            self._emit("handled", partition=partition, first=each[0], end=each[-1] + 1)

    def _committed(self, asked_at: float, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        if error is not None:
            _log.warning("a commit was refused: %s", error)
        elif offsets:  # without offsets, nothing was sent
            self._emit("committed", asked_at=asked_at)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._emit("assigned", partitions=[each.partition for each in partitions])

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            consumer.commit()
        except WakeupError:
            raise  # SIGTERM ends the loop
        except OttlaError as error:
            _log.warning("the last commit of %s was refused: %s", ", ".join(map(str, partitions)), error)
        finally:
            self._emit("revoked", partitions=[each.partition for each in partitions])

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._emit("lost", partitions=[each.partition for each in partitions])


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Be a member until SIGTERM. Reports ``assigned``, ``revoked``, ``lost``, ``handled`` and ``committed``."""
    with Consumer(arguments["settings"]) as consumer:
        Member(consumer, emit).run()
