"""Loading a partition's log from its files, after a clean or an unclean shutdown, also if files are damaged.

Owns the decision which files to trust: which segments are scanned, where the active one is truncated, which indexes and snapshots
are used and which are rebuilt. Must not know how files are stored or why the process ended. Invariants: every intact batch in a
segment file is in the loaded log, whatever is damaged before or behind it; only the bytes behind the last intact batch of the
active segment are cut off, and a copy of them is kept; each damage is a line in the log with file and position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ottla.broker.checkpoints import KNOWN_HOLES, holes_from_bytes
from ottla.broker.findings import format_names
from ottla.broker.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from ottla.broker.leader_epochs import LeaderEpochCache
from ottla.broker.log import EPOCH_CHECKPOINT, PartitionLog
from ottla.broker.ports import Listing, LogFiles, Readable
from ottla.broker.producer_state import ProducerStateManager
from ottla.broker.scan import LAST_OFFSET, Batch, Damage, format_missing, format_offsets, scan
from ottla.broker.segment import NO_TIMESTAMP, Gap, Indexes, Segment, file_name
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY, TransactionIndex
from ottla.records import BatchHeader, InvalidBatchError

_TOTAL_LOSS_EPOCH = 1 << 16
"""The leader epoch of a log of which no file is left. It must be higher than any that clients remember; the file with these is
lost, too."""


def load_log(
    log: PartitionLog,
    *,
    recovery_point: int,
    log_start: int,
    clean: bool,
    now: int,
    last_known_end: int = 0,
    first_dirty_offset: int = 0,
    first_dirty_offset_lost: bool = False,
) -> list[str]:
    """Load an empty ``PartitionLog`` from its files; return a message for each damage, loss and truncation.

    Segments that end at or before ``recovery_point`` are trusted if their last batches are where the indexes say; so are all
    segments after a ``clean`` shutdown, unless the recovery point is before the end of the log: then the log was offline. The rest
    is scanned, batch by batch with its checksum. Gaps between offsets are normal where the log is or was compacted; between other
    segments they are reported. ``last_known_end`` is an offset at which the log had ended. ``now``: milliseconds since 1970. Raises
    ``OSError``.
    """
    loading = _LogLoader(log, recovery_point, max(last_known_end, recovery_point), clean, log.files.listing())
    gaps_before = (
        LAST_OFFSET if log.config.compacted or not log.config.cleanup_policy or first_dirty_offset_lost else first_dirty_offset
    )
    first_dirty_offset = max(first_dirty_offset, loading.finish_swaps())
    loading.segments(max(gaps_before, first_dirty_offset))
    loading.orphans()
    loading.foreign()
    if log.segments:
        log.start_offset = max(log.segments[0].base_offset, min(log_start, log.end_offset))
        loading.load_leader_epochs()
    loading.compare_end()
    whole = clean and not loading.cut and not 0 < recovery_point < loading.found_end
    log.recovery_point = log.seal_point = log.end_offset if whole else min(recovery_point, loading.found_end)
    if first_dirty_offset_lost:
        first_dirty_offset = loading.gaps_end  # only compaction leaves gaps
    log.first_dirty_offset = min(first_dirty_offset, log.end_offset)
    loading.producers(now)
    return loading.lines


def log_without_folder(log: PartitionLog, end_offset: int) -> list[str]:
    """Continue a log whose folder is missing at ``end_offset``, which a checkpoint has; return a message. Raises ``OSError``."""
    log.files.make()
    log.leader_epochs = LeaderEpochCache([(_TOTAL_LOSS_EPOCH, end_offset)])
    log.store_leader_epochs(forced=True)  # before the segment: a start that finds a segment and no epochs begins with epoch 0
    log.segments = [Segment(end_offset, log.files.create(end_offset), log.config.index_interval_bytes)]
    log.start_offset = log.recovery_point = log.seal_point = end_offset
    log.has_lost_records = True
    return [
        f"{log.topic_partition}: its folder is missing, and with it the records before offset {end_offset}, where the log goes on"
    ]


def offline_log(
    log: PartitionLog, reason: str, *, recovery_point: int, log_start: int, first_dirty_offset: int, last_known_end: int
) -> PartitionLog:
    """Return the placeholder of a log that could not be loaded. It keeps the checkpointed offsets for the next start."""
    offline = PartitionLog(log.topic_partition, log.config, log.files)
    offline.offline = reason
    offline.recovery_point, offline.start_offset, offline.first_dirty_offset = recovery_point, log_start, first_dirty_offset
    offline.last_known_end = last_known_end
    return offline


@dataclass(slots=True)
class _LogLoader:
    """Loads one log (Kafka's ``LogLoader``)."""

    log: PartitionLog
    recovery_point: int
    last_known_end: int
    clean: bool
    listing: Listing
    lines: list[str] = field(default_factory=list)
    cut: tuple[Segment, int] | None = None
    """The segment to truncate, and the position."""
    found_end: int = 0
    """The end of the log according to its segments."""
    gaps_end: int = 0
    """Where the last gap between two segments ends."""

    # Segments

    def segments(self, gaps_before: int) -> None:
        """Load all segments. ``gaps_before``: up to this offset compaction may have left gaps."""
        bases = self.listing.segments
        known_holes = holes_from_bytes(self.log.files.read_small(KNOWN_HOLES)) if self.listing.has_known_holes else ()
        for base, next_base in zip(bases, [*bases[1:], None], strict=False):
            if next_base is None:
                segment = self._load_active(base, gaps_before)
                end = segment.next_offset
            else:
                segment, end = self._load_inactive(base, next_base, gaps_before)
                if end < next_base:
                    self.gaps_end = next_base
                if end < next_base and next_base > gaps_before and (end, next_base) not in known_holes:
                    between = f"{file_name(base, 'log')} and {file_name(next_base, 'log')}"
                    self._report_loss(f"{format_missing(end, next_base)} between {between}")
            self.log.segments.append(segment)
        self.found_end = self.log.end_offset

    def _load_inactive(self, base: int, next_base: int, gaps_before: int) -> tuple[Segment, int]:
        """Load a segment before the active one; return it, and the offset after its last batch."""
        files = self.log.files
        stored = partial(_stored_indexes, files, base)
        segment = Segment(base, files.open(base), self.log.config.index_interval_bytes, stored=stored)
        entries = _IndexTail(segment, files)
        sealed = next_base <= self.recovery_point or (self.clean and not self.recovery_point)
        if sealed:
            doubt = entries.check(next_base)
            if isinstance(doubt, int):
                segment.next_offset = next_base
                return segment, doubt
        missing: list[Gap] | None = None if base < gaps_before else []
        end = segment.rescan(next_base, missing=missing)
        segment.next_offset = next_base
        self._report_damages(segment)
        if next_base > end <= (claimed := entries.last_offset):
            lost = f"{format_offsets(end, next_base)} may be missing"
            self._report_loss(f"the indexes of {file_name(base, 'log')} name offset {claimed}, and it ends at {end}: {lost}")
        else:
            self._say_missing(segment, missing or [])
        if sealed and self._write_indexes(segment) and not segment.damages:
            self._report(f"the indexes of {file_name(base, 'log')} were rebuilt from its batches: {doubt}")
        return segment, end

    def _load_active(self, base: int, gaps_before: int) -> Segment:
        """Load the active segment, the only one that may be truncated."""
        files, interval = self.log.files, self.log.config.index_interval_bytes
        if self.clean:
            segment = Segment(base, files.open(base), interval)
            indexes = _stored_indexes(files, base, segment.size)
            with suppress(InvalidBatchError):
                if indexes is not None and _index_batches(segment, segment.load_indexes(*indexes)) == self.recovery_point:
                    return segment
        else:
            for suffix in ("index", "timeindex"):
                files.read_end(
                    file_name(base, suffix), 1
                )  # fail now: an index that cannot be read could not be replaced later either
        segment = Segment(base, files.open(base), interval)
        missing: list[Gap] = []
        segment.rescan(None, gaps=gaps_before > base, missing=missing)
        if segment.damages and segment.damages[-1].end == segment.size:
            self._cut(segment, segment.damages.pop())
        self._report_damages(segment)
        self._say_missing(segment, missing)  # compaction never rewrites the active segment
        return segment

    def _cut(self, segment: Segment, damage: Damage) -> None:
        """Cut off the bytes behind the last intact batch. A kill leaves a partial batch there, a power failure zeros."""
        name = file_name(segment.base_offset, "log")
        kept = self.log.files.keep_damaged_end(segment.base_offset, damage.position)
        segment.next_offset = damage.first_offset
        self.cut = (segment, damage.position)
        where = f"; what was cut off is in {kept}" if kept else ""
        self._report_loss(f"{name} was truncated at {damage}{where}")

    def _report_damages(self, segment: Segment) -> None:
        self.lines += [self.log.describe_damage(segment, damage) for damage in segment.damages]

    def _say_missing(self, segment: Segment, missing: list[Gap]) -> None:
        name = file_name(segment.base_offset, "log")
        for start, end, position in missing:
            self._report_loss(f"{format_missing(start, end)} before byte {position} of {name}")

    def _write_indexes(self, segment: Segment) -> bool:
        """Replace the index files if they are wrong, so that the next start need not scan the segment; return whether they were."""
        files = self.log.files
        names = [file_name(segment.base_offset, suffix) for suffix in ("index", "timeindex")]
        right = [index.to_bytes() for index in segment.seal()]
        wrong = [(name, content) for name, content in zip(names, right, strict=True) if files.read_small(name) != content]
        for name, content in wrong:
            files.pin().write_small(name, content, forced=True)
        return bool(wrong)

    def orphans(self) -> None:
        """Report and keep indexes without a segment: its records are lost, and not because of retention."""
        for name in self.listing.orphans:
            kept = self.log.files.keep_damaged_file(name)
            self._report_loss(f"{name} has no .log file: the records of this segment are missing. It is kept as {kept}")

    def foreign(self) -> None:
        """Report files in the folder that are not the broker's."""
        if names := self.listing.foreign:
            self._report(f"{format_names(names)} in its folder are not the broker's, and are left as they are")

    def compare_end(self) -> None:
        """Continue a log that ends before an offset that was on disk, and so has lost records.

        It continues at that offset. Otherwise: 1. A consumer has read up to the former end. 2. New records get the offsets of the
        lost ones. 3. The consumer continues at the former end, and misses them. The leader epoch changes at the end of the
        remaining log, so that consumers detect the loss (KIP-320).
        """
        log, lost = self.log, self.log.end_offset
        is_short = lost < self.last_known_end
        if not is_short and self.cut is None:
            return
        if not log.segments:
            log.files.make()
            log.start_offset = self.last_known_end
            self.load_leader_epochs()
        # The epoch changes before the truncation. In the other order: 1. The log is truncated. 2. The broker is killed. 3. The next
        # start finds an intact log, and does not change the epoch.
        log.leader_epochs.start_next_epoch(lost)
        log.store_leader_epochs(forced=True)
        if self.cut is not None:
            segment, position = self.cut
            segment.file.truncate(position)
        if not is_short:
            return
        log.segments.append(Segment(self.last_known_end, log.files.create(self.last_known_end), log.config.index_interval_bytes))
        self._report_loss(f"it ends at offset {lost}, but had ended at {self.last_known_end}, where it goes on: records are lost")

    def load_leader_epochs(self) -> None:
        """Load the leader epochs from the checkpoint; if that is missing or damaged, from the batches' headers."""
        log = self.log
        content = log.files.read_small(EPOCH_CHECKPOINT)
        epochs = LeaderEpochCache.from_bytes(content) if content is not None else None
        if content is None and not log.segments:
            epochs = LeaderEpochCache([(_TOTAL_LOSS_EPOCH, 0)])
        elif epochs is None:
            headers = (header for segment in log.segments for header in _headers(segment, self._limit(segment)))
            log.leader_epochs = epochs = LeaderEpochCache.from_batches(
                (header.leader_epoch, header.base_offset) for header in headers
            )
            log.store_leader_epochs()
            what = "missing" if content is None else "damaged"
            self._report(f"{EPOCH_CHECKPOINT} was {what} and was written again from the batches: {epochs.current}")
        log.leader_epochs = epochs

    def _limit(self, segment: Segment) -> int | None:
        """Return the base offset of the next segment, if there is one."""
        return None if segment is self.log.segments[-1] else segment.next_offset

    def _report_loss(self, line: str) -> None:
        self.log.has_lost_records = True
        self._report(line)

    def _report(self, line: str) -> None:
        self.lines.append(f"{self.log.topic_partition}: {line}")

    # Compaction that was interrupted

    def finish_swaps(self) -> int:
        """Complete the swaps that compaction had begun, and remove unfinished files. Return the offset up to which the swaps may
        have left gaps.

        A cleaned segment replaces the segments that begin before it ends; source segments beyond that have the same latest record
        of every key. A damaged one is not used while its source segments exist.
        """
        files, listing = self.log.files, self.listing
        compacted = 0
        if not listing.swaps and not listing.has_unfinished:
            return compacted
        for base in listing.swaps:
            batches, damages = _batch_offsets(files.open_swap(base), base, LAST_OFFSET)
            last = batches[-1][1] if batches else base + 1
            originals = [source for source in files.listing().segments if base <= source < last]
            doubt = None
            if base in originals:
                doubt = f" at {damages[0]}" if damages else self._doubt_in_swap(base, batches, originals)
            if doubt is not None:
                name = file_name(base, "log") + ".swap"
                self._report(
                    f"{name} is damaged{doubt}; it is kept as {files.keep_damaged_file(name)}, and the segments that it was made "
                    "of are used"
                )
            else:
                files.finish_swap(base, originals)
                compacted = max([compacted, *(source for source in files.listing().segments if source > base)][:2])
        files.discard_all_cleaned()
        files.discard_unfinished()
        self.listing = files.listing()
        return compacted

    def _doubt_in_swap(self, base: int, batch_offsets: list[tuple[int, int]], originals: list[int]) -> str | None:
        """Return why a cleaned segment cannot be the result of rewriting these segments, which all still exist; ``None`` if it can.

        ``batch_offsets``: the offsets of its batches. It may have batches that a source segment has lost, by its damage or by the
        index entries behind its end.
        """
        times = self.log.files.read_end(file_name(base, "timeindex") + ".swap", TIME_ENTRY_SIZE)
        if times is not None and times[0] and not batch_offsets:
            return ": it is empty, and its index is not"
        made_of: set[tuple[int, int]] = set()
        lost: list[tuple[int, int]] = []
        for source in originals:
            segment = Segment(source, self.log.files.open(source), self.log.config.index_interval_bytes)
            limit = next((base for base in self.listing.segments if base > source), LAST_OFFSET)
            with segment.file.reader() as file:
                batches, damages = _batch_offsets(file, source, limit)
            made_of.update(batches)
            lost += [(damage.first_offset, max(damage.next_offset, damage.first_offset + 1)) for damage in damages]
            lost.append((batches[-1][1] if batches else source, _IndexTail(segment, self.log.files).last_offset + 1))
        for batch in batch_offsets:
            offset = batch[0]
            if batch not in made_of and not any(first <= offset < end for first, end in lost):
                return f": it has a batch at offset {offset}, and the segments that it was made of have none"
        return None

    # Producers

    def producers(self, now: int) -> None:
        """Restore the producer state and the transaction indexes from the newest snapshot that fits and the batches after it.

        A snapshot is written after the ``.txnindex`` files of everything before it and their copies. If one of these and its copy
        are damaged, the aborted transactions before the snapshot are unknown, and an older one is tried. Entries of the files about
        later transactions are ignored: the files are rewritten.
        """
        log = self.log
        files = {segment: self._aborted_files(segment) for segment in log.segments}
        stored = {segment: self._aborted_in(segment, *contents) for segment, contents in files.items()}
        start = log.start_offset
        for offset in reversed(self.listing.snapshots):
            content = log.files.read_small(file_name(offset, "snapshot")) if log.start_offset <= offset <= log.end_offset else None
            producers = ProducerStateManager.from_snapshot(content, offset) if content is not None else None
            damaged = any(TransactionIndex.from_bytes(content, before=offset) is None for content in stored.values())
            if producers is not None and not damaged:
                log.producers, start = producers, offset
                break
            name = file_name(offset, "snapshot")
            if content is not None and producers is None:
                self._report(f"{name} is damaged: the producers are those of the batches")
            log.files.pin().remove_small(name)
        for segment in log.segments:
            segment.transaction_index = TransactionIndex.from_bytes(stored[segment], before=start) or TransactionIndex()
            if segment.next_offset > start and segment.size:
                self._replay_producers(segment, start, now)
        for segment, contents in files.items():
            segment.transaction_index.compare_with_files(*contents)
            log.store_transaction_index(segment)

    def _aborted_files(self, segment: Segment) -> tuple[bytes, bytes]:
        """Return the content of a ``.txnindex`` file and of its copy."""
        names = (file_name(segment.base_offset, suffix) for suffix in (TXNINDEX, TXNINDEX_COPY))
        content, copy = (self.log.files.read_small(name) or b"" for name in names)
        return content, copy

    def _aborted_in(self, segment: Segment, content: bytes, copy: bytes) -> bytes:
        """Return the content that a ``.txnindex`` file should have: its own, or that of its copy if they differ."""
        checked = TransactionIndex.read_copy(copy, segment.base_offset, self._limit(segment))
        if not copy or (checked and content.startswith(checked)):
            return content  # a copy is missing in a directory of an earlier release, and behind by an entry after a kill
        name = file_name(segment.base_offset, TXNINDEX)
        if not checked:
            self._report(f"{file_name(segment.base_offset, TXNINDEX_COPY)} is damaged: whether {name} is intact cannot be checked")
            return content
        self._report(f"{name} was missing or damaged: its copy is used")
        return checked

    def _replay_producers(self, segment: Segment, start: int, now: int) -> None:
        """Update the producer state for a segment's batches from offset ``start`` on."""
        first = 0
        with suppress(InvalidBatchError):
            first = segment.locate(start) or 0
        damages: list[Damage] = []
        limit = self._limit(segment)
        with segment.file.reader() as file:
            for part in scan(file, segment.base_offset, limit=limit, position=first):
                if isinstance(part, Damage):
                    damages.append(part)
                elif part.header.producer_id >= 0 and part.header.base_offset >= start:
                    content = bytes(part.content) if part.header.is_control else b""
                    self.log.update_producers(segment, content, part.header, now)
        if damages and not segment.damages:
            segment.rescan(limit)
            self._report_damages(segment)
        for damage in damages:
            self._report(f"the producer state of {damage.offsets} is lost")


class _IndexTail:
    """The last entries of a segment's index files, compared with the batches behind them.

    They show whether a file was truncated, replaced or emptied, with two small reads for each segment.
    """

    def __init__(self, segment: Segment, files: LogFiles) -> None:
        self._segment = segment
        self._index = files.read_end(file_name(segment.base_offset, "index"), OFFSET_ENTRY_SIZE)
        self._times = files.read_end(file_name(segment.base_offset, "timeindex"), TIME_ENTRY_SIZE)

    @property
    def last_offset(self) -> int:
        """The last offset that an entry names; -1 if there is no valid entry."""
        offset = OffsetIndex.last_in(*self._index)[0] if self._index and self._index[0] else -1
        stamped_at = TimeIndex.last_in(*self._times)[1] if self._times and self._times[0] else -1
        last = max(offset, stamped_at)
        return self._segment.base_offset + last if last >= 0 else -1

    def check(self, next_base: int) -> int | str:
        """Set the segment's largest timestamp, and return the offset after its last batch; or return what is wrong."""
        segment = self._segment
        if self._index is None or self._times is None:
            return "one of them was missing"
        if segment.size > segment.interval and not self._index[0]:
            return "one of them was empty"
        offset, position = OffsetIndex.last_in(*self._index)
        stamped, stamped_at = TimeIndex.last_in(*self._times)
        if min(offset, position, stamped_at) < 0 or (segment.size and not self._times[0]):
            return "they did not make sense"
        if self._times[0] and not segment.size:
            return f"one of them named offset {segment.base_offset + stamped_at}, and the .log file is empty"
        if position and position >= segment.size:
            return f"one of them pointed at byte {position} of {segment.size}"
        end = segment.base_offset
        try:
            for at, header in segment.walk(position):
                if at == position and position and header.base_offset > segment.base_offset + offset:
                    return f"one of them claimed offset {segment.base_offset + offset} for that at byte {position}"
                end = header.next_offset
                is_last = header.base_offset <= segment.base_offset + stamped_at < end
                newest = header.max_timestamp if header.record_count else NO_TIMESTAMP
                if newest > stamped or (is_last and newest != stamped):
                    return f"one of them claimed that {stamped} is the largest timestamp, and offset {end - 1} has {newest}"
        except InvalidBatchError as error:
            return str(error)
        if end > next_base:
            return f"the last batch claims offset {end - 1}"
        segment.max_timestamp, segment.offset_of_max_timestamp = stamped, segment.base_offset + stamped_at
        segment.is_max_timestamp_from_file = True
        return end


def _stored_indexes(files: LogFiles, base: int, size: int) -> Indexes | None:
    """Return the indexes in the files of a segment of ``size`` bytes; ``None`` if one is missing or invalid."""
    index = OffsetIndex.from_bytes(files.read_small(file_name(base, "index")) or b"", size)
    times = TimeIndex.from_bytes(files.read_small(file_name(base, "timeindex")) or b"")
    return None if index is None or times is None or (size and not len(times)) else (index, times)


def _index_batches(segment: Segment, position: int) -> int:
    """Index the batches from ``position`` on by their headers; return the offset after the last."""
    for at, header in segment.walk(position):
        segment.index_batch(at, header)
    return segment.next_offset


def _batch_offsets(file: Readable, base: int, limit: int) -> tuple[list[tuple[int, int]], list[Damage]]:
    """Return the base offset and the next offset of each intact batch, and the damages. The batches are not kept: a file may be
    large."""
    batches: list[tuple[int, int]] = []
    damages: list[Damage] = []
    for part in scan(file, base, limit=limit):
        if isinstance(part, Batch):
            batches.append((part.header.base_offset, part.header.next_offset))
        else:
            damages.append(part)
    return batches, damages


def _headers(segment: Segment, limit: int | None) -> Iterator[BatchHeader]:
    """Yield the headers of all intact batches."""
    with segment.file.reader() as file:
        for part in scan(file, segment.base_offset, limit=limit):
            if isinstance(part, Batch):
                yield part.header
