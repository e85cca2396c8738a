"""The folders of partitions on disk: segment files, indexes, snapshots, in Kafka's names and layout.

Owns file descriptors of segments and the way in which each file is written. Must not know what is in a batch, nor decide
anything. Invariants: a failed append leaves the file as it was; small files are replaced, never half written; a range that was
handed out stays readable until it is dropped, whatever happens to the log.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import shutil
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ottla.broker.log import file_name
from ottla.records.header import Buffer

SEGMENT_SUFFIXES = ("log", "index", "timeindex", "txnindex")
SET_ASIDE, DRAFT, SWAP = ".deleted", ".cleaned", ".swap"
STRAY = "-stray"
PARTITION_METADATA = "partition.metadata"
_MAX_OPEN = 256
"""Segment files kept open at most; others are opened again when they are needed."""

_SHARE_OF_DESCRIPTORS = 4
"""Segment files take one in so many of the descriptors that the process may have; connections need the others."""

Job = Callable[[], object]


class Handle:
    """An open file, closed when nobody holds it any more."""

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class OpenFiles:
    """The segment files that are open now, the least recently used ones closed. For one thread."""

    def __init__(self) -> None:
        self._limit = _max_open()
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._in_folder: dict[Path, set[Path]] = {}

    def get(self, path: Path) -> Handle:
        """The open file of a path."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._handles[path] = Handle(path)
            self._in_folder.setdefault(path.parent, set()).add(path)
            if len(self._handles) > self._limit:
                self.forget([next(iter(self._handles))])
        else:
            self._handles.move_to_end(path)
        return handle

    def clear(self) -> None:
        """Close everything, ranges apart."""
        self._handles.clear()
        self._in_folder.clear()

    def forget(self, paths: Iterable[Path]) -> None:
        """Close these, ranges apart: what is removed shall not go on taking room."""
        for path in paths:
            if self._handles.pop(path, None) is None:
                continue
            others = self._in_folder[path.parent]
            others.discard(path)
            if not others:
                del self._in_folder[path.parent]

    def forget_folder(self, folder: Path) -> None:
        """Close what is open in a folder, ranges apart."""
        self.forget(tuple(self._in_folder.get(folder, ())))


class DiskRange:
    """A part of a segment file, on its way to a socket."""

    __slots__ = ("_size", "handle", "position")

    def __init__(self, handle: Handle, position: int, size: int) -> None:
        self.handle = handle
        self.position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<DiskRange {self._size} bytes at {self.position}>"


