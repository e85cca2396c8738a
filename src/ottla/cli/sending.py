"""One run of ``ottla produce``: a thread that reads and sends, and the command that waits for it.

Owns the count of the records, the progress on a terminal, and the end: by the input, an error or a signal. Must not know what the
input is. Invariants: only acknowledged records count as written; every error and every interruption says how many those are; a
signal never interrupts the sending of a record, since the command's own thread sends none.
"""

from __future__ import annotations

import gc
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import ottla
from ottla import Delivery
from ottla.cli.output import CommandFailed
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.errors import IllegalStateError, InvalidRecordError, OttlaError, OttlaTimeoutError
from ottla.signals import Interrupted, Stop, recorded_signals

LOOK = 0.1
"""Seconds between two looks at the outcomes of records."""
CLOSE_GRACE = 2.0
"""Seconds for the acknowledgements that are missing when a signal arrives."""
END_GRACE = 0.5
"""Seconds for the thread to notice that the command ends, if it does not wait for input."""

_HINTS = {
    InvalidRecordError: "a topic with cleanup.policy=compact rejects records without a key: see -K",
    OttlaTimeoutError: "see -X delivery.timeout.ms",
}
_ROW = re.compile(r"^row (\d+):")
_ACCEPTED = re.compile(r"^(\d+) rows before that were accepted")
"""In an error of ``send_arrow`` and in its note: the row in that call, and the number of rows that are written nevertheless."""


class Input(Protocol):
    """Where records come from."""

    @property
    def total(self) -> int | None:
        """The number of records; ``None``: unknown."""

    def send_to(self, sending: Sending) -> None:
        """Send all records, until ``sending.is_over``. Raises ``CommandFailed`` if one of them, or the input, is unusable."""

    def place(self, sending: Sending) -> str:
        """The last record that was sent, such as ``line 7``."""


class Sending:
    """Sends records, and counts their outcomes. One thread sends them, the one that waits for it counts."""

    def __init__(self, producer: ottla.Producer, topic: str | None, headers: list[tuple[str, bytes]]) -> None:
        self.topic = topic
        self.is_over = False
        """Whether no more records are to be sent."""
        self.error: OttlaError | None = None
        """The error of the first record that was not written."""
        self.accepted = self.written = self.failed = 0
        """``accepted`` are those that were sent; the other two are the outcomes so far."""
        self._producer = producer
        self._settled: deque[Delivery] = deque()
        """The records with an outcome that is not counted yet. Any thread adds to it."""
        self.send = partial(producer.send, topic or "", headers=headers, on_delivery=self._settled.append)
        """Sends a value and a key. Waits for memory, and for the topic. The caller adds the record to ``accepted``."""
        self._rows: deque[Any] = deque()
        """The outcomes of calls of ``send_arrow``, until they are counted."""
        self._before_error = 0
        """The rows that were accepted by a call of ``send_arrow`` that failed, for which there is no outcome."""

    def send_rows(self, rows: Any, first: int) -> None:
        """Send Arrow data that begin with row ``first`` of the input. Raises ``CommandFailed`` if a row cannot be a record."""
        try:
            delivery = self._producer.send_arrow(rows, self.topic)
        except (TypeError, ValueError, OttlaError) as error:
            notes = [_ACCEPTED.match(note) for note in getattr(error, "__notes__", ())]
            self._before_error = sum(int(found[1]) for found in notes if found)
            raise CommandFailed(_ROW.sub(lambda found: f"row {first + int(found[1])}:", str(error))) from error
        self._rows.append(delivery)
        self.accepted += delivery.count

    def look(self) -> None:
        """Count the outcomes that there are."""
        for _ in range(len(self._settled)):
            error = self._settled.popleft().error()
            self._count(int(error is None), int(error is not None), error)
        while self._rows and self._rows[0].done():
            rows = self._rows.popleft()
            error, written = rows.error(), sum(part.rows for part in rows.written())
            self._count(written, rows.count - written, error)

    def _count(self, written: int, failed: int, error: OttlaError | None) -> None:
        self.written += written
        self.failed += failed
        self.error = self.error or error

    def finish(self, stop: Stop) -> None:
        """Wait for all outcomes; after a signal, at most for ``CLOSE_GRACE``."""
        self.is_over = True
        while not stop and self.accepted > self.written + self.failed:
            try:
                self._producer.flush(LOOK)
            except IllegalStateError:
                raise
            except OttlaError:  # of rows that are counted here; or some records have no outcome yet
                self.look()
            self.look()
        with suppress(OttlaError):  # the same
            self._producer.close(*([CLOSE_GRACE] if stop else []))
        self.look()
        if not self.failed:
            self.written += self._before_error

    def summary(self) -> str:
        """How many records were written."""
        return f"{self.written:,} {'record was' if self.written == 1 else 'records were'} written"

    def refusal(self) -> str:
        """Why records were not written."""
        assert self.error is not None
        hint = next((text for kind, text in _HINTS.items() if isinstance(self.error, kind)), None)
        to = f" to {self.topic}" if self.topic else ""
        records = f"{self.failed:,} record{'s' if self.failed > 1 else ''}"
        return f"{records} not produced{to}: {self.error}{f' ({hint})' if hint else ''}"


