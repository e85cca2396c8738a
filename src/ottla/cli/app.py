"""The command tree, and the mapping from errors to exit codes.

Owns the list of commands. Must not know what they do. Invariants: the exit code is 0 for success, 1 for an error, 2 for wrong
usage, 128 + N if signal N ended the command; a closed pipe at stdout is no error; a command does not load the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ottla.cli import output
from ottla.cli.standard_streams import OutputFailed, abandon_stdout
from ottla.errors import OttlaError
from ottla.signals import Interrupted
from ottla.version import __version__

DONE, FAILED = 0, 1
INTERRUPTED = (130, 143)
COMMANDS = (
    "broker",
    "topic",
    "produce",
    "consume",
    "group",
    "zookeeper",
    "checkpoint",
    "pipeline",
    "simulate",
    "compare",
    "demo",
)
"""Each is a module of this package with a Typer ``app``, in the order of the help."""


class Commands(Mapping[str, Any]):
    """Command -> what Typer has made of its module, which is imported for it: loading all would take longer than most commands."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = typer.main.get_command(import_module(f"ottla.cli.{name}").app)
            self._loaded[name].name = name
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]  # Typer changes it only in add_command()


app = typer.Typer(
    cls=LazyGroup,
    name="ottla",
    help="Kafka consumer groups for Python and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
