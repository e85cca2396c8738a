"""The code that called ``poll()`` last, and whether ``close()`` may count the records of that poll as processed.

Owns the rule; docs/consumer.md has it as a table. Must not know positions or commits. Invariant: if the interpreter, asyncio or the
call stack shows that a record may be unprocessed, it does not count as processed and is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextvars import ContextVar, Token
from inspect import CO_VARARGS
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

_polled: ContextVar[None] = ContextVar("ottla_polled")
"""Never read. A ``Token`` of it can only be reset in the ``Context`` that created it, so it distinguishes contexts."""


class Caller:
    """The code that a poll returned to. ``task``: its asyncio task, for an ``AsyncConsumer``."""

    __slots__ = ("_cancelling", "_context", "_handling", "_task", "_uncaught", "interrupted")

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        self.interrupted: str | None = None
        """What interrupted a call that this code made while it processed the records; ``None``: nothing."""
        self._task = task
        # Only a cancellation request after the poll means that the records may be unprocessed. Older ones are counted here, since
        # before Python 3.13 a failed TaskGroup leaves its own request on the task for ever.
        self._cancelling = 0 if task is None else task.cancelling()
        # A thread has its own context, and so has each call of asyncio.to_thread(), whichever thread runs it.
        self._context: Token[None] | None = _polled.set(None) if task is None else None
        self._handling = sys.exception()
        self._uncaught = _uncaught()

    def is_running(self) -> bool:
        """Whether this is the current task, or no task is known."""
        return self._task is None or self._task is _current_task()

    def unfinished(self) -> str | None:
        """Why the records may be unprocessed; ``None``: there is no indication. The code that closes the consumer calls this."""
        handling, uncaught = sys.exception(), _uncaught()
        if handling is not None and handling is not self._handling:
            return f"{type(handling).__name__} is being handled"
        if uncaught is not None and uncaught is not self._uncaught:
            return f"{type(uncaught).__name__} was not caught"
        if _at_exit():
            return "the program has ended, perhaps by sys.exit() while they were processed"
        if self.interrupted is not None:
            return self.interrupted
        if _in_signal_handler():
            return "a signal handler closes, perhaps while they are processed"
        if self._task is not None:
            return _unfinished(self._task, self._cancelling)
        return None if self._is_same_context() else "another thread, or another context, polled"

    def _is_same_context(self) -> bool:
        if self._context is None:
            return True
        try:
            _polled.reset(self._context)
        except (ValueError, RuntimeError):  # created in another context; or already used, by an interrupted close()
            return False
        return True


def _unfinished(task: asyncio.Task[Any], cancelling: int) -> str | None:
    """Why the records of a task that polled last may be unprocessed; ``cancelling``: its earlier cancellation requests."""
    name = f"task {task.get_name()!r}, which polled last,"
    if task.done() and not task.cancelled():
        error = task.exception()
        if error is not None:
            # asyncio does not report an exception that was retrieved, so it is reported here.
            _log.warning("%s has failed", name, exc_info=error)
            return f"{name} has failed with {type(error).__name__}"
    if task.cancelled() or task.cancelling() > cancelling:
        return f"{name} was cancelled"
    if not task.done() and task is not _current_task():
        return f"{name} is not done"
    return None


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop is running in this thread
        return None


def _uncaught() -> BaseException | None:
    """The latest uncaught exception: the interactive shell, pytest and the end of the interpreter store it here."""
    attributes = vars(sys)  # getattr() takes microseconds if the attribute is missing, and each poll does this
    error: BaseException | None = attributes.get("last_exc") or attributes.get("last_value")
    return error


def _at_exit() -> bool:
    """Whether this thread runs functions that were registered with ``atexit``.

    The interpreter stores an uncaught exception, but not a ``SystemExit``. So a program that raised ``SystemExit`` in the middle of
    its records, in a SIGTERM handler for example, cannot be distinguished from one that has reached its end.
    """
    main = threading.main_thread()
    return threading.current_thread() is main and not main.is_alive()


def _in_signal_handler() -> bool:
    """Whether this thread runs a signal handler.

    Python calls a handler with the interrupted frame as an argument, and that frame is also the one below the handler's own.
    ``signal.getsignal()`` would not find a handler that has replaced itself, as many do in their first line.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs signal handlers only on the main thread
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_called_with(frame, frame.f_back):
            return True
        frame = frame.f_back
    return False


def _is_called_with(frame: FrameType, wanted: object) -> bool:
    """Whether ``wanted`` is among the positional arguments of this call."""
    code = frame.f_code
    more = bool(code.co_flags & CO_VARARGS)
    if wanted is None or (code.co_argcount < 2 and not more):
        return False  # no signal handler; before Python 3.13 ``f_locals`` is a copy that lives as long as the frame
    given = frame.f_locals
    arguments = [given.get(name) for name in code.co_varnames[: code.co_argcount]]
    if more:
        arguments += given.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(argument is wanted for argument in arguments)
