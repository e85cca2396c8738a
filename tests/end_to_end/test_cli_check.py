"""``ottla broker check``: output, exit codes, and signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Broker
from tests.end_to_end.programs import broker, ottla, started
from tests.interop.other_clients import PRODUCE, create_topic

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored")
    with Broker(path) as running:
        create_topic(running.bootstrap_servers, "orders", 2)
        rows = [(number % 2, None, b"%0100d" % number, 1_700_000_000_000, ()) for number in range(2_000)]
        PRODUCE["confluent"](running.bootstrap_servers, "orders", rows, batch_num_messages=10)
    return path


@pytest.fixture
def damaged(stored: Path) -> Iterator[Path]:
    """The log of one partition, with a flipped bit."""
    log = stored / "orders-0" / f"{0:020d}.log"
    content = log.read_bytes()
    log.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    yield log
    log.write_bytes(content)


def test_nothing_is_wrong(stored: Path) -> None:
    done = ottla("broker", "check", "--data-dir", str(stored))
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{stored}: nothing is wrong in 2 partitions with ")


def test_something_is_wrong(stored: Path, damaged: Path) -> None:
    done = ottla("broker", "check", "--data-dir", str(stored))
    assert done.returncode == 1
    first, second, third = done.stdout.splitlines()
    assert first.startswith(f"damage: orders-0/{damaged.name}, byte 0, ")
    assert first.endswith("bytes, offsets 0 to 9: the batch at offset 0 fails its checksum")
    assert second.startswith("  next start: these offsets cannot be read")
    assert third.startswith("  repair: left out of the copy")
    (error,) = done.stderr.splitlines()
    assert error.startswith(f"error: {stored}: 1 thing is wrong; 2 partitions with ")


def test_json(stored: Path, damaged: Path) -> None:
    done = ottla("broker", "check", "--data-dir", str(stored), "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["complete"], found["clean_shutdown"], found["partitions"]) == (1, True, True, 2)
    (finding,) = found["findings"]
    assert {name: finding[name] for name in ("topic", "partition", "file", "position", "first_offset", "next_offset")} == {
        "topic": "orders",
        "partition": 0,
        "file": damaged.name,
        "position": 0,
        "first_offset": 0,
        "next_offset": 10,
    }


def test_a_repaired_copy(stored: Path, damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    arguments = ("broker", "check", "--data-dir", str(stored), "--repair", "--out", str(out))
    done = ottla(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(f"The repaired copy is {out}")
    again = ottla(*arguments)
    assert (again.returncode, again.stdout) == (1, "")
    assert f"{out} exists and is not an empty folder" in again.stderr
    assert ottla("broker", "check", "--data-dir", str(out)).returncode == 0
    with broker("--data-dir", str(out)) as (process, address):
        lines = ottla("consume", "-t", "orders", "-e", "-f", "%p-%o\n", bootstrap_servers=address).stdout.splitlines()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1] == "", "the start has nothing to say"
    assert sorted(lines) == sorted([f"{number % 2}-{number // 2}" for number in range(2_000) if number % 2 or number >= 20])


def test_a_directory_in_use_and_none(tmp_path: Path) -> None:
    with broker("--data-dir", str(tmp_path / "data")):
        done = ottla("broker", "check", "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is in use by a broker; stop the broker, or check a copy of the directory" in done.stderr.replace(" (", "; ")
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "is not the data directory of a broker")):
        done = ottla("broker", "check", "--data-dir", str(path))
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
        assert why in done.stderr


def test_wrong_usage(tmp_path: Path) -> None:
    assert ottla("broker", "check").returncode == 2
    assert ottla("broker", "check", "--data-dir", "").returncode == 2
    done = ottla("broker", "check", "--data-dir", str(tmp_path), "--out", "x")
    assert done.returncode == 2
    assert "--repair" in done.stderr


def test_names_that_would_control_the_terminal(stored: Path) -> None:
    evil = stored / "orders-1" / "\x1b[2J\nevil"
    evil.write_bytes(b"")
    done = ottla("broker", "check", "--data-dir", str(stored))
    evil.unlink()
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 4
    assert "\\x1b[2J\\nevil" in done.stdout


def is_open(path: Path, pid: int) -> bool:
    """Whether a process has a file open."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(link) == str(path):
                return True
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_check_and_prints_the_findings(stored: Path, damaged: Path, number: signal.Signals, code: int) -> None:
    """The second partition is so large that it takes a while."""
    large = stored / "orders-1" / f"{0:020d}.log"
    size = large.stat().st_size
    os.truncate(large, 60 << 30)
    try:
        with started("broker", "check", "--data-dir", str(stored)) as process:
            deadline = time.monotonic() + 60
            while not is_open(large, process.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(number)
            printed, errors = process.communicate(timeout=30)
    finally:
        os.truncate(large, size)
    assert process.returncode == code
    assert printed.startswith("damage: orders-0/")
    assert "Traceback" not in errors
