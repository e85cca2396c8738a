"""The threads for slow work."""

from __future__ import annotations

import errno
import threading
from functools import partial

import pytest

from ottla.runtime.disk import DiskThread, DiskWorkers


def test_jobs_run_in_order_and_each_is_reported_also_one_that_fails() -> None:
    reports: list[tuple[object, object]] = []
    disk = DiskThread(lambda tag, outcome: reports.append((tag, outcome)))
    names: list[str] = []
    disk.submit(("a",), lambda: names.append(threading.current_thread().name))
    disk.submit(("b",), lambda: 1 // 0)
    disk.submit(("c",), lambda: "done")
    disk.close()
    assert [tag for tag, _ in reports] == [("a",), ("b",), ("c",)]
    assert names == ["ottla-broker-disk"]
    assert isinstance(reports[1][1], ZeroDivisionError)
    assert reports[2][1] == "done"


class Panic(BaseException):
    """What a codec written in Rust raises where it fails."""


def panic() -> None:
    raise Panic("a defect")


def test_a_job_that_panics_is_a_failed_job_and_the_thread_goes_on() -> None:
    reports: list[tuple[object, object]] = []
    disk = DiskThread(lambda tag, outcome: reports.append((tag, outcome)))
    disk.submit(("a",), panic)
    disk.submit(("b",), lambda: "done")
    disk.close()
    assert isinstance(reports[0][1], Exception)
    assert "a defect" in str(reports[0][1])
    assert reports[1] == (("b",), "done")


def test_a_thread_that_could_not_be_started_is_started_for_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[object] = []
    disk = DiskThread(lambda tag, outcome: reports.append(tag))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            disk.submit(("a",), lambda: None)
    disk.submit(("b",), lambda: None)
    disk.close()
    assert reports == [("a",), ("b",)]


def test_many_jobs_are_done_several_at_a_time() -> None:
    together = threading.Barrier(4)
    done: list[int] = []

    def job(number: int) -> None:
        together.wait(10)
        done.append(number)

    DiskWorkers().run_all([partial(job, number) for number in range(20)])
    assert sorted(done) == list(range(20))
    DiskWorkers().run_all([])


def test_many_jobs_are_done_where_no_thread_can_be_made_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of an interpreter from Python 3.12 on, where a broker that was not closed is stopped."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    done: list[int] = []
    DiskWorkers().run_all([partial(done.append, number) for number in range(20)])
    assert done == list(range(20))


def test_of_many_jobs_one_that_fails_ends_the_others() -> None:
    done: list[int] = []

    def job(number: int) -> None:
        if number == 10:
            raise OSError(errno.EIO, "Input/output error")
        done.append(number)

    with pytest.raises(OSError, match="Input/output"):
        DiskWorkers().run_all([partial(job, number) for number in range(10_000)])
    assert len(done) < 9_999


def test_what_an_interruption_has_left_running_ends_before_the_next_jobs_begin() -> None:
    """Two threads would write the same file."""
    helpers, go_on = DiskWorkers(), threading.Event()
    begun, done = threading.Semaphore(0), list[str]()

    def slow() -> None:
        if threading.current_thread() is threading.main_thread():
            begun.acquire(timeout=10)  # a helper has one, too
            raise KeyboardInterrupt
        begun.release()
        go_on.wait(10)
        done.append("first")

    # The caller's thread waits for the helpers when the second Ctrl-C comes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "join", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            helpers.run_all([slow, slow])
    threading.Timer(0.1, go_on.set).start()
    helpers.run_all([partial(done.append, "second")])
    assert done == ["first", "second"]


def _interrupted(thread: threading.Thread) -> None:
    raise KeyboardInterrupt


def test_a_job_that_fails_again_and_again_is_in_the_log_once_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk the three checkpoints fail every minute."""
    disk = DiskThread(lambda tag, outcome: None)

    def fail(reason: str) -> None:
        raise OSError(reason)

    for number, reason in enumerate(["full", "full", "broken", "broken", "", "broken"]):
        disk.submit(("checkpoint", "starts", number), partial(fail, reason) if reason else lambda: None)
        disk.submit(("checkpoint", "points", number), partial(fail, "full"))
    disk.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "work on the data directory failed (checkpoint starts): full",
        "work on the data directory failed (checkpoint points): full",
        "work on the data directory failed (checkpoint starts): broken",
        "work on the data directory failed (checkpoint starts): broken",
    ]
