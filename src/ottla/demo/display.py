"""The progress of a run: bars on a terminal, plain lines elsewhere.

Owns the console during the run, and the duration of each step. Must not know what the steps do. Invariant: the output is readable
in a log file, and nothing prompts for input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

TITLE_WIDTH = 34
QUARTERS = 4
"""Without a terminal, a step with a total prints its progress at each quarter."""


class Step:
    """The step that is running."""

    def __init__(self, title: str, total: int | None, console: Console, progress: Progress, task: TaskID) -> None:
        self._title, self._total = title, total
        self._console, self._progress, self._task = console, progress, task
        self._quarters_said = 0

    def update(self, done: int) -> None:
        """Show that ``done`` of the total are done."""
        self._progress.update(self._task, completed=done)
        if self._console.is_terminal or not self._total:
            return
        quarters = done * QUARTERS // self._total
        if self._quarters_said < quarters < QUARTERS:
            self._quarters_said = quarters
            self._console.print(f"  {self._title}: {done:,} of {self._total:,}")

    def say(self, text: str) -> None:
        """Print one line about an event."""
        self._console.print(f"  {text}", soft_wrap=True)


class Display:
    """The steps of a run; ``seconds`` has the duration of each."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, title: str, total: int | None = None) -> Iterator[Step]:
        """Show ``title`` during the ``with`` block, and store its duration under ``name``."""
        columns = (
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn(f"{{task.description:<{TITLE_WIDTH}}}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn() if total else TextColumn(""),
            TimeElapsedColumn(),
        )
        live = self.console.is_terminal
        if not live:
            self.console.print(f"{title} ...")
        began = time.monotonic()
        with Progress(*columns, console=self.console, disable=not live) as progress:
            task = progress.add_task(title, total=total)
            yield Step(title, total, self.console, progress, task)
            self.seconds[name] = round(time.monotonic() - began, 2)
            progress.update(task, total=total or 1, completed=total or 1)
        if not live:
            self.console.print(f"{title}: done in {self.seconds[name]:.1f} s")
