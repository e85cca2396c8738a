"""Small enough to be read: budgets for functions, classes and files of the package. Docstrings are not counted.

A class counts with the lines that it inherits from other classes of the package: slicing one class into a chain of bases does not
make it smaller.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.sources import CHECKOUT, name, python_files, tree

FUNCTION, CLASS, FILE = 60, 400, 600
"""Lines, at most."""

EXCEPTIONS: dict[str, str] = {
    "src/ottla/records/batch.py:_walk": "the hottest loop: 17 lines declare C types, a call a field costs a third",
}
"""What may be longer, as ``path`` or ``path:qualified.name``, and why it has to be."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


@cache
def docstring_lines(node: ast.AST) -> int:
    """Lines that docstrings take in ``node`` and all below it."""
    total = 0
    for inner in ast.walk(node):
        if isinstance(inner, Documented) and ast.get_docstring(inner, clean=False) is not None:
            docstring = inner.body[0]
            total += (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return total


def length(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)


@cache
def classes(path: Path) -> dict[str, ast.ClassDef]:
    """The classes at the top level of a file, by name."""
    return {node.name: node for node in tree(path).body if isinstance(node, ast.ClassDef)}


def bases(path: Path, node: ast.ClassDef) -> Iterator[tuple[Path, ast.ClassDef]]:
    """The base classes that are defined in the same file, or imported by name from another file of the package."""
    imported = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in ast.walk(tree(path))
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
    for base in node.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base  # a generic base has parameters
        if not isinstance(expression, ast.Name):
            continue
        if expression.id in imported:
            module, original = imported[expression.id]
            other = CHECKOUT / "src" / f"{module.replace('.', '/')}.py"
            if other.exists() and original in classes(other):
                yield other, classes(other)[original]
        elif expression.id in classes(path):
            yield path, classes(path)[expression.id]


def ancestors(path: Path, node: ast.ClassDef) -> dict[tuple[Path, str], ast.ClassDef]:
    """All classes that ``node`` inherits from, each once, however many ways lead to it."""
    found: dict[tuple[Path, str], ast.ClassDef] = {}
    for where, base in bases(path, node):
        found[where, base.name] = base
        found.update(ancestors(where, base))
    return found


def class_length(path: Path, node: ast.ClassDef) -> int:
    """Lines of a class and of all that it inherits from classes of the package."""
    return length(node) + sum(map(length, ancestors(path, node).values()))


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Each function and class in ``node`` with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


@cache
def too_long() -> dict[str, str]:
    """Whatever is over its budget, and by how much."""
    found = {}
    for path in python_files("src"):
        module = tree(path)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE and (lines := lines - docstring_lines(module)) > FILE:
            found[name(path)] = f"{lines} lines of {FILE}"
        for qualified, node in definitions(module):
            if not isinstance(node, ast.ClassDef) and (node.end_lineno or node.lineno) - node.lineno < FUNCTION:
                continue  # no need to look for docstrings
            lines, budget = (class_length(path, node), CLASS) if isinstance(node, ast.ClassDef) else (length(node), FUNCTION)
            if lines > budget:
                found[f"{name(path)}:{qualified}"] = f"{lines} lines of {budget}"
    return found


def test_nothing_is_over_its_budget() -> None:
    assert {what: by for what, by in too_long().items() if what not in EXCEPTIONS} == {}


def test_no_exception_is_out_of_date() -> None:
    assert EXCEPTIONS.keys() - too_long().keys() == set()


def test_docstrings_do_not_count() -> None:
    source = 'def function():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    (_, function), *_ = definitions(ast.parse(source))
    assert length(function) == 2


def test_inherited_lines_count() -> None:
    """``AsyncConsumer`` has lines of its own and those of ``ConsumerBase``."""
    path = CHECKOUT / "src" / "ottla" / "async_consumer.py"
    node = classes(path)["AsyncConsumer"]
    assert [base.name for base in ancestors(path, node).values()] == ["ConsumerBase"]
    assert class_length(path, node) > length(node)
