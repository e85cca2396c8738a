"""Open folders of the data directory, the names of the files in a partition's folder, and the lock on the directory.

Owns the lock, the names that are the broker's, which are Apache Kafka's, and every call that creates, replaces, renames or removes
a file by its name. Must not know what is in a file. Invariants: a file's name is used only relative to an open folder, and only
after a check, made while the folder was open, that the directory still is this broker's, so that no file of another broker at the
same path is changed; in a partition's folder only files with the broker's names are ever renamed or removed, all others are a
user's; small files are replaced atomically.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ottla.broker.segment import file_name
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY
from ottla.errors import StorageError

LOCK = ".lock"
DELETED_SUFFIX = ".deleted"
UNFINISHED = ".tmp"
"""The suffix of a small file while it is written."""

CLEANED_SUFFIX, SWAP = ".cleaned", ".swap"
PARTITION_METADATA = "partition.metadata"
DAMAGED = "damaged"
"""The folder in a partition's folder in which a start keeps bytes that it has cut off and files that it cannot use. Nothing in it
is removed."""

NUMBERED = frozenset({"log", "index", "timeindex", "txnindex", "txnindex.copy", "snapshot"})
"""The suffixes of files that are named after an offset."""

_NUMBERED = rf"[0-9]{{20}}\.(?:{'|'.join(map(re.escape, sorted(NUMBERED)))})"
_SMALL_FILE = rf"{_NUMBERED}|{re.escape(PARTITION_METADATA)}|leader-epoch-checkpoint|known-holes"

OFFSET = re.compile(r"[0-9]{20}")
SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")
DELETED_FILE = re.compile(rf"(?:{_NUMBERED}){DELETED_SUFFIX}")
CLEANED_FILE = re.compile(rf"(?:{_NUMBERED})(?:{CLEANED_SUFFIX}|{SWAP})")
SWAP_FILE = re.compile(rf"[0-9]{{20}}\.log{SWAP}")
UNFINISHED_FILE = re.compile(rf"(?:{_SMALL_FILE}){UNFINISHED}")
_OWN = re.compile(rf"{_SMALL_FILE}|{DAMAGED}|{DELETED_FILE.pattern}|{CLEANED_FILE.pattern}|{UNFINISHED_FILE.pattern}")

_AT_ONCE = os.O_CLOEXEC | os.O_NONBLOCK
"""Without ``O_NONBLOCK``, opening a pipe of this name would block the start of the broker until another process opens its other
end."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _AT_ONCE

_SMALL = 1 << 29
"""The limit of a small file in bytes: a little more than the largest index of the largest segment. A sparse file may claim
terabytes."""

Check = Callable[[], object]
"""Raises ``FileNotFoundError`` if names no longer lead to this broker's files."""

log = logging.getLogger("ottla.broker")


def foreign(names: Iterable[str]) -> list[str]:
    """Return those of the names that are not the broker's, sorted."""
    return sorted(name for name in names if not _OWN.fullmatch(name))


class DirectoryLock:
    """The lock of a data directory. Raises ``StorageError`` if another process has it, ``OSError`` if it cannot be created."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fd = _locked(self._path)
        except BaseException:
            os.close(self._folder)
            raise

    def fileno(self) -> int:
        """The descriptor that holds the lock; -1 after ``release``."""
        return self._fd

    def check(self) -> None:
        """Raise ``FileNotFoundError`` if the directory was removed, even if a second broker has created a new one of its name, and
        another ``OSError`` after ``release``.

        May be called from any thread. A removal is final: if a check passes, everything that was opened by its name before is this
        broker's.
        """
        if self._fd < 0:
            raise OSError(errno.EBADF, "the data directory was released: another broker may use it", str(self._path.parent))
        try:
            ours, found = os.fstat(self._fd), os.stat(self._path)
        except FileNotFoundError:
            # The lock alone may have been removed, by hand. No other broker has one then.
            ours, found = os.fstat(self._folder), os.stat(self._path.parent)
        if not os.path.samestat(ours, found):
            raise FileNotFoundError(
                errno.ENOENT, "the data directory was removed while it was in use; another has its name", str(self._path.parent)
            )

    def release(self) -> None:
        """Release the lock.

        With close() alone: 1. Another thread forks, and the child gets a copy of the descriptor. 2. close() leaves the copy, which
        still holds the lock. 3. The directory stays locked until the child runs and closes it. Unlocking takes effect on all
        copies.
        """
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors; in a forked child, the child's copies of them: the lock is the parent's."""
        # Ctrl-C interrupts neither of the two steps: a signal's handler runs after a call, and before the first of a function.
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._folder >= 0:
            fd, self._folder = self._folder, -1
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.abandon()


