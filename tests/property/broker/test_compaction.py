"""A compacted log under any order of writing, transactions, cleaning, time, kills and reloads, against a dictionary (I10, I28).

Invariants: a consumer that reads from the beginning, through all holes, gets the last committed value of each key; it
finds every record that was not overwritten; producers continue their sequences; nothing that a kill interrupts is lost.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla import Record
from ottla.broker.log import PartitionLog
from ottla.broker.markers import marker_batch
from ottla.records import Compression, NewRecord, PartitionReader, encode_batch
from ottla.simulation.clock import START
from ottla.types import IsolationLevel
from tests.example_counts import examples
from tests.simulation.files import content
from tests.unit.broker.harness import append, clean, open_log, reload

pytestmark = pytest.mark.long

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=30))
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
PRODUCERS = st.integers(1, 3)
RETENTION = 1000
HOUR = 3_600_000


class Place(NamedTuple):
    """The last record of a key: its value, offset and time."""

    offset: int
    value: bytes | None
    written: int = 0


Known = dict[bytes | None, Place]


class Killed(BaseException):
    """kill -9, between two system calls."""


def consumed(log: PartitionLog, start: int, max_bytes: int = 1 << 20) -> list[Record]:
    """The records of a ``read_committed`` consumer, by the code of our own consumer."""
    records: list[Record] = []
    position = start
    while True:
        found, aborted = log.read_committed(position, max_bytes, at_least_one=True)
        if found is None:
            return records
        reader = PartitionReader(
            content(found),
            topic="t",
            partition=0,
            fetch_offset=position,
            isolation_level=IsolationLevel.READ_COMMITTED,
            aborted=[(one.producer_id, one.first_offset) for one in aborted],
        )
        while (more := reader.read(100)) is not None:
            records += more
        assert reader.next_offset > position, "a consumer is never stuck before a hole"
        position = reader.next_offset


class CompactedLog(RuleBasedStateMachine):
    """The log, and a dictionary as its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.known: Known = {}
        self.open: dict[int, Known] = {}
        self.sequences: dict[int, int] = {}
        self.now = START.wall

    @initialize(segment_bytes=st.integers(100, 400), interval=st.integers(0, 300))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.log = open_log(
            Path(self.folder.name),
            durable=False,  # files survive a kill even so, and the disk is spared
            cleanup_policy="compact",
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=RETENTION,
        )

    def teardown(self) -> None:
        del self.log  # and its open files: the state machine itself lives until the garbage collector runs
        self.folder.cleanup()

    def _write(self, rows: list[tuple[bytes, bytes | None]], **fields: Any) -> Known:
        data = encode_batch([NewRecord(key, value, timestamp=self.now) for key, value in rows], **fields)
        base = append(self.log, data, self.now)
        return {key: Place(base + number, value, self.now) for number, (key, value) in enumerate(rows)}

    @rule(rows=ROWS, codec=st.sampled_from([Compression.NONE, Compression.LZ4]))
    def plain(self, rows: list[tuple[bytes, bytes | None]], codec: Compression) -> None:
        self.known.update(self._write(rows, compression=codec))

    @rule(producer=PRODUCERS, rows=ROWS)
    def transactional(self, producer: int, rows: list[tuple[bytes, bytes | None]]) -> None:
        sequence = self.sequences.get(producer, 0)
        fields: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        self.open.setdefault(producer, {}).update(self._write(rows, **fields))
        self.sequences[producer] = sequence + len(rows)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        marker = {"producer_id": producer, "producer_epoch": 0, "coordinator_epoch": 3, "timestamp": self.now}
        append(self.log, marker_batch(commit=commit, **marker), self.now)
        written = self.open.pop(producer, {})
        if commit:
            nowhere = Place(-1, None)
            self.known.update({key: place for key, place in written.items() if place.offset > self.known.get(key, nowhere).offset})

    @rule(producer=PRODUCERS, rows=ROWS, commit=st.booleans())
    def transaction(self, producer: int, rows: list[tuple[bytes, bytes | None]], commit: bool) -> None:
        self.transactional(producer, rows)
        self.end(producer, commit)

    @rule(milliseconds=st.sampled_from([1, RETENTION, HOUR]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule(keys=st.permutations([b"a", b"b", b"c", b"d"]))
    def grown_old(self, keys: list[bytes]) -> None:
        """Clean twice, with all retention times in between, and restart with producer state from the log alone."""
        for _ in range(2):
            for key in keys:
                self.plain([(key, b"v" * 100)], Compression.NONE)
            self.now += HOUR
            self.compact(1 << 20)
        self.reload(with_snapshots=False)

    @rule(memory=st.sampled_from([1, 400, 1 << 20]))
    def compact(self, memory: int) -> None:
        clean(self.log, self.now, memory=memory)

    @precondition(lambda self: self.log.segments)
    @rule(at=st.integers(0, 12))
    def killed_while_compacting(self, at: int) -> None:
        renames = iter(range(at))
        rename = os.rename

        def until_killed(*args: Any, **more: Any) -> None:
            if next(renames, None) is None:
                raise Killed
            rename(*args, **more)

        with mock.patch.object(os, "rename", until_killed), suppress(Killed):
            clean(self.log, self.now)
            return
        self.reload(with_snapshots=True)

    @precondition(lambda self: self.log.segments)
    @rule(with_snapshots=st.booleans())
    def reload(self, with_snapshots: bool) -> None:
        before = (self.log.end_offset, self.log.last_stable_offset)
        sequences = self._last_sequences()
        if not with_snapshots:
            for path in Path(self.folder.name).glob("t-0/*.snapshot"):
                path.unlink()
        points = {"recovery_point": self.log.recovery_point, "first_dirty_offset": self.log.first_dirty_offset}
        self.log, cut = reload(self.log, **points, now=self.now)
        assert cut is None
        assert (self.log.end_offset, self.log.last_stable_offset) == before
        assert self._last_sequences() == sequences

    def _last_sequences(self) -> dict[int, int]:
        """The last sequence of each producer that has one. A producer known by a marker alone is forgotten with it, as in Kafka."""
        known = {one: producer.last_sequence for one, producer in self.log.producers.entries.items()}
        return {one: sequence for one, sequence in known.items() if sequence >= 0}

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def each_key_has_its_last_value(self) -> None:
        stable = self.log.last_stable_offset
        found = {record.key: (record.offset, record.value) for record in consumed(self.log, 0)}
        expected = {key: place for key, place in self.known.items() if place.offset < stable}
        lost = {key: place for key, place in expected.items() if found.get(key) != place[:2]}
        assert all(place.value is None for place in lost.values()), lost
        assert all(self.now >= place.written + RETENTION for place in lost.values()), "a tombstone is kept for its time"
        assert all(found.get(key, (0, None))[1] is None for key in lost), "a tombstone goes after what it buries"
        assert found.keys() - expected.keys() <= {key for key, place in self.known.items() if place.offset >= stable}

    @rule(start=st.floats(0, 1), max_bytes=st.integers(1, 1000))
    def reading_in_parts_is_reading(self, start: float, max_bytes: int) -> None:
        first = int(start * self.log.last_stable_offset)
        whole = [record.offset for record in consumed(self.log, 0) if record.offset >= first]
        assert [record.offset for record in consumed(self.log, first, max_bytes)] == whole


CompactedLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestCompactedLog = CompactedLog.TestCase
