"""Which cases of parametrized tests run when ``OTTLA_TEST_CASES`` leaves out most of them, as in ``make test``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("cases", "passed"), [("2", 2 + 5 + 2 + 1), ("0", 5 + 5 + 5)])
def test_cases_that_always_run_are_not_left_out(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, cases: str, passed: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.setenv("OTTLA_TEST_CASES", cases)
    pytester.makepyfile(
        **{
            "tests/test_numbers": """
            import pytest

            @pytest.mark.parametrize("number", range(5))
            def test_like_the_others(number):
                pass

            @pytest.mark.always
            @pytest.mark.parametrize("number", range(5))
            def test_like_no_other(number):
                pass

            @pytest.mark.parametrize("number", [0, 1, 2, 3, pytest.param(4, marks=pytest.mark.always)])
            def test_one_of_which_is_like_no_other(number):
                pass
            """
        }
    )
    shutil.copy(TESTS / "conftest.py", pytester.path / "tests" / "conftest.py")
    pytester.runpytest_subprocess().assert_outcomes(passed=passed, deselected=15 - passed)
