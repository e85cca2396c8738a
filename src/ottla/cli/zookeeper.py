"""``ottla zookeeper``: runs a real ZooKeeper server, or an ensemble, for tests and experiments.

Owns the first line of ``start`` on stdout, which scripts parse, and its shutdown by signals. Must not know how a server is started.
Invariant: from the first line on, SIGTERM, SIGHUP and Ctrl-C end ``start`` cleanly with exit code 0.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.options import SingleValueCommand, check_name, parse_pairs, parse_path
from ottla.cli.output import CommandFailed
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.signals import Stop, wait_for_signal

app = typer.Typer(help="Run a ZooKeeper server.", no_args_is_help=True, add_completion=False)


@app.callback()
def zookeeper_group() -> None:
    """Run a ZooKeeper server."""


@app.command(cls=SingleValueCommand)
def start(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", parser=parse_path, metavar="PATH", help="Directory for the nodes; default: a temporary directory."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", help="Port of the first node, further ones have the next ports; 0 picks free ones.", min=0, max=65535
        ),
    ] = 0,
    nodes: Annotated[int, typer.Option("--nodes", help="Size of the ensemble.", min=1, max=9)] = 1,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", callback=check_name, help="Name or address to listen on.")
    ] = "127.0.0.1",
    jars: Annotated[
        Path | None,
        typer.Option("--jars", parser=parse_path, metavar="PATH", help="Directory of ZooKeeper's jars; default: those of PySpark."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of zoo.cfg; may be repeated."),
    ] = None,
) -> None:
    """Run ZooKeeper until SIGTERM, SIGHUP or Ctrl-C."""
    if sys.platform == "win32":
        raise CommandFailed("ottla zookeeper runs on Linux and macOS; on Windows, run it in WSL or in a container")
    # Imported here, since it needs fcntl, which Windows does not have.
    from ottla.runtime.zookeeper_server import ZooKeeperFailed, ZooKeeperServer

    try:
        with ZooKeeperServer(data_dir, port, nodes=nodes, host=host, jars=jars, settings=parse_pairs(settings, "--set")) as server:
            stop = Stop()
            stop.signal = wait_for_signal(
                announce=lambda: print(f"ottla zookeeper listening on {server.connect_string}", flush=True),
                meanwhile=server.check,
            )
            interrupt_writes_on(stop)
    except ZooKeeperFailed as failed:
        raise CommandFailed(str(failed), failed.output) from failed
