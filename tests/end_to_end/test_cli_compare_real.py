"""``ottla compare --real``: the command on real processes, with a short life; without Java; interrupted; and when a process fails.

Owns the short life: a group of two members that rests for half a second. ``test_compare_real.py`` plays the whole one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.comparison.life import NAMES, Phase
from tests.end_to_end.marked_processes import MARK, named, none_left
from tests.end_to_end.programs import environment

pytestmark = pytest.mark.long

SHORT = """
import sys
from ottla.cli import app, comparison
from ottla.comparison import life

comparison.LIVES = 1
life.MEMBERS, life.VICTIMS, life.REST = 2, 1, 0.5
sys.exit(app.run(["compare", "--real", *sys.argv[1:]]))
"""


@contextmanager
def compare(folder: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, with its temporary files in a folder, as a process that leads a group, and the mark that all its descendants
    carry."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", SHORT, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**environment(), MARK: mark, "TMPDIR": str(folder), **variables},
    )
    try:
        yield process, mark
    finally:
        process.kill()
        process.communicate()


def data_of(folder: Path) -> list[Path]:
    """The folders of lives that are left."""
    return list(folder.glob("ottla-compare-*"))


def first_member(mark: str) -> int:
    """Wait for the first member of the first life; return its process."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for pid, command in named(mark):
            if "member_process" in command:
                return pid
        time.sleep(0.05)
    raise AssertionError("no member has started")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_document_the_page_and_the_picture_of_lives_on_real_processes(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
    with compare(tmp_path, "--format", "json", "--page", str(page), "--picture", str(picture)) as (process, mark):
        out, errors = process.communicate(timeout=800)
        assert (process.returncode, errors) == (0, "")
        assert none_left(mark)
    assert data_of(tmp_path) == []
    found = json.loads(out)["generations"]
    assert [one["generation"] for one in found] == list(NAMES)
    for one in found:
        assert one["lives"] == 1
        assert [(phase["phase"], phase["steps"]) for phase in one["phases"]] == [(phase, 1) for phase in Phase]
        assert one["records"]["processed"] > 100
    apis = {one["generation"]: one["messages_by_api"].keys() for one in found}
    assert apis["zookeeper"] == set()
    assert {"Register", "Stop", "Start"} < apis["central"]
    assert "JoinGroup" in apis["classic"]
    assert "ConsumerGroupHeartbeat" in apis["consumer"]
    issued = {one["generation"]: one["zookeeper_operations"]["as_issued"] for one in found}
    assert min(issued["zookeeper"], issued["central"]) > 0 == issued["classic"] == issued["consumer"]
    text = page.read_text()
    for heading, is_real in (("## The figures, simulated", False), ("## The figures, on real processes", True)):
        lengths = re.search(r"\| length of the life \|(.*) \|", text[text.index(heading) :])
        assert lengths is not None
        assert (lengths[1].split(" |") == [f" {one['seconds']:.0f} s" for one in found]) is is_real
    assert "Four generations, one workload, on real processes" in picture.read_text()
    assert "Four generations, one workload, in the simulator" in (tmp_path / "images" / "page.svg").read_text()


def test_without_java_it_ends_at_once(tmp_path: Path) -> None:
    with compare(tmp_path, JAVA_HOME=str(tmp_path)) as (process, _):
        out, errors = process.communicate(timeout=60)
    hint = "install Java 17 or newer, e.g. apt-get install openjdk-17-jre-headless"
    assert (process.returncode, out, errors) == (1, "", f"error: there is no Java in JAVA_HOME ({tmp_path}) ({hint})\n")
    assert data_of(tmp_path) == []


@pytest.mark.slow
def test_interrupted_it_leaves_no_process_and_no_data(tmp_path: Path) -> None:
    with compare(tmp_path) as (process, mark):
        first_member(mark)
        assert len(data_of(tmp_path)) == 1
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out, errors) == (128 + signal.SIGINT, "", "")
        assert none_left(mark)
    assert data_of(tmp_path) == []


@pytest.mark.slow
def test_a_process_that_fails_is_named_with_its_log_which_remains(tmp_path: Path) -> None:
    with compare(tmp_path) as (process, mark):
        os.kill(first_member(mark), signal.SIGKILL)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, "")
        assert none_left(mark)
    found = re.match(r"error: the process member-1 exited with -9; the end of (\S+):\n", errors)
    assert found is not None, errors
    assert Path(found[1]).exists()
    assert [Path(found[1]).is_relative_to(folder) for folder in data_of(tmp_path)] == [True]
