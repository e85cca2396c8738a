"""``ottla broker``: runs the embedded broker, and checks the data directory of a stopped one.

Owns the first line of ``start`` on stdout, which scripts parse, and its shutdown by signals. Must not know how the broker works,
nor how a directory is checked. Invariants: from the first line on, SIGTERM, SIGHUP and Ctrl-C end ``start`` cleanly with exit code
0; ``check`` exits with 0 only if nothing is wrong, or if a repaired copy is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ottla
from ottla.cli.options import Format, OutputFormat, SingleValueCommand, parse_pairs, parse_path
from ottla.cli.output import report_as_server
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.signals import Interrupted, Stop, recorded_signals, wait_for_signal

app = typer.Typer(help="Run an embedded broker, or check its data directory.", no_args_is_help=True, add_completion=False)


@app.callback()
def broker_group() -> None:
    """Run an embedded broker, or check its data directory."""


@app.command(cls=SingleValueCommand)
def start(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            parser=parse_path,
            metavar="PATH",
            help="Directory for topics, groups and offsets; default: a temporary directory.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 picks a free one.", min=0, max=65535)] = 0,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            metavar="SERVERS",
            help="ZooKeeper of the cluster, as HOST:PORT,HOST:PORT/CHROOT; default: the broker is its whole cluster.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker property by Kafka's name; may be repeated."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log elections, and why groups of the central coordinator rebalance.")
    ] = False,
) -> None:
    """Run a broker until SIGTERM, SIGHUP or Ctrl-C."""
    report_as_server(verbose=verbose)
    with ottla.Broker(data_dir=data_dir, port=port, zookeeper=zookeeper, settings=parse_pairs(settings, "--set")) as broker:
        stop = Stop()
        stop.signal = wait_for_signal(
            announce=lambda: print(f"ottla broker listening on {broker.bootstrap_servers}", flush=True),
            meanwhile=lambda: broker.bootstrap_servers,  # raises if the broker has failed
        )
        interrupt_writes_on(stop)


@app.command(cls=SingleValueCommand)
def check(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", parser=parse_path, metavar="PATH", help="Data directory of a stopped broker.")
    ],
    repair: Annotated[bool, typer.Option("--repair", help="Write a repaired copy; the directory itself is never changed.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=parse_path,
            metavar="PATH",
            help="Directory for the copy; default: the path of the data directory + .repaired.",
        ),
    ] = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Verify all stored data of a broker; exit code 1 if something is wrong."""
    if out is not None and not repair:
        raise typer.BadParameter("the option needs --repair", param_hint="--out")
    from ottla.cli.check_report import check_directory

    with recorded_signals() as stop:
        interrupt_writes_on(stop)
        try:
            check_directory(data_dir, output, stop, out or default_repair_path(data_dir) if repair else None)
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from None


def default_repair_path(data_dir: Path) -> Path:
    """Return the default path of a repaired copy."""
    path = data_dir.absolute()
    return path.with_name(path.name + ".repaired")
