"""A log under any order of transactional batches, markers, rolls and reloads, against a model made of lists (KIP-98).

Invariants: the last stable offset is never beyond an open transaction, and a reader that filters like every client
by the list of aborted transactions gets exactly the committed records in order.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.broker.log import PartitionLog
from ottla.broker.markers import marker_batch, read_marker
from ottla.records import ControlType, iter_headers
from ottla.simulation.clock import START
from tests.example_counts import examples
from tests.simulation.files import content
from tests.unit.broker.harness import append, batch, open_log, reload

PRODUCERS = st.integers(1, 3)


def read_as_a_client(log: PartitionLog, start: int, max_bytes: int) -> list[int]:
    """The offsets that a ``read_committed`` consumer hands out, fetching ``max_bytes`` at a time."""
    handed_out: list[int] = []
    position = start
    while True:
        found, aborted = log.read_committed(position, max_bytes, at_least_one=True)
        if found is None:
            return handed_out
        data = content(found)
        upcoming = sorted(aborted, key=lambda one: one.first_offset)
        skipped: set[int] = set()
        for at, header in iter_headers(data):
            while upcoming and upcoming[0].first_offset <= header.last_offset:
                skipped.add(upcoming.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(data[at : at + header.size])
                if marker is not None and marker.kind is ControlType.ABORT:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                handed_out += range(max(header.base_offset, position), header.next_offset)
            last = header.next_offset
        position = last


class TransactionsInLog(RuleBasedStateMachine):
    """The log, and a list as its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.committed: list[int] = []
        self.open: dict[int, list[int]] = {}
        self.sequences: dict[int, int] = {}
        self.sealed = 0

    @initialize(segment_bytes=st.integers(150, 1500), interval=st.integers(0, 300))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.log = open_log(Path(self.folder.name), segment_bytes=segment_bytes, index_interval_bytes=interval)

    def teardown(self) -> None:
        self.folder.cleanup()

    def _write(self, count: int, **fields: Any) -> list[int]:
        data = batch(count, **fields)
        base = append(self.log, data)
        return list(range(base, base + count))

    @rule(count=st.integers(1, 3))
    def plain(self, count: int) -> None:
        self.committed += self._write(count)

    @rule(producer=PRODUCERS, count=st.integers(1, 3))
    def transactional(self, producer: int, count: int) -> None:
        sequence = self.sequences.get(producer, 0)
        fields: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        self.open.setdefault(producer, []).extend(self._write(count, **fields))
        self.sequences[producer] = sequence + count

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        marker = {"producer_id": producer, "producer_epoch": 0, "coordinator_epoch": 3, "timestamp": START.wall}
        append(self.log, marker_batch(commit=commit, **marker))
        if commit:
            self.committed = sorted(self.committed + self.open.get(producer, []))
        self.open.pop(producer, None)

    @precondition(lambda self: self.log.segments)
    @rule(clean=st.booleans())
    def reload(self, clean: bool) -> None:
        if clean:
            sealing = self.log.seal()
            sealing.job()
            self.log.sealed(sealing, None)
        known = {one: producer.last_sequence for one, producer in self.log.producers.entries.items()}
        before = self.log.last_stable_offset
        self.log, cut = reload(self.log, clean=clean, recovery_point=self.log.recovery_point)
        assert cut is None
        assert self.log.last_stable_offset == before
        assert {one: producer.last_sequence for one, producer in self.log.producers.entries.items()} == known

    @invariant()
    def nothing_open_is_before_the_last_stable_offset(self) -> None:
        if hasattr(self, "log"):
            began = [offsets[0] for offsets in self.open.values()]
            assert self.log.last_stable_offset == min([*began, self.log.end_offset])

    @rule(start=st.floats(0, 1), max_bytes=st.integers(1, 2000))
    def committed_records_are_read(self, start: float, max_bytes: int) -> None:
        stable = self.log.last_stable_offset
        first = int(start * stable)
        expected = [offset for offset in self.committed if first <= offset < stable]
        assert read_as_a_client(self.log, first, max_bytes) == expected


TransactionsInLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestTransactionsInLog = TransactionsInLog.TestCase
