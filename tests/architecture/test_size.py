"""Small enough to be read: budgets for functions, classes and files of the package. Docstrings are not counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import name, python_files, tree

FUNCTION, CLASS, FILE = 60, 400, 600
"""Lines, at most."""

EXCEPTIONS: dict[str, str] = {
    "src/ottla/records/batch.py:_walk": "the hottest loop: 17 lines declare C types, a call a field costs a third",
}
"""What may be longer, as ``path`` or ``path:qualified.name``, and why it has to be."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


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


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Each function and class in ``node`` with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


def too_long() -> dict[str, str]:
    """Whatever is over its budget, and by how much."""
    found = {}
    for path in python_files("src"):
        module = tree(path)
        lines = len(path.read_text(encoding="utf-8").splitlines()) - docstring_lines(module)
        if lines > FILE:
            found[name(path)] = f"{lines} lines of {FILE}"
        for qualified, node in definitions(module):
            budget = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            if length(node) > budget:
                found[f"{name(path)}:{qualified}"] = f"{length(node)} lines of {budget}"
    return found


def test_nothing_is_over_its_budget() -> None:
    assert {what: by for what, by in too_long().items() if what not in EXCEPTIONS} == {}


def test_no_exception_is_out_of_date() -> None:
    assert EXCEPTIONS.keys() - too_long().keys() == set()


def test_docstrings_do_not_count() -> None:
    source = 'def function():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    (_, function), *_ = definitions(ast.parse(source))
    assert length(function) == 2
