"""The interfaces to files and random ids that the broker needs, as protocols.

Owns the protocols; must not know how they are implemented. Invariant: a call costs one write to or read from the page cache at
most, or returns the ``DiskJob`` for a disk thread. Failures raise ``OSError``, and a failed ``append`` has written nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ottla.protocol.framing import FileRange
from ottla.types import TopicPartition

DiskJob = Callable[[], object]
"""Slow work on files, to be run on another thread: it uses nothing that the caller still changes."""


class Readable(Protocol):
    """A file to read. ``size``: the number of its bytes that are valid."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer where the file ends."""


class SegmentFile(Readable, Protocol):
    """One ``.log`` file."""

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write all pieces at the end, or nothing at all and raise ``OSError``."""

    def range(self, position: int, size: int) -> FileRange:
        """Return a range of the file to be sent, or its content; it stays readable whatever happens to the log."""

    def reader(self) -> AbstractContextManager[Readable]:
        """The file as it is now, for a scan on any thread. Raises ``OSError`` if it is shorter than it should be."""

    def repair(self) -> None:
        """Truncate what a failed append may have left after ``size``. Otherwise the next append does it."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``."""


class PinnedFolder(Protocol):
    """The open folder of a partition. It stays the same folder, even if another one has its name by now."""

    def write_small(self, name: str, content: bytes, *, forced: bool = False) -> None:
        """Replace an index, a snapshot or a checkpoint atomically. ``forced``: force the content to disk before the rename."""

    def append_small(self, name: str, content: bytes) -> None:
        """Append to such a file, or create it. Raises ``OSError``; then a part may have been written."""

    def snapshots_before(self, offset: int) -> list[str]:
        """The names of the producer snapshots of earlier offsets."""

    def remove_small(self, name: str) -> None:
        """Remove such a file, if it is there."""

    def flush(self, base_offset: int) -> None:
        """Force a segment to disk, with its transaction index."""


class Listing(NamedTuple):
    """The files of a partition, by offset and by name."""

    segments: list[int]
    """Base offsets, ascending."""
    snapshots: list[int]
    """Offsets of the producer snapshots, ascending."""
    swaps: list[int]
    """Base offsets of the cleaned segments whose swap was interrupted, ascending."""
    orphans: list[str]
    """Indexes without a segment."""
    foreign: list[str]
    """Files that are not the broker's. It does not touch them."""
    has_known_holes: bool
    """Whether a repair has recorded holes."""
    has_unfinished: bool
    """Whether there are ``.cleaned`` files, or temporary files that were to replace others."""


class LogFiles(Protocol):
    """The folder of one partition."""

    def exists(self) -> bool:
        """Whether the folder exists: it is created before the first segment."""

    def make(self) -> None:
        """Create the folder, unless it exists. A folder left by a deleted topic of the same name is renamed first."""

    def pin(self) -> PinnedFolder:
        """Open the folder, for immediate use."""

    def mark_topic_deleted(self) -> None:
        """Skip the pending jobs of this folder: its topic was deleted."""

    def job(self, work: Callable[[PinnedFolder], object]) -> DiskJob:
        """Return a job that works on the folder, unless its topic is deleted by then. The job uses no descriptors while it
        waits."""

    def listing(self) -> Listing:
        """List the files in the folder."""

    def create(self, base_offset: int) -> SegmentFile:
        """Create an empty segment."""

    def open(self, base_offset: int) -> SegmentFile:
        """Open an existing segment."""

    def modified(self, base_offset: int) -> int:
        """Return the time of the last write to a segment, in milliseconds since 1970."""

    def read_small(self, name: str) -> bytes | None:
        """Return the content of an index, a snapshot or a checkpoint; ``None`` if it does not exist."""

    def read_end(self, name: str, size: int) -> tuple[int, bytes] | None:
        """Return the size of an index, and up to ``size`` bytes of its end; ``None`` if it does not exist."""

    def keep_damaged_file(self, name: str) -> str:
        """Move a file to the folder of damaged files, until an operator removes it; returns its new path."""

    def keep_damaged_end(self, base_offset: int, position: int) -> str | None:
        """Copy what a segment has from ``position`` on to the folder of damaged files; returns its path, ``None`` for zeros."""

    def mark_deleted(self, base_offsets: Iterable[int]) -> DiskJob:
        """Return the job that renames the files of segments to ``.deleted``."""

    def create_cleaned(self, base_offset: int) -> SegmentFile:
        """Create a ``.cleaned`` segment beside the others, for one thread at a time."""

    def finish_cleaned(self, base_offset: int, small: Mapping[str, bytes]) -> None:
        """Force a cleaned segment to disk, with its index files (``small``: their content by suffix)."""

    def discard_cleaned(self, base_offset: int) -> None:
        """Remove a cleaned segment."""

    def begin_swap(self, base_offset: int) -> SegmentFile:
        """Commit a cleaned segment, so that also a restart completes its swap; return it for readers.

        ``finish_swap`` completes the swap. If this raises ``OSError``, the segment is not committed.
        """

    def open_swap(self, base_offset: int) -> SegmentFile:
        """Open a committed segment whose swap was interrupted."""

    def finish_swap(self, base_offset: int, replaced: Iterable[int]) -> SegmentFile:
        """Replace segments with the committed one, rename their files, and return it. If an ``OSError`` or the end of the process
        interrupts this, another call completes it."""

    def discard_all_cleaned(self) -> None:
        """Remove cleaned segments that are not committed."""

    def discard_unfinished(self) -> None:
        """Remove the temporary files of interrupted replacements. For a log that is not in use yet."""

    def remove_deleted(self) -> DiskJob:
        """Return the job that removes the ``.deleted`` files of this folder."""