class _Worker:
    """The thread that reads and sends. When the command ends it may wait for input, but do nothing else: PyArrow would abort."""

    def __init__(self, source: Input, sending: Sending) -> None:
        self.ended = False
        self.error: BaseException | None = None
        self._source, self._sending = source, sending
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ottla-produce", daemon=True)
        self.start = self._thread.start
        self.join = self._thread.join

    def wake(self) -> None:
        """End the wait. A signal's handler may call this."""
        self._bell.put(None)

    def wait(self, timeout: float) -> None:
        """Wait until the thread has ended, or for ``timeout`` seconds."""
        with suppress(Empty):
            self._bell.get(timeout=timeout)

    def _run(self) -> None:
        try:
            self._source.send_to(self._sending)
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self.wake()


def produce_all(source: Input, sending: Sending, producer: ottla.Producer, *, shows_progress: bool) -> None:
    """Send all records of an input, and wait until they are written.

    Raises ``CommandFailed`` after an error, and ``typer.Exit`` after a signal, when no records are under way any more.
    """
    worker = _Worker(source, sending)
    with _rare_collections(), recorded_signals() as stop, _progress(source, shows_progress) as show:
        interrupt_writes_on(stop)
        stop.wake = worker.wake
        worker.start()
        while not (worker.ended or stop or sending.error):
            worker.wait(LOOK)
            producer.poll()
            sending.look()
            show(sending.written)
        is_whole = worker.ended and worker.error is None
        sending.finish(stop)
        show(sending.written)
        worker.join(END_GRACE)
    if stop.signal is not None:
        lost = f", {sending.failed:,} not acknowledged" if sending.failed else ""
        typer.echo(f"interrupted by {stop.signal.name}: {sending.summary()}{lost}", err=True)
        raise typer.Exit(Interrupted(stop.signal).exit_code)
    if sending.error is not None:
        where = "" if is_whole else f"; stopped after {source.place(sending)}"
        raise CommandFailed(f"{sending.refusal()}{where}; {sending.summary()}") from sending.error
    if isinstance(worker.error, CommandFailed | OttlaError):
        raise CommandFailed(f"{worker.error}; {sending.summary()}" if sending.accepted else str(worker.error)) from worker.error
    if worker.error is not None:
        raise worker.error


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for unreachable objects less often. Tens of thousands of records wait at a time: to look at them all takes a quarter of
    the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _progress(source: Input, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yields a function that gets the number of written records."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} records"), TimeElapsedColumn())
    bar = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task("producing", total=source.total)
    with bar if is_shown and console.is_terminal else nullcontext():
        yield lambda written: bar.update(task, completed=written, total=source.total)
