"""What ``docs/acceptance.md`` says is tested is tested: each test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "acceptance.md").read_text())


def defined_in(file: Path) -> set[str]:
    """Test functions, and the names that state machines go by."""
    tree = ast.parse(file.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assigned = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    return names | {target.id for target in assigned if isinstance(target, ast.Name)}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_is_named_is_there(file: str) -> None:
    named = {name for of, name in NAMED if of == file}
    assert named <= defined_in(ROOT / "tests" / file)


def test_every_row_names_one() -> None:
    rows = [line for line in (ROOT / "docs" / "acceptance.md").read_text().splitlines() if line.startswith("| test")]
    assert len(rows) > 80
    assert all("::" in row.split(" | ")[2] for row in rows)
