"""``ottla broker start``: its first line, its shutdown, and its errors."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.programs import broker, free_port, ottla


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_line_is_the_address_and_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    with broker("--data-dir", str(tmp_path / "data"), "--port", str(port)) as (process, address):
        assert address == f"127.0.0.1:{port}"
        assert [node.port for node in AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).brokers.values()] == [
            port
        ]
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in errors
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_verbose_shows_elections(zookeeper_server: ZooKeeperServer) -> None:
    with broker("--zookeeper", f"{zookeeper_server.connect_string}/verbose", "--verbose") as (process, _):
        assert process.stderr is not None
        lines = takewhile(lambda line: "is the central coordinator" not in line, iter(process.stderr.readline, ""))
        elected = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} broker \d+ is elected as the central coordinator, in epoch 1\n"
        assert any(re.fullmatch(elected, line) for line in lines)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


IMPATIENT = """
import os, signal, sys
from pathlib import Path
from ottla.cli import broker
broker.print = lambda *words, **options: os.kill(os.getpid(), signal.SIGTERM)
broker.start(data_dir=Path(sys.argv[1]), port=0, settings=None)
"""


def test_a_signal_that_answers_the_first_line_ends_it_cleanly(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", IMPATIENT, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_records_are_there_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with broker("--data-dir", str(tmp_path)) as (_, address):
            ottla("topic", "create", "kept", "-p", "1", bootstrap_servers=address)
            assert ottla("produce", "-t", "kept", bootstrap_servers=address, stdin="line\n").returncode == 0
            read = ottla("consume", "-t", "kept", "-e", "-f", "%o ", bootstrap_servers=address).stdout
    assert read == "0 1 "


def test_settings_are_honoured(tmp_path: Path) -> None:
    with broker("--set", "num.partitions=7", "--set", "node.id=4") as (_, address):
        admin = AdminClient({"bootstrap.servers": address})
        assert list(admin.list_topics(timeout=60).brokers) == [4]
        assert ottla("produce", "-t", "made", bootstrap_servers=address, stdin="line\n").returncode == 0
        assert len(admin.list_topics("made", timeout=60).topics["made"].partitions) == 7


def refused(*arguments: str) -> str:
    """The error of a broker that does not start."""
    ended = ottla("broker", "start", *arguments, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1
    return ended.stderr


def test_an_unknown_setting_names_the_nearest() -> None:
    assert "num.partitions" in refused("--set", "num.partition=3")


def test_a_setting_without_a_value_is_bad_usage() -> None:
    assert ottla("broker", "start", "--set", "num.partitions").returncode == 2


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused("--port", str(port), "--data-dir", str(tmp_path))


def test_a_folder_that_another_broker_uses(tmp_path: Path) -> None:
    with broker("--data-dir", str(tmp_path)) as (_, address):
        assert str(tmp_path) in refused("--data-dir", str(tmp_path))
        assert ottla("topic", "list", bootstrap_servers=address).returncode == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path) in refused("--data-dir", str(tmp_path / "file" / "data"))
