"""The data directory of a broker, in memory.

Owns the content of the files and the catalog. Must not know what is in a file. Invariants: whatever a call has written is there
after ``kill -9`` of the broker, as with the page cache of a real system; no operation is interrupted in the middle, since a broker
in the simulation ends between two events.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ottla.broker.checkpoints import KNOWN_HOLES
from ottla.broker.ports import (
    Catalog,
    CatalogChange,
    DiskJob,
    DiskUsage,
    Listing,
    NextProducerId,
    PinnedFolder,
    Store,
    StoredSettings,
    StoredTopic,
    TopicDeleted,
)
from ottla.broker.segment import file_name
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY
from ottla.types import TopicPartition

_SUFFIXES = ("log", "index", "timeindex", TXNINDEX, TXNINDEX_COPY)
"""The files of a segment."""

_CLEANED, _SWAP = ".cleaned", ".swap"
_SPACE = 1 << 40

WallClock = Callable[[], int]
"""Milliseconds since 1970."""


class OpenStore(Store, Protocol):
    """A data directory that a simulated broker has opened."""

    def release(self) -> None:
        """Close it, when the broker ends."""

    def content(self, piece: Any) -> bytes:
        """Return the bytes of a piece of a response, also if it is a range of a file."""


class MemorySegment:
    """One ``.log`` file (``SegmentFile``)."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self._content)

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write at the end."""
        for piece in pieces:
            self._content += piece

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``."""
        return bytes(self._content[position : position + size])

    def range(self, position: int, size: int) -> bytes:
        """Return a copy of a part."""
        return self.read(position, size)

    @contextmanager
    def reader(self) -> Iterator[MemorySegment]:
        """The file as it is now: a job of the simulation runs while nothing else does."""
        yield self

    def repair(self) -> None:
        """Do nothing: no append fails in the middle."""

    def truncate(self, size: int) -> None:
        """Cut the file."""
        del self._content[size:]


