"""One cleaning of one compacted log: which records of which batches stay, and the segments that they are written to.

Owns the rules of compaction and the order in which a log is read and rewritten. Must not know when a log is due, who else uses
it, or how files are kept. Invariants: of each key the latest record stays, a tombstone for its time; offsets keep their meaning;
a producer's last batch stays, if only as a header; a marker outlives the records of its transaction; a log is readable, and
says the same of every key, before, during and after.

Source: "Log Compaction" in Kafka's documentation, KIP-87, KIP-98, KIP-534.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.broker.aborted import TXNINDEX, TXNINDEX_COPY, AbortedTransactions
from ottla.broker.markers import read_marker
from ottla.broker.ports import LogFiles
from ottla.broker.producers import Producers
from ottla.broker.scan import LAST_OFFSET
from ottla.broker.segment import Segment
from ottla.broker.topic_config import TopicConfig
from ottla.records import BatchHeader, ControlType, NewRecord, encode_compacted, iter_records

STEP = 4 << 20
"""Bytes that are read between two moments in which other work may be done."""

_ENTRY_COST = 150
"""Bytes of memory that a key takes besides its own."""

_MAX_RELATIVE = 2**31 - 1


class Cleaned(NamedTuple):
    """A rewritten segment that is ready to take the place of ``replaced``."""

    replaced: tuple[Segment, ...]
    segment: Segment


class Finished(NamedTuple):
    """Everything before ``offset`` is compacted."""

    offset: int


Step = Cleaned | Finished | None
"""What one step of a cleaning came to; ``None``: there is more to do."""

_Batches = Iterator[tuple[BatchHeader, bytes] | None]


class Cleaning:
    """A cleaning under way. ``step`` does a part of it, on any thread, one at a time."""

    def __init__(
        self,
        segments: Sequence[Segment],
        tail: Sequence[Segment],
        first_dirty: int,
        config: TopicConfig,
        producers: Producers,
        files: LogFiles,
        *,
        now: int,
        memory: int,
    ) -> None:
        """``segments`` may be rewritten; ``tail``, the rest of the log, may end their transactions. ``now``: milliseconds."""
        self._segments = segments
        self._tail = tail
        # Noted on the loop's thread: the newest segment may get batches meanwhile.
        self._limits = {segment: segment.next_offset for segment in (*segments, *tail[:-1])}
        self._first_dirty = first_dirty
        self._config = config
        self._last_batches = {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else None)
            for producer_id, producer in producers.known.items()
        }
        self._files = files
        self._now = now
        self._memory = memory
        self._steps = self._run()

    def step(self) -> Step:
        """Go on for a while. Raises ``OSError`` or ``CorruptRecordError``; it is over then."""
        return next(self._steps)

    def _run(self) -> Generator[Step, None, None]:
        transactions = Transactions()
        for batch in self._batches((*self._segments, *self._tail)):
            if batch is None:
                yield None
            elif batch[0].is_control:
                transactions.note(*batch)
        latest: dict[bytes, int] = {}
        end = self._first_dirty
        for batch in self._batches(segment for segment in self._segments if segment.next_offset > self._first_dirty):
            if batch is None:
                yield None
            elif batch[0].next_offset > end and self._memory > 0:
                self._map(batch[0], batch[1], latest, transactions)
                end = batch[0].next_offset
        rules = Rules(latest, end, transactions, self._last_batches, self._now, self._config.delete_retention_ms)
        for group in self._groups(end):
            yield from self._rewrite(group, rules)
        yield Finished(end if self._memory <= 0 else self._segments[-1].next_offset)

    def _batches(self, segments: Iterable[Segment]) -> _Batches:
        """Header and bytes of each batch in order, and ``None`` now and then, for a pause.

        Raises ``InvalidBatchError`` at any damage: what cannot be read must not be left out of the segment that takes its place.
        """
        since = 0
        for segment in segments:
            with segment.file.reader() as file:
                for _, header, content in segment.batches(file, self._limits.get(segment)):
                    yield header, bytes(content)
                    since += header.size
                    if since > STEP:
                        since = 0
                        yield None
        yield None

    def _map(self, header: BatchHeader, batch: bytes, latest: dict[bytes, int], transactions: Transactions) -> None:
        """Note where each key was last written. What was aborted was never written."""
        if header.is_control or transactions.aborted(header):
            return
        for record in iter_records(batch):
            if record.key is not None and record.offset >= self._first_dirty:
                if record.key not in latest:
                    self._memory -= len(record.key) + _ENTRY_COST
                latest[record.key] = record.offset

    def _groups(self, end: int) -> Iterator[tuple[Segment, ...]]:
        """Neighbours that fit into one segment together, so that what shrinks does not stay in crumbs."""
        group: list[Segment] = []
        size = 0
        for segment in self._segments:
            if segment.base_offset >= end:
                break
            fits = size + segment.size <= self._config.segment_bytes
            if group and not (fits and segment.next_offset - group[0].base_offset <= _MAX_RELATIVE):
                yield tuple(group)
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield tuple(group)

    def _rewrite(self, group: tuple[Segment, ...], rules: Rules) -> Generator[Step, None, None]:
        base = group[0].base_offset
        segment = Segment(base, self._files.draft(base), self._config.index_interval_bytes)
        untouched = len(group) == 1
        for batch in self._batches(group):
            if batch is None:
                yield None
                continue
            header, content = batch
            kept = rules.apply(header, content)
            untouched &= kept is content
            if kept is not None:
                position = segment.size
                segment.file.append((kept,))
                segment.note_batch(position, rules.header)
        if untouched:
            self._files.discard_draft(base)
            return
        segment.next_offset = group[-1].next_offset
        segment.aborted = AbortedTransactions(
            entry
            for one in group
            for entry in one.aborted.between(0, LAST_OFFSET)
            if entry.last_offset in rules.transactions.kept_markers
        )
        index, time_index = segment.seal()
        small = {"index": index.to_bytes(), "timeindex": time_index.to_bytes()}
        if len(segment.aborted):
            small |= {TXNINDEX: segment.aborted.to_bytes(), TXNINDEX_COPY: segment.aborted.to_copy()}
        self._files.finish_draft(base, small)
        yield Cleaned(group, segment)


class Transactions:
    """Which transactional batches were aborted, and which markers have no batches left before them."""

    def __init__(self) -> None:
        self._markers: dict[int, tuple[list[int], list[ControlType]]] = {}
        self._seen: set[int] = set()
        self.kept_markers: set[int] = set()

    def note(self, header: BatchHeader, batch: bytes) -> None:
        """Take note of a control batch, in the order of the log."""
        marker = read_marker(batch)
        if marker is not None:
            offsets, kinds = self._markers.setdefault(header.producer_id, ([], []))
            offsets.append(header.base_offset)
            kinds.append(marker.kind)

    def aborted(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to a transaction that was aborted."""
        if not header.is_transactional or header.producer_id not in self._markers:
            return False
        offsets, kinds = self._markers[header.producer_id]
        row = bisect_right(offsets, header.base_offset)
        return row < len(kinds) and kinds[row] is ControlType.ABORT

    def needless(self, header: BatchHeader) -> bool:
        """Whether the records of this batch are not needed; called once per batch, in the order of the log."""
        if not header.is_control:
            if header.is_transactional:
                self._seen.add(header.producer_id)
            return self.aborted(header)
        if header.record_count and header.producer_id in self._seen:
            self._seen.discard(header.producer_id)
            self.kept_markers.add(header.base_offset)
            return False
        return True


