"""The output folder of a run.

Owns what stands where in it, and what may be removed. Must not know what is written there. Invariant: nothing is
removed from a folder that does not carry the demo's mark, and two runs never share one.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ottla.demo import DemoFailed

MARK = ".ottla-demo"
FOLDERS = ("broker", "members", "flights", "checkpoint", "spark", "logs")
FILES = ("summary.json", "delays.png", "owners.png")


class FolderRefused(DemoFailed):
    """The output folder cannot be used; the message says why and what to do."""


@contextmanager
def prepared(out: Path) -> Iterator[Path]:
    """``out`` as an empty place for one run, kept from other runs while the ``with`` lasts."""
    with _cleared(out):
        yield out


def _cleared(out: Path) -> IO[str]:
    """Clear ``out``; it is kept from other runs until the file that this returns is closed. Raises ``FolderRefused``."""
    try:
        _check(out)
        out.mkdir(parents=True, exist_ok=True)
        file = (out / MARK).open("w")
        try:
            _clear(out, file)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise FolderRefused(f"{out} cannot be written to: {error.strerror}; choose another folder with --out") from error
    return file


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise FolderRefused(f"{out} is a file; choose another folder with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise FolderRefused(
            f"{out} holds something that the demo did not write, and it would be cleared; choose another folder with --out"
        )


def _clear(out: Path, mark: IO[str]) -> None:
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderRefused(f"another demo is running in {out}; choose another folder with --out") from None
    mark.write("The output of `ottla demo`; the next run clears its own files in here.\n")
    mark.flush()
    for name in FOLDERS:
        if (out / name).exists():
            shutil.rmtree(out / name)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    (out / "logs").mkdir()
    (out / "members").mkdir()
