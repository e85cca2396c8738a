"""The compiled modules and their uncompiled source have the same names; ``OTTLA_RECORDS`` selects one of them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

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
