"""The check of a stopped broker's data directory: its files, and the findings about them.

Owns the lock of a reader, the access to the files, and the findings about the files of the directory itself. Must not know how a
partition is verified (``broker.verify``), nor how findings are printed. Invariants: nothing in the directory changes, not even the
times of files; no broker starts on it meanwhile; only small files are in memory as a whole.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ottla.broker.config import CLUSTER_WIDE, BrokerConfig, with_changes
from ottla.broker.findings import Finding, FindingKind, format_names
from ottla.broker.log_manager import CLEANER_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from ottla.broker.ports import Readable
from ottla.broker.scan import LAST_OFFSET
from ottla.broker.segment import file_name
from ottla.broker.stored_settings import split_supported
from ottla.broker.topics import Topics
from ottla.broker.verify import SWAP, ExpectedState, PartitionCheck
from ottla.errors import ConfigError, StorageError
from ottla.runtime import checkpoint_files
from ottla.runtime.catalog import COPY, CatalogFile
from ottla.runtime.data_dir import (
    CATALOG,
    CLEAN_END,
    META,
    differ_in_one_bit,
    foreign_in,
    is_incomplete,
    is_left_behind,
    metadata_in,
    named_folders,
    read_properties,
    topics_in,
)
from ottla.runtime.folders import DAMAGED, LOCK, OFFSET, PARTITION_METADATA, check_is_small, foreign, opened
from ottla.runtime.log_files import SEGMENT_SUFFIXES, OpenFiles, partition_metadata, topic_id_in
from ottla.types import TopicPartition

_PAGE = 4096
"""Bytes that are read at once after a disk error."""
_NODE_ID = 1
"""The node id of a directory that has none."""

_CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)

OnRead = Callable[[int], object]
"""Called with the number of bytes that were read; an exception in it ends the check."""


class FileView:
    """An open file. Parts that the disk cannot read are returned as zeros, so that the intact batches behind them are found."""

    def __init__(self, fd: int, on_read: OnRead, lost: Callable[[int, int], object]) -> None:
        self._fd = fd
        self._on_read = on_read
        self._lost = lost
        self.size = os.fstat(fd).st_size

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer where the file ends."""
        size = max(0, min(size, self.size - position))
        try:
            data = os.pread(self._fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b"".join(self._pages(position, position + size))
        self._on_read(len(data))
        return data

    def _pages(self, position: int, end: int) -> Iterator[bytes]:
        while position < end:
            size = min(_PAGE - position % _PAGE, end - position)
            try:
                yield os.pread(self._fd, size, position)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._lost(position, size)
                yield bytes(size)
            position += size


class FolderReader:
    """The folder of a partition (``FolderView``)."""

    def __init__(self, path: Path, on_read: OnRead, denied: list[str]) -> None:
        """``denied`` gets the paths of files that this user may not read."""
        self.path = path
        self._on_read = on_read
        self._denied = denied
        self._unreadable: dict[tuple[str, int], int] = {}

    @cached_property
    def _names(self) -> list[str]:
        with self._noting():
            return os.listdir(self.path)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            self._denied.append(str(error.filename))
            raise

    def segments(self) -> list[int]:
        """Base offsets of the segments, ascending."""
        return self._offsets(".log")

    def swaps(self) -> list[int]:
        """Base offsets of the drafts whose swap was interrupted."""
        return self._offsets(".log" + SWAP)

    def snapshots(self) -> list[int]:
        """Offsets of the producer snapshots, ascending."""
        return self._offsets(".snapshot")

    def orphans(self) -> list[str]:
        """The names of indexes without a segment."""
        bases = {*self.segments(), *self.swaps()}
        return [
            file_name(base, suffix) for suffix in SEGMENT_SUFFIXES[1:] for base in self._offsets("." + suffix) if base not in bases
        ]

    def foreign(self) -> list[str]:
        """The names of files that are not the broker's."""
        return foreign(self._names)

    def kept(self) -> list[tuple[str, int]]:
        """Names and sizes of what is in the folder of damaged files."""
        if DAMAGED not in self._names:
            return []
        folder = self.path / DAMAGED
        if not folder.is_dir():
            return [(DAMAGED, folder.lstat().st_size)]
        return [(f"{DAMAGED}/{name}", (folder / name).lstat().st_size) for name in sorted(os.listdir(folder))]

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        """A file."""
        with self._noting(), opened(self.path / name) as fd:
            yield FileView(fd, self._on_read, lambda position, size: self._note_unreadable(name, position, size))

    def _note_unreadable(self, name: str, position: int, size: int) -> None:
        self._unreadable[name, position] = max(size, self._unreadable.get((name, position), 0))

    def read_small(self, name: str) -> bytes | None:
        """The content of a small file; ``None`` where there is none."""
        try:
            with self.open(name) as file:
                check_is_small(self.path / name, file.size)
                return file.read(0, file.size)
        except FileNotFoundError:
            return None

    def take_unreadable(self) -> list[tuple[str, int, int]]:
        """Names, positions and sizes of what the disk could not read since the last call, neighbours together."""
        merged: list[tuple[str, int, int]] = []
        for (name, position), size in sorted(self._unreadable.items()):
            last, start, length = merged[-1] if merged else ("", 0, 0)
            if last == name and position <= start + length:
                merged[-1] = (name, start, max(length, position + size - start))
            else:
                merged.append((name, position, size))
        self._unreadable.clear()
        return merged

    def _offsets(self, suffix: str) -> list[int]:
        stems = [name.removesuffix(suffix) for name in self._names if name.endswith(suffix)]
        return sorted([int(stem) for stem in stems if OFFSET.fullmatch(stem)])


class ReadLock:
    """Locks a data directory against brokers while it is read. Raises ``StorageError`` if one uses it.

    Brokers lock the file ``.lock``. If it does not exist, it is not created: a broker that starts meanwhile is detected at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._fd = -1
        if not self._path.exists():
            return
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe can be locked, too
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the kind of lock that Apache Kafka takes
        except OSError as error:
            self.release()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            hint = "stop the broker, or check a copy of the directory"
            raise StorageError(f"data directory {folder} is in use by a broker", hint=hint) from None

    def check(self) -> None:
        """Raise ``StorageError`` if a broker has been started on the directory meanwhile."""
        if self._fd < 0 and self._path.exists():
            raise StorageError(f"a broker was started on {self._path.parent} during the check: the findings may be wrong")

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PartitionToCheck(NamedTuple):
    """The folder of a partition to check."""

    topic_partition: TopicPartition
    folder: Path
    expected: ExpectedState


class StoppedDirectory:
    """A data directory that is being checked. Raises ``StorageError`` if it is none, is in use, cannot be read, or is of a newer
    release.

    ``findings``: those about the files of the directory itself; ``partitions``: those that ``check`` reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.partitions: list[PartitionToCheck] = []
        self.strays: list[Path] = []
        self.unknown: set[Path] = set()
        """Folders whose topic is not known."""
        self.foreign: list[str] = []
        """Names that are not the broker's."""
        self.denied: list[str] = []
        """The paths of files that this user may not read."""
        self.node_id = _NODE_ID
        try:
            names = os.listdir(path)
            self._lock = ReadLock(path)
        except OSError as error:
            raise StorageError(f"data directory {path} cannot be read: {error.strerror or error}") from error
        try:
            if not {META, CATALOG, CATALOG + COPY}.intersection(names) and not any(named_folders(path)):
                hint = f"such a directory has {META}, {CATALOG} or folders of partitions"
                raise StorageError(f"{path} is not the data directory of a broker", hint=hint)
            self.clean = CLEAN_END in names
            self._look(names)
        except OSError as error:
            self.release()
            raise StorageError(f"data directory {path} cannot be read: {error}") from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    @property
    def size(self) -> int:
        """Bytes of all segments and indexes."""
        total = 0
        for partition in self.partitions:
            with suppress(OSError):  # the check finds it
                files = [file for file in partition.folder.iterdir() if file.name.split(".")[-1] in SEGMENT_SUFFIXES]
                total += sum(file.lstat().st_size for file in files if file.is_file())
        return total

    def check(self, on_read: OnRead) -> Iterator[PartitionCheck]:
        """Verify one partition after the other. Raises ``StorageError`` if a broker was started meanwhile."""
        for topic_partition, path, expected in self.partitions:
            check = PartitionCheck(topic_partition, FolderReader(path, on_read, self.denied), expected)
            try:
                check.run()
            except OSError as error:
                name = "." if error.filename in (None, str(path)) else Path(error.filename).name
                check.report_unreadable(name, error.strerror or str(error))
            yield check
        self._lock.check()

    # The files of the directory itself

    def _look(self, names: list[str]) -> None:
        self._look_at_properties(names)
        catalog = CatalogFile.read(self.path / CATALOG, OpenFiles())
        # Only Ottla writes these. Apache Kafka keeps its topics elsewhere, and an earlier release made no copies.
        is_ottla = (not catalog.is_new and not catalog.is_from_earlier_release) or any(
            name + checkpoint_files.COPY in names for name in _CHECKPOINTS
        )
        is_kill = not self.clean and not catalog.is_lost and not catalog.has_damaged_lines
        for fault in catalog.faults:
            self._find(FindingKind.CATALOG, CATALOG, fault, is_note=is_kill and "missing" not in fault)
        is_lost = is_ottla or catalog.is_lost
        if is_incomplete(catalog, self.path):
            recovered = topics_in(self.path)
            is_lost = is_lost and (catalog.is_lost or bool(recovered))  # a broker that never had a topic has no catalog either
            catalog.recover(recovered)
            if is_lost:
                self._find(FindingKind.LOST_CATALOG, CATALOG, "changes are lost that neither file has")
        honoured, _ = split_supported(catalog.catalog.settings)
        try:
            config = with_changes(BrokerConfig(), {**CLUSTER_WIDE, **honoured.cluster, **honoured.broker})
        except ConfigError:
            config = BrokerConfig()  # they fail the start; the logs are the same
        topics = Topics(config)
        for stored in catalog.catalog.topics:
            topics.add(stored)
        has_logs = any(folder.is_dir() for *_, folder in named_folders(self.path))
        points = {name: self._look_at_checkpoint(name, is_ottla=is_ottla, has_logs=has_logs) for name in _CHECKPOINTS}
        self._look_at_folders(topics, points, is_ottla=is_ottla)
        strays = {folder.name for folder in self.strays}
        self.foreign = [name for name in foreign_in(self.path, catalog.catalog.topics) if name not in strays]
        if unexpected := [name for name in self.foreign if self.path / name not in self.unknown]:
            self._find(FindingKind.FOREIGN, ".", f"{format_names(unexpected)}: not the broker's")

    def _look_at_properties(self, names: list[str]) -> None:
        if META not in names:
            self._find(FindingKind.PROPERTIES, META, "it is missing")
            return
        try:
            self.node_id = int(read_properties(self.path / META)["node.id"])
        except StorageError as error:
            self._find(FindingKind.PROPERTIES, META, error.args[0])
        except OSError as error:
            self._find(FindingKind.PROPERTIES, META, f"it cannot be read: {error.strerror or error}")

    def _look_at_checkpoint(self, name: str, *, is_ottla: bool, has_logs: bool) -> dict[TopicPartition, int] | None:
        result = checkpoint_files.inspect(self.path / name)
        # Others write no copies, and Kafka's checkpoints are empty until they are written for the first time.
        is_normal = not is_ottla and (result.is_without_copy or result.is_empty)
        for level, fault in result.faults:
            if is_normal:
                continue
            is_kill = level == logging.WARNING and not self.clean and result.is_older
            self._find(FindingKind.CHECKPOINT, name, fault, is_note=is_kill)
        if result.offsets is None and not result.faults and is_ottla and has_logs and name != HIGH_WATERMARK_CHECKPOINT:
            self._find(FindingKind.CHECKPOINT, name, "it is missing, and so is its copy")
        return result.offsets

    def _look_at_folders(self, topics: Topics, points: dict[str, dict[TopicPartition, int] | None], *, is_ottla: bool) -> None:
        own: set[Path] = set()
        for name, number, folder in named_folders(self.path):
            topic = topics.get(name)
            try:
                content = metadata_in(folder)
            except OSError as error:
                self._find(
                    FindingKind.UNREADABLE, f"{folder.name}/{PARTITION_METADATA}", f"it cannot be read: {error.strerror or error}"
                )
                (own if topic is not None and number < topic.partition_count else self.unknown).add(folder)
                continue
            topic_id = topic_id_in(content or b"")
            if topic is not None and number < topic.partition_count:
                expected = partition_metadata(topic.topic_id)
                is_new = content is None and not any(folder.glob("*.log"))
                if topic_id is None or topic_id == topic.topic_id or differ_in_one_bit(content or b"", expected):
                    own.add(folder)
                    if topic_id != topic.topic_id and not is_new:
                        what = "it is missing" if content is None else "it is damaged"
                        self._find(FindingKind.METADATA, f"{folder.name}/{PARTITION_METADATA}", what)
                    continue
            if topic_id is not None:
                # A topic is deleted before its folders are renamed: a kill may come in between.
                self._find(FindingKind.STRAY, folder.name, "it belongs to no topic of this broker", is_note=not self.clean)
                self.strays.append(folder)
            elif is_left_behind(folder):
                self._find(FindingKind.METADATA, f"{folder.name}/{PARTITION_METADATA}", "it is missing, and the topic is not known")
                self.unknown.add(folder)
        for topic in topics:
            for number in topic.partitions:
                topic_partition = TopicPartition(topic.name, number)
                recovery_point, end, first_dirty_offset = (
                    (points[checkpoint] or {}).get(topic_partition, 0)
                    for checkpoint in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, CLEANER_CHECKPOINT)
                )
                folder = self.path / f"{topic.name}-{number}"
                if folder not in own:
                    self._look_at_missing(topic_partition, folder, max(recovery_point, end))
                    continue
                is_anywhere = topic.config.compacted or not topic.config.cleanup_policy or points[CLEANER_CHECKPOINT] is None
                state = ExpectedState(
                    recovery_point=recovery_point,
                    end=max(recovery_point, end),
                    gaps_before=LAST_OFFSET if is_anywhere else first_dirty_offset,
                    clean=self.clean,
                    interval=topic.config.index_interval_bytes if is_ottla and not topic.settings_unknown else None,
                )
                self.partitions.append(PartitionToCheck(topic_partition, folder, state))

    def _look_at_missing(self, topic_partition: TopicPartition, folder: Path, end: int) -> None:
        """A partition without a folder. After an unclean end, its offsets may be those of a deleted topic of the same name."""
        if folder.exists() and not folder.is_dir():
            self.findings.append(Finding(FindingKind.UNREADABLE_LOG, topic_partition, folder.name, "it is not a folder"))
        elif self.clean and end:
            what = f"the folder is missing, and with it the records before offset {end}"
            self.findings.append(Finding(FindingKind.LOST_FOLDER, topic_partition, folder.name, what, next_offset=end))

    def _find(self, kind: FindingKind, file: str, what: str, *, is_note: bool = False) -> None:
        what = what.removeprefix(f"{self.path / file} ").removeprefix(f"{self.path}/")
        self.findings.append(Finding(kind, None, file, what, is_note=is_note))
