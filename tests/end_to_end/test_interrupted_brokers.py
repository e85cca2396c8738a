"""Ctrl-C at any moment while a broker closes: it stays closed to others until a second ``close()`` has finished the work."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ottla import Broker
from ottla.errors import IllegalStateError, StorageError
from ottla.protocol.apis import Api
from ottla.runtime import broker_node
from ottla.runtime.disk import DiskWorkers
from ottla.runtime.folders import DirectoryLock
from tests.end_to_end.interruptions import Interruptions, Point
from tests.raw_client import RawClient
from tests.unit.runtime.requests import METADATA, batch, create, fetch_message, produce

pytestmark = pytest.mark.slow

TOPICS = ["a", "b", "c"]
RECORDS = 3


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose logs have to be brought to disk by the next end."""
    path = tmp_path_factory.mktemp("killed") / "data"
    copy = path.with_name("copy")
    with Broker(path) as broker, RawClient(broker.bootstrap_servers) as client:
        for topic in TOPICS:
            create(client, topic)
            produce(client, topic, batch(count=RECORDS))
        # Its checkpoints are renamed from .tmp files, which may vanish before they are copied.
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.tmp"))
    return copy


def close_interrupted(path: Path | None, interruptions: Interruptions) -> None:
    """Start a broker, interrupt its ``close()``, and close it again."""
    broker = Broker(path)
    folder = broker.data_dir
    with interruptions, contextlib.suppress(KeyboardInterrupt):
        broker.close()
    broker.close()
    assert repr(broker) == "<Broker closed>"
    assert path is not None or not folder.exists()


def points(path: Path | None) -> list[tuple[Point, int]]:
    """The moments at which ``close()`` can be interrupted: the first and the last time at each place.

    What is raised in a ``__del__`` is ignored by Python.
    """
    first = Interruptions()
    close_interrupted(path, first)
    found = {point: hits for point, hits in first.passed.items() if not point.function.endswith("__del__")}
    return [(point, hit) for point, hits in found.items() for hit in sorted({1, hits})]


def test_a_close_that_was_interrupted_is_finished_by_the_next_one(tmp_path: Path, killed: Path) -> None:
    shutil.copytree(killed, tmp_path / "first")
    chances = points(tmp_path / "first")
    threads = threading.active_count()
    raised = 0
    for number, (point, hit) in enumerate(chances):
        path, interruptions = tmp_path / str(number), Interruptions(point, hit)
        shutil.copytree(killed, path)
        close_interrupted(path, interruptions)
        raised += interruptions.raised
        DirectoryLock(path).release()
        assert (path / ".kafka_cleanshutdown").exists(), (point, hit)
        assert sorted((path / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]) == [
            f"{topic} 0 {RECORDS}" for topic in TOPICS
        ], (point, hit)
        shutil.rmtree(path)
    assert raised > len(chances) // 2
    assert threading.active_count() == threads


def test_a_temporary_folder_goes_with_the_second_close() -> None:
    for point, hit in points(None)[::3]:
        close_interrupted(None, Interruptions(point, hit))


def test_until_it_is_closed_again_no_other_broker_has_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Path
) -> None:
    path = tmp_path / "data"
    shutil.copytree(killed, path)
    broker = Broker(path)

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DiskWorkers, "run_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            broker.close()
    with pytest.raises(StorageError, match="in use by another broker"):
        Broker(path)
    with pytest.raises(IllegalStateError, match=r"if close\(\) was interrupted, call it again"):
        broker.start()
    broker.close()
    with Broker(path) as again, RawClient(again.bootstrap_servers) as client:
        assert client.ask(Api.METADATA, METADATA).topics
        assert client.ask(Api.FETCH, fetch_message("a"), 12).responses[0].partitions[0].high_watermark == RECORDS


def test_the_end_of_the_process_finishes_it(tmp_path: Path) -> None:
    program = """
import sys
from ottla import Broker
from ottla.runtime import broker_node
from ottla.runtime.folders import DirectoryLock

real = broker_node.DiskWorkers.run_all

def interrupted(*args):
    broker_node.DiskWorkers.run_all = real
    raise KeyboardInterrupt

broker_node.DiskWorkers.run_all = interrupted
with Broker(sys.argv[1]):
    pass
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert "KeyboardInterrupt" in done.stderr
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_close_from_two_threads_and_from_a_signal_s_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(killed, path)
    broker = Broker(path)
    others = [threading.Thread(target=broker.close) for _ in range(3)]
    real = DiskWorkers.run_all
    calls: list[None] = []

    def in_between(self: DiskWorkers, jobs: list[object]) -> None:
        if not calls:
            for other in others:
                other.start()
        calls.append(None)
        broker.close()
        real(self, jobs)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskWorkers, "run_all", in_between)
    broker.close()
    for other in others:
        other.join(30)
        assert not other.is_alive()
    assert len(calls) == 3, "the catalog, the logs and the checkpoints, each once"
    assert (path / ".kafka_cleanshutdown").exists()


def test_a_start_that_is_interrupted_leaves_no_thread_and_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()

    class Interrupting:
        def add(self, node: broker_node.BrokerNode) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broker_node, "_running", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            Broker(tmp_path)
    assert threading.active_count() == threads
    Broker(tmp_path).close()
