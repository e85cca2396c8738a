"""A disk with failing operations, for brokers in this process.

Owns the count of file operations and the failure of chosen ones. Must not know the purpose of an operation.
Invariant: an operation counts only if the broker's own file code calls it, so that the same calls of a test count
the same; a failed operation leaves the files unchanged, except for a write, whose first half is written.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

OF_OS: tuple[str, ...] = ("open", "fsync", "ftruncate", "listdir", "mkdir", "pread", "rename", "replace")
OF_OS += ("scandir", "stat", "statvfs", "truncate", "unlink", "write", "writev")
_OF_FILES = ("runtime/folders.py", "runtime/log_files.py", "runtime/data_dir.py")
_DEPTH = 16
"""Frames between the broker's code for files and the operating system: those of ``pathlib`` and ``shutil``."""


class FailingDisk:
    """Counts operations while ``watching``, and fails those whose numbers are in ``failing``."""

    def __init__(self) -> None:
        self.count = 0
        self.failing: range = range(0)
        self.failed: list[str] = []
        self.synced: dict[int, int] = {}
        """Inode -> how many bytes of the file were forced to disk."""
        self._watching = False

    @contextmanager
    def watching(self, failing: range = range(0)) -> Iterator[None]:
        """Count from 0; numbers in ``failing`` fail."""
        self.count, self.failing, self.failed = 0, failing, []
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Do not count operations, such as a test's own reads."""
        watching, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = watching

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        """Replace the disk of this process; ``patch`` is ``MonkeyPatch.setattr``."""
        for name in OF_OS:
            patch(os, name, self._wrapped(name, getattr(os, name)))
        patch(io, "open", self._opening(self._wrapped("io.open", io.open)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **keywords: Any) -> Any:
            if self._fails(name, *args[:1]):
                if name == "writev":
                    data = b"".join(args[1])
                    real(args[0], [data[: len(data) // 2]])
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if name != "fsync":
                return real(*args, **keywords)
            # The tests read the state after a power failure only from this count; a real fsync() is slow.
            found = os.fstat(args[0])
            self.synced[found.st_ino] = found.st_size
            return None

        return operation

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``io.open``, which ``pathlib`` and ``os.fdopen`` use, too: files that are opened for writing fail when written."""

        def opened(path: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
            file = real(path, mode, *args, **keywords)
            return _Written(self, file) if "b" in mode and set(mode) & set("wa+") else file

        return opened

    def _fails(self, name: str, *what: Any) -> bool:
        """Count an operation of the broker; returns whether it fails."""
        if not (self._watching and _asked_by_broker(sys._getframe(2))):
            return False
        number, self.count = self.count, self.count + 1
        if number in self.failing:
            self.failed.append(f"{name}{what}")
        return number in self.failing


class _Written:
    """A file that was opened for writing."""

    def __init__(self, disk: FailingDisk, file: Any) -> None:
        self._disk, self._file = disk, file

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        data = bytes(content)
        if self._disk._fails("write", self._file.name):
            self._file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(data))


def _asked_by_broker(frame: FrameType | None) -> bool:
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(_OF_FILES):
            return True
        frame = frame.f_back
    return False


def on_disk(disk: FailingDisk, folder: Path, base_offset: int) -> int:
    """Bytes of a segment that were forced to disk."""
    return disk.synced.get(os.stat(folder / f"{base_offset:020d}.log").st_ino, 0)
