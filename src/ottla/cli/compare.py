"""``ottla compare``: one life of a group on all four generations, side by side.

Owns the options, the progress bar, and where results are written. Must not know what happens in a life. Invariants: results go to
stdout in one piece, when all lives are over; interrupted at any moment, the command leaves no process running.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ottla.cli.options import Format, OutputFormat, parse_path
from ottla.cli.output import CommandFailed, print_json, print_table
from ottla.cli.simulations import processes, results
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.comparison import report
from ottla.comparison.figures import figures
from ottla.comparison.life import Generation, Life, Phase, step_count
from ottla.comparison.page import page
from ottla.demo import DemoFailed
from ottla.signals import Interrupted, Stop, recorded_signals

IMAGES = "images"
"""Where a page has its picture, beside it."""
INSTALL_COMMAND = 'pip install "ottla[demo]"'


def compare(
    real: Annotated[bool, typer.Option("--real", help="On real processes, with a real ZooKeeper, which needs Java.")] = False,
    output: OutputFormat = Format.TABLE,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", parser=parse_path, metavar="FILE", help="Draw a picture, as the suffix says: .svg, .png."),
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

    Members join, two are killed, partitions are added, each member is restarted, and the coordinator is killed: in the simulator,
    in some seconds, or with --real on real processes, in about six minutes.
    """
    wanted = {"matplotlib": bool(picture or page_file), "kazoo": real, "pyspark": real}
    missing = [name for name, is_wanted in wanted.items() if is_wanted and importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"this needs {', '.join(missing)}: {INSTALL_COMMAND}")
    _check_files(picture, page_file)
    with recorded_signals() as stop:
        interrupt_writes_on(stop)
        try:
            simulated = _simulated_lives(stop) if page_file is not None or not real else []
            measured = _real_lives(stop) if real else []
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from interrupted
        except DemoFailed as failed:
            raise CommandFailed(str(failed), failed.details) from failed
    _write(measured or simulated, output, picture, "on real processes" if real else "the simulator")
    if page_file is not None:
        _write_page(page_file, simulated, measured)


def _check_files(picture: Path | None, page_file: Path | None) -> None:
    """Raise ``CommandFailed`` now rather than after the lives if a file cannot be written."""
    if picture is not None:
        from ottla.comparison.chart import formats  # matplotlib takes a second to import

        if picture.suffix.removeprefix(".") not in formats():
            raise CommandFailed(f"--picture: {picture}: the suffix has to be one of {', '.join(sorted(formats()))}")
    for name, file in (("--picture", picture), ("--page", page_file)):
        if file is not None and not file.parent.is_dir():
            raise CommandFailed(f"{name}: {file}: there is no directory {file.parent}")


def _write(lives: list[Life], output: Format, picture: Path | None, where: str) -> None:
    compared = [figures(life) for life in lives]
    if output is Format.JSON:
        print_json({"generations": [one.as_json() for one in compared]})
    else:
        rows = report.table(compared)
        print_table(rows, list(rows[0]))
    sys.stdout.flush()
    if picture is not None:
        _draw(lives, picture, where)


def _write_page(file: Path, simulated: list[Life], measured: list[Life]) -> None:
    image = file.parent / IMAGES / f"{file.stem}.svg"
    image.parent.mkdir(exist_ok=True)
    _draw(simulated, image, "the simulator")
    text = page([figures(life) for life in simulated], [figures(life) for life in measured], f"{IMAGES}/{image.name}")
    file.write_text(text, encoding="utf-8")


def _draw(lives: list[Life], file: Path, where: str) -> None:
    from ottla.comparison.chart import draw

    draw(lives, file, f"Four generations, one workload: {where}")


def _simulated_lives(stop: Stop) -> list[Life]:
    jobs = min(len(Generation), os.cpu_count() or 1)
    try:
        with processes(jobs) as pool, _progress() as progress:
            task = progress.add_task("simulated lives", total=len(Generation))
            lives = []
            for life in results((pool.submit(_simulated_life, generation) for generation in Generation), jobs, stop):
                lives.append(life)
                progress.advance(task)
    except BrokenProcessPool as broken:
        raise CommandFailed("a process that ran a simulation has ended (it was killed, or ran out of memory)") from broken
    return sorted(lives, key=lambda life: list(Generation).index(life.generation))


def _simulated_life(generation: Generation) -> Life:
    """One life, in a process of the pool."""
    from ottla.comparison.simulated import simulated_life

    return simulated_life(generation)


def _real_lives(stop: Stop) -> list[Life]:
    from ottla.comparison.real import real_life

    with _progress() as progress, tempfile.TemporaryDirectory(prefix="ottla-compare-") as folder:
        task = progress.add_task("", total=len(Generation) * step_count())
        lives = []
        for generation in Generation:

            def show(phase: Phase, generation: Generation = generation) -> None:
                progress.update(task, advance=1, description=f"{generation}: {phase}")

            lives.append(real_life(generation, Path(folder) / generation, stop, show))
        return lives


def _progress() -> Progress:
    """A progress bar on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
