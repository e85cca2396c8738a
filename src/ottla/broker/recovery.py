"""A partition's log out of its files, after a good end or after a bad one.

Owns the decision what of a folder is believed: the checksum scan, where a log is cut, which indexes and snapshots are used and
which are recreated. Must not know how files are stored or why the process ended. Invariants: a loaded log holds a prefix
of the batches that were written, each of them whole, and all of those before its recovery point; what it does not keep it sets
aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from ottla.broker.aborted import AbortedTransactions
from ottla.broker.epochs import LeaderEpochs
from ottla.broker.indexes import OffsetIndex, TimeIndex
from ottla.broker.log import EPOCH_CHECKPOINT, PartitionLog, file_name
from ottla.broker.ports import LogFiles
from ottla.broker.producers import Producers
from ottla.broker.segment import Indexes, Segment
from ottla.records import HEADER_SIZE, BatchHeader, InvalidBatchError, iter_headers, read_header
from ottla.records.batch import crc_matches
from ottla.records.header import Buffer

_LAST_OFFSET = 2**63 - 1


def load_log(
    log: PartitionLog,
    *,
    recovery_point: int,
    log_start: int,
    clean: bool,
    now: int,
    clean_point: int = 0,
    clean_point_lost: bool = False,
) -> str | None:
    """Fill a fresh ``PartitionLog`` from its files; returns what was not believed and cut, or ``None`` where all was well.

    Segments that end at or before ``recovery_point`` are believed, as are all after a ``clean`` end; the rest is scanned, batch by
    batch with its checksum, and cut before the first that is damaged. Offsets may have holes where the log is or may have been
    compacted: everywhere if that is its policy, if its policy is not known or ``clean_point`` is not, otherwise up to that offset.
    ``now``: milliseconds since 1970.
    """
    holes_before = _LAST_OFFSET if log.config.compacted or not log.config.cleanup_policy or clean_point_lost else clean_point
    log.clean_point = clean_point
    _finish_swaps(log.files)
    bases = log.files.segments()
    cut: str | None = None
    holes_end = 0
    surplus: list[int] = []
    segment: Segment | None
    for row, base in enumerate(bases):
        if cut is not None:
            surplus.append(base)
            continue
        next_base = bases[row + 1] if row + 1 < len(bases) else None
        segment = None
        if clean or (next_base is not None and next_base <= recovery_point):
            with suppress(InvalidBatchError):
                segment = _sealed(log, base, next_base) if next_base is not None else _resumed(log, base)
        if segment is None:
            segment = Segment(base, log.files.open(base), log.config.index_interval_bytes)
            cut, end = _scan(segment, holes_before)
            holes_end = max(holes_end, end)
            if cut is None and next_base is not None:
                segment.next_offset = max(segment.next_offset, next_base)
        log.segments.append(segment)
    if log.segments:
        log.start_offset = max(log.segments[0].base_offset, min(log_start, log.end_offset))
    if surplus:
        log.files.set_aside(surplus)()
    if log.segments:
        log.epochs = _epochs(log)
    if cut is not None:
        log.epochs.advance(log.end_offset)
        log.files.pin().write_small(EPOCH_CHECKPOINT, log.epochs.to_bytes())
        dropped = f" and {len(surplus)} later segments" if surplus else ""
        cut = f"{log.topic_partition} was truncated at offset {log.end_offset}{dropped}: {cut}"
    log.recovery_point = log.seal_point = log.end_offset if clean and cut is None else min(recovery_point, log.end_offset)
    if clean_point_lost:
        # There are holes only in what was compacted. The next scan tolerates these, too, whatever the policy is by then.
        clean_point = holes_end
    log.clean_point = min(clean_point, log.end_offset)
    _rebuild_producers(log, now)
    return cut


def _epochs(log: PartitionLog) -> LeaderEpochs:
    """The leader epochs in the checkpoint; where that is missing or damaged, those in the batches' headers."""
    content = log.files.read_small(EPOCH_CHECKPOINT)
    epochs = LeaderEpochs.from_bytes(content) if content is not None else None
    if epochs is not None:
        return epochs
    found: list[tuple[int, int]] = []
    for segment in log.segments:
        with suppress(InvalidBatchError):  # a read of these records raises it
            for _, header in segment.walk(0):
                found.append((header.leader_epoch, header.base_offset))
    epochs = LeaderEpochs.from_batches(found)
    log.files.pin().write_small(EPOCH_CHECKPOINT, epochs.to_bytes())
    what = "missing" if content is None else "damaged"
    log.complain(f"{EPOCH_CHECKPOINT} of {log.topic_partition} was {what} and was written again from the batches: {epochs.current}")
    return epochs


