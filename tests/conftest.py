"""The configuration of the test run: hypothesis profiles, Apache Kafka on request, no skips in CI, and a table of figures.

Owns the behaviour of the test run; must not know the tests. A test may add ``(scenario, figures)`` to its ``user_properties``: the
end of the run prints them as the table of ``docs/interop.md``. Invariant: with ``OTTLA_NO_SKIPS=1`` no test in ``NEVER_SKIPPED`` is
skipped: it fails with the reason of the skip.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["pytester", "tests.interop.real_kafka"]

NEVER_SKIPPED = tuple(Path(__file__).parent / folder for folder in ("interop", "secure", "spark", "end_to_end"))
NO_SKIPS = os.environ.get("OTTLA_NO_SKIPS") == "1"

# A machine that is busy is no reason to fail: how long an example takes is not what these tests are about.
# Unless asked for, nothing is drawn at random: the same checkout gives the same outcome to everyone (``make test-random``).
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
# ``make test``: 30 % of the examples, also of those tests that give a number of their own (``tests/example_counts.py``), so that it
# takes less than 21 minutes on a slow day of two cores. ``make check``: a tenth.
hypothesis.settings.register_profile("test", hypothesis.settings.get_profile("fixed"), max_examples=30)
hypothesis.settings.register_profile("check", hypothesis.settings.get_profile("fixed"), max_examples=10)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "fixed")

IDLE_CLIENTS = {
    "ottla.spark.reading": "consumers",
    "ottla.spark.sink": "producers",
    "ottla.spark.exactly_once.transactions": "admins",
}
"""The pools of idle clients that tasks of Spark have in their process, by their modules."""

CASES = int(os.environ.get("OTTLA_TEST_CASES") or 0)
"""The cases of a parametrized test that are run, of tests that need no other programs; 0: all, as in ``make test-slow``.

``make check`` runs 8, ``make test`` 2. Cases with the marker ``always`` are run besides.
"""


def refuse_skip(report: pytest.TestReport | pytest.CollectReport, path: Path) -> None:
    """Turn a forbidden skip into a failure. An expected failure (``xfail``) is not a skip."""
    if not (NO_SKIPS and report.skipped and not hasattr(report, "wasxfail")):
        return
    if any(path.is_relative_to(folder) for folder in NEVER_SKIPPED):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, and OTTLA_NO_SKIPS=1 allows no skip here: {reason.removeprefix('Skipped: ')}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the files that mostly wait for other processes among those that compute, so that processes beside each other do both,
    and each folder of the former: several that use Spark at a time take much longer.

    By default pytest-xdist begins with the files that have most tests, which compute: then all processes wait at the end.
    """
    if CASES:
        leave_out_cases(config, items)
    if not hasattr(config, "workerinput"):
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds: dict[Path | None, list[Path]] = {}
    for path in files:
        kinds.setdefault(next((folder for folder in NEVER_SKIPPED if path.is_relative_to(folder)), None), []).append(path)
    placed = [((number + 0.5) / len(paths), path) for paths in kinds.values() for number, path in enumerate(paths)]
    items[:] = [item for _, path in sorted(placed) for item in files[path]]


def leave_out_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all but ``CASES`` cases of each parametrized test, evenly over its cases and the same ones in each run.

    Where a case stands for a whole group protocol or API, none is like another: such tests have the marker ``always``.
    """
    tests: dict[str, list[pytest.Item]] = {}
    kept = set()
    for item in items:
        if item.get_closest_marker("always") or any(item.path.is_relative_to(folder) for folder in NEVER_SKIPPED):
            kept.add(id(item))
        else:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        kept |= {id(cases[position * len(cases) // min(CASES, len(cases))]) for position in range(min(CASES, len(cases)))}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def pytest_collection_finish() -> None:
    """Exclude the millions of objects of the collected tests from full garbage collections: they live as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close the clients that the source and the sink of Spark, run in the process of a test, keep for later tasks.

    Some minutes later, when their metadata is too old, they would log in another test that their broker is gone.
    """
    for name, pool in IDLE_CLIENTS.items():
        if name in sys.modules:  # most tests do not load them
            getattr(sys.modules[name], pool).close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_skip(report, item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report, collector.path)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        {"scenario": name, **figures}
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for name, figures in report.user_properties
        if isinstance(figures, dict)
    ]
    if not rows:
        return
    terminalreporter.section("what was measured")
    terminalreporter.write_line("| " + " | ".join(rows[0]) + " |")
    terminalreporter.write_line("|" + "---|" * len(rows[0]))
    for row in rows:
        terminalreporter.write_line("| " + " | ".join(str(value) for value in row.values()) + " |")
