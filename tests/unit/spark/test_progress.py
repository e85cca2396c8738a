"""The progress of a stream: committed when it changes, without errors for the query, and with a pause after a failure."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from ottla.errors import OttlaTimeoutError, UnknownMemberIdError
from ottla.spark.offsets import Offsets
from ottla.spark.progress import Progress
from ottla.types import OffsetAndMetadata, TopicPartition

A = TopicPartition("a", 0)


class Broken:
    """A cluster whose commits fail while ``error`` is set."""

    def __init__(self) -> None:
        self.commits: list[tuple[Offsets, float]] = []
        self.error: Exception | None = None
        self.look_error: Exception | None = None
        self.group: dict[TopicPartition, OffsetAndMetadata] = {}
        self.questions = 0

    def commit(self, offsets: Offsets, *, metadata: str, timeout: float) -> None:
        self.commits.append((offsets, timeout))
        if self.error is not None:
            raise self.error
        self.group |= {tp: OffsetAndMetadata(offset, metadata=metadata) for tp, offset in offsets.items()}

    def committed(self, partitions: Iterable[TopicPartition], *, timeout: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.questions += 1
        if self.look_error is not None:
            raise self.look_error
        return {tp: self.group.get(tp) for tp in partitions}


@pytest.fixture
def target() -> Any:
    return Broken()


def test_without_a_group_nothing_is_committed(target: Any) -> None:
    Progress(target, None).report({A: 5}, final=True)
    assert target.commits == []


def test_unchanged_offsets_are_committed_once(target: Any) -> None:
    progress = Progress(target, "g")
    for offset in (5, 5, 6, 6):
        progress.report({A: offset})
    progress.report({A: 6}, final=True)
    progress.report({})
    assert [offsets[A] for offsets, _ in target.commits] == [5, 6]


@pytest.mark.parametrize("error", [OttlaTimeoutError("no coordinator"), RuntimeError("anything")])
def test_a_failure_is_a_warning_and_is_followed_by_rest(
    target: Any, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(target, "g")
    target.error = error
    with caplog.at_level(logging.WARNING):
        progress.report({A: 1})
    assert "not committed to group 'g'" in caplog.text
    assert str(error) in caplog.text
    progress.report({A: 2})
    assert len(target.commits) == 1
    now[0] += Progress.RETRY_PAUSE
    target.error = None
    progress.report({A: 3})
    assert target.commits[-1] == ({A: 3}, Progress.TIMEOUT)


def test_the_last_commit_is_tried_in_earnest_even_while_resting(target: Any) -> None:
    progress = Progress(target, "g")
    target.error = OttlaTimeoutError("no coordinator")
    progress.report({A: 1})
    target.error = None
    progress.report({A: 1}, final=True)
    assert target.commits[-1] == ({A: 1}, Progress.FINAL_TIMEOUT)


def test_the_warning_about_a_group_with_members_has_advice(target: Any, caplog: pytest.LogCaptureFixture) -> None:
    target.error = UnknownMemberIdError("committing a-0 for group 'g'")
    progress = Progress(target, "g")
    progress.report({A: 1})
    progress.report({A: 1}, final=True)
    assert len(caplog.records) == 1
    assert "group 'g'" in caplog.text
    assert "because then only they may commit" in caplog.text
    assert "groupId" in caplog.text
    assert "rejoin" not in caplog.text


def test_two_queries_with_one_group_are_warned_of_once_each(
    target: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    one, two = Progress(target, "g"), Progress(target, "g")
    for offset in range(1, 6):
        now[0] += Progress.CHECK_INTERVAL
        one.report({A: offset})
        two.report({A: offset})
    assert [record.getMessage().split("(")[0] for record in caplog.records] == ["another query commits to group 'g', too "] * 2
    assert "its own groupId" in caplog.text


def test_a_query_does_not_take_its_own_commits_or_those_before_it_for_another(
    target: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    Progress(target, "g").report({A: 1})
    after_restart = Progress(target, "g")
    for offset in range(2, 3602):
        now[0] += 1
        after_restart.report({A: offset})
    assert not caplog.records
    assert 1 < target.questions <= 3600 / Progress.MAX_CHECK_INTERVAL + 6  # a look costs a request to the coordinator


@pytest.mark.parametrize("final", [False, True])
def test_a_failed_look_for_other_queries_does_not_keep_the_commit_back(
    target: Any, caplog: pytest.LogCaptureFixture, final: bool
) -> None:
    progress = Progress(target, "g")
    progress.report({A: 1})
    target.look_error = OttlaTimeoutError("no answer to OffsetFetch")
    progress.report({A: 2}, final=final)
    assert target.questions == 1
    assert target.group[A].offset == 2
    assert not caplog.records
