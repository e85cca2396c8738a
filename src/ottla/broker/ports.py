"""What the broker needs from the world of files and chance, as protocols.

Owns the shapes; must not know how they are kept. Invariant: calls here are what one page-cache write or read costs, or they
return the work (``Job``) that a disk thread shall do. Whatever fails raises ``OSError``, and a failed ``append`` has written
nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ottla.protocol.framing import FileRange
from ottla.types import TopicPartition

Job = Callable[[], object]
"""Slow work on files, ready to be run on another thread: it touches nothing that the caller still changes."""


class Readable(Protocol):
    """Bytes of a file. ``size`` is the part of it that counts."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer where the file ends."""


class SegmentFile(Readable, Protocol):
    """One ``.log`` file."""

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write all pieces at the end, or nothing at all and raise ``OSError``."""

    def range(self, position: int, size: int) -> FileRange:
        """A part of the file to be sent as it is, or its content; it stays readable however the log goes on."""

    def reader(self) -> AbstractContextManager[Readable]:
        """The file as it is now, for a scan on any thread. Raises ``OSError`` if it is shorter than it should be."""

    def repair(self) -> None:
        """Truncate what a failed append may have left after ``size``. Otherwise the next append does it."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``."""


class PinnedFolder(Protocol):
    """The folder of a partition, open: whatever is under its name by now, this is the one."""

    def write_small(self, name: str, content: bytes, *, forced: bool = False) -> None:
        """Replace an index, a snapshot or a checkpoint atomically. ``forced``: it is on disk before it has its name."""

    def append_small(self, name: str, content: bytes) -> None:
        """Write at the end of such a file, or make it. Raises ``OSError``; then a part may have been written."""

    def snapshots_before(self, offset: int) -> list[str]:
        """The names of the producer snapshots of earlier offsets."""

    def remove_small(self, name: str) -> None:
        """Remove such a file, if it is there."""

    def flush(self, base_offset: int) -> None:
        """Force a segment to disk, with its list of aborted transactions."""


class Listing(NamedTuple):
    """The files of a partition, by offset and by name."""

    segments: list[int]
    """Base offsets, ascending."""
    snapshots: list[int]
    """Offsets of the producer snapshots, ascending."""
    swaps: list[int]
    """Base offsets of the drafts whose swap was interrupted, ascending."""
    orphans: list[str]
    """Indexes without a segment."""
    foreign: list[str]
    """Files that are not the broker's: it leaves them alone."""
    has_known_holes: bool
    """Whether a repair has noted holes."""
    has_unfinished: bool
    """Whether there are drafts, or files that were to replace others."""


class LogFiles(Protocol):
    """The folder of one partition."""

    def exists(self) -> bool:
        """Whether the folder exists: it is created before the first segment."""

    def make(self) -> None:
        """Create the folder, unless it exists. A folder left by a deleted topic of the same name is renamed first."""

    def pin(self) -> PinnedFolder:
        """The folder, to be used at once."""

    def give_up(self) -> None:
        """The topic was deleted: what jobs have still to do here is not done."""

    def job(self, work: Callable[[PinnedFolder], object]) -> Job:
        """Work on the folder for another thread, unless it is given up by then. The job takes no descriptors while it waits."""

    def listing(self) -> Listing:
        """What is in the folder."""

    def create(self, base_offset: int) -> SegmentFile:
        """A new, empty segment."""

    def open(self, base_offset: int) -> SegmentFile:
        """A segment that is there."""

    def modified(self, base_offset: int) -> int:
        """When a segment was last written to, in milliseconds since 1970."""

    def read_small(self, name: str) -> bytes | None:
        """The content of an index, a snapshot or a checkpoint; ``None`` where there is none."""

    def read_end(self, name: str, size: int) -> tuple[int, bytes] | None:
        """The size of an index, and up to ``size`` bytes of its end; ``None`` where there is none."""

    def keep(self, name: str) -> str:
        """Move a file to the folder of damaged files, until an operator removes it; returns its new path."""

    def keep_end(self, base_offset: int, position: int) -> str | None:
        """Copy what a segment has from ``position`` on to the folder of damaged files; returns its path, ``None`` for zeros."""

    def set_aside(self, base_offsets: Iterable[int]) -> Job:
        """Rename the files of segments to ``.deleted``."""

    def draft(self, base_offset: int) -> SegmentFile:
        """A segment to be written beside the others, ``.cleaned``, for one thread at a time."""

    def finish_draft(self, base_offset: int, small: Mapping[str, bytes]) -> None:
        """Force a draft to disk, with its indexes by their suffixes."""

    def discard_draft(self, base_offset: int) -> None:
        """Remove a draft."""

    def begin_swap(self, base_offset: int) -> SegmentFile:
        """Make a finished draft final, also after a restart; return it for readers.

        ``finish_swap`` completes it. If it raises ``OSError``, the draft is not final yet.
        """

    def open_swap(self, base_offset: int) -> SegmentFile:
        """Such a draft."""

    def finish_swap(self, base_offset: int, replaced: Iterable[int]) -> SegmentFile:
        """Replace segments with it, rename their files, and return it. If an ``OSError`` or the end of the process interrupts this,
        another call completes it."""

    def discard_drafts(self) -> None:
        """Remove drafts that are not final."""

    def discard_unfinished(self) -> None:
        """Remove what was left of small files that were to be replaced. For a log that is not in use yet."""

    def remove_set_aside(self) -> Job:
        """Remove what was set aside in this folder."""