class PinnedFolder:
    """An open folder. Names in it are resolved by its descriptor: they lead to its files even if it was renamed, and another folder
    has its old name.

    ``durable`` False: it is temporary, and never forced to disk.
    """

    def __init__(self, path: Path, check: Check, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        check()

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def free_name(self, wanted: str) -> str:
        """Return ``wanted``, or if that is taken, the same with a number."""
        name, number = wanted, 1
        while os.path.lexists(self._path / name):
            number += 1
            name = f"{wanted}.{number}"
        return name

    # Small files

    def write_small(self, name: str, content: bytes, *, forced: bool = False) -> None:
        """Replace a small file atomically. ``forced``: after a power failure, too, it has its old content or the new one. Without
        that it may be empty then, since some file systems write a new name to disk before the content."""
        draft = name + UNFINISHED
        try:
            self.write_new(draft, content)
            if forced:
                self.sync(draft)
            os.replace(draft, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            with suppress(OSError):
                self.remove_small(draft)
            raise

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file whole, from its beginning."""
        with os.fdopen(os.open(name, _NEW, 0o644, dir_fd=self.fd), "wb") as file:
            file.write(content)

    def append_small(self, name: str, content: bytes) -> None:
        """Append to a small file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _AT_ONCE
        with os.fdopen(os.open(name, flags, 0o644, dir_fd=self.fd), "wb", buffering=0) as file:
            written = file.write(content)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def snapshots_before(self, offset: int) -> list[str]:
        """The names of the producer snapshots of earlier offsets."""
        names = (name for name in os.listdir(self.fd) if SNAPSHOT.fullmatch(name))
        return [name for name in names if int(name.partition(".")[0]) < offset]

    def remove_small(self, name: str) -> None:
        """Remove a small file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def discard(self, names: Iterable[str]) -> None:
        """Remove files by their names. A folder of such a name is not this broker's: log it, and leave it."""
        for name in names:
            try:
                self.remove_small(name)
            except OSError:  # IsADirectoryError on Linux, PermissionError on macOS
                if not (self._path / name).is_dir():
                    raise
                log.warning("%s is a folder, which this broker did not create: it is left as it is", self._path / name)

    # Segments

    def create(self, name: str) -> None:
        """Create a file, or empty it. If that fails, no file is left: an empty segment would end the log at the next start."""
        try:
            os.close(os.open(name, _NEW, 0o644, dir_fd=self.fd))
        except OSError:
            with suppress(OSError):
                self.remove_small(name)
            raise

    def rename(self, old: str, new: str) -> None:
        """Rename a file, if it is there."""
        with suppress(FileNotFoundError):
            os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def mark_deleted(self, names: Iterable[str]) -> None:
        """Rename files to ``.deleted``."""
        for name in names:
            self.rename(name, name + DELETED_SUFFIX)

    def remove_deleted(self) -> None:
        """Remove the ``.deleted`` files."""
        self.discard(name for name in os.listdir(self.fd) if DELETED_FILE.fullmatch(name))

    def flush(self, base_offset: int) -> None:
        """Force a segment, its transaction index and the names that lead to them to disk."""
        if not self._durable:
            return
        self.sync(file_name(base_offset, "log"))
        for suffix in (TXNINDEX, TXNINDEX_COPY):
            with suppress(FileNotFoundError):
                self.sync(file_name(base_offset, suffix))
        self.sync_names()
        sync_file(self._path.parent)

    def sync(self, name: str) -> None:
        """Force a file to disk."""
        if self._durable:
            sync_file(name, self.fd)

    def sync_names(self) -> None:
        """Force the names of the files to disk."""
        if self._durable:
            os.fsync(self.fd)

    # Folders in it

    def make_folder(self, name: str) -> None:
        """Create a folder, unless it exists."""
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.fd)

    def rename_folder(self, old: str, new: str) -> str:
        """Rename a folder to a name that no topic has, and return that: if ``new`` is taken, a number is added."""
        name = self.free_name(new)
        os.rename(old, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        return name

    def remove_folders(self, names: Iterable[str]) -> None:
        """Remove folders, as far as that is possible."""
        for name in names:
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.fd)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file that is open for reading. Raises ``OSError``, also if it is no regular file but a pipe, for
    example."""
    fd = os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        check_is_file(path, os.fstat(fd))
        yield fd
    except OSError as error:
        error.filename = error.filename or str(path)  # that of a read has none
        raise
    finally:
        os.close(fd)


def check_is_file(path: Path, found: os.stat_result) -> None:
    """Raise ``OSError`` if this is no regular file."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


def check_is_small(path: Path, size: int) -> None:
    """Raise ``OSError`` if this is not the size of a file that fits into memory."""
    if size >= _SMALL:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def read_whole(path: Path) -> bytes:
    """Return the content of a small file. Raises ``OSError``, also if it is no regular file or not small."""
    with opened(path) as fd, open(fd, "rb", closefd=False) as file:
        check_is_small(path, os.fstat(fd).st_size)
        return file.read()


def sync_file(path: Path | str, dir_fd: int | None = None) -> None:
    """Force a file to disk; of a folder, the names in it. ``dir_fd``: the open folder that ``path`` is in."""
    fd = os.open(path, os.O_RDONLY | _AT_ONCE, dir_fd=dir_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StorageError(
            f"data directory {path.parent} is in use by another broker", hint="stop that one, or give this one another directory"
        ) from None
    except OSError:
        os.close(fd)
        raise
    return fd
