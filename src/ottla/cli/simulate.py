"""``ottla simulate``: random runs of groups in the simulator, in parallel on all cores.

Owns the runs, the progress bar and the report. Must not know what happens in a run. Invariant: a run that fails
is one line on stdout with the command that repeats it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ottla.cli.options import SingleValueCommand
from ottla.cli.output import CommandFailed, pluralize, visible
from ottla.cli.simulations import processes, results
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.signals import Interrupted, Stop, recorded_signals
from ottla.simulation.outcome import Generation, Outcome, TooLong

app = typer.Typer(add_completion=False)

DEFAULT_SEEDS = 100
LIMIT = 120
"""Seconds of CPU time for a run; usual is less than one."""
LARGEST_SEED = 2**63 - 1
"""What other tools take as a number, too; Python writes no number of more than 4300 digits."""
AHEAD = 2
"""Runs that wait for each process, so that none is idle."""


class Total:
    """The sums of the outcomes of one generation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        numbers = {"runs": 1, "failed": int(outcome.failure is not None), "member_time": outcome.member_time}
        self.counts.update({**numbers, "handled": outcome.handled, "commits": outcome.commits, "set_back": outcome.set_back})

    def text(self) -> str:
        """The sums as words."""
        counts = self.counts
        text = (
            f"{pluralize(counts['runs'], 'run')}, {counts['failed'] or 'none'} failed: "
            f"{_time(counts['member_time'])} of members, {counts['handled']} records handled, "
            f"{pluralize(counts['commits'], 'commit')}"
        )
        return text + (f", {counts['set_back']} of them late" if counts["set_back"] else "")


def _time(milliseconds: int) -> str:
    for unit, length in (("hours", 3_600_000), ("minutes", 60_000)):
        if milliseconds >= length:
            return f"{milliseconds / length:.1f} {unit}"
    return f"{milliseconds / 1_000:.1f} seconds"


@app.command(cls=SingleValueCommand)
def simulate(
    generations: Annotated[
        list[Generation] | None,
        typer.Option("--generation", help="The group protocol; may be repeated. Default: each of them."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, max=LARGEST_SEED, help=f"Runs of each generation; default: {DEFAULT_SEEDS}, or 1 with --seed."
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--seed", min=0, max=LARGEST_SEED, help="The seed of the first run; default: 1.")
    ] = None,
    traced: Annotated[bool, typer.Option("--trace", help="Print what happens in the run of --generation and --seed.")] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=1024, help="Runs at the same time; default: the number of cores.")
    ] = None,
) -> None:
    """Run groups with random members, work and faults under a virtual clock, and check what must hold.

    The consumers, the brokers and the coordinator are the code that runs in production; the network, the disks, the clock and
    ZooKeeper are simulated. A seed determines a run. The exit code is 1 if a run has failed.
    """
    chosen = list(dict.fromkeys(generations or Generation))
    count = seeds if seeds is not None else DEFAULT_SEEDS if first is None else 1
    if traced and (len(chosen) != 1 or first is None or count != 1):
        raise typer.BadParameter("--trace prints one run: give one --generation and one --seed", param_hint="--trace")
    if first is not None and first + count - 1 > LARGEST_SEED:
        raise typer.BadParameter(f"the last seed would be larger than {LARGEST_SEED}", param_hint="--seeds")
    with recorded_signals() as stop:
        interrupt_writes_on(stop)
        try:
            if traced and first is not None:
                failed = _trace(chosen[0], first, stop)
            else:
                failed = _run_all(chosen, 1 if first is None else first, count, min(count, jobs or os.cpu_count() or 1), stop)
        except BrokenProcessPool as broken:
            hint = "it was killed, or ran out of memory: fewer --jobs need less"
            raise CommandFailed(f"a process that ran simulations has ended ({hint})") from broken
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from interrupted
    raise typer.Exit(1 if failed else 0)


def _trace(generation: Generation, seed: int, stop: Stop) -> bool:
    with processes(1) as pool:
        outcome, lines = next(results(iter([pool.submit(traced_run, generation, seed)]), 1, stop))
    for line in lines:
        _print(line)
    _print("all invariants have held" if outcome.failure is None else f"failed: {outcome.failure}")
    return outcome.failure is not None


def _run_all(generations: list[Generation], first: int, count: int, jobs: int, stop: Stop) -> bool:
    """Run all seeds of all generations; returns whether a run has failed."""
    any_failed = False
    with processes(jobs) as pool, _progress() as progress:
        for generation in generations:
            total, task = Total(), progress.add_task(generation, total=count)
            started = (pool.submit(quiet_run, generation, seed) for seed in range(first, first + count))
            for outcome in results(started, jobs * AHEAD, stop):
                total.add(outcome)
                progress.advance(task)
                if outcome.failure is not None:
                    any_failed = True
                    with _above(progress):
                        _print(_failure(outcome))
            with _above(progress):
                _print(f"{generation}: {total.text()}")
    return any_failed


def _print(text: str) -> None:
    """Print one line at once. If its reader is gone, ``OutputFailed`` ends the command."""
    print(visible(text), flush=True)


@contextmanager
def _above(progress: Progress) -> Iterator[None]:
    """Remove the bar while a line is printed."""
    progress.stop()
    try:
        yield
    finally:
        progress.start()


def _failure(outcome: Outcome) -> str:
    command = f"ottla simulate --generation {outcome.generation} --seed {outcome.seed} --trace"
    return f"{outcome.generation}, seed {outcome.seed}: {outcome.failure} ({command})"


def _progress() -> Progress:
    """A progress bar on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)


@contextmanager
def _limited() -> Iterator[None]:
    """Raise ``TooLong`` after ``LIMIT`` seconds of CPU time: a core loops in one call. Not on Windows."""

    def raise_too_long(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"no end after {LIMIT} s of CPU time")

    if not hasattr(signal, "SIGVTALRM"):
        yield
        return
    signal.signal(signal.SIGVTALRM, raise_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def quiet_run(generation: Generation, seed: int) -> Outcome:
    """One run, in a process of the pool."""
    from ottla.simulation.run import run

    try:
        with _limited():
            return run(generation, seed)
    finally:
        gc.collect()


def traced_run(generation: Generation, seed: int) -> tuple[Outcome, list[str]]:
    """One run with its trace, in a process of the pool."""
    from ottla.simulation.run import run

    lines: list[str] = []
    with _limited():
        outcome = run(generation, seed, lines.append)
    return outcome, [*lines, *outcome.details.splitlines()]