class Rules:
    """What stays of each batch. To be asked in the order of the log; ``header`` is that of the last answer."""

    def __init__(
        self,
        latest: Mapping[bytes, int],
        end: int,
        transactions: Transactions,
        last_batches: Mapping[int, tuple[int, int | None]],
        now: int,
        delete_retention: int,
    ) -> None:
        self._latest = latest
        self._end = end
        self.transactions = transactions
        self._last_batches = last_batches
        self._now = now
        self._horizon = now + delete_retention

    def apply(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The batch as it is (the very same object), less than it was, or ``None``."""
        self.header = header
        needless = self.transactions.needless(header)
        horizon = header.base_timestamp if header.has_delete_horizon else None
        expired = horizon is not None and horizon <= self._now
        records = list(iter_records(batch)) if header.record_count else []
        if header.is_control:
            kept = [] if needless and expired else records
            mortal = needless
        else:
            kept = [] if needless else [one for one in records if self._stays(one.offset, one.key, one.value, expired)]
            mortal = any(one.value is None for one in kept)
        if not kept and not self._is_last(header):
            return None
        if len(kept) == len(records) and (horizon is not None or not (mortal and kept)):
            return batch
        if horizon is None and mortal and kept:
            horizon = self._horizon
        rows = [(one.offset, NewRecord(one.key, one.value, one.headers, one.timestamp)) for one in kept]
        self.header, written = encode_compacted(header, rows, delete_horizon=horizon)
        return written

    def _stays(self, offset: int, key: bytes | None, value: bytes | None, expired: bool) -> bool:
        if offset >= self._end:
            return True
        return key is not None and self._latest.get(key, offset) <= offset and (value is not None or not expired)

    def _is_last(self, header: BatchHeader) -> bool:
        """Whether a batch stays even without records: the last of a producer, or the last of what was compacted."""
        if header.next_offset == self._end:
            return True
        epoch, last_offset = self._last_batches.get(header.producer_id, (None, None))
        if last_offset is None:
            return header.is_control and header.producer_epoch == epoch
        return header.last_offset == last_offset
