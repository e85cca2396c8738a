"""What the package defines it uses, unless users, Python or another library call it.

Use is a name that is read in ``src`` outside its own definition. A name that two classes share counts for both, so this finds only
some of the dead code, but nothing that is alive.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.architecture.sources import name, python_files, tree

PUBLIC = {
    f"src/ottla/{path}.py"
    for path in (
        "admin",
        "async_consumer",
        "async_producer",
        "consumer",
        "consumer_base",
        "errors/codes",
        "errors/zookeeper",
        "faults",
        "producer",
        "records/fetched",
        "runtime/zookeeper_server",
        "spark/source",
        "spark/tracking",
        "testing",
        "zookeeper_admin",
    )
}
"""What users or plugins import, or get objects of."""

EXCEPTIONS: Mapping[str, str] = {
    "src/ottla/runtime/zookeeper.py:isEnabledFor": "logging.Logger calls it",
    "src/ottla/coordinator/coordinator.py:pending_offsets": "tests compare the states before and after a restart",
    "src/ottla/coordinator/central/coordinator.py:groups_being_rebalanced": "a field of the draft, for tests and debuggers",
    "src/ottla/coordinator/coordinator.py:durable_state": "tests compare the states before and after a restart",
    "src/ottla/coordinator/transactions/coordinator.py:durable_state": "tests compare the states before and after a restart",
}
"""What nothing in the package uses, as ``path:name``, and why it is there."""

REGISTER = {"app", "atexit", "pytest", "serves"}
"""Decorators that have others call a function."""

Sources = Mapping[str, ast.Module]


def uses(sources: Sources) -> Mapping[str, list[tuple[str, int]]]:
    """Each name that is read: the files and lines of that."""
    found = defaultdict(list)
    for path, module in sources.items():
        for node in ast.walk(module):
            match node:
                case ast.Name(id=word, ctx=ast.Load()) | ast.Attribute(attr=word, ctx=ast.Load()):
                    found[word].append((path, node.lineno))
    return found


def definitions(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The functions, classes, methods and variables of a module that only the package itself uses."""
    overriding = foreign(module)
    for node in module.body:
        yield from named(node)
        if isinstance(node, ast.ClassDef) and not {base.id for base in node.bases if isinstance(base, ast.Name)} & overriding:
            yield from (found for inner in node.body if isinstance(inner, ast.FunctionDef) for found in named(inner))


def foreign(module: ast.Module) -> set[str]:
    """The names that a module imports from other libraries; the methods of their subclasses are called by them."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module]
    ours = {"ottla", *sys.stdlib_module_names}
    return {alias.name for node in imports if str(node.module).partition(".")[0] not in ours for alias in node.names}


def named(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """A definition under its name, or names."""
    words: Iterable[str] = ()
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            decorators = {re.split(r"\W", ast.unparse(one))[0] for one in node.decorator_list}
            words = () if decorators & REGISTER else (node.name,)
        case ast.Assign(targets=targets):
            words = [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=word)):
            words = (word,)
    yield from ((word, node) for word in words if not word.startswith("__"))


def dead(sources: Sources) -> set[str]:
    """What ``sources`` define and do not use, as ``path:name``."""
    used = uses(sources)
    return {
        f"{path}:{word}"
        for path, module in sources.items()
        if path not in PUBLIC
        for word, node in definitions(module)
        if all(file == path and node.lineno <= line <= (node.end_lineno or line) for file, line in used[word])
    }


def test_what_is_defined_is_used() -> None:
    found = dead({name(path): tree(path) for path in python_files("src")})
    assert found - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - found == set(), "these are used by now"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def alone(): return alone()", {"alone"}),
        ("class Alone: ...", {"Alone"}),
        ("LOW, HIGH = 1, 2\nprint(HIGH)", {"LOW"}),
        ("class Meter:\n    def rate(self): ...\n    def amount(self): ...\nMeter().rate()", {"amount"}),
        ("class Meter:\n    @property\n    def amount(self): ...\nMeter()", {"amount"}),
        ("def used(): ...\nused()", set()),
        ("def used(): ...\ndef also(): return used\nalso()", set()),
        ("@serves(Api.FETCH)\ndef fetch(): ...", set()),
        ("from pyspark import Source\nclass Ours(Source):\n    def read(self): ...\nOurs()", set()),
    ],
)
def test_dead_code_is_found(source: str, found: set[str]) -> None:
    assert dead({"m": ast.parse(source)}) == {f"m:{word}" for word in found}
