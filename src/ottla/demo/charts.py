"""The two charts of a run.

Owns their appearance: the colour-blind safe palette of Okabe and Ito, and a marker per line, for print without colours. Must not
know where the numbers come from. Invariant: drawing needs no display and no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from ottla.demo.dispatch import NEWCOMER, VICTIM, OwnershipPeriod

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
INK, PALE = "#333333", "#dddddd"
MARKERS = ("o", "s", "^")
SIZE = (9.0, 4.6)
DPI = 110
AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
FEWEST_FLIGHTS = 100
"""Hours with fewer departures from an airport are not drawn: their averages are not significant."""


def draw_delays(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the average departure delay by scheduled hour, a line per airport. ``rows``: origin, hour, flights, delay (minutes)."""
    figure, axes = _canvas()
    for number, origin in enumerate(sorted({str(row["origin"]) for row in rows})):
        of_origin = [row for row in rows if row["origin"] == origin]
        fewest = min(FEWEST_FLIGHTS, max(row["flights"] for row in of_origin))
        points = sorted((row["hour"], row["delay"]) for row in of_origin if row["flights"] >= fewest)
        hours, delays = zip(*points, strict=True)
        look = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 6, "linewidth": 2}
        axes.plot(hours, delays, label=AIRPORTS.get(origin, origin), **look)
    axes.set_title("Flights that leave New York late in the day leave late", loc="left", fontweight="bold", color=INK)
    axes.set_xlabel("scheduled hour of departure (local time, 2013)")
    axes.set_ylabel("average departure delay (minutes)")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.grid(axis="y", color=PALE)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MultipleLocator(2))
    axes.legend(loc="upper left", frameon=False, fontsize=11)
    _save(figure, file)


def draw_owners(periods: Sequence[OwnershipPeriod], moments: Mapping[str, float], file: Path) -> None:
    """Draw the owner of each partition over time. ``moments``: ``start``, ``kill``, ``join`` and ``end`` in seconds."""
    figure, axes = _canvas()
    began = moments["start"]
    members = sorted({period.member for period in periods})
    colour = dict(zip(members, COLOURS, strict=False))
    for period in periods:
        look: dict[str, Any] = {"facecolor": colour[period.member], "edgecolor": "white", "linewidth": 0.5}
        if period.orphan:
            look = {"facecolor": "white", "edgecolor": colour[period.member], "hatch": "////", "linewidth": 0.8}
        axes.broken_barh([(period.start - began, period.end - period.start)], (period.partition - 0.38, 0.76), **look)
    partitions = sorted({period.partition for period in periods})
    top = partitions[0] - 0.62
    for name, text in (("kill", f"{VICTIM} is killed"), ("join", f"{NEWCOMER} joins")):
        if name in moments:
            at = moments[name] - began
            axes.axvline(at, color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
            axes.annotate(f" {text}", (at, top), color=INK, fontsize=9, va="bottom", ha="left", annotation_clip=False)
    axes.set_yticks(partitions, [f"flights-{partition}" for partition in partitions])
    axes.set_ylim(partitions[-1] + 0.6, top)
    axes.set_xlim(0, moments["end"] - began)
    axes.set_xlabel("seconds since the group was formed")
    axes.set_title("Who read which partition in group dispatch", loc="left", fontweight="bold", color=INK, pad=22)
    legend = [Patch(facecolor=colour[member], label=member) for member in members]
    legend.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label="dead owner, no reader"))
    axes.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(legend), frameon=False, fontsize=9)
    _save(figure, file)


def _canvas() -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    return figure, axes


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, dpi=DPI)
    pyplot.close(figure)
