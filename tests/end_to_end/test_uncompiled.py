"""The tests of the records once more on the uncompiled source, without Cython in sight, as on a machine without a C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WITHOUT_CYTHON = """
import sys
sys.modules["cython"] = None
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_uncompiled_source_passes_the_same_tests() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_CYTHON, "-q", "-x", "-p", "no:cacheprovider", "unit/records", "property/records"],
        cwd=TESTS,
        env={**os.environ, "OTTLA_RECORDS": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