def _finish_swaps(files: LogFiles) -> None:
    """Complete what compaction had begun to swap, and remove what it had not, nor what was written only in part.

    A draft takes the place of the segments that begin before it ends; what it was made of beyond that says the same of every key.
    """
    for base in files.swaps():
        last = max((header.next_offset for _, header in _headers_of_swap(files, base)), default=base + 1)
        files.finish_swap(base, [one for one in files.segments() if base <= one < last])
    files.discard_drafts()
    files.discard_unfinished()


def _headers_of_swap(files: LogFiles, base: int) -> Iterator[tuple[int, BatchHeader]]:
    with files.open_swap(base).view() as data:
        yield from iter_headers(data)


def _sealed(log: PartitionLog, base: int, next_base: int) -> Segment:
    """A segment that gets no more batches: its indexes are read when they are first needed. Raises ``InvalidBatchError``."""
    files = log.files
    segment = Segment(base, files.open(base), log.config.index_interval_bytes, load=partial(_load_indexes, files))
    segment.next_offset = next_base
    times = _stored_times(files, segment)
    if times is None:  # only a walk can tell the largest timestamp
        segment = Segment(base, segment.file, log.config.index_interval_bytes)
        _walk(segment, 0)
        segment.next_offset = next_base
    else:
        segment.max_timestamp, relative = times.last
        segment.offset_of_max_timestamp = base + relative
    return segment


def _load_indexes(files: LogFiles, segment: Segment) -> Indexes:
    """The stored indexes of a sealed segment; where they are missing or make no sense, new ones from the batches' headers."""
    index, times = _stored_indexes(files, segment)
    if index is not None and times is not None:
        return index, times
    fresh = Segment(segment.base_offset, segment.file, segment.interval)
    _walk(fresh, 0)
    return fresh.seal()


def _stored_indexes(files: LogFiles, segment: Segment) -> tuple[OffsetIndex | None, TimeIndex | None]:
    """The stored indexes of a segment, ``None`` where one is missing or makes no sense."""
    index = OffsetIndex.from_bytes(files.read_small(file_name(segment.base_offset, "index")) or b"", segment.size)
    if index is not None and not len(index) and segment.size > segment.interval:
        index = None  # it is missing, or a few batches are larger than an interval: then a walk is short
    return index, _stored_times(files, segment)


def _stored_times(files: LogFiles, segment: Segment) -> TimeIndex | None:
    """The stored time index; an empty one is not what a seal leaves behind."""
    times = TimeIndex.from_bytes(files.read_small(file_name(segment.base_offset, "timeindex")) or b"")
    return times if times is not None and (len(times) or not segment.size) else None


def _resumed(log: PartitionLog, base: int) -> Segment | None:
    """The newest segment after a good end, from its last index entry on; ``None`` where that does not work out."""
    segment = Segment(base, log.files.open(base), log.config.index_interval_bytes)
    index, times = _stored_indexes(log.files, segment)
    if index is None or times is None:
        index, times = OffsetIndex(), TimeIndex()
    return segment if _walk(segment, segment.resume(index, times)) == segment.size else None


