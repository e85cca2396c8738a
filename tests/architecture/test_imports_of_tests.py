"""What tests may import: helpers, not each other, and public names by their public paths."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import name, python_files, tree

OF_TEST_MODULES = re.compile(r"(?:from|import) +(tests\.(?:\w+\.)*test_\w+)")
PUBLIC = {"ottla", "ottla.errors", "ottla.types"}
EXPORTED = {one for module in sorted(PUBLIC) for one in dir(importlib.import_module(module)) if one[0].isupper()}
"""Names that a user may import from one of these modules."""


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each module that a file imports, with the names it takes from it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


def private_paths(found: Iterator[tuple[str, list[str]]]) -> list[str]:
    """Public names that are imported from where they happen to be defined."""
    wrong = []
    for module, names in found:
        if module.startswith("ottla.") and module not in PUBLIC:
            private = importlib.import_module(module) if EXPORTED & {*names} else None
            for one in sorted(EXPORTED & {*names}):
                public = [
                    home for home in sorted(PUBLIC) if getattr(importlib.import_module(home), one, None) is getattr(private, one)
                ]
                wrong += [f"{one} from {module}, not from {public[0]}"] if public else []
    return wrong


def test_no_test_module_is_imported() -> None:
    """Programs that tests write to a file or give to another process are looked at, too."""
    found = [
        f"{name(path)}: {match[1]}"
        for path in python_files("tests", "benchmarks", "tools")
        for match in OF_TEST_MODULES.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "move what is shared into a module that is named for what it holds"


def test_public_names_are_imported_by_their_public_paths() -> None:
    found = {name(path): private_paths(imports(path)) for path in python_files("tests")}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_a_private_path_is_found() -> None:
    assert private_paths(iter([("ottla.consumer", ["Consumer"])])) == ["Consumer from ottla.consumer, not from ottla"]
    assert private_paths(iter([("ottla", ["Consumer"]), ("ottla.types", ["TopicPartition"]), ("ottla.consumer", ["PAUSE"])])) == []


def test_an_import_of_a_test_module_is_found() -> None:
    line = " from " + "tests.unit.test_values import frozen"
    assert OF_TEST_MODULES.findall(line) == ["tests.unit.test_values"]
    assert not OF_TEST_MODULES.search("from tests.unit.testing import frozen")
