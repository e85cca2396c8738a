"""What the interop tests have measured, printed as a table at the end of a run: the one that ``docs/interop.md`` shows.

Owns the table. Must not know what is measured: a test adds ``(scenario, figures)`` to its ``user_properties``.
"""

from __future__ import annotations

import pytest


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
