"""Temporary folders of servers: made for a broker or ZooKeeper without a data directory, and removed when their process is gone.

Owns their names, and the lock on ``.owner``, which shows that the process lives. Must not know their content. Invariants: a folder
with ``.owner`` is locked from the moment that it has this file until its process ends; only such a folder, of this user and not
locked, is removed, with ``.owner`` last, so that another start goes on where one was interrupted.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

Server = Literal["broker", "zookeeper"]
_NAME = re.compile(rf"ottla-(?:{'|'.join(get_args(Server))})-[a-z0-9_]{{8}}")
"""The names that ``tempfile.mkdtemp`` creates with the prefixes."""

_OWNER, _NEW_OWNER = ".owner", ".owner.new"


class TemporaryFolder:
    """A folder that is removed with ``remove``, or by ``remove_abandoned`` of another process when this one is gone."""

    def __init__(self, server: Server) -> None:
        """Raises ``OSError``."""
        self.path = Path(tempfile.mkdtemp(prefix=f"ottla-{server}-"))
        self._fd = -1
        try:
            self._fd = os.open(self.path / _NEW_OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self.path / _NEW_OWNER, self.path / _OWNER)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder, as far as that is possible."""
        with suppress(OSError):
            _remove(self.path)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def remove_abandoned() -> None:
    """Remove the folders of this user's processes that have ended, as far as possible."""
    parent = tempfile.gettempdir()
    with suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
        for name in names:
            with suppress(OSError):
                _remove_if_abandoned(Path(parent, name))


def _remove_if_abandoned(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.open(_OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives, or another start removes it
            held = os.fstat(owner)
            # Another start may have removed the folder before the lock was taken.
            is_there = os.path.samestat(held, os.stat(_OWNER, dir_fd=folder, follow_symlinks=False))
            if is_there and stat.S_ISREG(held.st_mode) and held.st_uid == os.fstat(folder).st_uid == os.geteuid():
                _remove(path)
        finally:
            os.close(owner)
    finally:
        os.close(folder)


def _remove(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, ignore_errors=True, dir_fd=folder)
            elif entry.name != _OWNER:
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
        if os.listdir(folder) == [_OWNER]:
            os.unlink(_OWNER, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(path)
