"""What is left of a run: the figures, whether they add up, and one screen that says so.

Owns the names of the figures and the checks between them. Must not know how a figure came about. Invariant: every
figure that has a counterpart is compared with it, and a difference is named.
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
"""So many carriers are shown."""


class Check(NamedTuple):
    """A figure and what it has to be."""

    name: str
    actual: Any
    expected: Any

    @property
    def holds(self) -> bool:
        return bool(self.actual == self.expected)


@dataclass
class Summary:
    """The figures of a run in the order in which they came."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def add(self, **figures: Any) -> None:
        """Note figures that nothing is known to compare with."""
        self.figures.update(figures)

    def check(self, name: str, actual: Any, expected: Any) -> None:
        """Note a figure and what it must be."""
        self.figures[name] = actual
        self.checks.append(Check(name, actual, expected))

    @property
    def wrong(self) -> list[Check]:
        """The figures that do not add up."""
        return [check for check in self.checks if not check.holds]

    def write(self, file: Path, seconds: Mapping[str, float]) -> None:
        """All of it as JSON."""
        wrong = [{"figure": check.name, "is": check.actual, "should_be": check.expected} for check in self.wrong]
        file.write_text(json.dumps({**self.figures, "seconds": dict(seconds), "wrong": wrong}, indent=2) + "\n")


def average_delays(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """Flights and their average delay (minutes) for each combination of ``keys``, from rows with their sums."""
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
    """Who owned each partition after each act of the play."""
    table = Table(title="owners in group dispatch", title_justify="left", box=None, pad_edge=False)
    table.add_column("partition")
    for title in snapshots:
        table.add_column(title)
    for partition in sorted({partition for owners in snapshots.values() for partition in owners}):
        table.add_row(f"{topic}-{partition}", *(owners.get(partition, "-") for owners in snapshots.values()))
    return table


def print_report(console: Console, summary: Summary, seconds: Mapping[str, float], files: Sequence[Path]) -> None:
    """The run on one screen."""
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for check in summary.checks:
        if not isinstance(check.actual, int):
            continue
        verdict = "" if check.holds else f"[red]should be {check.expected:,}"
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
