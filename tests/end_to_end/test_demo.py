"""The main job, run as a user runs it: with Spark, without Java, and interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.marked_processes import MARK, alive, named, none_left
from tests.end_to_end.programs import OTTLA, environment

FLIGHTS = 24_000


@contextmanager
def demo(out: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The job on a few flights, as a process that leads a group, and the mark that all its descendants carry."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [OTTLA, "demo", "--flights", str(FLIGHTS), "--out", str(out), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**environment(), MARK: mark, **variables},
    )
    try:
        yield process, mark
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What the process prints, up to and with the line that holds ``text``."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if text in line:
            return printed
    raise AssertionError(f"{text!r} was never printed:\n{printed}")


def is_png(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java for Spark: install Java 17 or newer")
@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--group-protocol", "zookeeper"), marks=pytest.mark.slow),
        pytest.param(("--group-protocol", "consumer"), marks=pytest.mark.slow),
        pytest.param(("--group-protocol", "central"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_with_spark_every_figure_adds_up(tmp_path: Path, options: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    with demo(out, *options) as (process, mark):
        printed = process.communicate(timeout=160)[0]
        assert process.returncode == 0, printed
        assert none_left(mark)
    summary = json.loads((out / "summary.json").read_text())
    for figure in (
        "produced",
        "end_offsets",
        "dispatch_distinct",
        "spark_stream_rows",
        "spark_stream_distinct",
        "spark_batch_rows",
    ):
        assert summary[figure] == FLIGHTS, figure
    assert summary["delays_read"] == summary["delays_distinct"] > 0.9 * FLIGHTS
    assert summary["delays_group_lag"] == summary["dispatch_group_lag"] == 0
    assert summary["wrong"] == []
    assert 0 < summary["dispatch_repeated"] < FLIGHTS
    assert set(summary["dispatch_owners"]["three members"].values()) == {"member-1", "member-2", "member-3"}
    assert set(summary["dispatch_owners"]["one killed"].values()) == {"member-2", "member-3"}
    assert set(summary["dispatch_owners"]["a new one"].values()) == {"member-2", "member-3", "member-4"}
    assert {"broker", "produce", "dispatch", "spark_start", "spark_stream", "spark_batch", "delays", "total"} <= set(
        summary["seconds"]
    )
    assert summary["seconds"]["dispatch"] > 6
    assert is_png(out / "owners.png")
    assert is_png(out / "delays.png")
    assert list((out / "flights").glob("*.parquet"))
    assert (out / "broker" / "flights-0").is_dir()
    assert "flights a second" in printed
    assert "figures add up" in printed


@pytest.mark.slow
def test_without_java_all_but_spark_is_done_also_where_a_run_was_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with demo(out) as (process, mark):
        read_until(process, "produce into flights ...")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert none_left(mark)
    with demo(out, JAVA_HOME=str(tmp_path)) as (process, mark):
        printed = process.communicate(timeout=110)[0]
        assert process.returncode == 3, printed
        assert none_left(mark)
    assert "without the Spark part" in printed
    summary = json.loads((out / "summary.json").read_text())
    assert summary["dispatch_distinct"] == summary["produced"] == FLIGHTS
    assert "spark_stream_rows" not in summary
    assert is_png(out / "owners.png")
    assert not (out / "delays.png").exists()


@pytest.mark.parametrize(("protocol", "group"), [("zookeeper", "a ZooKeeper group"), ("central", "a central group")])
def test_a_group_on_zookeeper_without_java_ends_at_once(tmp_path: Path, protocol: str, group: str) -> None:
    with demo(tmp_path / "out", "--group-protocol", protocol, JAVA_HOME=str(tmp_path)) as (process, _):
        printed = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert f"{group} needs a ZooKeeper server, and that needs Java" in printed


MOMENTS = ["load the flights", "start a broker ...", "start a broker: done", "share the partitions"]
LATE = pytest.param("member-1 is killed", marks=pytest.mark.slow)


@pytest.mark.parametrize("moment", [*MOMENTS, LATE])
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path, moment: str) -> None:
    with demo(tmp_path / "out") as (process, mark):
        read_until(process, moment)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=90)[0]
        assert process.returncode == 128 + signal.SIGINT, rest
        assert none_left(mark), alive(mark)
    assert "interrupted by SIGINT" in rest
    assert "Traceback" not in rest


def test_a_summary_that_cannot_be_written_hides_no_interruption(tmp_path: Path) -> None:
    with demo(tmp_path / "out") as (process, mark):
        read_until(process, "start a broker: done")
        (tmp_path / "out" / "summary.json").mkdir()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=90)[0]
        assert process.returncode == 128 + signal.SIGINT, rest
        assert none_left(mark)


def test_a_process_that_fails_is_quoted_line_by_line(tmp_path: Path) -> None:
    with demo(tmp_path / "out") as (process, mark):
        read_until(process, "start a broker: done")
        [server] = [pid for pid, command in named(mark) if "broker_process" in command]
        os.kill(server, signal.SIGKILL)
        *_, error, quoted = process.communicate(timeout=90)[0].splitlines()
        assert process.returncode == 1
        assert error.endswith("broker.log:")
        assert quoted == "  (the log is empty)"
        assert error.startswith("error: the process broker exited with -9; the end of ")


def test_a_kill_leaves_no_process_behind(tmp_path: Path) -> None:
    with demo(tmp_path / "out") as (process, mark):
        read_until(process, "share the partitions")
        process.kill()
        process.wait(60)
        assert none_left(mark), alive(mark)


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java for Spark: install Java 17 or newer")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_neither_does_it_while_spark_is_at_work(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path / "out") as (process, mark):
        stream = "stream into Parquet, and exactly once into delays ..."
        read_until(process, stream if number == signal.SIGINT else "start Spark ...")
        time.sleep(3)
        assert any("java" in command for command in alive(mark))
        os.killpg(process.pid, number)
        process.communicate(timeout=90)
        deadline = time.monotonic() + 60
        while alive(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive(mark) == []


def test_a_folder_that_is_not_the_demos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    with demo(tmp_path) as (process, _):
        printed = process.communicate(timeout=90)[0]
    assert process.returncode == 1
    assert "--out" in printed
    assert (tmp_path / "precious").read_text() == "keep"
