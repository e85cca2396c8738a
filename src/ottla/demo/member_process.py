"""The child process that runs one member of the group ``dispatch`` and writes a line per flight.

Owns the handler, its rate limit and its file. Must not know the other members. Invariant: a flight's line is in the file before its
offset is committed, so a kill may repeat a flight but never lose one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO, Any

from ottla import Consumer, Record, TopicPartition
from ottla.demo.processes import Emit
from ottla.errors import CommitFailedError, RebalanceInProgressError
from ottla.signals import stop_on_signals

HANDLED_AT_ONCE = 50
"""Flights between two flushes of the file, and two sleeps for the rate limit."""


class Member:
    """Reads flights, writes them to its file and commits. Reports assignments and commits to the parent."""

    def __init__(self, consumer: Consumer, lines: IO[str], pace: float, emit: Emit) -> None:
        self._consumer, self._lines, self._pace, self._emit = consumer, lines, pace, emit
        self._handled = 0

    def run(self, topic: str) -> None:
        """Handle flights until SIGTERM."""
        with stop_on_signals(self._consumer):
            self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while True:
                records = list(self._consumer.poll(timeout=0.5))
                for start in range(0, len(records), HANDLED_AT_ONCE):
                    self._handle(records[start : start + HANDLED_AT_ONCE])
                if records:
                    self._commit()

    def _handle(self, flights: list[Record]) -> None:
        began = time.monotonic()
        for each in flights:
            assert each.key is not None
            self._lines.write(f"{each.topic}\t{each.partition}\t{each.offset}\t{each.key.decode()}\n")
        self._lines.flush()
        self._handled += len(flights)
        time.sleep(max(0.0, began + len(flights) / self._pace - time.monotonic()))

    def _commit(self) -> None:
        try:
            committed = self._consumer.commit()
        except (
            CommitFailedError,
            RebalanceInProgressError,
        ) as error:  # the group has rebalanced: the new owners repeat the flights without a committed offset
            self._emit("commit_failed", reason=str(error))
        else:
            offsets = {partition.partition: position.offset for partition, position in committed.items()}
            self._emit("committed", handled=self._handled, offsets=offsets)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._emit("assigned", partitions=[each.partition for each in partitions])

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._emit("revoked", partitions=[each.partition for each in partitions])

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._emit("lost", partitions=[each.partition for each in partitions])


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Be a member until SIGTERM. Reports ``assigned``, ``revoked``, ``lost``, ``committed`` and ``commit_failed``."""
    with (
        Path(arguments["file"]).open("a", encoding="ascii") as lines,
        Consumer(arguments["settings"], auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
    ):
        Member(consumer, lines, arguments["pace"], emit).run(arguments["topic"])
