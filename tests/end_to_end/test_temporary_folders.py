"""The temporary folder of a broker whose process was killed is removed by a later start; no other folder is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Broker
from ottla.errors import StorageError

PROGRAM = """
import sys
from ottla import Broker
broker = Broker()
print(broker.data_dir, flush=True)
sys.stdin.read()
"""
FIXTURE = """
import os, signal
def test_killed(kafka_broker, kafka_topic):
    print(kafka_broker.data_dir)
    os.kill(os.getpid(), signal.SIGTERM)
"""
LIMIT = 60


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, here and in processes."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT)


def start(processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    return process


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_the_folder_of_a_process_that_is_gone_is_removed(
    temporary: Path, processes: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    gone, living = start(processes), start(processes)
    left, kept = folder_of(gone), folder_of(living)
    gone.send_signal(number)
    gone.wait(LIMIT)
    assert left.is_dir()
    with Broker() as broker:
        assert not left.exists()
        assert kept.is_dir()
        assert broker.data_dir.is_dir()
    assert list(temporary.iterdir()) == [kept]


def test_a_test_session_that_was_terminated_leaves_nothing_for_good(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(FIXTURE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path / "test_killed.py"),
    ]
    ended = subprocess.run(command, timeout=LIMIT, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGTERM, ended.stdout + ended.stderr
    assert len(list(temporary.glob("ottla-broker-*"))) == 1
    with Broker():
        pass
    assert not list(temporary.glob("ottla-broker-*"))


def test_a_folder_for_temporary_files_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match=rf"no temporary folder can be made: .*'{tmp_path / 'gone'}/ottla-broker-") as raised:
        Broker()
    assert "data_dir" in (raised.value.hint or "")


def test_many_starts_at_once_remove_what_is_left_and_not_each_other_s_folders(
    temporary: Path, processes: list[subprocess.Popen[str]]
) -> None:
    gone = [start(processes) for _ in range(3)]
    for process in gone:
        folder_of(process)
        process.kill()
        process.wait(LIMIT)
    living = [start(processes) for _ in range(4)]
    assert {folder_of(process) for process in living} == set(temporary.iterdir())


def test_nothing_else_is_touched(temporary: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / ".owner").touch()
    (temporary / "ottla-broker-abcdefgh").symlink_to(target)
    for name in ("ottla-broker-00000000", "ottla-broker-mine", "ottla-broker-00000001", "ottla-broker-00000002"):
        (temporary / name).mkdir()
        (temporary / name / "thesis").write_text("chapter one")
    (temporary / "ottla-broker-mine" / ".owner").touch()
    (temporary / "ottla-broker-00000001" / ".owner").symlink_to(target / ".owner")
    (temporary / "ottla-broker-00000002" / ".owner").mkdir()
    (temporary / "ottla-broker-00000003").write_text("a file")
    before = sorted(temporary.rglob("*"))
    with Broker():
        pass
    assert sorted(temporary.rglob("*")) == before
    assert (target / ".owner").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
def test_folders_of_other_users_are_left(temporary: Path) -> None:
    folder = temporary / "ottla-broker-00000000"
    folder.mkdir()
    (folder / ".owner").touch()
    os.chown(folder / ".owner", 1234, -1)
    with Broker():
        pass
    assert folder.is_dir()
    os.chown(folder / ".owner", 0, -1)
    os.chown(folder, 1234, -1)
    with Broker():
        pass
    assert folder.is_dir()
    os.chown(folder, 0, -1)
    with Broker():
        pass
    assert not folder.exists()
