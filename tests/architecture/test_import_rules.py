"""The import rules, as ``make lint`` checks them; each rule finds an import that breaks it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import CHECKOUT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the package below ``folder`` against the contracts of this checkout."""
    command = [str(LINT_IMPORTS), "--config", str(CHECKOUT / ".importlinter"), "--no-cache"]
    environment = {"PYTHONPATH": str(folder), "COLUMNS": "200", "PATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_every_import_follows_the_rules() -> None:
    done = lint_imports(CHECKOUT / "src")
    assert done.returncode == 0, done.stdout + done.stderr


FORBIDDEN = [
    ("client", "runtime"),
    ("client", "coordinator"),
    ("broker", "client"),
    ("coordinator", "broker"),
    ("assignors", "client"),
    ("errors", "protocol"),
    ("zookeeper", "assignors"),
    ("zookeeper", "client"),
    ("zookeeper", "config"),
    ("zookeeper", "protocol"),
    ("zookeeper", "records"),
    ("client.fetch", "client.groups"),
    ("client.groups.classic", "client.groups.consumer"),
]
"""Packages of ours, and what each may not import."""

FOREIGN = [
    ("client", "import time", "time"),
    ("coordinator", "from random import random", "random"),
    ("broker", "import os.path", "os"),
    ("broker", "from kio.schema import types", "kio"),
    ("runtime", "import pyspark.sql", "pyspark"),
]
"""Packages of ours, a line that is forbidden there, and what it imports."""

CASES = [(package, f"import ottla.{other}", f"ottla.{other}") for package, other in FORBIDDEN] + FOREIGN


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of a package that breaks all rules: each forbidden line is in a module of its own, ``extra<number>``."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(CHECKOUT / "src" / "ottla", copy / "ottla", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    for number, (package, line, _) in enumerate(CASES):
        (copy / "ottla" / package.replace(".", "/") / f"extra{number}.py").write_text(f"{line}\n")
    (copy / "ottla" / "unlisted").mkdir()
    (copy / "ottla" / "unlisted" / "__init__.py").touch()
    (copy / "ottla" / "client" / "unlisted.py").touch()
    done = lint_imports(copy)
    assert done.returncode != 0
    return done.stdout


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{package}: {line}" for package, line, _ in CASES])
def test_a_forbidden_import_is_found(verdict: str, number: int) -> None:
    package, _, imported = CASES[number]
    _, _, found = verdict.partition(f"\nottla.{package} is not allowed to import {imported}:\n")
    chains, _, _ = found.partition(" is not allowed to import ")
    assert re.search(rf"^- +ottla\.{package}\.extra{number} -> {imported} \(l\.1\)$", chains, re.MULTILINE)


@pytest.mark.parametrize("module", ["ottla.unlisted", "ottla.client.unlisted"])
def test_a_module_without_a_place_in_the_layers_is_found(verdict: str, module: str) -> None:
    assert f"\n- {module}\n" in verdict
