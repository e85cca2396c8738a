"""A repaired copy of a data directory that was checked.

Owns the choice of the bytes in the copy, and the order in which it is built. Must not know how damage is found (``broker.verify``)
nor how a log is loaded. Invariants: the original is only read; every intact batch is in the copy, at its offset; a copy that is not
complete is in a folder of its own (``UNFINISHED``), so that no broker takes it for a complete one.

Behind damage that is left out, a new segment begins. Within a segment, a missing offset could be a flipped bit, and DumpLogSegments
would complain. The copy is then loaded as at a start, which writes its indexes, snapshots and checkpoints.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ottla.broker.catalog import BrokerCatalog, Endpoint
from ottla.broker.checkpoints import KNOWN_HOLES, Hole, holes_to_bytes
from ottla.broker.config import broker_config
from ottla.broker.findings import FindingKind
from ottla.broker.log import EPOCH_CHECKPOINT, PartitionLog
from ottla.broker.ports import Readable
from ottla.broker.scan import PIECE
from ottla.broker.segment import file_name
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY, AbortedTransaction, TransactionIndex
from ottla.broker.verify import CheckedSegment, PartitionCheck
from ottla.errors import StorageError
from ottla.runtime import clock
from ottla.runtime.broker_node import RandomIds
from ottla.runtime.check import FolderReader, StoppedDirectory
from ottla.runtime.data_dir import META, DataDir, cluster_in_zookeeper, is_replaced
from ottla.runtime.folders import DAMAGED, LOCK, PARTITION_METADATA, read_whole

UNFINISHED = ".unfinished"
"""The folder in the copy's folder in which the copy is built."""

OnCopied = Callable[[int], object]
"""Called with a number of bytes that were copied; an exception in it ends the repair."""


class _Piece(NamedTuple):
    """A segment of the copy: bytes of a segment of the original, from ``position`` to ``end``."""

    base_offset: int
    position: int
    end: int


def check_target(original: Path, out: Path) -> None:
    """Raise ``StorageError`` if the copy cannot be written."""
    if out.resolve().is_relative_to(original.resolve()):
        raise StorageError(f"{out} is in the directory that is checked", hint="choose another folder for the copy")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise StorageError(f"{out} exists and is not an empty folder", hint="choose another folder for the copy, or remove it")
    except OSError as error:
        raise StorageError(f"{out} cannot be used: {error.strerror or error}") from error


def repair(directory: StoppedDirectory, checks: Sequence[PartitionCheck], out: Path, on_copied: OnCopied) -> None:
    """Write a repaired copy to ``out``, a folder that is empty or does not exist. If that fails or is interrupted, nothing remains.

    Raises ``StorageError`` and ``ConfigError``.
    """
    check_target(directory.path, out)
    is_new, work = not out.exists(), out / UNFINISHED
    moved: list[Path] = []
    try:
        try:
            work.mkdir(parents=True)
            _copy_files(directory, work)
            for check in checks:
                _PartitionCopy(directory.path, work, check, on_copied).write()
            with _silence():  # loading would log the findings of the check again
                _finish(directory, checks, work)
            # meta.properties last: it makes the folder a data directory.
            for name in sorted(os.listdir(work), key=lambda name: (name == META, name)):
                moved.append(out / name)
                os.rename(work / name, out / name)
            work.rmdir()
        except OSError as error:
            raise StorageError(f"the copy in {out} could not be written: {error}") from error
    except BaseException:
        for path in (work, *moved):
            _remove(path)
        if is_new:
            with suppress(OSError):
                out.rmdir()
        raise


def _remove(path: Path) -> None:
    """Remove a folder or a file, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _copy_files(directory: StoppedDirectory, work: Path) -> None:
    """Copy the files that belong to no partition: the catalog, the checkpoints, and those that are not the broker's."""
    broken = {finding.file for finding in directory.findings if finding.kind is FindingKind.PROPERTIES}
    foreign = {*directory.foreign, *(folder.name for folder in directory.strays)}
    for path in sorted(directory.path.iterdir()):
        if path.name in foreign or ".damaged" in path.name:
            _copy_any(path, work / path.name)
        elif is_replaced(path.name) and path.name not in broken:
            _copy_replaced(path, work / path.name)


def _copy_replaced(source: Path, target: Path) -> None:
    """Copy a file that has a copy, or that a start writes again if it is missing."""
    try:
        content = read_whole(source)
    except PermissionError:
        raise
    except OSError:
        return  # the check has found it
    target.write_bytes(content)


def _copy_any(source: Path, target: Path) -> None:
    """Copy a file, a link or a folder; leave out all else, such as a pipe."""
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir()
        for one in source.iterdir():
            _copy_any(one, target / one.name)
    elif source.is_file():
        shutil.copyfile(source, target)


