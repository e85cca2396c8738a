"""What a worker process of Spark keeps from task to task: connected consumers, and a heap that is quick to sweep.

Owns the module's globals, which live as long as the process. Must not know what is read. Invariants: a consumer is lent to one
task at a time; one that a task failed with is closed, not kept; none is used in a process other than the one that made it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import Iterator

from ottla.consumer import Consumer
from ottla.errors import OttlaError

log = logging.getLogger(__name__)

Settings = tuple[tuple[str, str], ...]

EXECUTOR_SETTINGS = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "allow.auto.create.topics": "false",
    "max.poll.records": "100000",
    "max.partition.fetch.bytes": str(4 * 2**20),
    "fetch.max.wait.ms": "20",
}
"""Settings of an executor's client, before the user's. Fetches and polls are as large as Spark takes them. No fetch waits for
records to come: what is planned is there, and the next task's fetch would queue behind it."""

CLOSE_TIMEOUT = 1.0
"""Seconds; nothing is left to do when a consumer without a group is closed."""

MAX_IDLE_CONSUMERS = 4
"""Idle consumers that a process keeps, each with other settings."""

FREEZE_AT = frozenset({1, 2, 4, 8, 64})
"""The tasks of a process at which its heap is frozen."""

_idle: dict[tuple[int, Settings], Consumer] = {}
_tasks = 0


@contextlib.contextmanager
def borrowed_consumer(settings: Settings) -> Iterator[Consumer]:
    """A consumer with these settings, connected already where a task before has used it. Its assignment is the borrower's."""
    key = (os.getpid(), settings)
    consumer = _idle.pop(key, None) or Consumer({**EXECUTOR_SETTINGS, **dict(settings)})
    try:
        yield consumer
    except GeneratorExit:
        # Spark has all the rows it wants, as with LIMIT.
        _keep(key, consumer)
        raise
    except BaseException:
        _close(consumer)
        raise
    _keep(key, consumer)


def _keep(key: tuple[int, Settings], consumer: Consumer) -> None:
    """Let a consumer rest until a task asks for it; where there are too many, the one that has rested longest goes."""
    try:
        consumer.unsubscribe()
    except OttlaError as error:
        log.info("a consumer is not kept: %s", error)
        _close(consumer)
    else:
        _idle[key] = consumer
        while len(_idle) > MAX_IDLE_CONSUMERS:
            _close(_idle.pop(next(iter(_idle))))


def _close(consumer: Consumer) -> None:
    with contextlib.suppress(OttlaError):
        consumer.close(timeout=CLOSE_TIMEOUT)


def start_task() -> None:
    """Call at the beginning of each task.

    Spark's worker sweeps its whole heap after every task: 24 to 38 ms with pyarrow and pandas loaded. What a process has loaded by
    its first few tasks it keeps anyway, so it is taken out of the sweep.
    """
    global _tasks
    _tasks += 1
    if _tasks in FREEZE_AT:
        gc.collect()
        gc.freeze()
