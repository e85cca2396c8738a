"""The lives of ``ottla compare``, in parallel processes or one after the other, and where their figures are written.

Owns the progress bar and the files. Must not know what happens in a life. Invariants: a file that cannot be written is found before
the lives begin; files are written before stdout, which may be closed; interrupted at any moment, the command leaves no process
running.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ottla.cli.options import Format
from ottla.cli.output import CommandFailed, print_json, print_table
from ottla.cli.simulations import processes, results
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.comparison import report
from ottla.comparison.figures import Figures, figures
from ottla.comparison.life import NAMES, Life, Phase, step_count
from ottla.comparison.page import page
from ottla.demo import DemoFailed
from ottla.signals import Interrupted, Stop, recorded_signals
from ottla.simulation.outcome import Generation

LIVES = 3
"""Simulated lives of each generation."""
IMAGES = "images"
"""Where a page has its picture, beside it."""
FORMATS = (".png", ".svg", ".pdf")

Lives = dict[Generation, list[Life]]


def run(*, real: bool, output: Format, picture: Path | None, page_file: Path | None) -> None:
    """Play the lives, and write their figures to the files and to stdout."""
    image = None if page_file is None else page_file.parent / IMAGES / f"{page_file.stem}.svg"
    _check_files(picture, page_file, image)
    with recorded_signals() as stop:
        interrupt_writes_on(stop)
        try:
            simulated = _simulated_lives(stop) if page_file is not None or not real else {}
            measured = _real_lives(stop) if real else {}
            shown = measured or simulated
            if picture is not None:
                _draw(shown, picture, real=real)
            if page_file is not None and image is not None:
                _draw(simulated, image, real=False)
                text = page(_figures(simulated), _figures(measured), f"{IMAGES}/{image.name}")
                page_file.write_text(text, encoding="utf-8")
            stop.check()
            _print(_figures(shown), output)
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from interrupted
        except DemoFailed as failed:
            raise CommandFailed(str(failed), failed.details) from failed


def _check_files(picture: Path | None, page_file: Path | None, image: Path | None) -> None:
    """Raise ``CommandFailed`` if a file cannot be written."""
    if picture is not None and picture.suffix not in FORMATS:
        raise CommandFailed(f"--picture: {picture}: the suffix has to be one of {', '.join(FORMATS)}")
    for name, file in (("--picture", picture), ("--page", page_file)):
        if file is not None and not file.parent.is_dir():
            raise CommandFailed(f"{name}: {file}: there is no directory {file.parent}")
    for name, file in (("--picture", picture), ("--page", page_file), ("--page", image)):
        if file is not None:
            try:
                _try_to_write(file)
            except OSError as error:
                raise CommandFailed(f"{name}: {file} cannot be written: {error.strerror}") from error


def _try_to_write(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    existed = file.exists()
    file.open("ab").close()
    if not existed:
        file.unlink()


def _figures(lives: Lives) -> list[Figures]:
    return [figures(some) for some in lives.values()]


def _print(compared: list[Figures], output: Format) -> None:
    if output is Format.JSON:
        print_json({"generations": [one.as_json() for one in compared]})
    else:
        rows = report.table(compared)
        print_table(rows, list(rows[0]))


def _draw(lives: Lives, file: Path, *, real: bool) -> None:
    from ottla.comparison.chart import draw  # matplotlib takes a second to import

    where = "on real processes" if real else "in the simulator"
    draw([some[0] for some in lives.values()], file, f"Four generations, one workload, {where}")


def _simulated_lives(stop: Stop) -> Lives:
    jobs = os.cpu_count() or 1
    lives: Lives = {generation: [] for generation in NAMES}
    # Another order of the means would give other figures, in the last digit.
    seeds = range(1, LIVES + 1)
    with _progress() as progress:
        task = progress.add_task("simulated lives", total=len(lives) * LIVES)
        try:
            with processes(min(jobs, LIVES * len(lives))) as pool:
                for life in results(
                    (pool.submit(_simulated_life, generation, seed) for seed in seeds for generation in NAMES), jobs, stop
                ):
                    lives[life.generation].append(life)
                    progress.advance(task)
        except BrokenProcessPool as broken:
            raise CommandFailed("a process that ran a simulation has ended (it was killed, or ran out of memory)") from broken
    return {generation: sorted(some, key=lambda life: life.seed) for generation, some in lives.items()}


def _simulated_life(generation: Generation, seed: int) -> Life:
    """One life, in a process of the pool."""
    from ottla.comparison.simulated import simulated_life

    return simulated_life(generation, seed)


def _real_lives(stop: Stop) -> Lives:
    from ottla.comparison.real import real_life

    lives: Lives = {}
    with _progress() as progress, _folder() as folder:
        task = progress.add_task("", total=len(NAMES) * step_count())
        for generation in NAMES:
            begun = iter(range(len(lives) * step_count(), len(NAMES) * step_count()))

            def show(phase: Phase, generation: Generation = generation, begun: Iterator[int] = begun) -> None:
                progress.update(task, completed=next(begun), description=f"{generation}: {phase}")

            lives[generation] = [real_life(generation, folder / generation, stop, show)]
    return lives


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for data and logs, which remains if a life fails: the error names a log in it."""
    folder = Path(tempfile.mkdtemp(prefix="ottla-compare-"))
    try:
        yield folder
    except DemoFailed:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _progress() -> Progress:
    """A progress bar on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
