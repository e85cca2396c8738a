"""The folders of partitions on disk: segment files, indexes, snapshots, in Kafka's names and layout.

Owns file descriptors of segments and the order of the steps in which files are changed. Must not know the content of a batch, nor
decide anything. Invariants: a failed append leaves the file as it was; a range stays readable until it is dropped, whatever happens
to the log; nothing is written to the files of another broker at the same path (``folders``).
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from weakref import WeakSet

from ottla.broker.checkpoints import KNOWN_HOLES
from ottla.broker.ports import DiskJob, Listing
from ottla.broker.segment import file_name
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY
from ottla.runtime.descriptors import OUT_OF_DESCRIPTORS, first_of_reserve, limit
from ottla.runtime.folders import (
    CLEANED_FILE,
    CLEANED_SUFFIX,
    DAMAGED,
    NUMBERED,
    OFFSET,
    PARTITION_METADATA,
    SWAP,
    SWAP_FILE,
    UNFINISHED_FILE,
    Check,
    PinnedFolder,
    check_is_file,
    foreign,
    opened,
    read_whole,
)
from ottla.types import parse_uuid, uuid_text

SEGMENT_SUFFIXES = ("log", "index", "timeindex", TXNINDEX, TXNINDEX_COPY)
STRAY = "-stray"
_MAX_OPEN = 256
"""The maximum number of open segment files; others are opened again when they are needed."""

_SHARE_OF_DESCRIPTORS = 4
"""Segment files take one in so many of the descriptors that the process may have, and those of responses that are being sent as
many again; connections need the others."""

_COPIED = 1 << 14
"""Ranges up to this size are read and sent along with the bytes around them: one call instead of three, and no open file."""


class Handle:
    """An open file, closed when nothing refers to it."""

    __slots__ = ("__weakref__", "fd", "is_unreadable")

    def __init__(self, path: Path) -> None:
        self.is_unreadable = False
        """Whether sendfile() has failed at a part of the file that cannot be read: that was in the middle of a response, and closed
        the connection. From then on the file is read before a response begins, so that it can contain KAFKA_STORAGE_ERROR for this
        partition, and the records of the others."""
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
        check_is_file(path, os.fstat(self.fd))  # a pipe would take records until it is full

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


def _unchecked() -> None:
    """Files in no data directory have no lock."""


class OpenFiles:
    """The open segment files; the least recently used ones are closed. For one thread, except for ``check``."""

    def __init__(self, check: Check = _unchecked) -> None:
        self.check = check
        self._limit = max(1, min(_MAX_OPEN, limit() // _SHARE_OF_DESCRIPTORS))
        self._first_of_reserve = first_of_reserve()
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._alive: WeakSet[Handle] = WeakSet()
        """These, and those that ranges still hold."""
        self._in_folder: dict[Path, set[Path]] = {}

    def get(self, path: Path) -> Handle:
        """Return the open file of a path. Hold the reference as long as its descriptor is used. Otherwise, if the file is not kept
        here: 1. It is closed with the last reference. 2. Another thread opens a file, and gets the same descriptor. 3. The
        descriptor leads to the wrong file."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._opened(path)
            self.check()
            if handle.fd >= self._first_of_reserve:
                self.clear()  # connections, or other parts of the process, use all other descriptors
            if self.has_too_many_open_files:
                return handle  # not kept: that would close another one here, which a range keeps open anyway
            self._handles[path] = handle
            self._alive.add(handle)
            self._in_folder.setdefault(path.parent, set()).add(path)
            if len(self._handles) > self._limit:
                self.forget([next(iter(self._handles))])
        else:
            self._handles.move_to_end(path)
        return handle

    def _opened(self, path: Path) -> Handle:
        try:
            return Handle(path)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._handles:
                raise
            self.clear()
            return Handle(path)

    def tracks(self, handle: Handle) -> bool:
        """Whether a file is kept open here or by a range. One that was opened while there were too many is not: it is closed after
        its use."""
        return handle in self._alive

    @property
    def has_too_many_open_files(self) -> bool:
        """Whether ranges keep as many files open as may be open without them."""
        return len(self._alive) >= 2 * self._limit

    def clear(self) -> None:
        """Close all files, except those of ranges."""
        self._handles.clear()
        self._in_folder.clear()

    def forget(self, paths: Iterable[Path]) -> None:
        """Close these files, except those of ranges: removed files must not keep using disk space."""
        for path in paths:
            if self._handles.pop(path, None) is None:
                continue
            others = self._in_folder[path.parent]
            others.discard(path)
            if not others:
                del self._in_folder[path.parent]

    def forget_folder(self, folder: Path) -> None:
        """Close the files of a folder, except those of ranges."""
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


