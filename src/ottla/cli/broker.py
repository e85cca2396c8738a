"""``ottla broker``: the embedded broker as a program, and the check of what one left behind.

Owns the first line of ``start`` on stdout, which scripts read, and its end; how ``check`` prints what was found. Must not know what
the broker does, nor how a directory is checked. Invariants: SIGTERM, SIGHUP and Ctrl-C end ``start`` cleanly with exit code 0, from
its first line on; ``check`` ends with 0 only if nothing is wrong, or if a repaired copy is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ottla
from ottla.cli.options import Command, Format, OutputFormat, folder, pairs
from ottla.cli.streams import end_writes_on
from ottla.signals import Interrupted, Stop, noted_signals, wait_for_signal

app = typer.Typer(help="Run an embedded broker, or check what one has stored.", no_args_is_help=True)


@app.callback()
def nouns() -> None:
    """Run an embedded broker, or check what one has stored."""


@app.command(cls=Command)
def start(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            parser=folder,
            metavar="PATH",
            help="Where topics, groups and offsets are stored; default: a temporary folder.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="The port to listen on; 0 picks a free one.", min=0, max=65535)] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A broker setting by Kafka's name; may be repeated.")
    ] = None,
) -> None:
    """Run a broker until SIGTERM, SIGHUP or Ctrl-C."""
    with ottla.Broker(data_dir=data_dir, port=port, settings=pairs(settings, "--set")) as broker:
        stop = Stop()
        stop.signal = wait_for_signal(
            announce=lambda: print(f"ottla broker listening on {broker.bootstrap_servers}", flush=True),
            meanwhile=lambda: broker.bootstrap_servers,  # raises if the broker has failed
        )
        end_writes_on(stop)


@app.command(cls=Command)
def check(
    data_dir: Annotated[Path, typer.Option("--data-dir", parser=folder, metavar="PATH", help="The directory of a stopped broker.")],
    repair: Annotated[bool, typer.Option("--repair", help="Write a repaired copy; the directory itself is never changed.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=folder, metavar="PATH", help="Where the copy goes; default: the directory with .repaired."),
    ] = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Verify everything that a broker has stored; exit code 1 if something is wrong."""
    if out is not None and not repair:
        raise typer.BadParameter("it needs --repair", param_hint="--out")
    from ottla.cli.checking import check_directory

    with noted_signals() as stop:
        end_writes_on(stop)
        try:
            check_directory(data_dir, output, stop, out or repaired(data_dir) if repair else None)
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from None


def repaired(data_dir: Path) -> Path:
    """Where a repaired copy goes by default."""
    path = data_dir.absolute()
    return path.with_name(path.name + ".repaired")