class MemoryFolder:
    """The folder of one partition (``LogFiles`` and ``PinnedFolder``)."""

    def __init__(self, wall: WallClock) -> None:
        self._wall = wall
        self._files: dict[str, bytearray] = {}
        self._created: dict[str, int] = {}
        self._exists = False
        self._is_topic_deleted = False

    def exists(self) -> bool:
        """Whether the folder was created."""
        return self._exists

    def make(self) -> None:
        """Create the folder."""
        self._exists = True

    def pin(self) -> PinnedFolder:
        """Return the folder itself: in memory it has no other name."""
        return self

    def mark_topic_deleted(self) -> None:
        """Skip the jobs that wait."""
        self._is_topic_deleted = True

    def job(self, work: Callable[[PinnedFolder], object]) -> DiskJob:
        """Return a job that works on the folder, unless its topic is deleted by then."""
        return lambda: None if self._is_topic_deleted else work(self)

    def listing(self) -> Listing:
        """List the files."""
        stems = [name.partition(".") for name in self._files]
        segments = {int(stem) for stem, _, suffix in stems if suffix == "log"}
        indexes = [name for name in self._files if name.partition(".")[2] in _SUFFIXES[1:]]
        return Listing(
            segments=sorted(segments),
            snapshots=sorted(int(stem) for stem, _, suffix in stems if suffix == "snapshot"),
            swaps=sorted(int(stem) for stem, _, suffix in stems if suffix == "log" + _SWAP),
            orphans=sorted(name for name in indexes if int(name[:20]) not in segments),
            foreign=[],
            has_known_holes=KNOWN_HOLES in self._files,
            has_unfinished=any(name.endswith(_CLEANED) for name in self._files),
        )

    # Small files

    def write_small(self, name: str, content: bytes, *, forced: bool = False) -> None:
        """Replace a small file."""
        del forced
        self._files[name] = bytearray(content)

    def append_small(self, name: str, content: bytes) -> None:
        """Append to a small file."""
        self._files.setdefault(name, bytearray()).extend(content)

    def snapshots_before(self, offset: int) -> list[str]:
        """The names of the producer snapshots of earlier offsets."""
        return [file_name(at, "snapshot") for at in self.listing().snapshots if at < offset]

    def remove_small(self, name: str) -> None:
        """Remove a small file."""
        self._files.pop(name, None)

    def flush(self, base_offset: int) -> None:
        """Do nothing: no power failure is simulated."""

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file; ``None`` if it does not exist."""
        content = self._files.get(name)
        return None if content is None else bytes(content)

    def read_end(self, name: str, size: int) -> tuple[int, bytes] | None:
        """Return the size of an index, and up to ``size`` bytes of its end."""
        content = self._files.get(name)
        return None if content is None else (len(content), bytes(content[max(0, len(content) - size) :]))

    def keep_damaged_file(self, name: str) -> str:
        """Remove a file that cannot be used."""
        self._files.pop(name)
        return f"damaged/{name}"

    def keep_damaged_end(self, base_offset: int, position: int) -> str | None:
        """Keep nothing: no bytes are damaged here."""
        return None

    # Segments

    def create(self, base_offset: int) -> MemorySegment:
        """Create an empty segment."""
        return self._new(file_name(base_offset, "log"))

    def open(self, base_offset: int) -> MemorySegment:
        """Open an existing segment."""
        return MemorySegment(self._files[file_name(base_offset, "log")])

    def modified(self, base_offset: int) -> int:
        """Return when a segment was created, in milliseconds since 1970; the core asks for records without a time stamp."""
        return self._created[file_name(base_offset, "log")]

    def mark_deleted(self, base_offsets: Iterable[int]) -> DiskJob:
        """Return the job that removes segments."""
        names = [file_name(base, suffix) for base in base_offsets for suffix in _SUFFIXES]
        return self.job(lambda folder: self._remove(names))

    def remove_deleted(self) -> DiskJob:
        """Return a job without work: ``mark_deleted`` has removed the files."""
        return self.job(lambda folder: None)

    def create_cleaned(self, base_offset: int) -> MemorySegment:
        """Create a ``.cleaned`` segment beside the others."""
        self.discard_cleaned(base_offset)
        return self._new(file_name(base_offset, "log") + _CLEANED)

    def finish_cleaned(self, base_offset: int, small: Mapping[str, bytes]) -> None:
        """Add the indexes of a cleaned segment."""
        for suffix, content in small.items():
            self._files[file_name(base_offset, suffix) + _CLEANED] = bytearray(content)

    def discard_cleaned(self, base_offset: int) -> None:
        """Remove a cleaned segment."""
        self._remove(file_name(base_offset, suffix) + _CLEANED for suffix in _SUFFIXES)

    def begin_swap(self, base_offset: int) -> MemorySegment:
        """Commit a cleaned segment."""
        self._rename(base_offset, _CLEANED, _SWAP)
        return self.open_swap(base_offset)

    def open_swap(self, base_offset: int) -> MemorySegment:
        """Open a committed segment."""
        return MemorySegment(self._files[file_name(base_offset, "log") + _SWAP])

    def finish_swap(self, base_offset: int, replaced: Iterable[int]) -> MemorySegment:
        """Replace segments with the committed one."""
        self._remove(file_name(base, suffix) for base in replaced for suffix in _SUFFIXES)
        self._rename(base_offset, _SWAP, "")
        return self.open(base_offset)

    def discard_all_cleaned(self) -> None:
        """Remove cleaned segments that are not committed."""
        self._remove([name for name in self._files if name.endswith(_CLEANED)])

    def discard_unfinished(self) -> None:
        """Do nothing: no replacement is interrupted."""

    def _new(self, name: str) -> MemorySegment:
        content = self._files[name] = bytearray()
        self._created[name] = self._wall()
        return MemorySegment(content)

    def _rename(self, base_offset: int, old: str, new: str) -> None:
        for suffix in _SUFFIXES:
            name = file_name(base_offset, suffix)
            if name + old in self._files:
                self._files[name + new] = self._files.pop(name + old)
                self._created[name + new] = self._wall()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.pop(name, None)


class MemoryStore:
    """A data directory in memory (``OpenStore``), for one process of a broker after the other."""

    def __init__(self, wall: WallClock) -> None:
        self.cluster_id = "simulation"
        self.log_dir = "/simulation"
        self.clean = False
        self.is_from_earlier_release = False
        self.has_too_many_open_files = False
        self._wall = wall
        self._topics: dict[str, StoredTopic] = {}
        self._settings = StoredSettings()
        self._next_producer_id = 0
        self._checkpoints: dict[str, dict[TopicPartition, int]] = {}
        self._folders: dict[tuple[str, int], tuple[uuid.UUID, MemoryFolder]] = {}

    def release(self) -> None:
        """Keep everything for the next process."""

    def content(self, piece: Any) -> bytes:
        """Return the bytes of a piece: all are in memory."""
        return bytes(piece)

    def read_catalog(self) -> Catalog:
        """Return the catalog."""
        return Catalog(tuple(self._topics.values()), self._next_producer_id, self._settings)

    def change_catalog(self, *changes: CatalogChange) -> None:
        """Apply changes of the catalog."""
        for change in changes:
            match change:
                case StoredTopic(name):
                    self._topics[name] = change
                case TopicDeleted(name):
                    self._topics.pop(name, None)
                case NextProducerId(value):
                    self._next_producer_id = value
                case StoredSettings():
                    self._settings = change

    def sync_catalog(self) -> DiskJob:
        """Return a job without work."""
        return lambda: None

    def usage(self) -> DiskUsage:
        """Return a large disk."""
        return DiskUsage(_SPACE, _SPACE)

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """Return a checkpoint of offsets; ``None`` before the first one."""
        found = self._checkpoints.get(name)
        return None if found is None else dict(found)

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> DiskJob:
        """Return the job that replaces a checkpoint. Jobs run in order here."""
        return lambda: self._checkpoints.__setitem__(name, dict(offsets))

    def log_files(self, topic: str, topic_id: uuid.UUID, partition: int) -> MemoryFolder:
        """Return the folder of a partition."""
        found = self._folders.get((topic, partition))
        if found is None or found[0] != topic_id:
            found = self._folders[topic, partition] = topic_id, MemoryFolder(self._wall)
        return found[1]

    def delete_topic_folders(self, topic: str, topic_id: uuid.UUID, partitions: Iterable[int]) -> DiskJob | None:
        """Remove the folders of a deleted topic."""
        for partition in partitions:
            if self._folders.get((topic, partition), (None,))[0] == topic_id:
                del self._folders[topic, partition]
        return None
