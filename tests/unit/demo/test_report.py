"""The comparison of figures with the expected ones, and the report."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from ottla.demo.report import Summary, owners_table, print_report


def printed(summary: Summary, files: list[Path]) -> str:
    text = io.StringIO()
    print_report(Console(file=text, width=100), summary, {"load": 1.0, "total": 2.5}, files)
    return text.getvalue()


def test_a_figure_that_does_not_add_up_is_named(tmp_path: Path) -> None:
    summary = Summary()
    summary.check("produced", 10, 10)
    summary.check("dispatch_distinct", 9, 10)
    summary.check("dispatch_by_carrier", {"UA": 9}, {"UA": 10})
    summary.add(dispatch_repeated=3)
    assert [check.name for check in summary.wrong] == ["dispatch_distinct", "dispatch_by_carrier"]
    assert "does not add up: dispatch_distinct is 9, should be 10" in printed(summary, [])
    summary.write(tmp_path / "summary.json", {"load": 1.0})
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["seconds"] == {"load": 1.0}
    assert written["wrong"][0] == {"figure": "dispatch_distinct", "is": 9, "should_be": 10}
    assert (written["produced"], written["dispatch_repeated"]) == (10, 3)


def test_a_run_in_order_fits_one_screen_and_names_only_files_that_exist(tmp_path: Path) -> None:
    summary = Summary()
    for number in range(12):
        summary.check(f"figure_{number}", number, number)
    summary.add(delay_by_carrier=[{"carrier": "UA", "airline": "United Air Lines Inc.", "flights": 3, "delay": 12.1}])
    (tmp_path / "there").write_text("")
    text = printed(summary, [tmp_path / "there", tmp_path / "missing"])
    assert "all 12 figures add up" in text
    assert "United Air Lines 12.1" in text
    assert str(tmp_path / "there") in text
    assert "missing" not in text
    assert len(text.splitlines()) <= 24


def test_owners_are_shown_act_by_act() -> None:
    text = io.StringIO()
    Console(file=text, width=100).print(owners_table({"three": {0: "a", 1: "b"}, "one killed": {0: "a", 1: "a"}}, "flights"))
    rows = [line.split() for line in text.getvalue().splitlines()]
    assert ["flights-1", "b", "a"] in rows
