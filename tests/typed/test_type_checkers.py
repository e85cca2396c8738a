"""mypy and pyright on programs that use an installed Ottla."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("user_program.py")
PRODUCER = PROGRAM.with_name("producer_program.py")
STAR = PROGRAM.with_name("star_program.py")
EXAMPLES = Path(__file__).parents[2] / "examples"
PYRIGHT = {
    "typeCheckingMode": "strict",
    "reportWildcardImportFromLibrary": "none",
    "reportUnnecessaryTypeIgnoreComment": "error",
    "enableTypeIgnoreComments": False,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cache directory of mypy, so that it analyses Ottla once."""
    return str(tmp_path_factory.mktemp("mypy"))


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_mypy_reports_exactly_the_errors_of_the_program(tmp_path: Path, cache: str) -> None:
    done = run(
        "mypy", "--strict", "--warn-unused-ignores", "--cache-dir", cache, str(PROGRAM), str(PRODUCER), str(STAR), folder=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_suggests_the_correct_name_of_a_setting(tmp_path: Path, cache: str) -> None:
    (tmp_path / "typo.py").write_text('from ottla import Consumer\nConsumer(grup_id="billing")\n', encoding="utf-8")
    done = run("mypy", "--strict", "--cache-dir", cache, "typo.py", folder=tmp_path)
    assert re.search(r'Unexpected keyword argument "grup_id" for "Consumer"; did you mean "group_id"', done.stdout), done.stdout


def test_pyright_reports_exactly_the_errors_of_the_program(tmp_path: Path) -> None:
    for program in (PROGRAM, PRODUCER, STAR):
        (tmp_path / program.name).write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    done = run("pyright", "--pythonpath", sys.executable, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout


@pytest.mark.slow
def test_the_examples_are_typed(cache: str) -> None:
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    done = run("mypy", "--strict", "--ignore-missing-imports", "--cache-dir", cache, *programs, folder=EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
