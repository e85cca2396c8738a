"""The state of a run, in the directory ``_pipeline`` beside the checkpoints, and the locks.

Owns the files of that directory: ``state.json``, which is replaced as a whole; ``lock``, which a run holds; ``errors.log``,
``spark.log`` and ``drain``; and the lock in each checkpoint, which may be anywhere. Must not know Spark. Invariants: one run at a
time has a lock, which the operating system releases with the process; a reader never sees half of a state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError
from ottla.spark.locations import local_path

FOLDER = "_pipeline"
"""The underscore keeps it apart from the queries, whose names begin with a letter or a digit."""
CHECKPOINT_LOCK = "_pipeline.lock"
"""The lock in a checkpoint, of which Spark reads only the files that it knows. (The directory around a checkpoint may be read-only,
and on NFS a directory itself cannot be locked.)"""
DIGITS = 8
"""Of the hash of a URL."""
CHECKPOINTS = "checkpoints"
LOCK_TIMEOUT = 0.5
"""Seconds to try to get the lock: ``status`` has it for a moment."""
LOCK_POLL = 0.02
UNKNOWN = "unknown"
RUNNING, ENDED, FAILED = "running", "ended", "failed"
"""The states of a run in its state file."""
MOST_BYTES = 10_000_000
"""Bytes of the log of errors, of which the one before is kept."""


def job_of(checkpoint: Path) -> Path | None:
    """Return the directory of the checkpoints of a job that runs now, if the checkpoint is one of them. If the job has set it with
    ``checkpointLocation``, return the checkpoint itself."""
    own = checkpoint.resolve()
    if _is_locked(own.parent / FOLDER / "lock"):
        return own.parent
    return own if _is_locked(own / CHECKPOINT_LOCK) else None


@contextlib.contextmanager
def locked_checkpoints(checkpoints: Mapping[str, str]) -> Iterator[None]:
    """Hold the lock of each checkpoint that is on a local disk. Raises ``OttlaError`` if another run has one of them.

    ``checkpoints`` has those of the queries, by name. The lock of the job does not suffice: another job, or the same with other
    ``--checkpoints``, may have the same ``checkpointLocation``.
    """
    with contextlib.ExitStack() as locks:
        for name, location in checkpoints.items():
            if (path := local_path(location)) is None:
                continue
            lock = Path(path, CHECKPOINT_LOCK)
            try:
                lock.parent.mkdir(parents=True, exist_ok=True)
                file = locks.enter_context(_held(lock))
            except BlockingIOError as error:
                raise OttlaError(
                    f"the query {name!r} runs already, in process {_process_in(lock)}: its checkpoint is {location}",
                    hint="stop that run, or set another checkpointLocation",
                ) from error
            except OSError:  # Spark says what is wrong with the path, or finds it on another file system
                continue
            with contextlib.suppress(OSError):  # a full disk
                os.ftruncate(file, 0)
                os.write(file, str(os.getpid()).encode())
        yield


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[int]:
    """Hold a lock, whose file is created, and return its descriptor. Raises ``BlockingIOError`` if another run has it."""
    import fcntl

    with lock.open("a+") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(LOCK_POLL)
        yield file.fileno()


def _process_in(lock: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return lock.read_text() or UNKNOWN
    return UNKNOWN


def _is_locked(lock: Path) -> bool:
    import fcntl

    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def default_checkpoints(job: Path) -> str:
    """Return the directory of the checkpoints of a job without the option: ``checkpoints/NAME`` beside ``NAME.py``."""
    return str(job.resolve().parent / CHECKPOINTS / job.stem)


class RunDirectory:
    """The directory of a job's runs. ``checkpoints`` may be a URL of a file system that only Spark knows; then the directory is
    where the checkpoints would be without the option, with a hash of the URL in its name."""

    def __init__(self, job: Path, checkpoints: str) -> None:
        path = local_path(checkpoints)
        self.is_local = path is not None
        if path is not None:
            self.path = Path(path).absolute() / FOLDER
        else:  # runs with other URLs have other checkpoints
            digest = hashlib.sha256(checkpoints.rstrip("/").encode()).hexdigest()
            self.path = Path(default_checkpoints(job)) / f"{FOLDER}-{digest[:DIGITS]}"
        self._written = ""

    @property
    def spark_log(self) -> Path:
        """The JVM's log."""
        return self.path / "spark.log"

    @property
    def error_log(self) -> Path:
        """The errors of queries, as Spark gives them."""
        return self.path / "errors.log"

    @property
    def drain(self) -> Path:
        """The file that ends the job. It is not in a temporary directory, where a cleaner may remove it from a service."""
        return self.path / "drain"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises ``OttlaError`` if another run has it, or if the directory cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "lock").touch()
        except OSError as error:
            raise OttlaError(f"cannot write to {self.path}: {error.strerror}", cause=error) from error
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(_held(self.path / "lock"))
            except BlockingIOError as error:
                raise self._runs_already() from error
            yield

    def _runs_already(self) -> OttlaError:
        process = UNKNOWN
        with contextlib.suppress(OttlaError):  # of a damaged state
            process = self.read().get("process", process)
        return OttlaError(
            f"the job runs already, as process {process}: its checkpoints are in {self.path.parent}",
            hint="stop it, or give this run its own --checkpoints; a checkpointLocation in the file has to be another one as well",
        )

    def is_running(self) -> bool:
        """Whether a run has the lock."""
        return _is_locked(self.path / "lock")

    def write(self, state: dict[str, Any]) -> None:
        """Replace the state, if it has changed."""
        text = json.dumps(state, indent=2) + "\n"
        if text == self._written:
            return
        new = self.path / "state.json.new"
        new.write_text(text)
        os.replace(new, self.path / "state.json")
        self._written = text

    def read(self) -> dict[str, Any]:
        """Return the state that the latest run has written last; empty if there is none. Raises ``OttlaError`` for another file."""
        path = self.path / "state.json"
        try:
            state = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise OttlaError(f"cannot read {path}: {error}", hint="the next run writes it again", cause=error) from error
        if not isinstance(state, dict):
            raise OttlaError(f"{path} is not the state of a run", hint="the next run writes it again")
        return state

    def add_error(self, query: str, text: str) -> None:
        """Append an error of Spark to the log of errors, whose disk may be full."""
        with contextlib.suppress(OSError):
            if self.error_log.exists() and self.error_log.stat().st_size > MOST_BYTES:
                os.replace(self.error_log, self.error_log.with_suffix(".log.1"))
        with contextlib.suppress(OSError), open(self.error_log, "a", errors="replace") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {query}\n{text.rstrip()}\n\n")
