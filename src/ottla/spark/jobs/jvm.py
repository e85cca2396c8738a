"""The JVM of a session: whether it lives, and what is said if it does not.

Owns the look at its process. Must not know the job. Invariant: without the JVM there is one error that says so, instead of those of
each call into it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError

JVM_END = 2.0
"""Seconds within which a JVM that no longer answers has ended."""
POLL = 0.1
ENDED = "Spark's JVM has ended"
LOGGERS = (None, "py4j.java_gateway", "py4j.clientserver")
"""Those with which py4j logs; the first is the root logger."""


def is_alive(session: Any) -> bool:
    """Whether the JVM lives. Of a server of Connect the queries' errors say it."""
    if not hasattr(session, "_jvm"):
        return True
    process = getattr(session.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def has_ended(session: Any, error: Exception) -> bool:
    """Whether the JVM has ended, or does so soon. The error of a call into it may be the first sign of that."""
    from pyspark.errors import PySparkException

    # An exception of PySpark is an answer of the JVM.
    return ends_within(0 if isinstance(error, PySparkException) else JVM_END, lambda: is_alive(session))


def ends_within(timeout: float, is_alive: Callable[[], bool]) -> bool:
    """Whether the JVM has ended, or does so within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while is_alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)
    return True


@contextlib.contextmanager
def required(session: Any, hint: str | None = None) -> Iterator[None]:
    """Raise ``OttlaError`` if the ``with`` fails because the JVM has ended."""
    try:
        yield
    except OttlaError:
        raise
    except Exception as error:
        if not has_ended(session, error):
            raise
        raise OttlaError(ENDED, hint=hint, cause=error) from error


@contextlib.contextmanager
def without_tracebacks_of_py4j() -> Iterator[None]:
    """Drop what py4j logs: two tracebacks for each call when the JVM has ended, and the one of a function in ``foreachBatch``, with
    all frames of the JVM. An error of Ottla says the same. (The filter of a logger does not apply to the loggers below it.)"""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts
