"""``ottla simulate``: its report, its exit codes, the command that repeats a failure, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.cli.simulate import Total
from ottla.simulation.outcome import Generation, Outcome
from tests.end_to_end.programs import OTTLA, environment, ottla, started

BROKEN = """
from ottla.client.positions.commit import CommitManager

correct = CommitManager.polled

def polled(self, positions, now):
    correct(self, {tp: place._replace(offset=place.offset + 1) for tp, place in positions.items()}, now)

CommitManager.polled = polled
"""
"""Auto-commit commits an offset too many."""

EXITING_CORE = """
import sys
from ottla.client.positions.commit import CommitManager

def polled(self, positions, now):
    sys.exit(0)

CommitManager.polled = polled
"""

ENDLESS_CORE = """
from ottla.cli import simulate
from ottla.client.positions.commit import CommitManager

def polled(self, positions, now):
    while True:
        pass

simulate.LIMIT = 1
CommitManager.polled = polled
"""


@pytest.fixture
def use_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function that has each process run some code at its start, which changes a core."""

    def use(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    return use


def test_each_generation_has_one_line() -> None:
    done = ottla("simulate", "--seeds", "2", "--jobs", "2", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["zookeeper", "classic", "consumer", "central"]
    for line in lines:
        numbers = r"\d+\.\d (minutes|seconds) of members, \d+ records handled, \d+ commits"
        assert re.fullmatch(rf"\w+: 2 runs, none failed: {numbers}.*", line)


def test_the_command_of_a_failure_repeats_it(use_core: Callable[[str], None]) -> None:
    use_core(BROKEN)
    failed = ottla("simulate", "--generation", "consumer", "--seed", "1", timeout=120)
    line, total = failed.stdout.splitlines()
    assert failed.returncode == 1
    assert total.startswith("consumer: 1 run, 1 failed: ")
    pattern = r"consumer, seed 1: (.* has committed offset (\d+) of (\S+), but \d+ was not handled) \(ottla (.*)\)"
    found = re.fullmatch(pattern, line)
    assert found is not None, line
    repeated = ottla(*found[4].split(), timeout=120)
    assert repeated.returncode == 1
    assert repeated.stdout.splitlines()[-1] == f"failed: {found[1]}"
    assert f"OFFSET_COMMIT of {found[3]}={found[2]} to broker" in repeated.stdout


@pytest.mark.parametrize(
    ("core", "failure"),
    [(ENDLESS_CORE, "no end after 1 s of CPU time"), (EXITING_CORE, "SystemExit: 0")],
    ids=["it loops in one call", "it exits"],
)
def test_a_core_that_does_not_return_is_a_failure(core: str, failure: str, use_core: Callable[[str], None]) -> None:
    use_core(core)
    failed = ottla("simulate", "--generation", "consumer", "--seed", "1")
    assert (failed.returncode, failed.stderr) == (1, "")
    assert failed.stdout.startswith(f"consumer, seed 1: {failure} (ottla simulate ")
    traced = ottla("simulate", "--generation", "consumer", "--seed", "1", "--trace")
    assert (traced.returncode, traced.stderr) == (1, "")
    assert "in polled" in traced.stdout
    assert traced.stdout.splitlines()[-1] == f"failed: {failure}"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0.0 seconds"), (59_940, "59.9 seconds"), (90_000, "1.5 minutes"), (3_600_000, "1.0 hours"), (36_180_000, "10.1 hours")],
)
def test_the_time_of_members_has_a_unit_that_fits(milliseconds: int, text: str) -> None:
    total = Total()
    total.add(Outcome(Generation.CLASSIC, 1, None, member_time=milliseconds))
    assert f"none failed: {text} of members" in total.text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trace"], "one --generation and one --seed"),
        (["--trace", "--seed", "1"], "one --generation and one --seed"),
        (["--trace", "--seed", "1", "--seeds", "2", "--generation", "classic"], "one --generation and one --seed"),
        (["--generation", "raft"], "'raft' is not one of"),
        (["--seeds", "0"], "should be greater than or equal to 1"),
        (["--seed", "-1"], "should be greater than or equal to 0"),
        (["--seed", str(2**63)], "should be less than or equal to 9223372036854775807"),
        (["--seed", "9" * 4300, "--seeds", "2"], "should be less than or equal to 9223372036854775807"),
        (["--seed", str(2**63 - 1), "--seeds", "2"], "the last seed would be larger than 9223372036854775807"),
        (["--seeds", str(2**63)], "should be less than or equal to 9223372036854775807"),
        (["--jobs", "many"], "a valid integer"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = ottla("simulate", *arguments)
    assert done.returncode == 2
    assert text in " ".join(re.sub(r"[│\n]", " ", done.stderr).split())


ENDLESS = ("simulate", "--generation", "classic", "--seeds", "100000", "--jobs", "2")


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that it has started, once both are there."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        listed = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True).stdout
        if len(listed.split()) == 2:
            return [int(line) for line in listed.split()]
    raise AssertionError("it has not started two processes")


def wait_until_gone(workers: list[int]) -> None:
    until = time.monotonic() + 40  # they import the package first, which takes ten seconds on a busy machine
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < until:
        time.sleep(0.02)
    assert [worker for worker in workers if Path(f"/proc/{worker}").exists()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_signals_end_all_processes(number: signal.Signals, delay: float) -> None:
    """As a terminal sends them: to the processes of the command, too, which are still importing the package at first."""
    with subprocess.Popen(
        [OTTLA, *ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as process:
        workers = workers_of(process)
        time.sleep(delay)
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (128 + number, "")
    wait_until_gone(workers)


def test_no_process_outlives_a_command_that_is_killed() -> None:
    with started(*ENDLESS) as process:
        workers = workers_of(process)
        process.kill()
        wait_until_gone(workers)


def test_a_killed_process_is_an_error() -> None:
    with started(*ENDLESS) as process:
        os.kill(workers_of(process)[0], signal.SIGKILL)
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert "error: a process that ran simulations has ended" in process.stderr.read()


def test_it_ends_when_its_reader_has_stopped_reading() -> None:
    command = f"{OTTLA} simulate --generation classic --seed 1 --trace | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
