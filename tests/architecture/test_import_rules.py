"""The import rules, as ``make lint`` checks them; each rule finds an import that breaks it."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("module", "line", "verdict"),
    [
        ("client/extra", "import ottla.runtime", "ottla.client is not allowed to import ottla.runtime"),
        ("client/extra", "import ottla.coordinator", "ottla.client is not allowed to import ottla.coordinator"),
        ("broker/extra", "import ottla.client", "ottla.broker is not allowed to import ottla.client"),
        ("coordinator/extra", "import ottla.broker", "ottla.coordinator is not allowed to import ottla.broker"),
        ("assignors/extra", "import ottla.client", "ottla.assignors is not allowed to import ottla.client"),
        ("errors/extra", "import ottla.protocol", "ottla.errors is not allowed to import ottla.protocol"),
        ("client/extra", "import time", "ottla.client is not allowed to import time"),
        ("client/fetch/extra", "import ottla.client.groups", "ottla.client.fetch is not allowed to import ottla.client.groups"),
        (
            "client/groups/classic/extra",
            "import ottla.client.groups.consumer",
            "ottla.client.groups.classic is not allowed to import ottla.client.groups.consumer",
        ),
        ("client/extra", "", "ottla.client.extra"),
        ("coordinator/extra", "from random import random", "ottla.coordinator is not allowed to import random"),
        ("broker/extra", "import os.path", "ottla.broker is not allowed to import os"),
        ("broker/extra", "from kio.schema import types", "ottla.broker is not allowed to import kio"),
        ("runtime/extra", "import pyspark.sql", "ottla.runtime is not allowed to import pyspark"),
        ("unlisted/__init__", "", "ottla.unlisted"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, module: str, line: str, verdict: str) -> None:
    shutil.copytree(CHECKOUT / "src" / "ottla", tmp_path / "ottla", ignore=shutil.ignore_patterns("*.so", "*.c"))
    file = tmp_path / "ottla" / f"{module}.py"
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as source:
        source.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert verdict in done.stdout
