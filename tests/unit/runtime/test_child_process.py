"""Programs in child processes that end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.runtime import child_process
from ottla.runtime.child_process import ChildProcess

LIMIT = 20.0

PARENT = """
import sys
from pathlib import Path
from ottla.runtime.child_process import ChildProcess
folder = Path(sys.argv[1])
child = ChildProcess(["sleep", "600"], folder=folder, output=folder / "output", environment={"PATH": sys.argv[2]})
print(child.pid, flush=True)
sys.stdin.read()
"""


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def group_has_ended(group: int) -> bool:
    """Whether no process of the group, except zombies that nothing reaps, is left."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, found = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(found) == group and state != "Z":
            return False
    return True


def child(folder: Path, *command: str) -> ChildProcess:
    return ChildProcess(command, folder=folder, output=folder / "output", environment=dict(os.environ))


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_program_ends_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), os.environ["PATH"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert not group_has_ended(pid)
        parent.send_signal(number)
        assert parent.wait(LIMIT) == -number
        assert eventually(lambda: group_has_ended(pid))


def test_after_the_end_no_watcher_is_left(tmp_path: Path) -> None:
    program = child(tmp_path, "sh", "-c", "echo done; exit 3")
    assert eventually(lambda: program.exit_code() == 3)
    program.kill()
    assert eventually(lambda: group_has_ended(program.pid))
    assert (tmp_path / "output").read_text() == "done\n"


def test_stop_lets_the_program_end_well(tmp_path: Path) -> None:
    program = child(tmp_path, "sh", "-c", "trap 'echo ended; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    assert eventually(lambda: (tmp_path / "output").read_text() == "ready\n")
    program.stop()
    assert (program.exit_code(), (tmp_path / "output").read_text()) == (0, "ready\nended\n")
    assert eventually(lambda: group_has_ended(program.pid))


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "KILLED_AFTER", 0.05)
    program = child(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done")
    assert eventually(lambda: (tmp_path / "output").read_text() == "ready\n")
    program.stop()
    assert program.exit_code() == -signal.SIGKILL


def test_the_program_does_not_read_the_pipe_of_its_watcher(tmp_path: Path) -> None:
    program = child(tmp_path, "sh", "-c", "cat; ls -l /proc/self/fd")
    assert eventually(lambda: program.exit_code() == 0)
    program.kill()
    assert "pipe:" not in (tmp_path / "output").read_text()


def test_a_program_that_does_not_exist_ends_with_the_shells_message(tmp_path: Path) -> None:
    program = child(tmp_path, str(tmp_path / "none"))
    assert eventually(lambda: program.exit_code() == 127)
    program.kill()
    assert "not found" in (tmp_path / "output").read_text()