def _walk(segment: Segment, position: int) -> int:
    """Note the batches from ``position`` on by their headers; returns where that ended."""
    for at, header in segment.walk(position):
        segment.note_batch(at, header)
        position = at + header.size
    return position


def _scan(segment: Segment, holes_before: int) -> tuple[str | None, int]:
    """Note every whole and undamaged batch from the beginning, cut the file after the last; returns why, if it was cut, and the
    offset where the last hole ends."""
    position = holes_end = 0
    reason: str | None = None
    with segment.file.view() as data:
        while position < segment.size:
            header, reason = _checked(data, position, segment.next_offset, holes_before)
            if header is None:
                break
            if header.base_offset > segment.next_offset:
                holes_end = header.base_offset
            segment.note_batch(position, header)
            position += header.size
    if reason is not None:
        reason = f"{reason} (byte {position} of {segment.size} in {file_name(segment.base_offset, 'log')})"
        segment.file.truncate(position)
    return reason, holes_end


def _checked(data: Buffer, position: int, next_offset: int, holes_before: int) -> tuple[BatchHeader | None, str | None]:
    try:
        header = read_header(data, position)
    except InvalidBatchError as error:
        return None, str(error)
    if header.size < HEADER_SIZE or position + header.size > len(data):
        return None, "the last batch is not whole"
    if header.base_offset != next_offset and not next_offset < header.base_offset <= holes_before:
        return None, f"a batch says offset {header.base_offset} where {next_offset} was expected"
    if not crc_matches(data, position, header):
        return None, f"the batch at offset {header.base_offset} fails its checksum"
    return header, None


def _rebuild_producers(log: PartitionLog, now: int) -> None:
    """The producers, and which transactions were aborted, from the newest snapshot that fits and the batches after it.

    A snapshot is written after the ``.txnindex`` of everything before it; where one of these is damaged, the snapshot says
    too little. What the files say about later transactions is ignored: they are rewritten.
    """
    stored = {segment: log.files.read_small(file_name(segment.base_offset, "txnindex")) or b"" for segment in log.segments}
    start = log.start_offset
    for offset in reversed(log.files.snapshots()):
        content = log.files.read_small(file_name(offset, "snapshot")) if log.start_offset <= offset <= log.end_offset else None
        producers = Producers.from_snapshot(content) if content is not None else None
        damaged = any(AbortedTransactions.from_bytes(one, before=offset) is None for one in stored.values())
        if producers is not None and not damaged:
            log.producers, start = producers, offset
            break
        name = file_name(offset, "snapshot")
        if content is not None and producers is None:
            log.complain(f"{name} of {log.topic_partition} is damaged: what it said of producers is taken from the batches")
        log.files.pin().remove_small(name)
    for segment in log.segments:
        segment.aborted = AbortedTransactions.from_bytes(stored[segment], before=start) or AbortedTransactions()
        if segment.next_offset <= start or not segment.size:
            continue
        try:
            _note_producers(log, segment, start, now)
        except InvalidBatchError as error:  # a read raises it, too; the other logs remain readable
            unknown = f"what producers wrote from offset {max(start, segment.base_offset)} to {segment.next_offset} is not known"
            log.complain(f"{log.topic_partition} is damaged: {error}; {unknown}")
    for segment, content in stored.items():
        segment.aborted.compare(content)
        log.store_aborted(segment)


def _note_producers(log: PartitionLog, segment: Segment, start: int, now: int) -> None:
    """Take note of the producers of a segment's batches from offset ``start`` on. Raises ``InvalidBatchError``."""
    first = segment.locate(start) or 0
    with segment.file.view() as data:
        for position, header in iter_headers(data, first, segment.size):
            if header.producer_id >= 0 and header.base_offset >= start:
                batch = bytes(data[position : position + header.size]) if header.is_control else b""
                log.note_producer(segment, batch, header, now)
