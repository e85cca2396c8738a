"""``ZooKeeperServer`` and ``ottla zookeeper start``: a real ZooKeeper, its data after a kill, its end, and its errors."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from ottla.errors import ConfigError, IllegalStateError, OttlaError, StorageError
from ottla.runtime import zookeeper_server
from ottla.runtime.zookeeper_jars import NEEDED, find_jars
from ottla.runtime.zookeeper_server import ZooKeeperFailed, ZooKeeperServer
from tests.end_to_end.programs import ottla, started

pytestmark = pytest.mark.long

LISTENING = re.compile(r"ottla zookeeper listening on (\S+:\d+)\n")
FAST = {"tickTime": 500}
"""Elections and sessions take a quarter of the time."""
LIMIT = 20.0


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=10, connection_retry=KazooRetry(max_tries=-1, delay=0.02, max_delay=0.1))
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def zookeeper(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``ottla zookeeper start`` and the addresses it listens on; SIGTERM ends it, with exit code 0."""
    with started("zookeeper", "start", *arguments) as process:
        first = process.stdout.readline()
        found = LISTENING.fullmatch(first)
        assert found is not None, (first, process.communicate()[1] if not first else "")
        yield process, found[1]
        if process.poll() is None:
            process.terminate()
            assert process.wait(30) == 0


def refused(*arguments: str) -> str:
    """The error of a ZooKeeper that does not start."""
    ended = ottla("zookeeper", "start", *arguments, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr
    return ended.stderr


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def failure_of(server: ZooKeeperServer) -> str:
    try:
        server.check()
    except ZooKeeperFailed as failed:
        return str(failed)
    return ""


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def is_java_in(process: Path, folder: Path) -> bool:
    """Whether a process, given as its folder in ``/proc``, is a JVM with this working directory."""
    try:
        return (process / "comm").read_text() == "java\n" and (process / "cwd").readlink() == folder
    except OSError:  # it has ended
        return False


def five_jars(folder: Path) -> Path:
    """A folder with the jars that a server cannot do without."""
    folder.mkdir()
    for jar in find_jars(None)[: len(NEEDED)]:
        (folder / jar.name).symlink_to(jar)
    return folder


def again(client: KazooClient, *write: object) -> None:
    """Write as soon as there is a leader."""
    KazooRetry(max_tries=-1, delay=0.02, max_delay=0.1, deadline=60)(client.set, *write)


def test_a_node_is_kept_by_kill_and_restart(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "data") as server:
        assert server.modes() == {1: "standalone"}
        with connected(server.connect_string) as client:
            client.create("/kept", b"1")
            os.kill(server.pid(), signal.SIGKILL)
            assert eventually(lambda: "node 1 of ZooKeeper does not run, signal 9 ended it" in failure_of(server))
            assert server.modes() == {1: None}
            server.start()
            assert client.retry(client.get, "/kept")[0] == b"1"
            server.restart()
            assert client.retry(client.get, "/kept")[0] == b"1"
        port = server.connect_string
    assert not is_listening(port)
    with ZooKeeperServer(tmp_path / "data") as server, connected(server.connect_string) as client:
        assert client.get("/kept")[0] == b"1"


def test_after_a_stop_there_is_no_process_until_the_next_start() -> None:
    with ZooKeeperServer() as server:
        server.stop()
        server.check()
        with pytest.raises(IllegalStateError, match="node 1 of ZooKeeper does not run"):
            server.pid()
        with pytest.raises(ConfigError, match="there is no node 2 of ZooKeeper: the nodes are 1"):
            server.kill(2)
        server.start()
        assert server.modes() == {1: "standalone"}
        folder = server.data_dir
    assert not folder.parent.exists()
    with pytest.raises(IllegalStateError, match="closed"):
        server.start()


@pytest.mark.slow
def test_three_nodes_go_on_without_their_leader_and_with_other_ports_the_next_time(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path, nodes=3, settings=FAST) as server:
        assert sorted(server.modes().values()) == ["follower", "follower", "leader"]
        with connected(server.connect_string) as client:
            client.create("/written", b"0")
            leader = server.leader()
            server.kill(leader)
            again(client, "/written", b"1")
            assert server.leader() != leader
            server.start(leader)
            assert server.modes()[leader] == "follower"
    with ZooKeeperServer(tmp_path, nodes=3, settings=FAST) as server:
        for address in server.hosts:
            with connected(address) as client:
                client.sync("/written")
                assert client.get("/written")[0] == b"1"


def test_settings_reach_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "données et jars"
    with ZooKeeperServer(folder, settings={"tickTime": 700, "maxClientCnxns": 17}) as server:
        host, port = server.connect_string.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"conf")
            conf = connection.makefile().read()
        with connected(server.connect_string) as client:
            client.create("/a")
    assert {"tickTime=700", "maxClientCnxns=17", "maxSessionTimeout=14000"} <= set(conf.splitlines())


def test_five_jars_are_enough(tmp_path: Path) -> None:
    with ZooKeeperServer(jars=five_jars(tmp_path / "jars")) as server, connected(server.connect_string) as client:
        assert client.create("/a") == "/a"


def damage(folder: Path) -> None:
    with ZooKeeperServer(folder) as server, connected(server.connect_string) as client:
        client.create("/a")
    (folder / "node-1" / "data" / "version-2" / "snapshot.0").write_bytes(b"damaged")


