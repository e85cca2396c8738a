"""The check of one partition of a stopped broker: its files are read completely and compared with each other.

Owns the checks: every batch with its checksum and its offsets, holes, indexes, snapshots, aborted transactions, leader epochs, the
end. Must not know how files are stored, nor how findings are printed. Invariants: nothing is written; only small files are in
memory as a whole; nothing that Apache Kafka leaves in such a folder, after a clean end or a kill, counts as damage.

The segments are those that the log would have once an interrupted compaction is completed, as the next start does it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ottla.broker.checkpoints import KNOWN_HOLES, holes_from_bytes
from ottla.broker.findings import Finding, FindingKind, format_names
from ottla.broker.leader_epochs import LeaderEpochCache
from ottla.broker.log import EPOCH_CHECKPOINT
from ottla.broker.markers import read_marker
from ottla.broker.ports import FolderView, Readable
from ottla.broker.producer_state import ProducerStateManager
from ottla.broker.scan import LAST_OFFSET, PIECE, Batch, Damage, format_missing, format_offsets, scan
from ottla.broker.segment import file_name
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY, AbortedTransaction, TransactionIndex
from ottla.broker.verify_indexes import IndexCheck, OffsetIndexCheck, TimeIndexCheck
from ottla.records import HEADER_SIZE, BatchHeader, ControlType, InvalidBatchError, read_header
from ottla.types import TopicPartition

SWAP = ".swap"

C = TypeVar("C", bound=IndexCheck)


class ExpectedState(NamedTuple):
    """The state of a partition according to the rest of the data directory."""

    recovery_point: int = 0
    """Up to this offset, everything was on disk."""
    end: int = 0
    """An offset at which the log had ended."""
    gaps_before: int = LAST_OFFSET
    """Up to this offset, compaction may have left gaps."""
    clean: bool = False
    """Whether the last broker ended cleanly."""
    interval: int | None = None
    """Bytes between two entries of an index; ``None``: not known."""


class IntactRange(NamedTuple):
    """Consecutive intact batches of a file, from ``position`` to ``end``; the first one has ``base_offset``."""

    position: int
    end: int
    base_offset: int


@dataclass(slots=True)
class CheckedSegment:
    """The result of the check of a segment."""

    base_offset: int
    name: str
    """The name of its ``.log``, which ends with ``.swap`` if a compaction was interrupted."""
    intact_ranges: list[IntactRange] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    end: int = 0
    """The offset after its last batch, or after its damaged end."""
    named: int = -1
    """The largest offset that its indexes name behind its last batch; -1 if they name none."""
    is_torn: bool = False
    """Whether it ends with the normal trace of a kill."""
    aborted: list[AbortedTransaction] = field(default_factory=list)


class PartitionCheck:
    """The check of one partition; ``run`` does it."""

    def __init__(self, topic_partition: TopicPartition, folder: FolderView, expected: ExpectedState) -> None:
        self.topic_partition = topic_partition
        self.expected = expected
        self._folder = folder
        self.findings: list[Finding] = []
        self.segments: list[CheckedSegment] = []
        self.batches = self.size = 0
        """Intact batches, and their bytes."""
        self.end_offset = 0
        self.epochs_agree = True
        """Whether the stored leader epochs are those of most batches."""
        self._epochs: LeaderEpochCache | None = None
        self._epochs_wrong = 0
        self._epoch_error = ""
        self._open: dict[int, int] = {}
        """The producers with open transactions, each with the first offset of its transaction."""
        self._trusted = 0
        """The next start, after an unclean end, trusts the transaction indexes before this offset."""

    def run(self) -> None:
        """Read everything. Raises ``OSError`` if the folder or the ``.swap`` file of an interrupted compaction cannot be read."""
        self._read_epochs()
        self._read_snapshots()
        sources = self._sources()
        bases = sorted(sources)
        known_holes = holes_from_bytes(self._read_small(KNOWN_HOLES))
        readable = True
        for base, following in zip(bases, [*bases[1:], None], strict=False):
            segment = CheckedSegment(base, sources[base], end=base)
            try:
                self._check_segment(segment, following)
            except (OSError, InvalidBatchError) as error:
                readable = False
                self._find(
                    FindingKind.UNREADABLE_LOG, segment.name, f"it cannot be read: {_reason(error)}", offsets=(base, following)
                )
                continue
            self.segments.append(segment)
            if following is None or (segment.end, following) in known_holes:
                continue
            if following <= self.expected.gaps_before:
                if segment.end <= segment.named < following:
                    lost = f"{format_offsets(segment.end, following)} may be missing"
                    what = f"its indexes name offset {segment.named}, and it ends at {segment.end}: {lost}"
                    self._find(FindingKind.HOLE, segment.name, what, offsets=(segment.end, following))
            elif segment.end < following:
                what = f"{format_missing(segment.end, following)} between {segment.name} and {sources[following]}"
                self._find(FindingKind.HOLE, segment.name, what, offsets=(segment.end, following))
        if readable:
            self._check_end()
        self._check_others()

    def report_unreadable(self, name: str, reason: str) -> None:
        """Report that the folder, or the file in it that determines the segments, cannot be read."""
        self._find(FindingKind.UNREADABLE_LOG, name, f"it cannot be read: {reason}")

    # Which segments there are

    def _sources(self) -> dict[int, str]:
        """Return the names of the log's files by base offset."""
        sources = {base: file_name(base, "log") for base in self._folder.segments()}
        for base in self._folder.swaps():
            name = file_name(base, "log") + SWAP
            with self._folder.open(name) as file:
                damage, last = None, base + 1
                for part in scan(file, base, limit=LAST_OFFSET):
                    if isinstance(part, Damage):
                        damage = damage or part
                    else:
                        last = part.header.next_offset
            if damage is not None and base in sources:
                self._find(FindingKind.SWAP, name, f"it is damaged at {damage}", damage)
                continue
            self._find(FindingKind.INTERRUPTED, name, f"it replaces the segments before offset {last}")
            sources = {start: source for start, source in sources.items() if not base <= start < last}
            sources[base] = name
        return sources

    # One segment

    def _check_segment(self, segment: CheckedSegment, following: int | None) -> None:
        in_use = not self.expected.clean and (following is None or following > self.expected.recovery_point)
        stored = self._stored_aborted(segment)
        expected: list[AbortedTransaction] = []
        with ExitStack() as files:
            file = files.enter_context(self._folder.open(segment.name))
            in_use = in_use or not file.size  # an empty segment needs no indexes
            index = self._index(files, segment, "index", OffsetIndexCheck, in_use=in_use)
            times = self._index(files, segment, "timeindex", TimeIndexCheck, in_use=in_use)
            last = 0
            for part in scan(file, segment.base_offset, limit=following, gaps=self.expected.gaps_before > segment.base_offset):
                if isinstance(part, Damage):
                    self._note_damage(segment, file, part, is_newest=following is None)
                    for check in (index, times):
                        if check is not None:
                            check.damage(part, is_last=part.end == file.size)
                    continue
                self._note_batch(segment, part)
                if index is not None:
                    index.batch(part.position, part.header)
                if times is not None:
                    times.batch(part.header)
                last = part.position
                expected += self._ended(part)
                segment.end = part.header.next_offset
            if index is not None:
                index.finish(file.size)
                if not in_use and not index.count and self.expected.interval is not None and last > self.expected.interval:
                    index.add_error("it is empty")
            if times is not None:
                times.finish()
            segment.named = max((check.behind for check in (index, times) if check is not None), default=-1)
            self._report_index(segment, "index", index)
            self._report_index(segment, "timeindex", times)
        self._compare_aborted(segment, stored, expected)
        for name, position, size in self._folder.take_unreadable():
            self._find(
                FindingKind.SECTORS,
                name,
                f"the disk cannot read {size} bytes from byte {position} on",
                position=position,
                size=size,
            )

    def _note_batch(self, segment: CheckedSegment, batch: Batch) -> None:
        self.batches += 1
        self.size += batch.header.size
        end, header = batch.position + batch.header.size, batch.header
        if segment.intact_ranges and segment.intact_ranges[-1].end == batch.position:
            segment.intact_ranges[-1] = segment.intact_ranges[-1]._replace(end=end)
        else:
            segment.intact_ranges.append(IntactRange(batch.position, end, header.base_offset))
        if self._epochs is not None and header.leader_epoch not in (-1, self._epochs.epoch_for_offset(header.base_offset)):
            self._epochs_wrong += 1
            self._epoch_error = self._epoch_error or (
                f"it says leader epoch {self._epochs.epoch_for_offset(header.base_offset)} for offset {header.base_offset}, and "
                f"the batch at byte {batch.position} of {segment.name} says {header.leader_epoch}"
            )

    def _note_damage(self, segment: CheckedSegment, file: Readable, damage: Damage, *, is_newest: bool) -> None:
        kind, at_end = FindingKind.BATCHES, is_newest and damage.end == file.size
        whole = _whole(file, damage) if at_end and self.expected.clean else None
        if whole is not None:  # after a clean end, the start looks at headers only
            damage = damage._replace(next_offset=whole.next_offset)
        elif at_end:
            is_new = not self.expected.clean and damage.first_offset >= self.expected.recovery_point
            segment.is_torn = is_new and (_is_partial(file, damage) or _is_zero(file, damage))
            kind = FindingKind.TORN if segment.is_torn else FindingKind.END
        segment.end = damage.next_offset
        segment.damages.append(damage)
        self._find(kind, segment.name, damage.reason, damage)

    # Indexes

    def _index(self, files: ExitStack, segment: CheckedSegment, suffix: str, check: type[C], *, in_use: bool) -> C | None:
        name = file_name(segment.base_offset, suffix)
        if segment.name.endswith(SWAP):  # the swap renames the .log last
            try:
                return check(files.enter_context(self._folder.open(name + SWAP)), segment.base_offset, in_use=False)
            except OSError:
                return None  # renamed already, or never written: the start rebuilds it
        try:
            return check(files.enter_context(self._folder.open(name)), segment.base_offset, in_use=in_use)
        except FileNotFoundError:
            if not in_use:
                self._find(FindingKind.INDEX, name, "it is missing")
        except OSError as error:
            self._find(FindingKind.UNREADABLE, name, f"it cannot be read: {_reason(error)}")
        return None

    def _report_index(self, segment: CheckedSegment, suffix: str, check: IndexCheck | None) -> None:
        if check is not None and check.wrong:
            more = f" ({check.wrong} of the first {check.count} entries are wrong)" if check.wrong > 1 else ""
            self._find(FindingKind.INDEX, file_name(segment.base_offset, suffix), check.first_error + more)

    # Transactions

    def _ended(self, batch: Batch) -> list[AbortedTransaction]:
        """Return the aborted transaction that ends with this batch, if it has records in the log."""
        header = batch.header
        if header.producer_id < 0:
            return []
        if not header.is_control:
            if header.is_transactional and header.record_count:
                self._open.setdefault(header.producer_id, header.base_offset)
            return []
        marker = read_marker(bytes(batch.content))
        first = self._open.pop(header.producer_id, None) if marker is not None else None
        if marker is None or first is None or marker.kind is not ControlType.ABORT:
            return []
        return [AbortedTransaction(header.producer_id, first, header.last_offset, 0)]

    def _stored_aborted(self, segment: CheckedSegment) -> TransactionIndex | None:
        name, second = (file_name(segment.base_offset, suffix) for suffix in (TXNINDEX, TXNINDEX_COPY))
        content, copy = (self._of_segment(segment, index_name) for index_name in (name, second))
        checked = TransactionIndex.read_copy(copy, segment.base_offset, None)
        if copy and not checked:  # also one that is shorter than an entry
            self._find(FindingKind.TRANSACTIONS, second, "its checksums do not fit")
        elif checked and not content.startswith(checked):
            self._find(FindingKind.TRANSACTIONS, name, f"it differs from {second}, whose checksums fit")
            content = checked
        stored = TransactionIndex.from_bytes(content, before=LAST_OFFSET)
        if stored is None:
            self._find(FindingKind.TRANSACTIONS, name, "the order of its entries, or their version, is wrong")
        else:
            segment.aborted = stored.collect_aborted(0, LAST_OFFSET)
        return stored

    def _of_segment(self, segment: CheckedSegment, name: str) -> bytes:
        content = self._read_small(name + SWAP) if segment.name.endswith(SWAP) else None
        return (self._read_small(name) if content is None else content) or b""

    def _compare_aborted(
        self, segment: CheckedSegment, stored: TransactionIndex | None, expected: list[AbortedTransaction]
    ) -> None:
        if stored is None:
            return
        begun = {(transaction.producer_id, transaction.last_offset): transaction.first_offset for transaction in segment.aborted}
        wrong = [
            transaction
            for transaction in expected
            if begun.get((transaction.producer_id, transaction.last_offset), LAST_OFFSET) > transaction.first_offset
            and (self.expected.clean or transaction.last_offset < self._trusted)
        ]
        if wrong:
            first, name = wrong[0], file_name(segment.base_offset, "txnindex")
            more = f", and {len(wrong) - 1} others" if len(wrong) > 1 else ""
            what = f"it lacks the aborted transaction of producer {first.producer_id} from offset {first.first_offset} on{more}"
            self._find(FindingKind.TRANSACTIONS, name, what, offsets=(first.first_offset, first.last_offset + 1))

    def _read_snapshots(self) -> None:
        intact = [0]
        for offset in self._folder.snapshots():
            name = file_name(offset, "snapshot")
            content = self._read_small(name)
            if content is None:
                continue
            if ProducerStateManager.from_snapshot(content) is None:
                self._find(FindingKind.SNAPSHOT, name, "its checksum or its size is wrong")
            else:
                intact.append(offset)
        self._trusted = min(self.expected.recovery_point, max(intact))

    # Leader epochs, the end, other files

    def _read_epochs(self) -> None:
        content = self._read_small(EPOCH_CHECKPOINT)
        if content is not None:
            self._epochs = LeaderEpochCache.from_bytes(content)
        if self._epochs is None and (content is not None or self._folder.segments()):
            self._find(FindingKind.EPOCHS, EPOCH_CHECKPOINT, "it is missing" if content is None else "it is not in its format")

    def _check_end(self) -> None:
        """Check that the log ends where it had ended before."""
        if self._epochs_wrong:
            self.epochs_agree = 2 * self._epochs_wrong < self.batches
            more = f" ({self._epochs_wrong} batches contradict it, of {self.batches})" if self._epochs_wrong > 1 else ""
            self._find(FindingKind.EPOCHS, EPOCH_CHECKPOINT, self._epoch_error + more)
        self.end_offset = self.segments[-1].end if self.segments else 0
        if self.end_offset < self.expected.end:
            what = f"the log ends at offset {self.end_offset}, but had ended at {self.expected.end}"
            name = self.segments[-1].name if self.segments else "."
            self._find(FindingKind.LOST_END, name, what, offsets=(self.end_offset, self.expected.end))

    def _check_others(self) -> None:
        for name in self._folder.orphans():
            self._find(FindingKind.ORPHAN, name, "its .log file is missing, and the records of this segment")
        for name, size in self._folder.kept():
            self._find(FindingKind.KEPT, name, "an earlier start has kept this", size=size)
        if foreign := self._folder.foreign():
            self._find(FindingKind.FOREIGN, ".", f"{format_names(foreign)}: not the broker's")

    def _read_small(self, name: str) -> bytes | None:
        try:
            return self._folder.read_small(name)
        except OSError as error:
            self._find(FindingKind.UNREADABLE, name, f"it cannot be read: {_reason(error)}")
            return None

    def _find(
        self,
        kind: FindingKind,
        name: str,
        what: str,
        damage: Damage | None = None,
        *,
        position: int | None = None,
        size: int | None = None,
        offsets: tuple[int, int | None] = (-1, None),
    ) -> None:
        if damage is not None:
            position, size = damage.position, damage.end - damage.position
            offsets = (damage.first_offset, damage.next_offset if damage.next_offset > damage.first_offset else None)
        first = offsets[0] if offsets[0] >= 0 else None
        self.findings.append(Finding(kind, self.topic_partition, name, what, position, size, first, offsets[1]))


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _whole(file: Readable, damage: Damage) -> BatchHeader | None:
    """Return the header of the damaged batch if it is plausible: its offset is right, and the batch ends where the damage ends."""
    try:
        header = read_header(bytes(file.read(damage.position, HEADER_SIZE)))
    except InvalidBatchError:
        return None
    is_right = damage.position + header.size == damage.end and header.base_offset == damage.first_offset
    return header if is_right else None


def _is_partial(file: Readable, damage: Damage) -> bool:
    """Whether the damage is the beginning of a batch of which the rest is not there."""
    front = bytes(file.read(damage.position, HEADER_SIZE))
    if len(front) < HEADER_SIZE:
        return True
    try:
        return damage.position + read_header(front).size > damage.end
    except InvalidBatchError:
        return False


def _is_zero(file: Readable, damage: Damage) -> bool:
    return not any(any(file.read(at, min(PIECE, damage.end - at))) for at in range(damage.position, damage.end, PIECE))
