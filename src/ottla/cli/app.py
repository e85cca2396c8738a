"""The command tree, and what becomes of errors.

Owns which nouns there are. Must not know what a command does. Invariant: exit code 0 means done, 1 a known error, 2 bad
usage.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from ottla.cli import broker, consume, demo, group, output, produce, topic
from ottla.cli.options import Command
from ottla.errors import OttlaError
from ottla.version import __version__

app = typer.Typer(
    name="ottla",
    help="Kafka consumer groups for Python and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(broker.app, name="broker")
app.add_typer(topic.app, name="topic")
app.command("produce", cls=Command)(produce.produce)
app.command("consume", cls=Command)(consume.consume)
app.add_typer(group.app, name="group")
app.command("demo", cls=Command)(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ottla {__version__}")
        raise typer.Exit


@app.callback()
def ottla(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
) -> None:
    """Kafka consumer groups for Python and Spark."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        app(list(arguments), prog_name="ottla")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except (OttlaError, output.CommandFailed) as error:
        output.print_error(str(error))
        return 1
    return 0
