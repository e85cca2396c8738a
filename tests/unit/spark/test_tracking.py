"""The tracker's listener, called with Spark's events: which positions are committed, and the end of the tracking."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.errors import ConfigError
from ottla.spark import tracking
from ottla.spark.offsets import Offsets
from ottla.spark.progress import Progress, ProgressThread
from ottla.spark.tracking import ProgressTracker, track_progress
from ottla.types import OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Group:
    """A cluster with the offsets of one group."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.is_closed = False

    def commit(self, offsets: Offsets, *, metadata: str, timeout: float) -> None:
        self.offsets |= offsets

    def committed(self, partitions: Iterable[TopicPartition], *, timeout: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return dict.fromkeys(partitions)

    def close(self) -> None:
        self.is_closed = True


class Streams:
    """A session's StreamingQueryManager, which reports what queries do."""

    def __init__(self) -> None:
        self.queries: dict[str, SimpleNamespace] = {}
        self.listeners: list[Any] = []
        self.error: Exception | None = None

    @property
    def active(self) -> list[SimpleNamespace]:
        if self.error is not None:
            raise self.error
        return list(self.queries.values())

    def addListener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:
        self.listeners.remove(listener)

    def start(self, query: str, name: str | None = None, *, run: str = "") -> str:
        run = run or f"run of {query}"
        self.queries[run] = SimpleNamespace(id=query, runId=run, name=name)
        for listener in self.listeners:
            listener.onQueryStarted(self.queries[run])
        return run

    def progress(self, run: str, offsets: str, latest: str | None = None) -> None:
        query = self.queries[run]
        sources = [SimpleNamespace(endOffset=offsets, latestOffset=latest)]
        event = SimpleNamespace(progress=SimpleNamespace(id=query.id, runId=run, name=query.name, sources=sources))
        for listener in self.listeners:
            listener.onQueryProgress(event)

    def end(self, run: str) -> None:
        """The query ends; ``terminated`` reports it."""
        self.ended = self.queries.pop(run)

    def terminated(self) -> None:
        for listener in self.listeners:
            listener.onQueryTerminated(self.ended)


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def streams() -> Streams:
    return Streams()


def track(streams: Streams, group: Any) -> ProgressTracker:
    return ProgressTracker(streams, ProgressThread(Progress(group, "g")), None)


def run_to_end(streams: Streams, query: str, name: str | None, offsets: str) -> None:
    run = streams.start(query, name)
    streams.progress(run, offsets)
    streams.end(run)
    streams.terminated()


def test_a_session_that_has_ended_hides_no_exception_and_the_last_commit_is_made(
    streams: Streams, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = track(streams, group)
    streams.progress(streams.start("q"), '{"t":{"0":5}}')
    streams.error = ConnectionRefusedError("no JVM")
    with pytest.raises(KeyError, match="of the program"), tracker:
        raise KeyError("of the program")
    assert group.offsets == {A: 5}
    assert group.is_closed
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, "ottla.spark.tracking")]
    assert "the session of Spark has ended, so the last reports of its queries may be missing: no JVM" in caplog.text
    tracker.stop()  # once more


def test_a_name_that_no_query_has_is_reported(streams: Streams, group: Any, caplog: pytest.LogCaptureFixture) -> None:
    with ProgressTracker(streams, ProgressThread(Progress(group, "g")), ["orders", "ordres"]):
        run_to_end(streams, "q", "orders", '{"t":{"0":5}}')
    assert [record.message for record in caplog.records] == [
        "no query with the name ordres has run, so its progress is not committed"
    ]


def test_errors_name_arguments() -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting 'securty_protocol' \(did you mean security_protocol\?\)$"):
        track_progress(None, group_id="g", bootstrap_servers="localhost:9092", securty_protocol="SSL")
    with pytest.raises(ConfigError, match=r"^bootstrap_servers is empty$"):
        track_progress(None, group_id="g", bootstrap_servers="")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_last_report_is_waited_for(streams: Streams, group: Group, monkeypatch: pytest.MonkeyPatch, is_restarted: bool) -> None:
    """Of a query that was started before the tracker, and of one whose start Spark reports before the end of its last run."""
    run = streams.start("q")
    tracker = track(streams, group)
    if is_restarted:
        streams.end(run)
        run = streams.start("q", run="second")
        streams.terminated()
    query = streams.queries[run]
    streams.end(run)

    def report() -> None:
        streams.queries[run] = query
        streams.progress(run, '{"t":{"0":7}}')
        streams.terminated()

    asked = threading.Event()
    wait_for = tracker._changed.wait_for

    def wait_for_report(predicate: Any, timeout: float | None = None) -> bool:
        asked.set()
        return wait_for(predicate, timeout)

    monkeypatch.setattr(tracker._changed, "wait_for", wait_for_report)
    reporter = threading.Thread(target=lambda: asked.wait(10) and report())
    reporter.start()
    tracker.stop()
    reporter.join()
    assert group.offsets == {A: 7}


def test_a_report_that_does_not_come(streams: Streams, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "LAST_EVENT_TIMEOUT", 0.01)
    tracker = track(streams, group)
    run = streams.start("q")
    streams.progress(run, '{"t":{"0":5}}')
    streams.end(run)
    tracker.stop()
    assert group.offsets == {A: 5}


@pytest.mark.parametrize("name", ["orders", None])
def test_a_new_query_with_the_name_of_an_ended_one_replaces_it(streams: Streams, group: Group, name: str | None) -> None:
    with track(streams, group):
        run_to_end(streams, "old", name, '{"t":{"0":5,"1":5}}')
        streams.progress(streams.start("new", name), '{"t":{"0":900}}')
    assert group.offsets == {A: 900, B: 5}  # the new one does not read partition 1


def test_the_old_checkpoint_once_more(streams: Streams, group: Group) -> None:
    with track(streams, group):
        run_to_end(streams, "old", "orders", '{"t":{"0":50,"1":5}}')
        run_to_end(streams, "new", "orders", '{"t":{"0":10}}')
        run_to_end(streams, "old", "orders", '{"t":{"0":60,"1":6}}')
    assert group.offsets == {A: 60, B: 6}


@pytest.mark.parametrize("names", [("a", "b"), (None, None)])
def test_of_two_queries_the_least_counts_also_when_one_has_ended(
    streams: Streams, group: Group, names: tuple[str | None, str | None]
) -> None:
    with track(streams, group):
        first, second = streams.start("a", names[0]), streams.start("b", names[1])
        streams.progress(first, '{"t":{"0":5}}')
        streams.progress(second, '{"t":{"0":6}}')
        streams.end(first)
        streams.terminated()
        streams.progress(second, '{"t":{"0":900}}')
    assert group.offsets == {A: 5}


def test_the_lag_of_a_name_is_that_of_its_latest_query(streams: Streams, group: Group) -> None:
    with track(streams, group) as tracker:
        for query, offset in (("old", 1), ("new", 2), ("old", 3)):
            run = streams.start(query, "orders")
            streams.progress(run, f'{{"t":{{"0":{offset}}}}}', '{"t":{"0":10}}')
            streams.end(run)
            streams.terminated()
        assert tracker.offsets_behind_latest == {"orders": (7, 7.0, 7)}
