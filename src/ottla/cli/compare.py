"""``ottla compare``: the life of a group on all four generations, side by side.

Owns the options. Must not know lives or figures. Invariant: the other commands, which import this module, do not load what it
needs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.options import Format, OutputFormat, parse_path
from ottla.cli.output import CommandFailed

INSTALL_COMMAND = 'pip install "ottla[demo]"'


def compare(
    real: Annotated[bool, typer.Option("--real", help="On real processes, with a real ZooKeeper, which needs Java.")] = False,
    output: OutputFormat = Format.TABLE,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", parser=parse_path, metavar="FILE", help="Draw a picture: FILE.svg, FILE.png or FILE.pdf."),
    ] = None,
    page_file: Annotated[
        Path | None,
        typer.Option(
            "--page",
            parser=parse_path,
            metavar="FILE",
            help="Write a page that explains the figures, and its picture in images/ beside it.",
        ),
    ] = None,
) -> None:
    """Play the same life of a group on all four generations, and compare what it costs.

    Members join, two are killed, partitions are added, each member is restarted, and the coordinator is killed: three times in the
    simulator, which takes a minute, or once with --real on real processes, which takes six.
    """
    wanted = {"matplotlib": bool(picture or page_file), "kazoo": real, "pyspark": real}
    missing = [name for name, is_wanted in wanted.items() if is_wanted and importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"this needs {', '.join(missing)}: {INSTALL_COMMAND}")
    from ottla.cli.comparison import run

    run(real=real, output=output, picture=picture, page_file=page_file)
