"""``ZooKeeperAdmin`` on a real ZooKeeper: members of other clients, lost connections, restarts, and addresses that are wrong."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from kazoo.client import KazooClient

from ottla import OffsetAndMetadata, TopicPartition, ZooKeeperAdmin
from ottla.errors import (
    ClosedError,
    ConcurrentAccessError,
    ConfigError,
    ConnectionFailedError,
    ForkedError,
    GroupIdNotFoundError,
    IllegalStateError,
    NonEmptyGroupError,
    OttlaTimeoutError,
    UnknownTopicOrPartitionError,
)
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.closed_ports import closed_port
from tests.end_to_end.zookeeper_proxy import Lose, lossy_proxy

pytestmark = pytest.mark.long

NUMBERS = count()
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MANY = {TopicPartition("t", number): number for number in range(1100)}
REGISTERED = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1795377382364"}'


@pytest.fixture
def admin(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperAdmin]:
    with ZooKeeperAdmin(zookeeper_server.connect_string, default_api_timeout=30) as admin:
        yield admin


@pytest.fixture
def group() -> str:
    return f"group-{next(NUMBERS)}"


@contextmanager
def member(server: ZooKeeperServer, group: str, member_id: str) -> Iterator[KazooClient]:
    """A registered member, in a session of its own."""
    client = KazooClient(server.connect_string)
    client.start(30)
    client.create(f"/consumers/{group}/ids/{member_id}", REGISTERED, ephemeral=True, makepath=True)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def state(admin: ZooKeeperAdmin, group: str) -> str:
    return {one.group_id: one.state for one in admin.list_groups()}[group]


def test_a_group_with_a_member(zookeeper_server: ZooKeeperServer, admin: ZooKeeperAdmin, group: str) -> None:
    with member(zookeeper_server, group, "m") as client:
        client.create(f"/consumers/{group}/owners/t/0", b"m-0", ephemeral=True, makepath=True)
        client.create(f"/consumers/{group}/offsets/t/0", b"5", makepath=True)
        assert state(admin, group) == "Active"
        described = admin.describe_group(group)
        assert [(one.member_id, one.partitions) for one in described.members] == [("m", (T0,))]
        assert [(one.partition, one.offset, str(one.owner)) for one in described.partitions] == [(0, 5, "m-0")]
        changes: list[Callable[[], None]] = [
            lambda: admin.alter_group_offsets(group, {T0: 1}),
            lambda: admin.delete_group(group),
            lambda: admin.delete_group_topic(group, "t"),
        ]
        for change in changes:
            with pytest.raises(NonEmptyGroupError, match=r"has 1 member: m \[NON_EMPTY_GROUP\] \(stop the members"):
                change()
    assert state(admin, group) == "Empty"
    assert admin.group_offsets(group) == {T0: OffsetAndMetadata(5)}
    admin.alter_group_offsets(group, {T0: OffsetAndMetadata(7), T1: 8}, expected={T0: 5})
    with pytest.raises(IllegalStateError, match=r"is now 7, and was 5"):
        admin.alter_group_offsets(group, {T0: 9}, expected={T0: 5})
    admin.delete_group_topic(group, "t")
    assert admin.group_offsets(group) == {}
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_group_topic(group, "t")
    admin.delete_group(group)
    with pytest.raises(GroupIdNotFoundError):
        admin.describe_group(group)


def test_a_large_group(admin: ZooKeeperAdmin, group: str) -> None:
    done: list[tuple[int, int]] = []
    admin.alter_group_offsets(group, MANY, progress=lambda *counts: done.append(counts))
    assert done == [(1000, 1100), (1100, 1100)]
    assert {tp: at.offset for tp, at in admin.group_offsets(group).items()} == MANY
    assert len(admin.describe_group(group).partitions) == 1100
    done.clear()
    admin.delete_group(group, progress=lambda *counts: done.append(counts))
    assert done[-1] == (1104, 1104)
    assert admin.group_offsets(group) == {}


@pytest.mark.parametrize("name", ['o\'clock "quoted"', "grüppe 群", "a b"])
def test_unusual_names(admin: ZooKeeperAdmin, name: str) -> None:
    admin.alter_group_offsets(name, {T0: 3})
    assert name in [one.group_id for one in admin.list_groups()]
    assert admin.describe_group(name).partitions[0].offset == 3
    admin.delete_group(name)


def test_a_malformed_offset_is_skipped_with_a_warning(
    zookeeper_server: ZooKeeperServer, admin: ZooKeeperAdmin, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with member(zookeeper_server, group, "m") as client:
        client.create(f"/consumers/{group}/offsets/t/0", b"5", makepath=True)
        client.create(f"/consumers/{group}/offsets/t/1", b"five")
    assert admin.group_offsets(group) == {T0: OffsetAndMetadata(5)}
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"skipped: the node /consumers/{group}/offsets/t/1 of ZooKeeper is malformed")


def test_a_group_below_a_chroot(zookeeper_server: ZooKeeperServer, admin: ZooKeeperAdmin, group: str) -> None:
    with member(zookeeper_server, group, "m") as client:
        client.create(f"/kafka-{group}")
    with ZooKeeperAdmin(f"{zookeeper_server.connect_string}/kafka-{group}", default_api_timeout=30) as below:
        assert below.list_groups() == ()
        below.alter_group_offsets("only-below", {T0: 1})
        assert below.group_offsets("only-below") == {T0: OffsetAndMetadata(1)}
        with pytest.raises(IllegalStateError, match="is now 1, and was 9"):
            below.alter_group_offsets("only-below", {T0: 2}, expected={T0: 9})
        below.delete_group("only-below")
        below.alter_group_offsets("only-below", {T0: 1})
    assert "only-below" not in [one.group_id for one in admin.list_groups()]


def test_a_chroot_that_does_not_exist(zookeeper_server: ZooKeeperServer) -> None:
    with (
        ZooKeeperAdmin(f"{zookeeper_server.connect_string}/nowhere", default_api_timeout=30) as admin,
        pytest.raises(ConfigError, match="ZooKeeper has no node '/nowhere'"),
    ):
        admin.list_groups()


# -- lost connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", list(Lose))
def test_a_connection_that_is_lost_in_the_middle_of_a_multi(zookeeper_server: ZooKeeperServer, group: str, loss: Lose) -> None:
    with (
        lossy_proxy(zookeeper_server.connect_string) as proxy,
        ZooKeeperAdmin(proxy.connect_string, default_api_timeout=30) as admin,
    ):

        def lossy(*losses: Lose | None) -> ZooKeeperAdmin:
            assert not proxy.losses
            proxy.losses += losses
            return admin

        lossy(loss, loss).alter_group_offsets(group, MANY, expected={})
        assert {tp: at.offset for tp, at in admin.group_offsets(group).items()} == MANY
        lossy(None, loss).delete_group_topic(group, "t")
        lossy(loss).alter_group_offsets(group, {T0: 1})
        lossy(loss).delete_group(group)
        assert group not in [one.group_id for one in admin.list_groups()]


def test_a_connection_that_is_lost_with_every_multi_ends_the_call_in_time(zookeeper_server: ZooKeeperServer, group: str) -> None:
    with (
        lossy_proxy(zookeeper_server.connect_string) as proxy,
        ZooKeeperAdmin(proxy.connect_string, default_api_timeout=2) as admin,
    ):
        proxy.losses += [Lose.BEFORE] * 1000
        began = time.monotonic()
        with pytest.raises(OttlaTimeoutError, match=r"ZooKeeper did not answer within 2 s: ZooKeeper: CONNECTIONLOSS"):
            admin.alter_group_offsets(group, {T0: 1})
        assert time.monotonic() - began < 15
        assert proxy.multis > 1
        proxy.losses.clear()
        admin.alter_group_offsets(group, {T0: 1}, timeout=30)
        admin.delete_group(group, timeout=30)


def test_a_server_that_is_restarted_during_calls(zookeeper_server: ZooKeeperServer, admin: ZooKeeperAdmin, group: str) -> None:
    ended = threading.Event()
    offsets = {TopicPartition("t", number): number for number in range(100)}

    def restart() -> None:
        for _ in range(2):
            time.sleep(0.3)
            zookeeper_server.restart()
        ended.set()

    restarting = threading.Thread(target=restart)
    restarting.start()
    calls = 0
    while calls < 2 or not ended.is_set():
        calls += 1
        admin.alter_group_offsets(group, offsets)
        assert {tp: at.offset for tp, at in admin.group_offsets(group).items()} == offsets
        admin.delete_group(group)
    restarting.join()
    assert group not in [one.group_id for one in admin.list_groups()]


def test_a_session_that_has_expired_is_replaced(group: str) -> None:
    with (
        ZooKeeperServer(settings={"tickTime": 50}) as server,
        lossy_proxy(server.connect_string) as proxy,
        ZooKeeperAdmin(proxy.connect_string, default_api_timeout=30) as admin,
    ):
        admin.alter_group_offsets(group, {T0: 1})
        proxy.cut()
        time.sleep(2)  # the longest session there is 20 ticks
        proxy.restore()
        assert admin.group_offsets(group) == {T0: OffsetAndMetadata(1)}
        admin.delete_group(group)


def test_two_operators_at_the_same_time(zookeeper_server: ZooKeeperServer, group: str) -> None:
    """One writes, the other one deletes: each call succeeds, or says that the group is gone or changes all the time."""
    outcomes: list[str] = []

    def work(number: int) -> None:
        with ZooKeeperAdmin(zookeeper_server.connect_string, default_api_timeout=30) as admin:
            for offset in range(30):
                try:
                    if number % 2:
                        admin.delete_group(group)
                    else:
                        admin.alter_group_offsets(group, {T0: offset, T1: offset})
                    outcomes.append("done")
                except (GroupIdNotFoundError, IllegalStateError) as error:
                    outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 120
    assert outcomes.count("done") >= 30
    with ZooKeeperAdmin(zookeeper_server.connect_string, default_api_timeout=30) as admin:
        admin.alter_group_offsets(group, {T0: 1})
        admin.delete_group(group)


# -- wrong addresses ------------------------------------------------------------------------------------------------------


@contextmanager
def server_that(answers: bytes | None, *, closes: bool = False) -> Iterator[str]:
    """A server that is no ZooKeeper; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            kept = []
            while True:
                try:
                    connection, _ = listener.accept()
                    if answers is not None:
                        connection.recv(100)
                        connection.sendall(answers)
                except OSError:
                    return
                if closes:
                    connection.close()
                else:
                    kept.append(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield "127.0.0.1:{}".format(*listener.getsockname()[1:])
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answers", "closes"),
    [(None, False), (None, True), (b"HTTP/1.1 400 Bad Request\r\n\r\n", True), (b"\0\0\0\4abcd", False), (b"\0\0\0\0", False)],
    ids=["silent", "closes", "http", "short frame", "empty frame"],
)
def test_what_is_no_zookeeper_ends_the_call_in_time(
    answers: bytes | None, closes: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with server_that(answers, closes=closes) as address, ZooKeeperAdmin(address, default_api_timeout=1.5) as admin:
        began = time.monotonic()
        with pytest.raises(ConnectionFailedError) as raised:
            admin.list_groups()
        assert time.monotonic() - began < 10
    assert list(raised.value.attempts) == [address]
    assert "no connection to ZooKeeper within 1.5 s" in str(raised.value)
    assert raised.value.attempts[address] in (
        "it accepts connections, but does not answer as ZooKeeper does",
        "Connection reset by peer",
    )
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr().err == ""


def test_every_server_that_cannot_be_reached_is_named_with_its_reason() -> None:
    began = time.monotonic()
    with (
        closed_port() as port,
        ZooKeeperAdmin(f"127.0.0.1:{port},nowhere.invalid:2181", default_api_timeout=2) as admin,
        pytest.raises(ConnectionFailedError) as raised,
    ):
        admin.list_groups()
    assert time.monotonic() - began < 10
    assert raised.value.attempts[f"127.0.0.1:{port}"] == "Connection refused"
    assert re.search("known|resolution|resolve", raised.value.attempts["nowhere.invalid:2181"])


@pytest.mark.parametrize("address", ["", "127.0.0.1:port", ",", "/kafka", "a:1/kafka,b:2/kafka", 2181])
def test_an_address_that_is_none(address: Any) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper_connect=.*: expected HOST:PORT"):
        ZooKeeperAdmin(address)


@pytest.mark.slow
def test_an_ensemble_whose_leader_is_killed_and_that_has_none(group: str) -> None:
    with ZooKeeperServer(nodes=3) as ensemble:
        with ZooKeeperAdmin(ensemble.connect_string, default_api_timeout=60) as admin:
            killer = threading.Timer(0.2, lambda: ensemble.kill(ensemble.leader()))
            killer.start()
            for offset in range(3):
                admin.alter_group_offsets(group, dict.fromkeys(MANY, offset))
                assert {at.offset for at in admin.group_offsets(group).values()} == {offset}
            killer.join()
            assert None in ensemble.modes().values()
            admin.delete_group(group)
            assert admin.list_groups() == ()
            ensemble.start()
        ensemble.kill(1, 2)
        deadline = time.monotonic() + 60
        while any(mode is not None for mode in ensemble.modes().values()):
            assert time.monotonic() < deadline
        with ZooKeeperAdmin(ensemble.connect_string, default_api_timeout=3) as admin:
            with pytest.raises(ConnectionFailedError, match=r"serves no clients now: does its ensemble have a leader\?"):
                admin.list_groups()
            ensemble.start()
            assert admin.list_groups(timeout=60) == ()


def test_without_kazoo_the_error_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['kazoo'] = None\nfrom ottla.zookeeper_admin import ZooKeeperAdmin\nZooKeeperAdmin('localhost')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("ConfigError: ZooKeeper needs kazoo (pip install 'ottla[zookeeper]')")


# -- the object -----------------------------------------------------------------------------------------------------------


def test_a_closed_admin_raises_also_from_a_call_that_waits() -> None:
    with server_that(None) as address:
        admin = ZooKeeperAdmin(address)
        threading.Timer(0.3, admin.close).start()
        with pytest.raises(ClosedError):
            admin.list_groups()
        admin.close()
        with pytest.raises(ClosedError):
            admin.list_groups()


def test_a_call_during_another_one_is_refused() -> None:
    with server_that(None) as address, ZooKeeperAdmin(address) as admin:
        outcome: list[BaseException] = []

        def call() -> None:
            try:
                admin.list_groups()
            except ClosedError as error:
                outcome.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        deadline = time.monotonic() + 10
        while True:
            assert time.monotonic() < deadline
            with pytest.raises((ConcurrentAccessError, ConnectionFailedError)) as raised:
                admin.list_groups(timeout=0.01)
            if raised.type is ConcurrentAccessError:
                break
        admin.close()
        thread.join(30)
        assert len(outcome) == 1


def test_an_admin_is_neither_copied_nor_used_in_a_forked_child(admin: ZooKeeperAdmin) -> None:
    admin.list_groups()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            attempt(admin)
    assert repr(admin).startswith("<ZooKeeperAdmin 127.0.0.1:")

    def use(results: multiprocessing.connection.Connection) -> None:
        try:
            admin.list_groups()
        except ForkedError:
            admin.close()
            results.send("refused")
        os._exit(0)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=use, args=(sender,))
    child.start()
    assert receiver.poll(30)
    assert receiver.recv() == "refused"
    child.join(30)
    assert isinstance(admin.list_groups(), tuple)
