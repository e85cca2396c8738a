"""What the pages of acceptance say is tested is tested: each test that they name is there, and what has none says why."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "acceptance.md": 80,
    "acceptance-consumer.md": 140,
    "acceptance-producer.md": 198,
    "acceptance-zookeeper.md": 21,
    "acceptance-central.md": 45,
}
"""Page -> how many rows it has at least."""
NOT_APPLICABLE = "not applicable: Ottla has no "


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def rows(page: str) -> list[list[str]]:
    """The columns of each row: Kafka's tests, the behaviour, ours."""
    lines = [
        line for line in text(page).splitlines() if line.startswith("| ") and not line.startswith(("| Kafka's test |", "| Nr. |"))
    ]
    return [[column.strip() for column in line.strip("|").split(" | ")] for line in lines]


NAMED = sorted({one for page in (*PAGES, "client-assignors.md") for one in re.findall(r"`([\w/]+\.py)::(\w+)`", text(page))})


def defined_in(file: Path) -> set[str]:
    """Test functions, and the names that state machines go by."""
    tree = ast.parse(file.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    return names | {target.id for target in assigned if isinstance(target, ast.Name)}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_is_named_is_there(file: str) -> None:
    named = {name for of, name in NAMED if of == file}
    assert named - defined_in(ROOT / "tests" / file) == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_one_or_says_what_is_lacking(page: str) -> None:
    found = rows(page)
    assert len(found) >= PAGES[page]
    assert [row for row in found if len(row) != 3] == []
    lacking = [row for row in found if row[2].startswith(NOT_APPLICABLE)]
    assert [row for row in found if "::" not in row[2] and row not in lacking] == []
    assert len(lacking) * 10 <= len(found), "at most one in ten"


@pytest.mark.parametrize("page", ["acceptance-consumer.md", "acceptance-producer.md"])
def test_no_test_of_kafkas_clients_stands_in_two_rows(page: str) -> None:
    names = [name for row in rows(page) for name in row[0].split(", ")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
