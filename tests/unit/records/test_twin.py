"""The compiled modules and their uncompiled source have the same names; ``OTTLA_RECORDS`` selects one of them."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.records import COMPILED
from ottla.records._twin import MODULES

UNCOMPILED = os.environ.get("OTTLA_RECORDS") == "python"

OF_CLASSES = {"__module__", "__annotations__"}
"""Names that ``dir()`` lists only for uncompiled classes."""
PUBLIC_SURFACE = f"""
import json, ottla, ottla.records
def of(cls):
    names = [name for name in dir(cls) if name not in {OF_CLASSES!r} and (not name.startswith("_") or name.endswith("__"))]
    return [cls.__module__, cls.__qualname__, cls.__doc__, sorted(names)]
objects = [ottla.Record, ottla.Records, ottla.records.PartitionRecords]
print(json.dumps([ottla.records.COMPILED, [of(cls) for cls in objects], sorted(ottla.records.__all__)]))
"""


def public_surface(**environment: str) -> list[object]:
    run = subprocess.run(
        [sys.executable, "-c", PUBLIC_SURFACE], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(run.stdout)
    return found


@pytest.mark.skipif(UNCOMPILED, reason="it is the other run that compares the two")
def test_both_have_the_same_public_surface() -> None:
    compiled, *surface = public_surface()
    assert compiled is COMPILED
    assert public_surface(OTTLA_RECORDS="python") == [False, *surface]


def test_the_environment_selects_compiled_or_source() -> None:
    modules = [importlib.import_module(f"ottla.records.{name}") for name in MODULES]
    assert {module.COMPILED for module in modules} == {COMPILED}
    assert {str(module.__file__).endswith(".py") for module in modules} == {not COMPILED}
    if UNCOMPILED:
        assert not COMPILED


def test_setup_compiles_these_modules_and_knows_their_declarations() -> None:
    """One that is left out runs uncompiled beside compiled ones, which then cannot be imported."""
    root = Path(__file__).parents[3]
    tree = ast.parse((root / "setup.py").read_text(encoding="utf-8"))
    values = {target.id: node.value for node in tree.body if isinstance(node, ast.Assign) for target in names(node)}
    assert ast.literal_eval(values["RECORDS"]) == MODULES
    declared = {path.stem for path in (root / "src" / "ottla" / "records").glob("*.pxd")}
    assert {node.value for node in ast.walk(values["DECLARATIONS"]) if isinstance(node, ast.Constant)} >= declared


def names(node: ast.Assign) -> list[ast.Name]:
    return [target for target in node.targets if isinstance(target, ast.Name)]
