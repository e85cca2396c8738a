"""``ottla compare``: the life of a group on all four generations, side by side.

Owns the options. Must not know lives or figures. Invariant: the help is shown without loading what the command needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.demo import check_installed
from ottla.cli.options import Format, OutputFormat, SingleValueCommand, parse_path

app = typer.Typer(add_completion=False)


@app.command(cls=SingleValueCommand)
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
    check_installed("this", [*(["matplotlib"] if picture or page_file else []), *(["kazoo", "pyspark"] if real else [])])
    from ottla.cli.comparison import run

    run(real=real, output=output, picture=picture, page_file=page_file)
