"""``ottla simulate``: its report, its exit codes, the command that repeats a failure, and Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.end_to_end.programs import ottla, started

BROKEN = """
from ottla.client.positions.commit import CommitManager

correct = CommitManager.polled

def polled(self, positions, now):
    correct(self, {tp: place._replace(offset=place.offset + 1) for tp, place in positions.items()}, now)

CommitManager.polled = polled
"""
"""Python runs it at the start of each process: auto-commit then commits an offset too many."""


def test_each_generation_has_one_line() -> None:
    done = ottla("simulate", "--seeds", "2", "--jobs", "2", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["zookeeper", "classic", "consumer"]
    for line in lines:
        assert re.fullmatch(r"\w+: 2 runs, none failed: 0\.\d hours of members, \d+ records handled, \d+ commits.*", line)


def test_the_command_of_a_failure_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    failed = ottla("simulate", "--generation", "consumer", "--seed", "1", timeout=120)
    line, total = failed.stdout.splitlines()
    assert failed.returncode == 1
    assert total.startswith("consumer: 1 run, 1 failed: ")
    found = re.fullmatch(r"consumer, seed 1: (.* has committed offset .*, but \d+ was not handled) \(ottla (.*)\)", line)
    assert found is not None, line
    repeated = ottla(*found[2].split(), timeout=120)
    assert repeated.returncode == 1
    assert repeated.stdout.splitlines()[-1] == f"failed: {found[1]}"
    assert "OFFSET_COMMIT to broker" in repeated.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trace"], "one --generation and one --seed"),
        (["--trace", "--seed", "1"], "one --generation and one --seed"),
        (["--trace", "--seed", "1", "--seeds", "2", "--generation", "classic"], "one --generation and one --seed"),
        (["--generation", "raft"], "'raft' is not one of"),
        (["--seeds", "0"], "should be greater than or equal to 1"),
        (["--seed", "-1"], "should be greater than or equal to 0"),
        (["--jobs", "many"], "a valid integer"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = ottla("simulate", *arguments)
    assert done.returncode == 2
    assert text in " ".join(re.sub(r"[│\n]", " ", done.stderr).split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_all_processes(number: signal.Signals) -> None:
    with started("simulate", "--generation", "classic", "--seeds", "100000", "--jobs", "2") as process:
        workers: list[int] = []
        until = time.monotonic() + 30
        while len(workers) < 2 and time.monotonic() < until:
            listed = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True)
            workers = [int(line) for line in listed.stdout.split()]
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == ""
    for worker in workers:
        assert not Path(f"/proc/{worker}").exists()


def test_a_killed_process_is_an_error() -> None:
    with started("simulate", "--generation", "classic", "--seeds", "100000", "--jobs", "1") as process:
        listed = ""
        until = time.monotonic() + 30
        while not listed and time.monotonic() < until:
            listed = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True).stdout
        subprocess.run(["kill", "-KILL", *listed.split()], check=True)
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert "error: a process that ran simulations has ended" in process.stderr.read()