class FolderView(Protocol):
    """Read-only access to the folder of a partition of a stopped broker. Every call may raise ``OSError``."""

    def segments(self) -> list[int]:
        """Base offsets of the segments, ascending."""

    def swaps(self) -> list[int]:
        """Base offsets of the cleaned segments whose swap was interrupted."""

    def snapshots(self) -> list[int]:
        """Offsets of the producer snapshots, ascending."""

    def orphans(self) -> list[str]:
        """The names of indexes without a segment."""

    def foreign(self) -> list[str]:
        """The names of files that are not the broker's."""

    def kept(self) -> list[tuple[str, int]]:
        """Names and sizes of the files in the folder ``damaged``, which earlier starts have kept."""

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """Open a file. Raises ``FileNotFoundError``. Parts that the disk cannot read are returned as zeros
        (``take_unreadable``)."""

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file; ``None`` if it does not exist."""

    def take_unreadable(self) -> list[tuple[str, int, int]]:
        """Return name, position and size of each part that the disk could not read since the last call."""


class StoredTopic(NamedTuple):
    """A topic as it is stored. ``configs``: its own settings, or those that damage has left."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    settings_unknown: bool = False
    """Whether damage has destroyed some of its settings, or the broker's. Then nothing in it is deleted or compacted."""


class StoredSettings(NamedTuple):
    """The settings altered at run time: of this broker, of all brokers of the cluster, and of groups by id."""

    broker: Mapping[str, str] = {}
    cluster: Mapping[str, str] = {}
    groups: Mapping[str, Mapping[str, str]] = {}


class Catalog(NamedTuple):
    """The metadata in the data directory. No producer id at or above ``next_producer_id`` was ever assigned."""

    topics: tuple[StoredTopic, ...]
    next_producer_id: int = 0
    settings: StoredSettings = StoredSettings()


class TopicDeleted(NamedTuple):
    """The topic of this name no longer exists."""

    name: str


class NextProducerId(NamedTuple):
    """Producer ids below ``value`` may have been assigned."""

    value: int


CatalogChange = StoredTopic | TopicDeleted | NextProducerId | StoredSettings
"""One change of the catalog. A ``StoredTopic`` replaces the one with its name, settings replace all settings."""


class DiskUsage(NamedTuple):
    """Bytes of the disk of the data directory: in total, and free for this process."""

    total: int
    usable: int


class Store(Protocol):
    """The data directory."""

    cluster_id: str
    log_dir: str
    """The absolute path of the data directory."""
    clean: bool
    """Whether the last broker on it shut down cleanly: its logs need no scan."""
    is_from_earlier_release: bool
    """Whether the last broker on it was of a release that wrote a checkpoint only when there was something to write."""

    @property
    def has_too_many_open_files(self) -> bool:
        """Whether so many files are open that ranges are read into memory."""

    def read_catalog(self) -> Catalog:
        """Return the catalog as it was when the data directory was opened."""

    def change_catalog(self, *changes: CatalogChange) -> None:
        """Write changes, so that they survive the end of the process. If it raises ``OSError``, nothing has changed.

        Once in a thousand changes, or more, the whole catalog is replaced, and forced to disk before that.
        """

    def sync_catalog(self) -> DiskJob:
        """Return the job that forces the catalog to disk."""

    def usage(self) -> DiskUsage:
        """Return the space on its disk."""

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """Return a checkpoint of offsets; ``None`` if it is missing or damaged, which is logged. Raises ``OSError`` if it cannot be
        read."""

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> DiskJob:
        """Return the job that replaces a checkpoint of offsets, on any thread.

        The job does nothing if the job of a later call has already replaced the checkpoint.
        """

    def log_files(self, topic: str, topic_id: uuid.UUID, partition: int) -> LogFiles:
        """Return the folder of a partition, which may not exist yet."""

    def delete_topic_folders(self, topic: str, topic_id: uuid.UUID, partitions: Iterable[int]) -> DiskJob | None:
        """Rename the folders of a deleted topic, so that its name is free; return the job that removes them, or ``None`` if there
        are none.

        A folder that cannot be renamed stays; ``LogFiles.make`` of a new topic retries.
        """


class Ids(Protocol):
    """Random ids."""

    def new_uuid(self) -> uuid.UUID:
        """Return a topic id."""

    def new_id(self) -> str:
        """Return the unique part of a member id."""
