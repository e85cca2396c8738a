"""The picture of a comparison: how many partitions were read at each moment, a panel for each generation.

Owns its appearance. Must not know where the lives took place. Invariants: drawing needs no display and no network; the same lives
give the same SVG file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.patches import Patch

from ottla.comparison.life import NAMES, Life, Phase

READ, UNREAD, INK, BAND = "#56B4E9", "#D55E00", "#333333", "#f2f2f2"
"""The first two are of the colour-blind safe palette of Okabe and Ito."""
WIDTH, PANEL = 9.0, 1.55
"""Inches."""
LABELS = {
    Phase.GROW: "grow to 8",
    Phase.KILL: "kill 2",
    Phase.ADD: "add 4",
    Phase.ROLL: "restart each",
    Phase.COORDINATOR: "kill coordinator",
}


def draw(lives: Sequence[Life], file: Path, title: str) -> None:
    """Draw the lives to a file, in the format of its suffix."""
    # The ids in an SVG file, and its date, are otherwise new in each run; text is drawn by the viewer.
    with matplotlib.rc_context({"svg.hashsalt": "ottla", "svg.fonttype": "none", "font.size": 9}):
        size = WIDTH, PANEL * len(lives) + 0.9
        figure, panels = pyplot.subplots(len(lives), 1, sharex=True, squeeze=False, figsize=size, layout="constrained")
        for life, axes in zip(lives, panels[:, 0], strict=True):
            _draw_life(axes, life)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
        panels[-1, 0].set_xlabel("seconds since one member had all partitions", color=INK)
        legend = [Patch(color=READ, label="partitions that a live member has"), Patch(color=UNREAD, label="unread")]
        figure.legend(handles=legend, loc="outside lower center", ncols=2, frameon=False)
        try:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
        finally:
            pyplot.close(figure)


def _draw_life(axes: Any, life: Life) -> None:
    began, ended = life.began, life.steps[-1].ended
    most = max(reading.partitions for reading in life.history.readings)
    inside = [one for one in life.history.readings if one.at <= ended]
    times = [*(max(0.0, one.at - began) for one in inside), ended - began]
    read = [*(one.read for one in inside), inside[-1].read]
    partitions = [*(one.partitions for one in inside), inside[-1].partitions]
    axes.fill_between(times, read, step="post", color=READ, linewidth=0)
    # The outline makes visible what is shorter than a pixel.
    axes.fill_between(times, read, partitions, step="post", facecolor=UNREAD, edgecolor=UNREAD, linewidth=0.6)
    for number, phase in enumerate(Phase):
        steps = [step for step in life.steps if step.phase is phase]
        left, right = steps[0].began - began, steps[-1].ended - began
        axes.axvline(left, color=INK, linewidth=0.6, linestyle=(0, (4, 2)))
        axes.text(left, most * 1.04, f" {LABELS[phase]}", color=INK, fontsize=7.5, va="bottom")
        if number % 2:
            axes.axvspan(left, right, color=BAND, zorder=-1)
    axes.set_title(NAMES[life.generation], loc="right", fontsize=9, color=INK, pad=2)
    axes.set_ylim(0, most * 1.25)
    axes.set_yticks([0, *sorted({one.partitions for one in inside})])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
