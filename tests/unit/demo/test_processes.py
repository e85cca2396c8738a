"""Child processes report events and failures, and never outlive their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ottla.demo.processes import ENDED, ChildFailed, Children
from ottla.signals import Interrupted, Stop, recorded_signals

pytestmark = pytest.mark.long

CHILD = """
import os, signal, subprocess, sys, time

def main(arguments, emit):
    if arguments.get("fail"):
        print("what went wrong", file=sys.stderr)
        raise SystemExit(7)
    if arguments.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(["sleep", "1000"]) if arguments.get("family") else None
    print("this is for the log")
    emit("ready", pid=os.getpid(), grandchild=grandchild and grandchild.pid, twice=arguments["number"] * 2)
    time.sleep(arguments.get("seconds", 1000))
"""

PARENT = """
import sys, time
from pathlib import Path
from ottla.demo.processes import Children
from ottla.signals import Stop

children = Children(Path(sys.argv[1]), Stop())
child = children.start("one", "a_child_of_the_tests", {"number": 1, "stubborn": True})
print(children.wait_for(child, "ready", 60).data["pid"], flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_child_of_the_tests.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))


def gone(pid: int, within: float = 60.0) -> bool:
    """Whether the process has ended (a zombie that no one has waited for yet has)."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_child_reports_and_its_prints_go_to_its_log(tmp_path: Path) -> None:
    with Children(tmp_path, Stop()) as children:
        child = children.start("one", "a_child_of_the_tests", {"number": 21, "seconds": 0})
        assert children.wait_for(child, "ready", 60).data["twice"] == 42
        assert children.wait_for(child, ENDED, 60).data["code"] == 0
    assert (tmp_path / "one.log").read_text() == "this is for the log\n"


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    with Children(tmp_path, Stop()) as children:
        child = children.start("one", "a_child_of_the_tests", {"number": 1, "fail": True})
        with pytest.raises(ChildFailed, match=r"one exited with 7; the end of .*one\.log:$") as raised:
            children.wait_for(child, "ready", 60)
    assert any("what went wrong" in line for line in raised.value.details)
    assert all(line.startswith("  ") for line in raised.value.details)


def test_events_of_others_wait_for_their_turn(tmp_path: Path) -> None:
    with Children(tmp_path, Stop()) as children:
        children.start("one", "a_child_of_the_tests", {"number": 1})
        while children._events.empty():
            time.sleep(0.01)
        second = children.start("two", "a_child_of_the_tests", {"number": 2})
        assert children.wait_for(second, "ready", 60).child == "two"
        assert next(children.events(60)).child == "one"


def test_children_may_report_in_another_order_than_they_are_waited_for(tmp_path: Path) -> None:
    with Children(tmp_path, Stop()) as children:
        first = children.start("one", "a_child_of_the_tests", {"number": 1})
        while children._events.empty():
            time.sleep(0.01)
        second = children.start("two", "a_child_of_the_tests", {"number": 2})
        for child in (second, first):
            assert children.wait_for(child, "ready", 60).child == child.name
        assert [*children.events(0)] == []


def test_none_is_left_when_the_with_ends(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Children(tmp_path, Stop()) as children:  # noqa: PT012  the error is what ends the with
        pids = []
        for name in ("one", "two"):
            child = children.start(name, "a_child_of_the_tests", {"number": 1, "family": True})
            ready = children.wait_for(child, "ready", 60).data
            pids += [ready["pid"], ready["grandchild"]]
        raise RuntimeError
    assert all(gone(pid) for pid in pids)


def test_a_kill_is_expected_and_others_go_on(tmp_path: Path) -> None:
    with Children(tmp_path, Stop()) as children:
        child = children.start("one", "a_child_of_the_tests", {"number": 1})
        pid = children.wait_for(child, "ready", 60).data["pid"]
        children.kill(child)
        assert gone(pid)
        assert [event.kind for event in children.events(0.5)] == [ENDED]


def test_the_end_of_a_killed_child_is_not_that_of_the_next_one_with_its_name(tmp_path: Path) -> None:
    with Children(tmp_path, Stop()) as children:
        first = children.start("one", "a_child_of_the_tests", {"number": 1})
        killed = children.wait_for(first, "ready", 60).data["pid"]
        children.kill(first)
        second = children.start("one", "a_child_of_the_tests", {"number": 1})
        assert children.wait_for(second, "ready", 60).data["pid"] != killed
        assert [event.data["code"] for event in children.events(0.5)] == [-signal.SIGKILL]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_goes_with_its_parent_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = json.loads(parent.stdout.readline())
    finally:
        parent.send_signal(number)
        parent.wait()
    assert gone(pid)


def test_a_signal_ends_the_wait_and_the_children(tmp_path: Path) -> None:
    with pytest.raises(Interrupted), recorded_signals() as stop, Children(tmp_path, stop) as children:  # noqa: PT012
        child = children.start("one", "a_child_of_the_tests", {"number": 1})
        pid = children.wait_for(child, "ready", 60).data["pid"]
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        children.wait_for(child, "what never comes", 30)
    timer.join()
    assert gone(pid)
