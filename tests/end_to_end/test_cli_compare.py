"""``ottla compare`` in the simulator: its table, its JSON, its page and picture, wrong usage, and Ctrl-C.

Twelve lives take a minute of CPU time, so what needs them is slow; ``tests/scenarios/test_comparison.py`` plays one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.programs import OTTLA, environment, ottla

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "four-generations.md"
GENERATIONS = ["zookeeper", "central", "classic", "consumer"]
PHASES = ["grow from 1 to 8 members", "kill 2 members", "add 4 partitions", "restart each member", "kill the coordinator"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def document(folder: Path) -> Any:
    """The JSON document of a run that has also written the page and a picture."""
    files = ["--page", str(folder / PAGE.name), "--picture", str(folder / "picture.png")]
    done = ottla("compare", "--format", "json", *files, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def generations(document: Any) -> dict[str, Any]:
    return {one["generation"]: one for one in document["generations"]}


@pytest.mark.slow
def test_the_document_has_the_figures_of_each_generation(document: Any) -> None:
    assert document.keys() == {"generations"}
    assert [one["generation"] for one in document["generations"]] == GENERATIONS
    for one in document["generations"]:
        assert [phase["phase"] for phase in one["phases"]] == PHASES
        assert one["lives"] == 3
        assert one["messages"] == pytest.approx(sum(one["messages_by_api"].values()), abs=1)
        assert one["messages"] == pytest.approx(sum(phase["messages"] for phase in one["phases"]), abs=1)
        operations = one["zookeeper_operations"]
        assert operations["as_issued"] == pytest.approx(
            sum(phase["zookeeper_operations"]["as_issued"] for phase in one["phases"]), abs=1
        )
        assert operations["of_offsets"] <= operations["as_issued"] <= operations["as_0.8"]
        assert one["records"]["processed"] > 1000


@pytest.mark.slow
def test_what_the_designs_lead_to(generations: dict[str, Any]) -> None:
    zookeeper, central, classic, consumer = (generations[name] for name in GENERATIONS)
    assert zookeeper["messages"] == 0
    assert zookeeper["zookeeper_operations"]["as_0.8"] > zookeeper["zookeeper_operations"]["as_issued"]
    assert zookeeper["zookeeper_operations"]["as_issued"] > 3 * central["zookeeper_operations"]["as_issued"]
    assert {"Ping", "Stop", "Start", "Register", "Consult", "Leave"} < central["messages_by_api"].keys()
    assert {"JoinGroup", "SyncGroup", "Heartbeat"} < classic["messages_by_api"].keys()
    assert consumer["messages_by_api"].keys() == {"ConsumerGroupHeartbeat", "FindCoordinator", "OffsetCommit", "OffsetFetch"}
    for one in (classic, consumer):
        assert set(one["zookeeper_operations"].values()) == {0}
    for one in generations.values():
        grow, _, _, _, coordinator = one["phases"]
        assert coordinator["partition_seconds_unread"] == 0, "members read on when the coordinator is killed"
        assert grow["time_to_stable"] < 1.5
    joins = {name: one["phases"][0]["time_to_stable"] for name, one in generations.items()}
    assert max(joins["zookeeper"], joins["central"]) < 0.2 < min(joins["classic"], joins["consumer"]), (
        "no member waits for a heartbeat there"
    )


@pytest.mark.slow
def test_the_page_is_that_of_the_documentation(document: Any, folder: Path) -> None:
    """If this fails, a core behaves in another way: write the page again, and read whether it explains that."""
    assert PAGE.read_text(encoding="utf-8").startswith((folder / PAGE.name).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_pictures(document: Any, folder: Path) -> None:
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    drawn = (folder / "images" / PAGE.with_suffix(".svg").name).read_text()
    assert drawn.count("kill coordinator<") == len(GENERATIONS)
    assert "<dc:date>" not in drawn, "the same lives give the same file"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--picture", "p.gif"], "error: --picture: p.gif: the suffix has to be one of .png, .svg, .pdf"),
        (["--picture", "/p.svg/p.png"], "error: --picture: /p.svg/p.png: there is no directory /p.svg"),
        (["--page", "/"], "error: --page: / cannot be written: Is a directory"),
        (["--picture", "nowhere/p.png"], "error: --picture: nowhere/p.png: there is no directory nowhere"),
        (["--page", "nowhere/p.md"], "error: --page: nowhere/p.md: there is no directory nowhere"),
    ],
)
def test_files_that_cannot_be_written_are_found_at_once(arguments: list[str], text: str) -> None:
    done = ottla("compare", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(text)


def test_files_are_written_also_if_the_reader_of_stdout_is_gone(tmp_path: Path) -> None:
    code = """
import sys
from ottla.cli import app, comparison
from ottla.comparison.life import NAMES, live
from tests.unit.comparison.obedient import Obedient

comparison._simulated_lives = lambda stop: {each: [live(each, Obedient(), 1)] for each in NAMES}
sys.exit(app.run(["compare", "--page", "page.md", "--picture", "picture.svg"]))
"""
    (tmp_path / "program.py").write_text(code)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["bash", "-c", f"{sys.executable} program.py | true"]
    subprocess.run(command, cwd=tmp_path, env={**environment(), "PYTHONPATH": paths}, capture_output=True, timeout=100)
    assert (tmp_path / "page.md").read_text().startswith("# Four generations, one workload")
    assert (tmp_path / "picture.svg").exists()
    assert (tmp_path / "images" / "page.svg").exists()


def test_an_unknown_format() -> None:
    done = ottla("compare", "--format", "xml")
    assert done.returncode == 2
    assert "'xml' is not one of" in " ".join(re.sub(r"[│\n]", " ", done.stderr).split())


def test_interrupted_it_leaves_no_process() -> None:
    with subprocess.Popen(
        [OTTLA, "compare"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as process:
        children: list[str] = []
        until = time.monotonic() + 30
        while not children and time.monotonic() < until:
            listed = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True)
            children = listed.stdout.split()
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        assert (process.returncode, out, errors) == (130, "", "")
    assert children
    until = time.monotonic() + 40  # they import the package first
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < until
        time.sleep(0.02)