@pytest.mark.slow
def test_a_damaged_data_directory_is_an_error_with_the_servers_reason(tmp_path: Path) -> None:
    damage(tmp_path)
    with pytest.raises(ZooKeeperFailed, match=r"ended with exit code 1: .*No snapshot found, but there are log entries"):
        ZooKeeperServer(tmp_path)
    with pytest.raises(ZooKeeperFailed, match="ended with exit code 1: it has written no output"):
        ZooKeeperServer(tmp_path, jars=five_jars(tmp_path.with_name("jars")))
    message, *output = refused("--data-dir", str(tmp_path)).splitlines()
    assert "No snapshot found" in message
    assert any("ERROR" in line for line in output)


def test_jars_of_something_else_are_an_error_with_javas_reason(tmp_path: Path) -> None:
    for name in NEEDED:
        (tmp_path / f"{name}-1.0.jar").touch()
    with pytest.raises(ZooKeeperFailed, match=r"ended with exit code 1: .*ZooKeeperServerMain"):
        ZooKeeperServer(jars=tmp_path)


def test_the_version_of_java_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'java version \"1.7.0_80\"' >&2\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OttlaError, match=r"Java 7 is too old \(install Java"):
        ZooKeeperServer()


def test_options_of_the_jvm_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_JVMFLAGS", "-Xmx1 '-Dname=two words'")
    with pytest.raises(ZooKeeperFailed, match="exit code 1: Error occurred during initialization of VM"):
        ZooKeeperServer()
    monkeypatch.setenv("SERVER_JVMFLAGS", "'")
    with pytest.raises(ConfigError, match='SERVER_JVMFLAGS="\'" cannot be split'):
        ZooKeeperServer()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"clientPort": 2181}, "clientPort of ZooKeeper cannot be given .it follows from port"),
        ({"dataDir": "/tmp"}, "dataDir of ZooKeeper cannot be given .it follows from data_dir"),
        ({"server.1": "a:1:2"}, r"server\.1 of ZooKeeper cannot be given .it follows from nodes"),
        ({"tickTime": " "}, "'tickTime' of ZooKeeper has no value"),
    ],
)
def test_a_setting_that_follows_from_a_parameter_is_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ZooKeeperServer(settings=settings)


@pytest.mark.parametrize(("host", "port"), [("host.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 65535), ("127.0.0.1", -1)])
def test_an_address_that_cannot_be_listened_on(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on|is not between"):
        ZooKeeperServer(host=host, port=port, nodes=2)


def test_folders_of_others_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "version-2").mkdir()
    with pytest.raises(StorageError, match="has other files: version-2"):
        ZooKeeperServer(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["version-2"]
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match=rf"{file} cannot be used: File exists"):
        ZooKeeperServer(file)


def test_an_ensemble_keeps_its_size_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_server, "LOCK_TIMEOUT", 0.1)
    with ZooKeeperServer(tmp_path):
        with pytest.raises(StorageError, match="is that of 1 node, not of 3"):
            ZooKeeperServer(tmp_path, nodes=3)
        with pytest.raises(StorageError, match="in use by another ZooKeeper"):
            ZooKeeperServer(tmp_path)
    (tmp_path / "ottla-zookeeper.json").write_text("[]")
    with pytest.raises(StorageError, match=r"ottla-zookeeper\.json is damaged"):
        ZooKeeperServer(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_and_its_server(tmp_path: Path, number: signal.Signals) -> None:
    with zookeeper("--data-dir", str(tmp_path)) as (process, address):
        with connected(address) as client:
            client.create("/a")
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, rest, errors) == (0, "", "")
        assert not is_listening(address)


@pytest.mark.slow
def test_sigkill_of_the_command_ends_all_servers_and_what_was_written_is_kept(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--nodes", "3", "--set", "tickTime=500")
    with zookeeper(*arguments) as (process, addresses):
        assert len(addresses.split(",")) == 3
        with connected(addresses) as client:
            client.create("/kept")
        process.kill()
        process.wait(10)
        with zookeeper(*arguments) as (_, new_addresses):  # at once: it waits until the first servers have ended
            assert not any(map(is_listening, addresses.split(",")))
            with connected(new_addresses) as client:
                assert client.exists("/kept")


def test_a_server_that_ends_by_itself_ends_the_command(tmp_path: Path) -> None:
    with zookeeper("--data-dir", str(tmp_path)) as (process, _):
        (pid,) = (folder.name for folder in Path("/proc").glob("[0-9]*") if is_java_in(folder, tmp_path / "node-1"))
        os.kill(int(pid), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("error: node 1 of ZooKeeper does not run, signal 9 ended it")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused("--port", str(port))


def test_a_folder_without_jars_is_refused(tmp_path: Path) -> None:
    assert f"missing in {tmp_path}: zookeeper-*.jar, zookeeper-jute-*.jar" in refused("--jars", str(tmp_path))


@pytest.mark.parametrize("arguments", [("--nodes", "0"), ("--set", "tickTime"), ("--data-dir", ""), ("--port", "70000")])
def test_bad_usage(arguments: tuple[str, ...]) -> None:
    assert ottla("zookeeper", "start", *arguments).returncode == 2


@pytest.mark.slow
def test_the_port_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    with ZooKeeperServer() as other:
        port = other.connect_string.rpartition(":")[2]
    with zookeeper("--port", port, "--host", "localhost") as (_, address):
        assert address == f"localhost:{port}"