def _read(path: Path, fd: int, position: int, size: int) -> bytes:
    """``size`` bytes from ``position``; fewer only where the file ends. Raises ``OSError`` with file and position.

    A read that meets a bad sector returns what is before it, as if the file ended there; only the next one fails.
    """
    data = b""
    try:
        while len(data) < size and (more := os.pread(fd, size - len(data), position + len(data))):
            data = data + more if data else more
    except OSError as error:
        reason = f"{error.strerror} at byte {position + len(data)}"
        raise OSError(error.errno, reason, str(path)) from error
    return data


class FileReader:
    """An open file, for reading."""

    __slots__ = ("_fd", "_path", "size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self._path = path
        self._fd = fd
        self.size = size

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer where the file ends."""
        return _read(self._path, self._fd, position, min(size, self.size - position))


class DiskSegment:
    """One ``.log`` file."""

    __slots__ = ("_open", "_torn", "path", "size")

    def __init__(self, path: Path, open_files: OpenFiles, size: int | None = None) -> None:
        """``size``: if it is known."""
        self.path = path
        if size is None:
            found = path.stat()
            check_is_file(path, found)
            size = found.st_size
        self.size = size
        self._open = open_files
        self._torn = False

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write all pieces at the end, or nothing at all and raise ``OSError``."""
        self.repair()
        handle = self._open.get(self.path)
        total = sum(map(len, pieces))
        try:
            written = os.writev(handle.fd, pieces)
            while written < total:
                written += os.write(handle.fd, memoryview(b"".join(pieces))[written:])
            self._check_unchanged(handle.fd, total)
        except BaseException:
            self._torn = True
            with suppress(OSError):  # tried again before the next append
                self.repair()
            raise
        self.size += total

    def _check_unchanged(self, fd: int, added: int) -> None:
        """Raise if another program has removed the file: its content is lost once it is closed. Also if it had another size before
        ``added`` bytes were written: these are at the wrong position, and are cut off.

        Some file systems in user space count no links, so the name is checked, too. It may lead to another file: that of a restored
        backup, or of a second broker in a new directory of the same name.
        """
        held = os.fstat(fd)
        if (found := held.st_size - added) != self.size:
            os.ftruncate(fd, max(0, found))
            reason = f"the file was changed while it was in use: it had {found} bytes instead of {self.size}"
            raise OSError(errno.EIO, reason, str(self.path))
        if held.st_nlink:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(held, self.path.stat()):
                return
        raise FileNotFoundError(errno.ENOENT, "the file was removed while it was in use", str(self.path))

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer where the file ends."""
        handle = self._open.get(self.path)
        return _read(self.path, handle.fd, position, min(size, self.size - position))

    def range(self, position: int, size: int) -> DiskRange | bytes:
        """Return a range of the file to be sent. A small one is read at once, and so is one of a file beyond the limit of open
        files: one response may have ranges of thousands of files, and many responses may wait for their sockets."""
        handle = self._open.get(self.path)
        if size > _COPIED and self._open.tracks(handle) and not handle.is_unreadable:
            return DiskRange(handle, position, size)
        data = _read(self.path, handle.fd, position, size)
        if len(data) != size:
            raise OSError(errno.EIO, f"the file ended {size - len(data)} bytes before it should", str(self.path))
        return data

    @contextmanager
    def reader(self) -> Iterator[FileReader]:
        """The file as it is now, for a scan on any thread.

        It is not mapped: an unreadable page of a mapped file would end the process with SIGBUS, without a message.
        """
        with opened(self.path) as fd:
            if os.fstat(fd).st_size < self.size:  # compaction may just have replaced the file
                raise OSError(errno.EIO, "the file ends before it should", str(self.path))
            yield FileReader(self.path, fd, self.size)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``."""
        handle = self._open.get(self.path)
        os.ftruncate(handle.fd, size)
        self.size = size

    def repair(self) -> None:
        """Truncate what a failed append may have left. If bytes are missing, zeros replace them, so that all others keep their
        positions."""
        if self._torn:
            handle = self._open.get(self.path)
            os.ftruncate(handle.fd, self.size)
            self._torn = False


class PartitionFolder:
    """The folder of one partition (``LogFiles``). ``durable`` False: a temporary folder is never forced to disk."""

    def __init__(
        self, path: Path, topic_id: uuid.UUID, open_files: OpenFiles, *, durable: bool, fault: OSError | None = None
    ) -> None:
        """``fault``: the error that kept the folder's topic id from being read. ``listing`` raises it."""
        self.path = path
        self._fault = fault
        self._topic_id = topic_id
        self._open = open_files
        self._durable = durable
        self._is_topic_deleted = False

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.path.is_dir()

    def pin(self) -> PinnedFolder:
        """Open the folder, for immediate use."""
        return PinnedFolder(self.path, self._open.check, durable=self._durable)

    def _pin_own(self) -> PinnedFolder:
        """Open the folder on another thread; the topic may have been deleted since the work began."""
        folder = self.pin()
        if self._is_topic_deleted:  # checked after the folder was opened, as in ``job``
            raise FileNotFoundError(errno.ENOENT, "the topic was deleted", str(self.path))
        return folder

    def mark_topic_deleted(self) -> None:
        """Skip the pending jobs: the topic was deleted, and another one may use the folder's name from now on."""
        self._is_topic_deleted = True

    def job(self, work: Callable[[PinnedFolder], object]) -> DiskJob:
        """Return a job that works on the folder, unless its topic is deleted by then. Only the running job opens files: thousands
        of jobs may wait at the same time, and must not use descriptors."""

        def job() -> None:
            try:
                folder = self.pin()
            except FileNotFoundError:
                if self._is_topic_deleted:
                    return
                raise
            # Checked after the folder was opened. In the other order: 1. The check passes. 2. The event loop deletes the topic, and
            # creates another one of the same name. 3. The job opens the new topic's folder, and changes its files.
            if not self._is_topic_deleted:
                work(folder)

        return job

    def listing(self) -> Listing:
        """List the files in the folder."""
        if self._fault is not None:
            raise self._fault
        names = self._names()
        own: dict[str, list[int]] = {"log": [], "snapshot": [], "swap": []}
        indexes: list[str] = []
        others: list[str] = []
        for name in names:
            stem, _, suffix = name.partition(".")
            if not OFFSET.fullmatch(stem) or suffix not in NUMBERED:
                others.append(name)
            elif suffix in own:
                own[suffix].append(int(stem))
            else:
                indexes.append(name)
        bases = set(own["log"])
        return Listing(
            segments=sorted(bases),
            snapshots=sorted(own["snapshot"]),
            swaps=sorted(int(name[:20]) for name in others if SWAP_FILE.fullmatch(name)),
            orphans=sorted(name for name in indexes if int(name[:20]) not in bases),
            foreign=foreign(others),
            has_known_holes=KNOWN_HOLES in others,
            has_unfinished=any(CLEANED_FILE.fullmatch(name) or UNFINISHED_FILE.fullmatch(name) for name in others),
        )

    def make(self) -> None:
        """Create the folder, unless it exists. A folder left by a deleted topic of the same name is renamed first."""
        # No parents: if the data directory was removed, a new one of the same name would have no lock.
        parent = PinnedFolder(self.path.parent, self._open.check)
        if self.path.is_dir():
            metadata = self.read_small(PARTITION_METADATA)
            owner = topic_id_in(metadata) if metadata is not None else None
            if owner == self._topic_id:
                return
            if owner is not None or self.listing().segments:
                self._open.forget_folder(self.path)
                parent.rename_folder(self.path.name, deleted_folder_name(self.path.name, owner or self._topic_id, STRAY))
        parent.make_folder(self.path.name)
        self.pin().write_small(PARTITION_METADATA, partition_metadata(self._topic_id))

    def create(self, base_offset: int) -> DiskSegment:
        """Create an empty segment in an existing folder."""
        name = file_name(base_offset, "log")
        self.pin().create(name)
        self._open.forget([self.path / name])  # the open file of this name, if any, was removed by hand
        return DiskSegment(self.path / name, self._open, 0)

    def open(self, base_offset: int) -> DiskSegment:
        """Open an existing segment."""
        return DiskSegment(self.path / file_name(base_offset, "log"), self._open)

    def modified(self, base_offset: int) -> int:
        """Return the time of the last write to a segment, in milliseconds since 1970."""
        return (self.path / file_name(base_offset, "log")).stat().st_mtime_ns // 1_000_000

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file; ``None`` if it does not exist."""
        try:
            return read_whole(self.path / name)
        except FileNotFoundError:
            return None

    def read_end(self, name: str, size: int) -> tuple[int, bytes] | None:
        """Return the size of an index, and up to ``size`` bytes of its end; ``None`` if it does not exist."""
        try:
            with opened(self.path / name) as fd, open(fd, "rb", closefd=False) as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - size))
                return end, file.read(size)
        except FileNotFoundError:
            return None

    def keep_damaged_file(self, name: str) -> str:
        """Move a file to the folder of damaged files; returns its new path."""
        folder = self._damaged()
        self._open.forget([self.path / name])
        kept = folder.free_name(name)
        os.rename(self.path / name, self.path / DAMAGED / kept)
        return str(self.path / DAMAGED / kept)

    def keep_damaged_end(self, base_offset: int, position: int) -> str | None:
        """Copy what a segment has from ``position`` on to the folder of damaged files, if it is not only zeros."""
        source = self.path / file_name(base_offset, "log")
        with opened(source) as fd, open(fd, "rb", closefd=False) as file:
            file.seek(position)
            if all(piece.count(0) == len(piece) for piece in iter(partial(file.read, _COPIED), b"")):
                return None
            file.seek(position)
            folder = self._damaged()
            kept = folder.free_name(f"{source.name}.from-{position}")
            try:
                with (self.path / DAMAGED / kept).open("xb") as copy:
                    shutil.copyfileobj(file, copy)
            except OSError:
                folder.remove_small(kept)  # each start would leave another part of it on a full disk
                raise
        folder.sync(kept)
        folder.sync_names()
        return str(self.path / DAMAGED / kept)

    def _damaged(self) -> PinnedFolder:
        self.pin().make_folder(DAMAGED)
        return PinnedFolder(self.path / DAMAGED, self._open.check, durable=self._durable)

    def mark_deleted(self, base_offsets: Iterable[int]) -> DiskJob:
        """Return the job that renames the files of segments to ``.deleted``, the ``.log`` last: the segment exists as long as it
        does."""
        names = [file_name(base, suffix) for base in base_offsets for suffix in reversed(SEGMENT_SUFFIXES)]
        self._open.forget(self.path / name for name in names)
        return self.job(lambda folder: folder.mark_deleted(names))

    def remove_deleted(self) -> DiskJob:
        """Return the job that removes the ``.deleted`` files of this folder."""
        return self.job(PinnedFolder.remove_deleted)

    def create_cleaned(self, base_offset: int) -> DiskSegment:
        """Create a ``.cleaned`` segment beside the others."""
        folder, name = self._pin_own(), file_name(base_offset, "log") + CLEANED_SUFFIX
        for suffix in SEGMENT_SUFFIXES[1:]:  # left by an earlier cleaning that could not remove them
            for mark in (CLEANED_SUFFIX, SWAP):
                folder.remove_small(file_name(base_offset, suffix) + mark)
        folder.create(name)
        return DiskSegment(self.path / name, OpenFiles(self._open.check), 0)

    def finish_cleaned(self, base_offset: int, small: Mapping[str, bytes]) -> None:
        """Force a cleaned segment to disk, with its indexes."""
        folder = self._pin_own()
        for suffix, content in small.items():
            folder.write_new(file_name(base_offset, suffix) + CLEANED_SUFFIX, content)
        for suffix in ("log", *small):
            folder.sync(file_name(base_offset, suffix) + CLEANED_SUFFIX)

    def discard_cleaned(self, base_offset: int) -> None:
        """Remove a cleaned segment."""
        folder = self.pin()
        for suffix in SEGMENT_SUFFIXES:
            folder.remove_small(file_name(base_offset, suffix) + CLEANED_SUFFIX)

    def begin_swap(self, base_offset: int) -> DiskSegment:
        """Commit a cleaned segment: the last of these renames, of its ``.log`` to ``.swap``, is the point of no return."""
        draft = DiskSegment(self.path / (file_name(base_offset, "log") + CLEANED_SUFFIX), self._open)
        self._rename_all(base_offset, CLEANED_SUFFIX, SWAP)
        return DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open, draft.size)

    def open_swap(self, base_offset: int) -> DiskSegment:
        """Open a cleaned segment whose swap was interrupted."""
        return DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open)

    def finish_swap(self, base_offset: int, replaced: Iterable[int]) -> DiskSegment:
        """Complete a swap, from the point where an earlier call was interrupted. The rename of its ``.log`` is the last step."""
        swap = DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open)
        # Only segments that still have a .log: 1. An earlier call renamed the old files, and then the new indexes. 2. It was
        # interrupted. 3. The indexes with the name of the old ones are the new ones by now, and must not be renamed to .deleted.
        left = set(self.listing().segments).intersection(replaced)
        self.mark_deleted(sorted(left))()
        self._open.forget([swap.path])
        self._rename_all(base_offset, SWAP, "")
        return DiskSegment(self.path / file_name(base_offset, "log"), self._open, swap.size)

    def discard_all_cleaned(self) -> None:
        """Remove cleaned segments whose swap has not begun."""
        names = [name for name in self._names() if CLEANED_FILE.fullmatch(name)]
        if names:
            begun = {file_name(base, suffix) + SWAP for base in self.listing().swaps for suffix in SEGMENT_SUFFIXES}
            self.pin().discard(name for name in names if name not in begun)

    def discard_unfinished(self) -> None:
        """Remove the temporary files of interrupted replacements. For a log that is not in use yet."""
        names = [name for name in self._names() if UNFINISHED_FILE.fullmatch(name)]
        if names:
            self.pin().discard(names)

    def _rename_all(self, base_offset: int, old: str, new: str) -> None:
        """Rename the files of a segment, its ``.log`` last."""
        folder = self.pin()
        for suffix in reversed(SEGMENT_SUFFIXES):
            name = file_name(base_offset, suffix)
            folder.rename(name + old, name + new)

    def _names(self) -> list[str]:
        """Return the files in the folder; none if it does not exist."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []


def deleted_folder_name(folder: str, topic_id: uuid.UUID, suffix: str) -> str:
    """Return the new name of a deleted or stray folder of a partition; no topic has such a name."""
    return f"{folder}.{topic_id.hex}{suffix}"


def partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}\n".encode()


def topic_id_in(content: bytes) -> uuid.UUID | None:
    """Return the topic id in a ``partition.metadata``; ``None`` if it has none."""
    for line in content.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            return parse_uuid(value.strip())
    return None