class DiskSegment:
    """One ``.log`` file."""

    __slots__ = ("_open", "_torn", "path", "size")

    def __init__(self, path: Path, open_files: OpenFiles, size: int | None = None) -> None:
        """``size``: where it is known."""
        self.path = path
        self.size = path.stat().st_size if size is None else size
        self._open = open_files
        self._torn = False

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write all pieces at the end, or nothing at all and raise ``OSError``."""
        self.mend()
        fd = self._open.get(self.path).fd
        total = sum(map(len, pieces))
        try:
            written = os.writev(fd, pieces)
            while written < total:
                written += os.write(fd, memoryview(b"".join(pieces))[written:])
        except OSError:
            self._torn = True
            with suppress(OSError):  # tried again before the next append
                self.mend()
            raise
        self.size += total

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``."""
        return os.pread(self._open.get(self.path).fd, min(size, self.size - position), position)

    def range(self, position: int, size: int) -> DiskRange:
        """A part of the file to be sent as it is."""
        return DiskRange(self._open.get(self.path), position, size)

    @contextmanager
    def view(self) -> Iterator[Buffer]:
        """The whole file at once; from any thread."""
        size = self.size
        if not size:
            yield b""
            return
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        try:
            yield mapped
        finally:
            with suppress(BufferError):  # a traceback may still hold a part of it: then it goes with that
                mapped.close()

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``."""
        os.truncate(self.path, size)
        self.size = size

    def mend(self) -> None:
        """Cut off what an append that failed may have left."""
        if self._torn:
            os.ftruncate(self._open.get(self.path).fd, self.size)
            self._torn = False


class PinnedFolder:
    """An open folder: files in it are found however it is called by now, and not those of another that has its old name."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def write_small(self, name: str, content: bytes) -> None:
        """Replace a small file atomically."""
        draft = f"{name}.tmp"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=self.fd), "wb") as file:
            file.write(content)
        os.replace(draft, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def append_small(self, name: str, content: bytes) -> None:
        """Write at the end of a small file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o644, dir_fd=self.fd), "wb", buffering=0) as file:
            written = file.write(content)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def sync_small(self, name: str) -> None:
        """Force a small file to disk, if it is there."""
        with suppress(FileNotFoundError):
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove_small(self, name: str) -> None:
        """Remove a small file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def set_aside(self, names: Iterable[str]) -> None:
        """Rename files to ``.deleted``."""
        for name in names:
            with suppress(FileNotFoundError):
                os.rename(name, name + SET_ASIDE, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove_set_aside(self) -> None:
        """Remove what was set aside."""
        for name in os.listdir(self.fd):
            if name.endswith(SET_ASIDE):
                self.remove_small(name)


class PartitionFolder:
    """The folder of one partition (``LogFiles``). ``durable`` False: a folder that goes away anyway is never forced to disk."""

    def __init__(self, path: Path, topic_id: uuid.UUID, open_files: OpenFiles, *, durable: bool) -> None:
        self.path = path
        self._topic_id = topic_id
        self._open = open_files
        self._durable = durable

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.path.is_dir()

    def pin(self) -> PinnedFolder:
        """The folder, for a job."""
        return PinnedFolder(self.path)

    def segments(self) -> list[int]:
        """Base offsets of the segments, ascending."""
        return self._offsets(".log")

    def snapshots(self) -> list[int]:
        """Offsets of the producer snapshots, ascending."""
        return self._offsets(".snapshot")

    def make(self) -> None:
        """Make the folder, unless it is there. One that a deleted topic of the same name has left is set aside before."""
        if self.path.is_dir():
            metadata = self.read_small(PARTITION_METADATA)
            owner = topic_id_in(metadata) if metadata is not None else None
            if owner == self._topic_id:
                return
            if owner is not None or self.segments():
                self._open.forget_folder(self.path)
                rename_folder(self.path, owner or self._topic_id, STRAY)
        self.path.mkdir(parents=True, exist_ok=True)
        self.pin().write_small(PARTITION_METADATA, partition_metadata(self._topic_id))

    def create(self, base_offset: int) -> DiskSegment:
        """A new, empty segment in a folder that is there."""
        path = self.path / file_name(base_offset, "log")
        _create_empty(path)
        return DiskSegment(path, self._open, 0)

    def open(self, base_offset: int) -> DiskSegment:
        """A segment that is there."""
        return DiskSegment(self.path / file_name(base_offset, "log"), self._open)

    def modified(self, base_offset: int) -> int:
        """When a segment was last written to, in milliseconds since 1970."""
        return (self.path / file_name(base_offset, "log")).stat().st_mtime_ns // 1_000_000

    def read_small(self, name: str) -> bytes | None:
        """The content of a small file; ``None`` where there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def flush(self, base_offset: int) -> Job:
        """Force a segment, its list of aborted transactions and the names that lead to them to disk."""
        if not self._durable:
            return _nothing
        handle, folder = self._open.get(self.path / file_name(base_offset, "log")), self.pin()

        def job() -> None:
            os.fsync(handle.fd)
            folder.sync_small(file_name(base_offset, "txnindex"))
            os.fsync(folder.fd)
            sync_file(self.path.parent)

        return job

    def set_aside(self, base_offsets: Iterable[int]) -> Job:
        """Rename the files of segments to ``.deleted``, the ``.log`` last: while it is there, the segment is."""
        names = [file_name(base, suffix) for base in base_offsets for suffix in reversed(SEGMENT_SUFFIXES)]
        self._open.forget(self.path / name for name in names)
        return partial(self.pin().set_aside, names)

    def remove_set_aside(self) -> Job:
        """Remove what was set aside in this folder. It is opened by the job: those of thousands of logs may wait at the same time.
        Another topic may have its name by then, whose files that were set aside go a little early."""

        def job() -> None:
            with suppress(FileNotFoundError):
                self.pin().remove_set_aside()

        return job

    def draft(self, base_offset: int) -> DiskSegment:
        """A segment to be written beside the others."""
        for suffix in SEGMENT_SUFFIXES[1:]:  # of an earlier draft that could not be discarded
            for mark in (DRAFT, SWAP):
                (self.path / (file_name(base_offset, suffix) + mark)).unlink(missing_ok=True)
        path = self.path / (file_name(base_offset, "log") + DRAFT)
        _create_empty(path)
        return DiskSegment(path, OpenFiles(), 0)

    def finish_draft(self, base_offset: int, small: Mapping[str, bytes]) -> None:
        """Force a draft to disk, with its indexes."""
        for suffix, content in small.items():
            (self.path / (file_name(base_offset, suffix) + DRAFT)).write_bytes(content)
        if self._durable:
            for suffix in ("log", *small):
                sync_file(self.path / (file_name(base_offset, suffix) + DRAFT))

    def discard_draft(self, base_offset: int) -> None:
        """Remove a draft."""
        for suffix in SEGMENT_SUFFIXES:
            (self.path / (file_name(base_offset, suffix) + DRAFT)).unlink(missing_ok=True)

    def begin_swap(self, base_offset: int) -> DiskSegment:
        """Let a draft count from now on: the rename of its ``.log`` to ``.swap``, the last of these, is the point of no return."""
        draft = DiskSegment(self.path / (file_name(base_offset, "log") + DRAFT), self._open)
        self._rename_all(base_offset, DRAFT, SWAP)
        return DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open, draft.size)

    def swaps(self) -> list[int]:
        """Base offsets of the drafts whose swap was interrupted."""
        return self._offsets(".log" + SWAP)

    def open_swap(self, base_offset: int) -> DiskSegment:
        """A draft whose swap was interrupted."""
        return DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open)

    def finish_swap(self, base_offset: int, replaced: Iterable[int]) -> DiskSegment:
        """Complete a swap, from wherever an earlier call was interrupted. The rename of its ``.log`` is the last step."""
        swap = DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open)
        # Where the old .log has gone already, the files that are called like those beside it may be the new ones.
        left = set(self.segments()).intersection(replaced)
        self.set_aside(sorted(left))()
        self._open.forget([swap.path])
        self._rename_all(base_offset, SWAP, "")
        return DiskSegment(self.path / file_name(base_offset, "log"), self._open, swap.size)

    def discard_drafts(self) -> None:
        """Remove what was left of drafts whose swap never began."""
        names = [name for name in self._names() if name.endswith((DRAFT, SWAP))]
        begun = {file_name(base, suffix) + SWAP for base in self.swaps() for suffix in SEGMENT_SUFFIXES} if names else set()
        for name in names:
            if name not in begun:
                (self.path / name).unlink()

    def _rename_all(self, base_offset: int, old: str, new: str) -> None:
        """Rename the files of a segment, its ``.log`` last."""
        for suffix in reversed(SEGMENT_SUFFIXES):
            name = file_name(base_offset, suffix)
            with suppress(FileNotFoundError):
                (self.path / (name + old)).rename(self.path / (name + new))

    def _offsets(self, suffix: str) -> list[int]:
        stems = [name.removesuffix(suffix) for name in self._names() if name.endswith(suffix)]
        return sorted([int(stem) for stem in stems if stem.isdigit()])

    def _names(self) -> list[str]:
        """The files in the folder, none if it is not there."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []


def _max_open() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if descriptors == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, descriptors // _SHARE_OF_DESCRIPTORS))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole under another name, then give it its own."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(content)
    draft.replace(path)


def rename_folder(folder: Path, topic_id: uuid.UUID, suffix: str) -> Path:
    """Give the folder of a partition a name that no topic has; whatever has that name is removed."""
    target = folder.with_name(f"{folder.name}.{topic_id.hex}{suffix}")
    if target.exists():
        shutil.rmtree(target)
    return folder.rename(target)


def sync_file(path: Path) -> None:
    """Force a file to disk; of a folder, the names in it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def partition_metadata(topic_id: uuid.UUID) -> bytes:
    """The content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}\n".encode()


def topic_id_in(content: bytes) -> uuid.UUID | None:
    """The topic id in a ``partition.metadata``, ``None`` where it has none."""
    for line in content.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            return uuid_of(value.strip())
    return None


def uuid_text(value: uuid.UUID) -> str:
    """An id as Kafka prints it: 22 characters of url-safe base64."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def uuid_of(text: str) -> uuid.UUID | None:
    """The id that Kafka prints so, ``None`` where it is none."""
    try:
        return uuid.UUID(bytes=urlsafe_b64decode(text + "=="))
    except ValueError:
        return None


def _create_empty(path: Path) -> None:
    """Make a file, or empty it. Where that fails, none is left: an empty segment would end the log at the next start."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def _nothing() -> None:
    """There is nothing to force to disk."""
