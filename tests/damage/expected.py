"""What a broker must serve of a damaged directory, by the bytes that were on disk before and after the damage.

Owns the rules. Must not ask the code under test. Invariants, of the partition that was hit: what is intact is served; what is
served was written; what is missing is in an answer or in a line of the log. All others are as they would be without the damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ottla.protocol import ErrorCode
from tests.damage.batches import Batch, Row, batches_in, committed_offset, is_commit
from tests.damage.directory import ALL, INTERNAL, RETENTION, TRANSACTIONAL, Whole
from tests.damage.faults import Fault
from tests.damage.reading import Everything, Place, Read

_COMPACTED = ("compacted", *INTERNAL)
_RANGES = (
    re.compile(r"offsets (\d+) to (\d+)"),
    re.compile(r"offset (?=(\d+) is missing between)(\d+)"),
    re.compile(r"from offset (\d+) on()"),
    re.compile(r"from offset (\d+) to (\d+)"),
    re.compile(r"ends at offset (\d+), but had ended at (\d+)"),
    re.compile(r"()records before offset (\d+)"),
    re.compile(r"()begins at offset (\d+)"),
)
_FOREVER = 2**62


class Written(NamedTuple):
    """What was in a partition before the damage, and what of it is left."""

    batches: list[Batch]
    intact: list[Batch]
    """Those whose bytes are still where they were."""
    replaced: list[Batch]
    """Those in files in whose place compaction has put others."""
    foreign: list[Batch]
    """Those behind all others, of another partition whose file has taken the place of one of this."""

    def rows(self) -> dict[int, Row]:
        return {row.offset: row for batch in self.batches if not batch.control for row in batch.rows}

    def outcomes(self) -> dict[int, Batch | None]:
        """Of each offset in a transaction the marker that ended it."""
        batches = [*self.batches, *self.foreign]
        markers = [batch for batch in batches if batch.control]
        return {
            row.offset: next((one for one in markers if one.producer_id == batch.producer_id and one.base > batch.base), None)
            for batch in batches
            if batch.transactional and not batch.control
            for row in batch.rows
        }


def written(whole: Whole, path: Path) -> dict[Place, Written]:
    """What every partition holds before and after the damage at ``path``."""
    found = {place: Written([], [], [], []) for place in ALL}
    for name, content in whole.files.items():
        folder, _, file = name.rpartition("/")
        if not file.endswith((".log", ".log.swap")):
            continue
        topic, _, number = folder.rpartition("-")
        place = found[topic, int(number)]
        left = _content(path / name)
        place.foreign.extend(batches_in(left) if left != content else [])
        if (swap := whole.files.get(name + ".swap")) is not None and _content(path / (name + ".swap")) == swap:
            place.replaced.extend(batches_in(content))
            left = b""
        for batch in batches_in(content):
            place.batches.append(batch)
            if left[batch.position : batch.position + len(batch.data)] == batch.data:
                place.intact.append(batch)
    for one in found.values():
        one.batches.sort(key=lambda batch: batch.base)
        one.intact.sort(key=lambda batch: batch.base)
        last = max((batch.base for batch in one.batches), default=-1)
        one.foreign[:] = [batch for batch in one.foreign if batch.base > last]
    return found


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def offsets_in(batches: Iterable[Batch]) -> dict[tuple[str, str, int], int]:
    """The committed offsets that these batches of ``__consumer_offsets`` say."""
    latest: dict[tuple[str, str, int], int | None] = {}
    pending: dict[int, dict[tuple[str, str, int], int | None]] = {}
    for batch in batches:
        if batch.control:
            ended = pending.pop(batch.producer_id, {})
            latest |= ended if is_commit(batch) else {}
            continue
        said = dict(filter(None, map(committed_offset, batch.rows)))
        if batch.transactional:
            pending.setdefault(batch.producer_id, {}).update(said)
        else:
            latest |= said
    return {key: offset for key, offset in latest.items() if offset is not None}


def _known_end(whole: Whole, folder: str) -> int:
    """The end of a partition that is known to be on disk. What was written later may be missing after an unclean end."""
    topic, _, number = folder.rpartition("-")
    ends = [
        int(line.split()[2])
        for name, content in whole.files.items()
        if re.fullmatch(r"(?:recovery-point|replication)-offset-checkpoint", name)
        for line in content.decode().splitlines()
        if line.split()[:2] == [topic, number]
    ]
    return max(ends, default=0)


class Judge:
    """The verdict on what a broker says after a fault."""

    def __init__(self, fault: Fault, whole: Whole, path: Path, lines: list[str]) -> None:
        """``path``: the damaged directory, before a broker has seen it. ``lines``: what is in the log, now or later."""
        self._fault = fault
        self._written = written(whole, path)
        self._lines = lines
        self._folders = {f"{topic}-{number}": (topic, number) for topic, number in ALL}
        self._hit = self._folders.get(fault.folder)
        self._known_end = _known_end(whole, fault.folder)
        self._bases = sorted(
            int(name[-24:-4]) for name in whole.files if name.startswith(fault.folder + "/") and name.endswith(".log")
        )

    def check(self, found: Everything, usual: Everything, *, now: int, cleaned: bool) -> Iterator[str]:
        """What is wrong, in words. ``usual``: the answers of a broker on the undamaged directory."""
        for place, read in found.partitions.items():
            said = f"{place[0]}-{place[1]}"
            if place != self._hit:
                if self._is_excused("__transaction_state") and _with_markers(read, usual.partitions[place]):
                    continue
                if read != usual.partitions[place]:
                    yield from _differences(said, read, usual.partitions[place])
                if mentions := [line for line in self._lines if self._mentions(line, place)]:
                    yield f"a line about {said}, which is intact: {mentions[0]}"
                continue
            yield from (f"{said}: {one}" for one in self._check_hit(read, usual.partitions[place], now, cleaned=cleaned))
        yield from self._check_offsets(found, usual)
        for name in TRANSACTIONAL:
            if found.transactions[name] != usual.transactions[name] and not self._is_excused("__transaction_state"):
                yield f"{name} is {found.transactions[name]} instead of {usual.transactions[name]}"

    def _mentions(self, line: str, place: Place) -> bool:
        return re.search(rf"(?<![\w-]){place[0]}-{place[1]}(?!\d)", line) is not None

    def _is_excused(self, topic: str) -> bool:
        """Whether a partition of the topic was hit, and that was said or cannot be known."""
        return self._hit is not None and self._hit[0] == topic and bool(self._about or self._is_recent or self._may_be_compacted)

    @property
    def _about(self) -> list[str]:
        assert self._hit is not None
        return [line for line in self._lines if self._mentions(line, self._hit)]

    def _check_hit(self, read: Read, usual: Read, now: int, *, cleaned: bool) -> Iterator[str]:
        assert self._hit is not None
        written = self._written[self._hit]
        was, rows = written.rows(), read.rows()
        for offset, row in rows.items():
            if offset >= usual.end and self._is_excused("__transaction_state"):
                continue  # the coordinator has ended what was open by an older state
            if was.get(offset) != row and not (self._is_foreign(offset, was) and self._about):
                yield f"offset {offset} is {row}, written was {was.get(offset)}"
        is_aside = any("-stray" in line for line in self._about) or self._is_like_new
        if ErrorCode.kafka_storage_error in read.errors:
            yield f"it is offline: {self._about}"
            return
        if read.start < usual.start and not is_aside and not (cleaned and self._hit[0] == "expiring"):
            yield f"it starts at {read.start} instead of {usual.start}"
        intact = {row.offset for batch in written.intact for row in batch.rows}
        explained = self._explained()
        wanted = usual.rows()
        for offset in sorted(wanted.keys() - rows.keys()):
            if cleaned and self._may_be_cleaned(was[offset], rows, now):
                continue
            if is_aside or self._may_be_compacted or self._known_end <= read.end <= offset:
                continue
            if offset in intact:
                yield f"offset {offset} is intact on disk and not served"
            elif offset not in read.unreadable[False] and not any(first <= offset <= last for first, last in explained):
                yield f"offset {offset} is missing without a word"
        if not self._is_like_new and read.end < min(usual.end, self._known_end) and not (read.epoch > usual.epoch and self._about):
            yield f"its end went back from {usual.end} to {read.end}; epoch {read.epoch}"
        yield from self._check_times(read, was)
        if (self._fault.kind, self._fault.how) == ("snapshot", "replaced by another"):
            return  # a snapshot does not say whose it is: one of another offset of the same log is believed
        yield from self._check_committed(read, usual, written, now, cleaned=cleaned)
        if read.producers != usual.producers and not (self._about or self._is_recent or is_aside):
            yield f"its producers are {read.producers} instead of {usual.producers}"

    @property
    def _is_like_new(self) -> bool:
        """Whether the partition looks like one that was never written to."""
        is_gone = (self._fault.kind, self._fault.how) in (("folder", "removed"), ("metadata", "replaced by another"))
        return is_gone and not self._known_end and self._hit is not None

    @property
    def _may_be_compacted(self) -> bool:
        """Whether the missing batches may have been removed by compaction: whole batches, from the end of a file on."""
        return self._fault.how == "truncated" and self._hit is not None and self._hit[0] in (*_COMPACTED, "former")

    @property
    def _is_recent(self) -> bool:
        """Whether what is lost was written after the last checkpoint of a broker that was killed."""
        assert self._hit is not None
        batches, *left, _ = self._written[self._hit]
        return all(batch.base >= self._known_end or any(batch in one for one in left) for batch in batches)

    def _is_foreign(self, offset: int, was: dict[int, Row]) -> bool:
        """Whether an offset comes from the file that has replaced another, where no batch of this log would contradict it."""
        return self._fault.how == "replaced by another" and offset > max(was)

    def _may_be_cleaned(self, row: Row, rows: dict[int, Row], now: int) -> bool:
        assert self._hit is not None
        topic = self._hit[0]
        if topic == "expiring":
            return row.timestamp < now - RETENTION
        return topic in _COMPACTED and any(one.key == row.key and one.offset > row.offset for one in rows.values())

    def _explained(self) -> list[tuple[int, int]]:
        found = []
        for line in self._about:
            for pattern in _RANGES:
                found += [(int(one[1] or 0), int(one[2] or _FOREVER)) for one in pattern.finditer(line)]
            for one in re.finditer(r"(\d{20})\.\w*index has no \.log", line):
                found.append((int(one[1]), next((base for base in self._bases if base > int(one[1])), _FOREVER) - 1))
        return found

    def _check_times(self, read: Read, was: dict[int, Row]) -> Iterator[str]:
        served = [row for batch in read.batches[False] for row in batch.rows]
        for timestamp, answer in read.times.items():
            first = next(((row.offset, row.timestamp) for row in served if row.timestamp >= timestamp), (-1, -1))
            if answer == first:
                continue
            row = was.get(answer[0]) if isinstance(answer, tuple) else None
            is_unreadable = row is not None and row.offset in read.unreadable[False] and answer == (row.offset, row.timestamp)
            if not (is_unreadable and row is not None and timestamp <= row.timestamp and (first[0] < 0 or row.offset < first[0])):
                yield f"offset by time {timestamp} is {answer} instead of {first}"

    def _check_committed(self, read: Read, usual: Read, written: Written, now: int, *, cleaned: bool) -> Iterator[str]:
        outcomes, intact = written.outcomes(), {batch.base for batch in [*written.intact, *written.foreign]}
        rows, served = read.rows(committed=True), read.rows()
        for offset, row in rows.items():
            if row != served.get(offset):
                yield f"committed offset {offset} is not what readers of all records get"
        for offset in served:
            marker = outcomes.get(offset)
            is_known = offset not in outcomes or (marker is not None and marker.base in intact)
            is_committed = offset not in outcomes or (marker is not None and is_commit(marker))
            if offset in rows and not is_committed and (is_known or not self._about):
                yield f"offset {offset} was {'aborted' if marker else 'open'}, and readers of committed records get it"
            is_due = is_committed and offset < read.stable and offset not in read.unreadable[True]
            if offset not in rows and is_due and (is_known or not self._about):
                yield f"offset {offset} was committed, and readers of committed records do not get it"
        lost_marker = any(batch.control and batch.base not in intact for batch in written.batches)
        if read.stable < min(usual.stable, read.end) and not (lost_marker and self._about):
            yield f"its last stable offset is {read.stable} instead of {usual.stable}"

    def _check_offsets(self, found: Everything, usual: Everything) -> Iterator[str]:
        hit = self._hit if self._hit is not None and self._hit[0] == "__consumer_offsets" else None
        if hit and any("-stray" in line for line in self._about):
            return
        said = offsets_in(self._written[hit].intact) if hit else {}
        homes = {
            key: place
            for place, written in self._written.items()
            if place[0] == "__consumer_offsets"
            for batch in written.batches
            if not batch.control
            for row in batch.rows
            if (entry := committed_offset(row)) is not None
            for key in [entry[0]]
        }
        for key, offset in found.offsets.items():
            if offset == usual.offsets[key]:
                continue
            if hit is None or homes.get(key) != hit:
                yield f"{key} is at {offset} instead of {usual.offsets[key]}"
            elif offset != said.get(key, -1):
                yield f"{key} is at {offset}; what is intact says {said.get(key, -1)}, and it was {usual.offsets[key]}"
            elif not (self._about or self._is_recent or self._may_be_compacted):
                yield f"{key} went back from {usual.offsets[key]} to {offset} without a word"


def _with_markers(one: Read, other: Read) -> bool:
    """Whether readers get the same records, and markers may have been written behind them."""
    return one.rows() == other.rows() and one.end >= other.end and one.start == other.start and not one.unreadable[False]


def _differences(said: str, one: Read, other: Read) -> Iterator[str]:
    for name in ("start", "end", "stable", "epoch", "unreadable", "errors", "times", "producers"):
        if getattr(one, name) != getattr(other, name):
            yield f"{said}, which is intact: {name} is {getattr(one, name)} instead of {getattr(other, name)}"
    for committed in (False, True):
        if (rows := one.rows(committed=committed)) != (others := other.rows(committed=committed)):
            yield f"{said}, which is intact, has offsets {sorted(rows)} instead of {sorted(others)}"
