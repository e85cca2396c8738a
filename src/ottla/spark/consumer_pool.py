"""The idle consumers of a worker process of Spark, for reuse by later tasks.

Owns the module's global pool, which lives as long as the process. Must not know what is read. Invariants: one task at a time uses a
consumer; a consumer is closed after an error; no consumer is used in a process other than the one that created it.
"""

from __future__ import annotations

import contextlib
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
"""Defaults of an executor's client that the user's settings override. Fetches and polls are large, as Spark takes large batches.
``fetch.max.wait.ms`` is short: the planned records exist already, and a fetch of the next task would queue behind one that
waits."""

CLOSE_TIMEOUT = 1.0
"""Seconds; closing a consumer without a group does not wait for a coordinator."""

MAX_IDLE_CONSUMERS = 4
"""Idle consumers that a process keeps, each with different settings."""

_idle: dict[tuple[int, Settings], Consumer] = {}


@contextlib.contextmanager
def borrowed_consumer(settings: Settings) -> Iterator[Consumer]:
    """Yield a consumer with these settings, if possible a connected one of an earlier task. The caller assigns its partitions."""
    key = (os.getpid(), settings)
    consumer = _idle.pop(key, None) or Consumer({**EXECUTOR_SETTINGS, **dict(settings)})
    try:
        yield consumer
    except GeneratorExit:
        # Spark closes the generator when it has enough rows, as with LIMIT.
        _keep(key, consumer)
        raise
    except BaseException:
        _close(consumer)
        raise
    _keep(key, consumer)


def _keep(key: tuple[int, Settings], consumer: Consumer) -> None:
    """Keep the consumer for later tasks, and close the longest idle ones above ``MAX_IDLE_CONSUMERS``."""
    try:
        consumer.unsubscribe()
    except OttlaError as error:
        log.info("closing a consumer that cannot be reused: %s", error)
        _close(consumer)
    else:
        _idle[key] = consumer
        while len(_idle) > MAX_IDLE_CONSUMERS:
            _close(_idle.pop(next(iter(_idle))))


def _close(consumer: Consumer) -> None:
    with contextlib.suppress(OttlaError):
        consumer.close(timeout=CLOSE_TIMEOUT)
