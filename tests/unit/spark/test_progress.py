"""Progress of a group: committed when it changes, never an error, and not tried too often when it fails."""

from __future__ import annotations

import logging

import pytest

from ottla.errors import OttlaTimeoutError
from ottla.spark import cluster
from ottla.spark.cluster import Progress
from ottla.spark.offsets import Offsets
from ottla.types import TopicPartition

A = TopicPartition("a", 0)


class Broken:
    """Where commits go: refused while ``error`` is set."""

    def __init__(self) -> None:
        self.commits: list[tuple[Offsets, float]] = []
        self.error: Exception | None = None

    def commit(self, offsets: Offsets, *, timeout: float) -> None:
        self.commits.append((offsets, timeout))
        if self.error is not None:
            raise self.error


@pytest.fixture
def target() -> Broken:
    return Broken()


def test_without_a_group_nothing_is_committed(target: Broken) -> None:
    Progress(target, None).reached({A: 5}, final=True)
    assert target.commits == []


def test_what_did_not_change_is_committed_once(target: Broken) -> None:
    progress = Progress(target, "g")
    for offset in (5, 5, 6, 6):
        progress.reached({A: offset})
    progress.reached({A: 6}, final=True)
    progress.reached({})
    assert [offsets[A] for offsets, _ in target.commits] == [5, 6]


@pytest.mark.parametrize("error", [OttlaTimeoutError("no coordinator"), RuntimeError("anything")])
def test_a_failure_is_a_warning_and_is_followed_by_rest(
    target: Broken, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(cluster.time, "monotonic", lambda: now[0])
    progress = Progress(target, "g")
    target.error = error
    with caplog.at_level(logging.WARNING):
        progress.reached({A: 1})
    assert "not committed to group 'g'" in caplog.text
    assert str(error) in caplog.text
    progress.reached({A: 2})
    assert len(target.commits) == 1
    now[0] += Progress.REST
    target.error = None
    progress.reached({A: 3})
    assert target.commits[-1] == ({A: 3}, Progress.TIMEOUT)


def test_the_last_commit_is_tried_in_earnest_even_while_resting(target: Broken) -> None:
    progress = Progress(target, "g")
    target.error = OttlaTimeoutError("no coordinator")
    progress.reached({A: 1})
    target.error = None
    progress.reached({A: 1}, final=True)
    assert target.commits[-1] == ({A: 1}, Progress.FINAL_TIMEOUT)
