"""``Broker``: closed and started again, in the middle of what its clients do."""

from __future__ import annotations

import os
import random
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from ottla import Admin, Broker, Consumer
from ottla.errors import ConfigError, StorageError
from tests.end_to_end.programs import ottla

PATIENCE = 60.0
"""Seconds."""


def produce(broker: Broker, *values: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("t", value)
    assert producer.flush(PATIENCE) == 0


def test_a_consumer_goes_on_when_its_broker_is_there_again(tmp_path: Path) -> None:
    """With port 0, too; the connections that the broker closed are still known to the kernel (TIME_WAIT)."""
    with Broker(tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        with Consumer(bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            produce(broker, b"0")
            read: list[Any] = []
            for round_ in range(1, 4):
                while len(read) < round_:
                    read += [record.value for record in consumer.poll(PATIENCE)]
                broker.close()
                broker.start()
                assert broker.bootstrap_servers == address
                produce(broker, b"%d" % round_)
    assert read == [b"0", b"1", b"2"]


def test_a_broker_in_a_temporary_folder_keeps_its_port_and_begins_empty() -> None:
    with Broker() as broker:
        address, folder = broker.bootstrap_servers, broker.data_dir
        produce(broker, b"0")
        broker.close()
        broker.start()
        assert broker.bootstrap_servers == address
        assert broker.data_dir != folder
        with Admin(bootstrap_servers=address) as admin:
            assert admin.list_topics() == {}


def test_a_port_that_another_program_has_taken_meanwhile(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        address = broker.bootstrap_servers
        broker.close()
        with socket.create_server(("127.0.0.1", int(address.rsplit(":", 1)[1]))):
            with pytest.raises(ConfigError, match=f"cannot listen on {address}: Address already in use") as raised:
                broker.start()
            assert raised.value.hint is not None
            assert "a broker that is started again needs the port that it had" in raised.value.hint
        broker.start()
        assert broker.bootstrap_servers == address


def _removed(path: Path) -> None:
    """Remove it while the broker may write a checkpoint: a file vanishes under rmtree(), or appears in an emptied folder."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("gone", [_removed, lambda path: path.rename(path.with_name("renamed"))])
def test_the_end_of_a_broker_whose_directory_is_gone_promises_no_scan(tmp_path: Path, gone: Callable[[Path], object]) -> None:
    broker = Broker(tmp_path / "data")
    produce(broker, b"0")
    gone(tmp_path / "data")
    with pytest.raises(StorageError, match=r"not shut down cleanly, its data directory was removed or renamed: .* No such file"):
        broker.close()
    broker.start()
    produce(broker, b"1")
    broker.close()


def test_threads_that_start_and_close_one_broker_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A second start() took the broker that another thread was closing for running; a second close() forgot one that had started
    meanwhile, which kept the port and the data directory."""
    errors: list[BaseException] = []
    with Broker(tmp_path) as broker:

        def change(seed: int) -> None:
            choice = random.Random(seed)
            for _ in range(25):
                try:
                    choice.choice([broker.start, broker.close])()
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=change, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        broker.start()
        produce(broker, b"0")


def test_a_forked_child_may_start_a_broker_that_was_closed(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            broker.start()
            broker.close()
            code = 0 if (tmp_path / ".kafka_cleanshutdown").exists() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_process_may_go_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    with Broker("data") as broker:
        assert broker.data_dir == first / "data"
        monkeypatch.chdir(second)
        produce(broker, b"0")
        broker.close()
        broker.start()
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            assert list(admin.list_topics()) == ["t"]
    assert list(second.iterdir()) == []


def test_a_relative_path_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    with pytest.raises(StorageError, match="data_dir=data cannot be used: the current folder: No such file or directory"):
        Broker("data")


@pytest.mark.parametrize("arguments", [("broker", "start", "--data-dir", ""), ("demo", "--out", "")])
def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = ottla(*arguments)
    assert ended.returncode == 2
    assert f"Invalid value for '{arguments[-2]}': the path is empty" in ended.stderr
    assert list(tmp_path.iterdir()) == []
