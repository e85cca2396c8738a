"""The examples of property tests: the same in each run, unless random ones are requested; then a run's seed repeats it.

``make check`` generates a tenth of the examples.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with our ``conftest.py``: a property test that records its examples, and one that fails."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    pytester.makepyfile(
        **{
            "tests/test_numbers": """
            from hypothesis import given, settings, strategies as st

            from tests.example_counts import examples

            @given(st.integers())
            def test_drawing(number):
                with open("drawn", "a") as file:
                    print(number, file=file)

            @settings(max_examples=examples(60))
            @given(st.integers())
            def test_drawing_sixty(number):
                with open("drawn", "a") as file:
                    print(number, file=file)

            @given(st.integers())
            def test_failing(number):
                assert number < 1000
            """
        }
    )
    for name in ("conftest.py", "example_counts.py"):
        shutil.copy(TESTS / name, pytester.path / "tests" / name)
    return pytester


def drawn(suite: pytest.Pytester, *arguments: str) -> str:
    """Return the examples of one run."""
    suite.runpytest_subprocess("-k", "drawing", *arguments).assert_outcomes(passed=2)
    file = suite.path / "drawn"
    numbers = file.read_text()
    file.unlink()
    return numbers


@pytest.mark.parametrize("is_ci", [True, False])
def test_nothing_is_random_unless_asked_for(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, is_ci: bool) -> None:
    monkeypatch.delenv("HYPOTHESIS_PROFILE", raising=False)
    monkeypatch.setenv("CI", "true") if is_ci else monkeypatch.delenv("CI", raising=False)
    assert drawn(suite) == drawn(suite)


@pytest.mark.parametrize(("profile", "count"), [("fixed", 160), ("check", 16)])
def test_a_quick_check_draws_a_tenth(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, profile: str, count: int) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", profile)
    assert len(drawn(suite).splitlines()) == count


def test_a_random_run_can_be_repeated_by_its_number(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "random")
    assert drawn(suite) != drawn(suite)
    assert drawn(suite, "--hypothesis-seed=7") == drawn(suite, "--hypothesis-seed=7") != drawn(suite, "--hypothesis-seed=8")


def test_a_random_example_that_fails_is_printed_with_a_line_to_paste(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "random")
    result = suite.runpytest_subprocess("-k", "failing", "--hypothesis-seed=7")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random(["*number=1000*", "*@reproduce_failure(*"])
