"""The output directory of a run.

Owns the names in it, and the deletion of earlier results. Must not know the content. Invariant: nothing is deleted from a directory
without the demo's marker file, and two runs never share one.
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
FOLDERS = ("broker", "zookeeper", "members", "flights", "checkpoint", "spark", "logs")
FILES = ("summary.json", "delays.png", "owners.png")


class OutputDirectoryError(DemoFailed):
    """The output directory cannot be used. The message has the reason and the remedy."""


@contextmanager
def locked_output_directory(out: Path) -> Iterator[Path]:
    """Clear ``out`` for one run, and lock it against other runs during the ``with`` block."""
    with _lock_and_clear(out):
        yield out


def _lock_and_clear(out: Path) -> IO[str]:
    """Clear ``out``, and return the file whose lock keeps other runs out until it is closed. Raises ``OutputDirectoryError``."""
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
        raise OutputDirectoryError(f"cannot write to {out}: {error.strerror}; choose another directory with --out") from error
    return file


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise OutputDirectoryError(f"{out} is a file; choose another directory with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise OutputDirectoryError(
            f"{out} has files that are not from the demo, which would delete them; choose another directory with --out"
        )


def _clear(out: Path, mark: IO[str]) -> None:
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputDirectoryError(f"another demo is running in {out}; choose another directory with --out") from None
    mark.write("The output of `ottla demo`. The next run deletes the demo's files in this directory.\n")
    mark.flush()
    for name in FOLDERS:
        if (out / name).exists():
            shutil.rmtree(out / name)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    (out / "logs").mkdir()
    (out / "members").mkdir()
