"""The cores read no clock, open no file and make no random identity: what import rules alone cannot see.

Modules that a core may not import (``time``, ``socket``, ``os`` ...) are import-linter's; here are the names of the language and of
harmless modules that reach the outside world.
"""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import PACKAGE, name, python_files, tree

CORES = ("client", "coordinator", "broker", "assignors", "zookeeper", "simulation")
BUILTINS = {"open", "print", "input", "breakpoint", "eval", "exec", "__import__"}
RANDOM_IDENTITIES = {"uuid1", "uuid4", "uuid6", "uuid7"}
CLOCKS = {"now", "utcnow", "today"}
CLOCK_OWNERS = {"datetime", "date"}


def impurities(source: ast.AST) -> list[str]:
    """What in ``source`` reaches the outside world, with its line."""
    found = []
    for node in ast.walk(source):
        match node:
            case ast.Name(id=word) if word in BUILTINS:
                found.append(f"line {node.lineno}: {word}()")
            case ast.Attribute(attr=word) if word in RANDOM_IDENTITIES:
                found.append(f"line {node.lineno}: {word}()")
            case ast.ImportFrom(module="uuid", names=names):
                found += [f"line {node.lineno}: {alias.name}()" for alias in names if alias.name in RANDOM_IDENTITIES]
            case ast.ImportFrom(module="io", names=names) if any(alias.name == "open" for alias in names):
                found.append(f"line {node.lineno}: open()")
            case ast.Attribute(attr=word, value=ast.Name(id=owner) | ast.Attribute(attr=owner)) if (
                word in CLOCKS and owner in CLOCK_OWNERS
            ):
                found.append(f"line {node.lineno}: {owner}.{word}()")
    return found


def test_every_core_is_pure() -> None:
    paths = python_files(*(f"src/ottla/{core}" for core in CORES))
    assert {name(path): found for path in paths if (found := impurities(tree(path)))} == {}


def test_all_cores_are_there() -> None:
    assert [core for core in CORES if not (PACKAGE / core / "__init__.py").is_file()] == []


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "opener = open",
        "import uuid; uuid.uuid4()",
        "from uuid import UUID, uuid4",
        "datetime.now()",
        "datetime.datetime.now(UTC)",
        "date.today()",
        "print('seen')",
    ],
)
def test_an_impurity_is_found(line: str) -> None:
    assert impurities(ast.parse(line)) != []


@pytest.mark.parametrize("line", ["now = 3", "self.open(log)", "from uuid import UUID", "now.wall", "state.now()"])
def test_what_only_looks_like_one_is_not(line: str) -> None:
    assert impurities(ast.parse(line)) == []
