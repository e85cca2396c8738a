"""The benchmarks are run by hand: what they take from each other and from the package has to be there all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def test_every_benchmark_finds_what_it_imports() -> None:
    names = sorted(script.stem for script in BENCHMARKS.glob("*.py"))
    assert "memory" in names
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
