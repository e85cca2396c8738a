"""With ``OTTLA_NO_SKIPS=1`` a skipped interop test fails and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with our ``conftest.py``, run without Maven and Java on the PATH."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for folder, text in {
        "interop": """
            import pytest

            def test_skipped(): pytest.skip("no peer")

            @pytest.mark.skipif(True, reason="not today")
            def test_marked(): pass

            @pytest.mark.xfail
            def test_expected_to_fail(): assert False

            def test_with_a_peer(kafka_tool): pass
            """,
        "unit": """
            import pytest

            def test_skipped(): pytest.skip("elsewhere a skip is fine")
            """,
    }.items():
        pytester.makepyfile(**{f"tests/{folder}/test_{folder}": text})
    pytester.path.joinpath("tests/conftest.py").write_text(TESTS.joinpath("conftest.py").read_text())
    return pytester


def test_a_skip_is_a_skip_for_a_developer(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_NO_SKIPS", raising=False)
    result = suite.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=4, xfailed=1)
    result.stdout.fnmatch_lines(["*no Java for a real Kafka: install Java 17 or newer*"])


def test_a_skip_is_a_failure_in_ci(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_NO_SKIPS", "1")
    result = suite.runpytest_subprocess()
    result.assert_outcomes(failed=1, errors=2, xfailed=1, skipped=1)
    allowed = "skipped, and OTTLA_NO_SKIPS=1 allows no skip here"
    result.stdout.fnmatch_lines_random([f"{allowed}: no peer", f"{allowed}: not today", f"{allowed}: no Java for *"])


def test_a_module_that_skips_itself_is_a_failure_in_ci(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_NO_SKIPS", "1")
    suite.makepyfile(**{"tests/interop/test_peer": 'import pytest\npytest.importorskip("no_such_peer")'})
    result = suite.runpytest_subprocess("tests/interop/test_peer.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*allows no skip here: could not import 'no_such_peer'*"])
