"""What is logged once about each group."""

from __future__ import annotations

import pytest

from ottla.broker.zookeeper import reports
from ottla.broker.zookeeper.reports import Reports


def test_a_text_is_logged_again_after_another_one_or_after_the_cause_was_gone(caplog: pytest.LogCaptureFixture) -> None:
    told = Reports()
    told.report("g", "a")
    told.report("h", "a")
    for text in ("a", "b", "b", "a", "", "", "a"):
        told.report("g", text)
    assert [record.getMessage() for record in caplog.records] == ["a", "a", "b", "a", "a"]
    told.clear()
    told.report("g", "a")
    assert len(caplog.records) == 6


def test_the_oldest_texts_are_dropped(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST", 2)
    told = Reports()
    for group_id in ("g", "h", "g", "i", "h", "i", "g"):
        told.report(group_id, group_id)
    assert [record.getMessage() for record in caplog.records] == ["g", "h", "i", "g"]
    assert repr(told) == "<Reports 2 groups>"
