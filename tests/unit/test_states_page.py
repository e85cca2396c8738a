"""docs/states.md draws every state table."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from ottla.client.groups.consumer.states import TRANSITIONS
from ottla.records.batch_states import BatchState

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "write_states_page.py"))


def test_the_page_agrees_with_the_tables(tool: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "states.md").read_text(encoding="utf-8") == tool["page"](), "run python tools/write_states_page.py"


def test_every_table_is_drawn(tool: dict[str, Any]) -> None:
    having = [path for path in (ROOT / "src").rglob("*.py") if re.search(r"^TRANSITIONS\b", path.read_text(), re.MULTILINE)]
    assert sorted(having) == sorted(Path(machine.module.__file__) for machine in tool["MACHINES"])


def test_a_legend_has_the_members_alone(tool: dict[str, Any]) -> None:
    """The enumerations of a batch also have a method, with a docstring."""
    assert list(tool["meanings"](BatchState)) == [state.name for state in BatchState]


def test_a_drawing_has_each_arrow_once(tool: dict[str, Any]) -> None:
    """An arrow from a box stands for one from each state in it."""
    expected = sorted(
        (state.name, happening.name, target.name) for state, row in TRANSITIONS.items() for happening, target in row.items()
    )
    lines = tool["picture"](TRANSITIONS)
    boxes = {name: words for words, name in re.findall(r'state "(.*)" as (\w+)', "\n".join(lines))}
    assert boxes
    found = []
    for begin, end, happenings in re.findall(r"(\w+) --> (\w+) : (.*)", "\n".join(lines)):
        named = boxes.get(begin, begin)
        rest = named.removeprefix("any but ").split(", ")
        begins = [state.name for state in TRANSITIONS if state.name not in rest] if named != ", ".join(rest) else rest
        found += [(one, happening, end) for one in begins for happening in happenings.split(", ")]
    assert sorted(found) == expected