class _PartitionCopy:
    """The copy of one partition's folder."""

    def __init__(self, original: Path, work: Path, check: PartitionCheck, on_copied: OnCopied) -> None:
        name = f"{check.topic_partition.topic}-{check.topic_partition.partition}"
        self._check = check
        self._source, self._target = original / name, work / name
        self._reader = FolderReader(self._source, on_copied, [])

    def write(self) -> None:
        """Write all files except those that are rebuilt from the batches."""
        kinds = {finding.kind for finding in self._check.findings}
        self._target.mkdir()
        self._copy_small(PARTITION_METADATA)
        if self._check.epochs_agree:
            self._copy_small(EPOCH_CHECKPOINT)
        if FindingKind.TRANSACTIONS not in kinds:  # a snapshot means that the transaction indexes before it are right
            for offset in self._reader.snapshots():
                self._copy_small(file_name(offset, "snapshot"))
        for name in self._reader.foreign():
            _copy_any(self._source / name, self._target / name)
        if (self._source / DAMAGED).is_dir():
            _copy_any(self._source / DAMAGED, self._target / DAMAGED)
        elif (self._source / DAMAGED).exists():
            _copy_any(self._source / DAMAGED, self._kept(DAMAGED))
        for finding in self._check.findings:
            if finding.kind in (FindingKind.SWAP, FindingKind.ORPHAN) or (
                finding.kind is FindingKind.UNREADABLE_LOG and finding.file != "."
            ):
                _copy_any(self._source / finding.file, self._kept(finding.file))
        for segment in self._check.segments:
            pieces = _pieces(segment, is_newest=segment is self._check.segments[-1])
            self._write_segment(segment, pieces)
            if FindingKind.TRANSACTIONS not in kinds:
                self._write_aborted(segment, pieces)

    def _write_segment(self, segment: CheckedSegment, pieces: Sequence[_Piece]) -> None:
        with self._reader.open(segment.name) as file:
            for base_offset, position, end in pieces:
                self._copy_part(file, position, end, self._target / file_name(base_offset, "log"))
            for damage in segment.damages:
                if not (segment.is_torn and damage is segment.damages[-1]):
                    self._copy_part(file, damage.position, damage.end, self._kept(f"{segment.name}.from-{damage.position}"))

    def _copy_part(self, file: Readable, position: int, end: int, target: Path) -> None:
        with target.open("xb") as copy:
            while position < end:
                data = file.read(position, min(PIECE, end - position))
                if not data:
                    raise OSError(f"{self._source} has changed during the repair")
                copy.write(data)
                position += len(data)

    def _write_aborted(self, segment: CheckedSegment, pieces: Sequence[_Piece]) -> None:
        """Distribute the aborted transactions by their markers; a lost marker counts to the piece before it."""
        parts: dict[int, list[AbortedTransaction]] = {}
        for one in segment.aborted:
            base = max((piece.base_offset for piece in pieces if piece.base_offset <= one.last_offset), default=None)
            if base is not None:
                parts.setdefault(base, []).append(one)
        for base, entries in parts.items():
            aborted = TransactionIndex(entries)
            (self._target / file_name(base, TXNINDEX)).write_bytes(aborted.to_bytes())
            (self._target / file_name(base, TXNINDEX_COPY)).write_bytes(aborted.to_copy())

    def _copy_small(self, name: str) -> None:
        with suppress(OSError):  # the check has found that it cannot be read
            content = self._reader.read_small(name)
            if content is not None:
                (self._target / name).write_bytes(content)

    def _kept(self, name: str) -> Path:
        """Return a free path in the folder of damaged files."""
        folder = self._target / DAMAGED
        folder.mkdir(exist_ok=True)
        path, number = folder / name, 1
        while os.path.lexists(path):
            number += 1
            path = folder / f"{name}.{number}"
        return path


def _pieces(segment: CheckedSegment, *, is_newest: bool) -> list[_Piece]:
    """Return the pieces of a segment for the copy: one segment for each part between damage. The active segment is written even if
    nothing of it is left."""
    pieces = [
        _Piece(segment.base_offset if not run.position else run.base_offset, run.position, run.end) for run in segment.intact_ranges
    ]
    if not pieces and (is_newest or not segment.damages):
        return [_Piece(segment.base_offset, 0, 0)]
    return pieces


def _finish(directory: StoppedDirectory, checks: Sequence[PartitionCheck], work: Path) -> None:
    """Load the copy as a start does, and shut it down cleanly."""
    data = DataDir(work, directory.node_id, cluster_in_zookeeper(work))
    try:
        config = broker_config({"node.id": directory.node_id})
        catalog = BrokerCatalog(config, Endpoint("localhost", 0), data, RandomIds())
        catalog.load(clock.now())
        cut = {check.topic_partition for check in checks if check.segments and _is_cut(check)}
        for log in catalog.logs:
            if log.offline is not None:
                raise StorageError(log.offline)
            _accept(log, is_cut=log.topic_partition in cut)
        for jobs in [catalog.close_catalog(), *catalog.logs.close()]:
            for job in jobs:
                job()
        data.mark_clean_shutdown()
    finally:
        data.release()
    (work / LOCK).unlink()


def _accept(log: PartitionLog, *, is_cut: bool) -> None:
    """Have everything of a log written, and record its present holes as known."""
    if is_cut:
        log.leader_epochs.start_next_epoch(log.end_offset)
        log.files.pin().write_small(EPOCH_CHECKPOINT, log.leader_epochs.to_bytes())
    if not log.config.compacted and (found := list(_holes(log))):
        # The next start would report them as losses, which the check has done. New ones it does report.
        log.files.pin().write_small(KNOWN_HOLES, holes_to_bytes(found), forced=True)
    log.seal_point = log.recovery_point = 0


def _holes(log: PartitionLog) -> Iterator[Hole]:
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        end = max((header.next_offset for _, header in segment.walk(0)), default=segment.base_offset)
        if end < following.base_offset:
            yield end, following.base_offset


def _is_cut(check: PartitionCheck) -> bool:
    """Whether the end of a log was damaged, and is not known to have been somewhere else."""
    newest = check.segments[-1]
    last = newest.intact_ranges[-1].end if newest.intact_ranges else 0
    return bool(newest.damages) and newest.damages[-1].end > last and check.end_offset >= check.expected.end


@contextmanager
def _silence() -> Iterator[None]:
    logger = logging.getLogger("ottla.broker")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
