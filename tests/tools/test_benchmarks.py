"""The benchmarks still run: CI does not run them, but their imports and calls must exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla import Broker

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def test_the_imports_of_every_benchmark_exist() -> None:
    names = sorted(script.stem for script in BENCHMARKS.glob("*.py"))
    assert "memory" in names
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ROWS = "objects,iteration,arrow,async,cpu"
# Each script and the options that make it small. Those that start a cluster of their own or a JVM are left to `make bench`.
SMALL = {
    "consumer": ["--brokers", "ottla", "--records", "2000", "--rounds", "1", "--seconds", "0.5", "--rows", ROWS],
    "decode": ["--records", "100", "--rounds", "1"],
    "memory": ["--gigabytes", "0.001"],
    "producer": ["--brokers", "ottla", "--records", "1000", "--rounds", "1", "--rows", "send,arrow,async,import"],
    "simulator": ["--minutes", "1", "--members", "2"],
    "startup": ["--rounds", "1"],
    "topics": ["--topics", "50", "--runs", "1"],
}


@pytest.mark.parametrize("name", [name if name == "consumer" else pytest.param(name, marks=pytest.mark.slow) for name in SMALL])
def test_a_benchmark_runs_to_its_end(name: str, kafka_broker: Broker) -> None:
    """Its targets do not matter here, because the machine runs other processes."""
    where = ["--bootstrap-servers", kafka_broker.bootstrap_servers] if name == "memory" else []
    done = subprocess.run(
        [sys.executable, f"{name}.py", *SMALL[name], *where], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    assert re.search(r"\d", done.stdout)
