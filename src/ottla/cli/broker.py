"""``ottla broker``: the embedded broker as a program.

Owns its first line on stdout, which scripts read, and its end. Must not know what the broker does. Invariant: SIGTERM, SIGHUP
and Ctrl-C end it cleanly with exit code 0, from its first line on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ottla
from ottla.cli.options import Command, folder, pairs
from ottla.cli.streams import end_writes_on
from ottla.signals import Stop, wait_for_signal

app = typer.Typer(help="Run an embedded broker.", no_args_is_help=True)


@app.callback()
def nouns() -> None:
    """Run an embedded broker."""


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
