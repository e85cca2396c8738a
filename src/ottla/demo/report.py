"""The results of a run: the figures, their comparison with the expected ones, and the report on the console.

Owns the summary file and the report. Must not know how a figure was computed. Invariant: a figure that differs from the expected
one is reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

BUSIEST = 5
"""The number of carriers in the report."""


class Check(NamedTuple):
    """A figure and its expected value."""

    name: str
    actual: Any
    expected: Any

    @property
    def is_correct(self) -> bool:
        return bool(self.actual == self.expected)


@dataclass
class Summary:
    """The figures of a run, in the order in which they were added."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def add(self, **figures: Any) -> None:
        """Add figures without an expected value."""
        self.figures.update(figures)

    def check(self, name: str, actual: Any, expected: Any) -> None:
        """Add a figure with its expected value."""
        self.figures[name] = actual
        self.checks.append(Check(name, actual, expected))

    @property
    def wrong(self) -> list[Check]:
        """The figures that differ from their expected values."""
        return [check for check in self.checks if not check.is_correct]

    def write(self, file: Path, seconds: Mapping[str, float]) -> None:
        """Write everything as JSON."""
        wrong = [{"figure": check.name, "is": check.actual, "should_be": check.expected} for check in self.wrong]
        file.write_text(json.dumps({**self.figures, "seconds": dict(seconds), "wrong": wrong}, indent=2) + "\n")


def average_delays(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """Return flights and average delay (minutes) for each combination of ``keys``, from rows with sums."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        total = sums.setdefault(tuple(row[key] for key in keys), [0, 0])
        total[0] += row["flights"]
        total[1] += row["minutes"]
    return [
        {**dict(zip(keys, group, strict=True)), "flights": flights, "delay": round(minutes / flights, 2)}
        for group, (flights, minutes) in sorted(sums.items())
    ]


def owners_table(snapshots: Mapping[str, Mapping[int, str]], topic: str) -> Table:
    """Return a table of the owners of each partition at each snapshot."""
    table = Table(title="owners in group dispatch", title_justify="left", box=None, pad_edge=False)
    table.add_column("partition")
    for title in snapshots:
        table.add_column(title)
    for partition in sorted({partition for owners in snapshots.values() for partition in owners}):
        table.add_row(f"{topic}-{partition}", *(owners.get(partition, "-") for owners in snapshots.values()))
    return table


def print_report(console: Console, summary: Summary, seconds: Mapping[str, float], files: Sequence[Path]) -> None:
    """Print the figures of the run."""
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for check in summary.checks:
        if not isinstance(check.actual, int):
            continue
        verdict = "" if check.is_correct else f"[red]should be {check.expected:,}"
        table.add_row(check.name, f"{check.actual:,}", verdict)
    table.add_row("dispatch_repeated", f"{summary.figures.get('dispatch_repeated', 0):,}", "handled again after the kill")
    console.print(table)
    carriers = summary.figures.get("delay_by_carrier", [])
    if carriers:
        busiest = sorted(carriers, key=lambda row: row["flights"], reverse=True)[:BUSIEST]
        shown = ", ".join(f"{row['airline'].removesuffix(' Inc.').removesuffix(' Co.')} {row['delay']:.1f}" for row in busiest)
        console.print(f"[bold]average departure delay, minutes[/]: {shown}", soft_wrap=True)
    console.print("[bold]seconds[/]: " + ", ".join(f"{name} {taken:.1f}" for name, taken in seconds.items()), soft_wrap=True)
    console.print("[bold]written[/]: " + ", ".join(escape(str(file)) for file in files if file.exists()), soft_wrap=True)
    for check in summary.wrong:
        console.print(f"[red bold]does not add up[/]: {check.name} is {check.actual}, should be {check.expected}", soft_wrap=True)
    if not summary.wrong:
        console.print(f"[green bold]all {len(summary.checks)} figures add up")
