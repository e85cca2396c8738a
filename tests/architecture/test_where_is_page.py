"""docs/where-is.md names files that exist and definitions that are in them."""

from __future__ import annotations

import ast
import re

from tests.architecture.sources import CHECKOUT, PACKAGE, tree

PAGE = (CHECKOUT / "docs" / "where-is.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| .+\? \| `([\w/]+\.py)` \| `([\w.]+)` \| .+ \|$", re.MULTILINE)
QUESTION = re.compile(r"^\| .+\? \|", re.MULTILINE)


def defines(module: ast.Module, name: str) -> bool:
    """Whether ``module`` defines the function, the class or the ``Class.method`` of this name."""
    body: list[ast.stmt] = module.body
    for part in name.split("."):
        found = [one for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one.name == part]
        if not found:
            return False
        body = found[0].body
    return True


def test_every_question_has_a_file_and_a_definition() -> None:
    assert len(ROW.findall(PAGE)) == len(QUESTION.findall(PAGE)) >= 20


def test_every_definition_is_in_its_file() -> None:
    rows = [(PACKAGE / path, name) for path, name in ROW.findall(PAGE)]
    wrong = [f"{name} is not in {path}" for path, name in rows if not path.exists() or not defines(tree(path), name)]
    assert wrong == [], "correct docs/where-is.md"


def test_a_definition_of_another_class_is_not_found() -> None:
    module = ast.parse("class A:\n    def f(self): ...\nclass B: ...\ndef g(): ...")
    assert defines(module, "A.f")
    assert defines(module, "g")
    assert not defines(module, "B.f")
    assert not defines(module, "f")
    assert not defines(module, "A.g")
