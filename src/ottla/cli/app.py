"""The command tree, and the mapping from errors to exit codes.

Owns the list of command groups. Must not know the commands. Invariant: the exit code is 0 for success, 1 for an error, 2 for wrong
usage, 128 + N if signal N ended the command; a closed pipe at stdout is no error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ottla.cli import broker, checkpoint, compare, consume, demo, group, output, pipeline, produce, simulate, topic, zookeeper
from ottla.cli.options import SingleValueCommand
from ottla.cli.standard_streams import OutputFailed, abandon_stdout
from ottla.errors import OttlaError
from ottla.signals import Interrupted
from ottla.version import __version__

DONE, FAILED = 0, 1
INTERRUPTED = (130, 143)

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
app.command("produce", cls=SingleValueCommand)(produce.produce)
app.command("consume", cls=SingleValueCommand)(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(zookeeper.app, name="zookeeper")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(pipeline.app, name="pipeline")
app.command("simulate", cls=SingleValueCommand)(simulate.simulate)
app.command("compare", cls=SingleValueCommand)(compare.compare)
app.command("demo", cls=SingleValueCommand)(demo.demo)


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
        status = _run(arguments)
        if status not in INTERRUPTED:  # after a signal, the reader of the buffered output may have stopped reading
            sys.stdout.flush()
            return status
    except OutputFailed as failed:
        status = DONE if failed.closed else FAILED
        if not failed.closed:
            output.print_error(str(failed))
    except Interrupted as interrupted:
        status = interrupted.exit_code
    abandon_stdout()
    return status


def _run(arguments: Sequence[str]) -> int:
    try:
        app(list(arguments), prog_name="ottla")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else DONE
    except output.CommandFailed as failed:
        output.print_error(str(failed), failed.details)
        return FAILED
    except OttlaError as error:
        output.print_error(str(error))
        return FAILED
    except OSError as error:  # for example, too many open files
        where = "" if error.filename is None else f"{error.filename}: "
        output.print_error(f"{where}{error.strerror or error}")
        return FAILED
    return DONE
