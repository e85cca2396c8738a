"""Processes that run simulations for a command, in parallel.

Owns the processes. Must not know what they run. Invariants: interrupted at any moment, the command leaves no process running; sets
have the same order in each process.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from typing import TypeVar

from ottla.signals import STOP_SIGNALS, Stop

T = TypeVar("T")

LOOK = 0.1
"""Seconds between two looks for a signal."""


@contextmanager
def processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run what they are given. At the end of the ``with`` they have ended, whatever they were doing."""
    pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), _begin)
    try:
        with _inherited():
            wait([pool.submit(int) for _ in range(number)])  # each task starts a process, since there is none without one
        yield pool
        pool.shutdown()
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _inherited() -> Iterator[None]:
    """What processes inherit that start during the ``with``.

    The same order of sets in each process. And blocked signals: Ctrl-C reaches them, too, but the command ends them, and
    while they import the package they print tracebacks.
    """
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    blocks = hasattr(signal, "pthread_sigmask")  # not on Windows
    if blocks:
        resource_tracker.ensure_running()  # if it starts later, it unblocks them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS) if blocks else set()
    try:
        yield
    finally:
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.pop("PYTHONHASHSEED")
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


def _begin() -> None:
    """Prepare a process: it ends with the command, and collects garbage between two runs, which saves a tenth of the time."""
    import ottla.simulation.run  # noqa: F401 - not at the top: the other commands, which import this module, start in half the time

    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()
    gc.disable()


def _end_with_parent() -> None:
    # 1. The command is killed, and ends no process. 2. Each process holds an end of the pipe that the tasks come from, so none of
    # them would notice.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def results(started: Iterator[Future[T]], ahead: int, stop: Stop) -> Iterator[T]:
    """Yield the results in the order of their arrival, with no more than ``ahead`` futures of ``started`` at a time."""
    waiting = set(islice(started, ahead))
    while waiting:
        done, waiting = wait(waiting, LOOK, FIRST_COMPLETED)
        stop.check()
        for future in done:
            waiting.update(islice(started, 1))
            yield future.result()
