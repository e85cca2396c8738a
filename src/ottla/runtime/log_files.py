"""The folders of partitions on disk: segment files, indexes, snapshots, in Kafka's names and layout.

Owns file descriptors of segments and the order of the steps in which files are changed. Must not know what is in a batch, nor
decide anything. Invariants: a failed append leaves the file as it was; a range that was handed out stays readable until it is
dropped, whatever happens to the log; nothing is written to the files of another broker at the same path (``folders``).
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
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
from ottla.runtime.file_names import (
    CLEANED_FILE,
    CLEANED_SUFFIX,
    DAMAGED,
    NUMBERED,
    OFFSET,
    PARTITION_METADATA,
    SWAP,
    SWAP_FILE,
    UNFINISHED_FILE,
    foreign,
)
from ottla.runtime.folders import Check, PinnedFolder, check_is_file, opened, read_whole

SEGMENT_SUFFIXES = ("log", "index", "timeindex", TXNINDEX, TXNINDEX_COPY)
STRAY = "-stray"
_MAX_OPEN = 256
"""The maximum number of open segment files; others are opened again when they are needed."""

_SHARE_OF_DESCRIPTORS = 4
"""Segment files take one in so many of the descriptors that the process may have, and those of answers on their way as many again;
connections need the others."""

_COPIED = 1 << 14
"""Ranges up to this size are read and sent along with the bytes around them: one call instead of three, and no open file."""


class Handle:
    """An open file, closed when nothing refers to it."""

    __slots__ = ("__weakref__", "fd", "is_unreadable")

    def __init__(self, path: Path) -> None:
        self.is_unreadable = False
        """Whether an answer could not be sent since a part of the file cannot be read. Then it is read before the answer is begun,
        so that the answer says so: KAFKA_STORAGE_ERROR for this partition, and the records of the others."""
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
        check_is_file(path, os.fstat(self.fd))  # a pipe would take records until it is full

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


def _unchecked() -> None:
    """Files in no data directory have no lock."""


class OpenFiles:
    """The segment files that are open now, the least recently used ones closed. For one thread, apart from ``check``."""

    def __init__(self, check: Check = _unchecked) -> None:
        self.check = check
        self._limit = max(1, min(_MAX_OPEN, limit() // _SHARE_OF_DESCRIPTORS))
        self._first_of_reserve = first_of_reserve()
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._alive: WeakSet[Handle] = WeakSet()
        """These, and those that ranges still hold."""
        self._in_folder: dict[Path, set[Path]] = {}

    def get(self, path: Path) -> Handle:
        """The open file of a path. Hold it as long as its descriptor is used: one that is not kept here is closed with the last
        reference, and another thread may get the same descriptor for another file."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._opened(path)
            self.check()
            if handle.fd >= self._first_of_reserve:
                self.clear()  # connections, or other parts of the process, have taken all others
            if self.has_too_many_open_files:
                return handle  # not kept: it would take the place of one that a range keeps open anyway
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
        """Whether a file counts as open. One that was opened while there were too many does not: it is closed after its use."""
        return handle in self._alive

    @property
    def has_too_many_open_files(self) -> bool:
        """Whether as many files are open again because of ranges as may be open without them."""
        return len(self._alive) >= 2 * self._limit

    def clear(self) -> None:
        """Close everything, ranges apart."""
        self._handles.clear()
        self._in_folder.clear()

    def forget(self, paths: Iterable[Path]) -> None:
        """Close these, ranges apart: removed files must not keep using disk space."""
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
        """Raise where the file has been removed from outside: nothing of it is left once it is closed. Also where it had another
        size before ``added`` bytes were written: these are not where they will be looked for, and are cut off.

        Some file systems in user space count no links, so the name is looked at besides. It may be that of another file: of a
        backup that was restored, or of a second broker in a new directory of the same name.
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
        """A part of the file to be sent as it is. A small one is read at once, and so is any of a file that would be one too many
        to be open: one answer may hold ranges of thousands of files, and many answers may wait for their sockets."""
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

        It is not mapped: an unreadable page of a mapped file would end the process with SIGBUS, without a word.
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
        """Truncate what a failed append may have left. If bytes are missing, there are zeros: others remain where they are."""
        if self._torn:
            handle = self._open.get(self.path)
            os.ftruncate(handle.fd, self.size)
            self._torn = False


class PartitionFolder:
    """The folder of one partition (``LogFiles``). ``durable`` False: a folder that goes away anyway is never forced to disk."""

    def __init__(
        self, path: Path, topic_id: uuid.UUID, open_files: OpenFiles, *, durable: bool, fault: OSError | None = None
    ) -> None:
        """``fault``: why it is not known whether the folder is this topic's. ``listing`` raises it."""
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
        """The folder, to be used at once."""
        return PinnedFolder(self.path, self._open.check, durable=self._durable)

    def _pin_own(self) -> PinnedFolder:
        """The folder, for work on another thread that began before the topic may have been deleted."""
        folder = self.pin()
        if self._is_topic_deleted:  # asked when the folder is open, as in ``job``
            raise FileNotFoundError(errno.ENOENT, "the topic was deleted", str(self.path))
        return folder

    def mark_topic_deleted(self) -> None:
        """The topic was deleted: another one may have this folder's name from now on."""
        self._is_topic_deleted = True

    def job(self, work: Callable[[PinnedFolder], object]) -> DiskJob:
        """Work on the folder for another thread; nothing is done once it was given up. Only the job opens files: thousands of jobs
        may wait at the same time, and they may take no descriptors."""

        def job() -> None:
            try:
                folder = self.pin()
            except FileNotFoundError:
                if self._is_topic_deleted:
                    return
                raise
            # Asked when the folder is open: if it had not been given up by then, what was opened is not that of another topic.
            if not self._is_topic_deleted:
                work(folder)

        return job

    def listing(self) -> Listing:
        """What is in the folder."""
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
        """A new, empty segment in an existing folder."""
        name = file_name(base_offset, "log")
        self.pin().create(name)
        self._open.forget([self.path / name])  # the open file of this name, if any, was removed by hand
        return DiskSegment(self.path / name, self._open, 0)

    def open(self, base_offset: int) -> DiskSegment:
        """A segment that is there."""
        return DiskSegment(self.path / file_name(base_offset, "log"), self._open)

    def modified(self, base_offset: int) -> int:
        """When a segment was last written to, in milliseconds since 1970."""
        return (self.path / file_name(base_offset, "log")).stat().st_mtime_ns // 1_000_000

    def read_small(self, name: str) -> bytes | None:
        """The content of a small file; ``None`` where there is none."""
        try:
            return read_whole(self.path / name)
        except FileNotFoundError:
            return None

    def read_end(self, name: str, size: int) -> tuple[int, bytes] | None:
        """The size of an index, and up to ``size`` bytes of its end; ``None`` where there is none."""
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
        """Rename the files of segments to ``.deleted``, the ``.log`` last: while it is there, the segment is."""
        names = [file_name(base, suffix) for base in base_offsets for suffix in reversed(SEGMENT_SUFFIXES)]
        self._open.forget(self.path / name for name in names)
        return self.job(lambda folder: folder.mark_deleted(names))

    def remove_deleted(self) -> DiskJob:
        """Remove what was set aside in this folder."""
        return self.job(PinnedFolder.remove_deleted)

    def create_cleaned(self, base_offset: int) -> DiskSegment:
        """A segment to be written beside the others."""
        folder, name = self._pin_own(), file_name(base_offset, "log") + CLEANED_SUFFIX
        for suffix in SEGMENT_SUFFIXES[1:]:  # from an earlier draft that could not be discarded
            for mark in (CLEANED_SUFFIX, SWAP):
                folder.remove_small(file_name(base_offset, suffix) + mark)
        folder.create(name)
        return DiskSegment(self.path / name, OpenFiles(self._open.check), 0)

    def finish_cleaned(self, base_offset: int, small: Mapping[str, bytes]) -> None:
        """Force a draft to disk, with its indexes."""
        folder = self._pin_own()
        for suffix, content in small.items():
            folder.write_new(file_name(base_offset, suffix) + CLEANED_SUFFIX, content)
        for suffix in ("log", *small):
            folder.sync(file_name(base_offset, suffix) + CLEANED_SUFFIX)

    def discard_cleaned(self, base_offset: int) -> None:
        """Remove a draft."""
        folder = self.pin()
        for suffix in SEGMENT_SUFFIXES:
            folder.remove_small(file_name(base_offset, suffix) + CLEANED_SUFFIX)

    def begin_swap(self, base_offset: int) -> DiskSegment:
        """Make a draft final: the last of these renames, of its ``.log`` to ``.swap``, is the point of no return."""
        draft = DiskSegment(self.path / (file_name(base_offset, "log") + CLEANED_SUFFIX), self._open)
        self._rename_all(base_offset, CLEANED_SUFFIX, SWAP)
        return DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open, draft.size)

    def open_swap(self, base_offset: int) -> DiskSegment:
        """A draft whose swap was interrupted."""
        return DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open)

    def finish_swap(self, base_offset: int, replaced: Iterable[int]) -> DiskSegment:
        """Complete a swap, from the point where an earlier call was interrupted. The rename of its ``.log`` is the last step."""
        swap = DiskSegment(self.path / (file_name(base_offset, "log") + SWAP), self._open)
        # If the old .log is already removed, the files with the same name as its index files may be the new ones.
        left = set(self.listing().segments).intersection(replaced)
        self.mark_deleted(sorted(left))()
        self._open.forget([swap.path])
        self._rename_all(base_offset, SWAP, "")
        return DiskSegment(self.path / file_name(base_offset, "log"), self._open, swap.size)

    def discard_all_cleaned(self) -> None:
        """Remove what was left of drafts whose swap never began."""
        names = [name for name in self._names() if CLEANED_FILE.fullmatch(name)]
        if names:
            begun = {file_name(base, suffix) + SWAP for base in self.listing().swaps for suffix in SEGMENT_SUFFIXES}
            self.pin().discard(name for name in names if name not in begun)

    def discard_unfinished(self) -> None:
        """Remove what was left of small files that were to be replaced. For a log that is not in use yet."""
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
        """The files in the folder; none if it does not exist."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []


def deleted_folder_name(folder: str, topic_id: uuid.UUID, suffix: str) -> str:
    """The new name of the folder of a partition that is given up; no topic has such a name."""
    return f"{folder}.{topic_id.hex}{suffix}"


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