class FolderView(Protocol):
    """The folder of a partition of a stopped broker, only to be read. Every call may raise ``OSError``."""

    def segments(self) -> list[int]:
        """Base offsets of the segments, ascending."""

    def swaps(self) -> list[int]:
        """Base offsets of the drafts whose swap was interrupted."""

    def snapshots(self) -> list[int]:
        """Offsets of the producer snapshots, ascending."""

    def orphans(self) -> list[str]:
        """The names of indexes without a segment."""

    def foreign(self) -> list[str]:
        """The names of files that are not the broker's."""

    def kept(self) -> list[tuple[str, int]]:
        """Names and sizes of what earlier starts have kept in the folder of damaged files."""

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """A file; ``FileNotFoundError`` where there is none. Parts of it that the disk cannot read are zeros (``unreadable``)."""

    def read_small(self, name: str) -> bytes | None:
        """The content of a small file; ``None`` where there is none."""

    def take_unreadable(self) -> list[tuple[str, int, int]]:
        """Names, positions and sizes of what the disk could not read since the last call."""


class StoredTopic(NamedTuple):
    """A topic as it is kept across restarts; ``configs`` is what was set on it, or what is left of that."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    settings_unknown: bool = False
    """Whether damage has taken some of its settings, or the broker's: nothing of it is deleted or compacted."""


class StoredSettings(NamedTuple):
    """What was set while the broker ran: for this broker, for all brokers of the cluster, and for groups by their ids."""

    broker: Mapping[str, str] = {}
    cluster: Mapping[str, str] = {}
    groups: Mapping[str, Mapping[str, str]] = {}


class Catalog(NamedTuple):
    """What the data directory knows apart from the logs. No producer id at or above ``next_producer_id`` was ever given out."""

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
    is_earlier: bool
    """Whether the last broker on it was of a release that wrote a checkpoint only when there was something to write."""

    @property
    def is_crowded(self) -> bool:
        """Whether so many files are open that ranges are read into memory."""

    def read_catalog(self) -> Catalog:
        """The content when the data directory was opened."""

    def change_catalog(self, *changes: CatalogChange) -> None:
        """Write changes, so that they survive the end of the process. If it raises ``OSError``, nothing has changed.

        Once in a thousand changes, or more, the whole catalog is replaced, and forced to disk before that.
        """

    def sync_catalog(self) -> Job:
        """Force the catalog to disk."""

    def usage(self) -> DiskUsage:
        """The disk that it is on."""

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """A checkpoint of offsets; ``None`` where it is missing or damaged. The log says what is damaged. Raises ``OSError`` where
        it cannot be read."""

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> Job:
        """Replace a checkpoint of offsets; the job may be done on any thread.

        It does nothing if the job of a later call has replaced the same checkpoint before.
        """

    def log_files(self, topic: str, topic_id: uuid.UUID, partition: int) -> LogFiles:
        """The folder of a partition, which need not exist yet."""

    def set_aside_topic(self, topic: str, topic_id: uuid.UUID, partitions: Iterable[int]) -> Job | None:
        """Rename the folders of a deleted topic, so that its name is free; the job removes them, ``None`` if there are none.

        A folder that cannot be renamed stays; ``LogFiles.make`` of a new topic retries.
        """


class Ids(Protocol):
    """Chance."""

    def new_uuid(self) -> uuid.UUID:
        """A topic's id."""

    def new_id(self) -> str:
        """A member id's unique part."""
