"""``ottla group ... --zookeeper`` and ``ottla group migrate``: a real ZooKeeper, members of other clients, and Ottla's broker."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from ottla import Admin, TopicPartition
from ottla.cli.app import run
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.closed_ports import closed_port
from tests.end_to_end.programs import ottla, started

pytestmark = pytest.mark.long

NUMBERS = count()
GROUP_KEYS = ["group", "state", "protocol", "members", "partitions", "malformed"]
MEMBER_KEYS = ["member_id", "host", "pattern", "subscription", "is_live", "partitions"]
PARTITION_KEYS = ["topic", "partition", "committed", "stored_in", "offsets", "end_offset", "lag", "owner"]
STEP_KEYS = ["topic", "partition", "source", "target", "new_offset", "action", "note"]
DRY_RUN = "nothing was changed; add --execute to do it\n"


class Done(NamedTuple):
    """What a command has printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The JSON document of a command that has succeeded."""
        assert self.exit_code == 0, self.stderr
        return json.loads(self.stdout)


Run = Callable[..., Done]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process."""

    def execute(line: str, *more: str) -> Done:
        capfd.readouterr()
        code = run([*shlex.split(line), *more])
        return Done(code, *capfd.readouterr())

    return execute


class Old(NamedTuple):
    """A ZooKeeper below a chroot of its own, with Ottla's broker as the registered one."""

    client: KazooClient
    connect: str
    chroot: str
    broker: str

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node and those above it, or replace its data."""
        self.client.ensure_path(path)
        self.client.set(path, data)

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Write committed offsets as a consumer does."""
        for partition, offset in offsets.items():
            self.put(f"/consumers/{group}/offsets/{topic}/{partition}", str(offset).encode())

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets in ZooKeeper."""
        path = f"/consumers/{group}/offsets/{topic}"
        return {int(name): int(self.client.get(f"{path}/{name}")[0]) for name in sorted(self.client.get_children(path))}

    def register_broker(self, address: str) -> None:
        """Register a broker with this address."""
        host, _, port = address.rpartition(":")
        self.put("/brokers/ids/1", json.dumps({"host": host, "port": int(port), "version": 1}).encode())

    @contextmanager
    def member(self, group: str, member_id: str, owned: dict[str, list[int]]) -> Iterator[None]:
        """A member that owns partitions, while the ``with`` lasts."""
        registered = {"version": 1, "subscription": dict.fromkeys(owned, 2), "pattern": "static", "timestamp": "1795377382364"}
        client = KazooClient(self.connect)
        client.start(30)
        client.create(f"/consumers/{group}/ids/{member_id}", json.dumps(registered).encode(), ephemeral=True, makepath=True)
        for topic, partitions in owned.items():
            for partition in partitions:
                path = f"/consumers/{group}/owners/{topic}/{partition}"
                client.create(path, f"{member_id}-0".encode(), ephemeral=True, makepath=True)
        try:
            yield
        finally:
            client.stop()
            client.close()


@pytest.fixture
def old(zookeeper_server: ZooKeeperServer, served: str) -> Iterator[Old]:
    chroot = f"/cli-{next(NUMBERS)}"
    connect = f"{zookeeper_server.connect_string}{chroot}"
    with_chroot(zookeeper_server, chroot)
    client = KazooClient(connect)
    client.start(30)
    found = Old(client, connect, chroot, served)
    found.register_broker(served)
    yield found
    client.stop()
    client.close()


def with_chroot(server: ZooKeeperServer, chroot: str) -> None:
    client = KazooClient(server.connect_string)
    client.start(30)
    client.create(chroot)
    client.stop()
    client.close()


@pytest.fixture
def admin(served: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=served) as admin:
        yield admin


def stored_in_kafka(admin: Admin, group: str) -> dict[int, int]:
    return {each.partition: committed.offset for each, committed in admin.group_offsets(group).items()}


# -- list and describe ----------------------------------------------------------------------------------------------------


def test_groups_are_listed_and_stray_nodes_are_not(command: Run, old: Old) -> None:
    assert command(f"group list --zookeeper {old.connect}").stdout.split() == ["GROUP", "STATE", "PROTOCOL"]
    old.commit("resting", "t", {0: 1})
    old.put("/consumers/config/stray")
    old.put("/consumers/bare")
    with old.member("working", "m", {"t": [0]}):
        rows = command(f"group list --zookeeper {old.connect} --format json").document
    assert rows == [
        {"group": "bare", "state": "Empty", "protocol": "zookeeper"},
        {"group": "resting", "state": "Empty", "protocol": "zookeeper"},
        {"group": "working", "state": "Active", "protocol": "zookeeper"},
    ]


def test_a_group_is_described_with_its_members_owners_and_lag(command: Run, old: Old, topic: Callable[..., str]) -> None:
    name = topic(3, *(f"{number}:{number}" for number in range(30)))
    old.put(f"/brokers/topics/{name}", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}')
    old.commit("bar", name, {0: 1, 1: 2})
    member_id = "bar_vm-1-1795377382328-12a618e8"
    with old.member("bar", member_id, {name: [0, 2]}):
        document = command(f"group describe bar --zookeeper {old.connect} --format json").document
        table = command(f"group describe bar --zookeeper {old.connect}")
    assert list(document) == GROUP_KEYS
    assert [document[key] for key in GROUP_KEYS[:3]] == ["bar", "Active", "zookeeper"]
    [member] = document["members"]
    assert list(member) == MEMBER_KEYS
    assert [member[key] for key in MEMBER_KEYS[:5]] == [member_id, "vm-1", "static", {name: 2}, True]
    assert member["partitions"] == [{"topic": name, "partition": 0}, {"topic": name, "partition": 2}]
    first, second, third = document["partitions"]
    assert list(first) == PARTITION_KEYS
    assert (first["committed"], first["stored_in"], first["owner"]) == (1, ["zookeeper"], f"{member_id}-0")
    assert first["lag"] == first["end_offset"] - 1
    assert (second["committed"], second["owner"]) == (2, None)
    assert (third["committed"], third["stored_in"], third["lag"], third["owner"]) == (None, [], None, f"{member_id}-0")
    assert sum(row["end_offset"] for row in document["partitions"]) == 30
    assert (table.exit_code, table.stderr) == (0, "")
    assert table.stdout.startswith("group bar: Active, protocol zookeeper\n\nMEMBER ID")
    assert f"{name}=2" in table.stdout
    assert [line.split()[3] for line in table.stdout.splitlines() if line.startswith(name)] == ["zookeeper", "zookeeper", "-"]


def test_offsets_in_both_stores_are_shown_with_their_stores(
    command: Run, old: Old, topic: Callable[..., str], admin: Admin
) -> None:
    name, group = topic(4, *map(str, range(40))), f"both-{next(NUMBERS)}"
    old.commit(group, name, {0: 1, 1: 1, 2: 2})
    admin.alter_group_offsets(group, {TopicPartition(name, 1): 1, TopicPartition(name, 2): 1, TopicPartition(name, 3): 1})
    rows = command(f"group describe {group} --zookeeper {old.connect} --format json").document["partitions"]
    assert [(row["committed"], row["stored_in"]) for row in rows] == [
        (1, ["zookeeper"]),
        (1, ["zookeeper", "kafka"]),
        (2, ["zookeeper"]),
        (1, ["kafka"]),
    ]
    assert rows[2]["offsets"] == {"zookeeper": 2, "kafka": 1}
    table = command(f"group describe {group} --zookeeper {old.connect}").stdout
    for cell in ("zookeeper and kafka", "zookeeper (kafka has 1)"):
        assert cell in table


def test_malformed_nodes_are_shown_with_their_paths(command: Run, old: Old) -> None:
    old.commit("bar", "t", {0: 5})
    old.put("/consumers/bar/offsets/t/1", b"five\x1b[31m")
    old.put("/consumers/bar/ids/stray", b"[]")
    done = command(f"group describe bar --zookeeper {old.connect}")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[-3].split() == ["MALFORMED", "NODE", "ERROR"]
    assert [line.split()[0] for line in lines[-2:]] == ["/consumers/bar/ids/stray", "/consumers/bar/offsets/t/1"]
    assert "\x1b" not in done.stdout
    assert "(persistent: no process stands behind it)" in done.stdout
    assert "/consumers/bar/ids/stray is persistent: no process stands behind it" in done.stderr
    document = command(f"group describe bar --zookeeper {old.connect} --format json").document
    assert [node["path"] for node in document["malformed"]] == ["/consumers/bar/ids/stray", "/consumers/bar/offsets/t/1"]
    assert [row["committed"] for row in document["partitions"]] == [5, None]


def test_brokers_that_cannot_be_reached_are_a_warning(command: Run, old: Old) -> None:
    old.commit("bar", "t", {0: 5})
    with closed_port() as port:
        old.register_broker(f"127.0.0.1:{port}")
        done = command(f"group describe bar --zookeeper {old.connect} --format json -X default.api.timeout.ms=1500")
    assert [(row["committed"], row["end_offset"], row["lag"]) for row in done.document["partitions"]] == [(5, None, None)]
    assert "warning: ends of logs and offsets in Kafka are unknown: no broker could be reached" in done.stderr
    assert f"127.0.0.1:{port}" in done.stderr
    old.client.delete("/brokers/ids/1")
    for line, code in (("describe bar", 0), ("reset-offsets bar -o end", 1), ("migrate bar --from zookeeper --to kafka", 1)):
        done = command(f"group {line} --zookeeper {old.connect}")
        assert done.exit_code == code
        assert "no broker with a PLAINTEXT listener is registered in ZooKeeper; name the brokers with -b" in done.stderr
        done = command(f"group {line} --zookeeper {old.connect} -b {old.broker}")
        assert "registered" not in done.stderr


def test_brokers_of_another_cluster_are_refused(command: Run, old: Old) -> None:
    old.commit("bar", "t", {0: 5})
    old.put("/cluster/id", b'{"version":"1","id":"another"}')
    for line, code in (
        ("describe bar", 0),
        ("reset-offsets bar -o 0 --execute", 1),
        ("migrate bar --from zookeeper --to kafka --execute", 1),
    ):
        done = command(f"group {line} --zookeeper {old.connect} -b {old.broker}")
        assert done.exit_code == code
        assert f"the brokers at {old.broker} belong to cluster " in done.stderr
        assert "to cluster another; without -b" in done.stderr
    assert old.offsets("bar", "t") == {0: 5}


def test_consume_finds_the_brokers_in_zookeeper(
    command: Run, old: Old, topic: Callable[..., str], admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1, *(f"k:{number}" for number in range(3)))
    old.put(f"/brokers/topics/{name}", b'{"version":1,"partitions":{"0":[1]}}')
    group = f"reading-{next(NUMBERS)}"
    line = f"consume -t {name} -e -X zookeeper.connect={old.connect}"
    with closed_port() as port:
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", f"127.0.0.1:{port}")
        alone = command(line)
        member = command(f"{line} -g {group} -X auto.commit.enable=false -X socket.timeout.ms=10000")
    assert alone == member == Done(0, "0\n1\n2\n", "")
    assert (old.offsets(group, name), stored_in_kafka(admin, group)) == ({0: 3}, {})


# -- changes --------------------------------------------------------------------------------------------------------------


def test_offsets_are_reset(command: Run, old: Old, topic: Callable[..., str], admin: Admin) -> None:
    name = topic(1, *(f"k:{number}" for number in range(8)))
    group = f"reset-{next(NUMBERS)}"

    def reset(*arguments: str) -> list[tuple[int | None, int]]:
        done = command(f"group reset-offsets {group} --zookeeper {old.connect} --format json", *arguments)
        assert done.stderr == ("" if "--execute" in arguments else DRY_RUN)
        return [(row["committed"], row["new_offset"]) for row in done.document]

    assert reset("-t", name, "-o", "3") == [(None, 3)]
    assert reset("-t", name, "-o", "3", "--execute") == [(None, 3)]
    assert old.offsets(group, name) == {0: 3}
    assert reset("-o", "end") == [(3, 8)]
    assert reset("-o", "99") == [(3, 8)]
    assert reset("-o", "s@0") == [(3, 0)]
    assert reset("-o", "beginning", "--execute") == [(3, 0)]
    assert old.offsets(group, name) == {0: 0}
    old.commit(group, "deleted", {0: 3})
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 4})
    done = command(f"group reset-offsets {group} -o end --execute --zookeeper {old.connect}")
    assert "partitions of topic deleted do not exist any more: skipped" in done.stderr
    assert (
        "warning: the group also has offsets in Kafka (1 partition), which members with offsets.storage=kafka read" in done.stderr
    )
    assert (old.offsets(group, name), old.offsets(group, "deleted")) == ({0: 8}, {0: 3})
    old.commit("gone", "deleted", {0: 3})
    done = command(f"group reset-offsets gone -o end --zookeeper {old.connect}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith(
        "error: there is nothing to reset: no topic that group gone has committed offsets of exists any more\n"
    )
    done = command(f"group reset-offsets none -o end --zookeeper {old.connect}")
    assert done == (1, "", "error: group none has no committed offsets in ZooKeeper; name the topics to reset with -t\n")


def test_a_group_without_any_node_but_its_own_is_deleted(command: Run, old: Old) -> None:
    at = f"--zookeeper {old.connect}"
    old.put("/consumers/bare")
    assert command(f"group describe bare {at}").stdout.startswith("group bare: Empty, protocol zookeeper\n")
    asked = command(f"group delete bare {at}")
    assert asked == (0, "would delete group bare with 0 committed offsets; add --execute to do it\n", "")
    assert command(f"group delete bare --execute {at}") == (0, "deleted group bare\n", "")
    assert not old.client.exists("/consumers/bare")


@pytest.mark.parametrize("execute", ["", "--execute"], ids=["dry run", "execute"])
def test_a_topic_that_the_group_has_nothing_of_is_refused(command: Run, old: Old, execute: str) -> None:
    old.commit("bar", "t", {0: 5})
    done = command(f"group delete bar -t unknown {execute} --zookeeper {old.connect}")
    why = "group 'bar' in ZooKeeper has neither owners nor committed offsets of topic 'unknown' [UNKNOWN_TOPIC_OR_PARTITION]"
    assert done == (1, "", f"error: {why} (see ottla group describe)\n")


def test_a_group_or_a_topic_of_it_is_deleted(command: Run, old: Old) -> None:
    old.put("/consumers/config/stray")
    old.commit("bar", "t", {0: 5, 1: 6})
    old.commit("bar", "u", {0: 5})
    at = f"--zookeeper {old.connect}"
    asked = command(f"group delete bar -t t {at}")
    assert asked == (0, "would delete topic t of group bar with 2 committed offsets; add --execute to do it\n", "")
    assert command(f"group delete bar -t t --execute {at}") == (0, "deleted topic t of group bar\n", "")
    assert not old.client.exists("/consumers/bar/offsets/t")
    asked = command(f"group delete bar {at}")
    assert asked == (0, "would delete group bar with 1 committed offset; add --execute to do it\n", "")
    assert command(f"group delete bar --execute {at}") == (0, "deleted group bar\n", "")
    assert not old.client.exists("/consumers/bar")
    for execute in ("", "--execute"):
        done = command(f"group delete bar {execute} {at}")
        assert (done.exit_code, done.stdout) == (1, "")
        assert re.search("there is no group '?bar'? in ZooKeeper", done.stderr)
    done = command(f"group delete config --execute {at}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no group 'config' in ZooKeeper: the node /consumers/config has neither" in done.stderr
    done = command("group delete bar -t t")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "only with --zookeeper" in done.stderr


def test_a_large_group_is_reset_and_deleted_with_progress(command: Run, old: Old, admin: Admin) -> None:
    name = f"large-{next(NUMBERS)}"
    admin.create_topics({name: 1100})
    done = command(f"group reset-offsets bar -t {name} -o end --execute --zookeeper {old.connect}")
    assert (done.exit_code, done.stderr) == (0, "wrote 1000 of 1100 offsets\n")
    assert len(old.offsets("bar", name)) == 1100
    done = command(f"group delete bar --execute --zookeeper {old.connect}")
    assert done == (0, "deleted group bar\n", "deleted 1000 of 1104 nodes\n")


def test_a_command_that_was_killed_in_the_middle_is_completed_by_its_repetition(command: Run, old: Old, admin: Admin) -> None:
    name = f"large-{next(NUMBERS)}"
    admin.create_topics({name: 2100})
    for line in (f"group reset-offsets bar -t {name} -o end --execute", "group delete bar --execute"):
        with started(*line.split(), "--zookeeper", old.connect) as process:
            assert process.stderr is not None
            assert " 1000 of " in process.stderr.readline()
            process.kill()
            process.wait(60)
        left = len(old.client.get_children(f"/consumers/bar/offsets/{name}"))
        assert 100 <= left <= 2000
        assert command(f"{line} --zookeeper {old.connect}").exit_code == 0
        if "reset" in line:
            assert len(old.client.get_children(f"/consumers/bar/offsets/{name}")) == 2100
    assert not old.client.exists("/consumers/bar")


def test_a_node_that_may_not_be_read_is_an_error_with_its_path(command: Run, old: Old) -> None:
    old.commit("bar", "t", {0: 5})
    old.client.create("/consumers/bar/offsets/t/1", b"5", acl=[make_digest_acl("kafka", "secret", all=True)])
    done = command(f"group describe bar --zookeeper {old.connect}")
    assert done == (1, "", "error: ZooKeeper: NOAUTH at /consumers/bar/offsets/t/1: not authorized\n")


def test_a_group_with_members_is_not_changed(command: Run, old: Old) -> None:
    old.commit("bar", "t", {0: 5})
    with old.member("bar", "m", {"t": [0]}):
        for line in (
            "reset-offsets bar -o 0",
            "reset-offsets bar -o 0 --execute",
            "delete bar",
            "delete bar -t t --execute",
            "migrate bar --from zookeeper --to kafka",
            "migrate bar --from kafka --to zookeeper --execute",
        ):
            done = command(f"group {line} --zookeeper {old.connect}")
            assert done == (1, "", "error: group bar is Active in ZooKeeper: its members must leave first\n"), line
    assert old.offsets("bar", "t") == {0: 5}


# -- migration ------------------------------------------------------------------------------------------------------------


def test_offsets_move_to_kafka_and_back(command: Run, old: Old, topic: Callable[..., str], admin: Admin) -> None:
    name, group = topic(2, *(f"{number}:x" for number in range(20))), f"moving-{next(NUMBERS)}"
    old.commit(group, name, {0: 1, 1: 2})
    to_kafka = f"group migrate {group} --from zookeeper --to kafka --zookeeper {old.connect}"
    done = command(f"{to_kafka} --format json")
    assert [list(row) for row in done.document] == [STEP_KEYS] * 2
    assert [[row[key] for key in STEP_KEYS[2:]] for row in done.document] == [
        [1, None, 1, "write", None],
        [2, None, 2, "write", None],
    ]
    assert done.stderr == DRY_RUN
    assert stored_in_kafka(admin, group) == {}
    done = command(f"{to_kafka} --execute")
    assert (done.exit_code, done.stderr) == (0, "wrote 2 offsets to kafka and read them back\n")
    assert stored_in_kafka(admin, group) == {0: 1, 1: 2}
    done = command(f"{to_kafka} --execute --format json")
    assert [row["action"] for row in done.document] == ["unchanged", "unchanged"]
    assert done.stderr == "there was nothing to write to kafka\n"
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 3})
    done = command(f"group migrate {group} --from kafka --to zookeeper --execute --zookeeper {old.connect}")
    assert (done.exit_code, done.stderr) == (0, "wrote 1 offset to zookeeper and read them back\n")
    assert old.offsets(group, name) == {0: 3, 1: 2}


def test_a_group_moves_to_a_zookeeper_that_has_none(command: Run, old: Old, topic: Callable[..., str], admin: Admin) -> None:
    name, group = topic(1, "a:b"), f"moving-{next(NUMBERS)}"
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 1})
    assert not old.client.exists("/consumers")
    assert command(f"group migrate {group} --from kafka --to zookeeper --execute --zookeeper {old.connect}").exit_code == 0
    assert old.offsets(group, name) == {0: 1}


def test_an_offset_moves_backwards_only_if_allowed(command: Run, old: Old, topic: Callable[..., str], admin: Admin) -> None:
    name, group = topic(2, *(f"{number}:x" for number in range(40))), f"moving-{next(NUMBERS)}"
    old.commit(group, name, {0: 1, 1: 4})
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 3, TopicPartition(name, 1): 2})
    line = f"group migrate {group} --from zookeeper --to kafka --execute --zookeeper {old.connect}"
    done = command(f"{line} --format json")
    assert [(row["action"], row["new_offset"], row["note"]) for row in done.document] == [
        ("keep", None, "the offset in kafka is greater"),
        ("write", 4, None),
    ]
    assert "warning: 1 partition keeps the greater offset in kafka; --allow-backwards writes that of the source\n" in done.stderr
    assert stored_in_kafka(admin, group) == {0: 3, 1: 4}
    done = command(f"{line} --format json --allow-backwards")
    assert [(row["action"], row["note"]) for row in done.document] == [("write", "backwards by 2"), ("unchanged", None)]
    assert stored_in_kafka(admin, group) == {0: 1, 1: 4}


def test_offsets_outside_the_log_and_deleted_topics_are_pointed_out(
    command: Run, old: Old, topic: Callable[..., str], admin: Admin
) -> None:
    name, group = topic(2, *(f"{number}:x" for number in range(40))), f"moving-{next(NUMBERS)}"
    admin.delete_records({TopicPartition(name, 0): 2})
    old.commit(group, name, {0: 1, 1: 99, 7: 1})
    old.commit(group, "deleted", {0: 1})
    done = command(f"group migrate {group} --from zookeeper --to kafka --execute --format json --zookeeper {old.connect}")
    notes = {(row["topic"], row["partition"]): (row["action"], row["note"]) for row in done.document}
    assert notes["deleted", 0] == notes[name, 7] == ("skip", "the partition does not exist any more")
    assert notes[name, 0] == ("write", "before the beginning of the log, 2")
    assert notes[name, 1][1].startswith("after the end of the log, ")
    assert "warning: partitions of topic deleted do not exist any more: skipped\n" in done.stderr
    assert "warning: 2 offsets outside the log: a consumer applies auto.offset.reset there\n" in done.stderr
    assert stored_in_kafka(admin, group) == {0: 1, 1: 99}


def test_members_in_kafka_refuse_a_migration(command: Run, old: Old, topic: Callable[..., str]) -> None:
    from ottla import Consumer

    name, group = topic(1, "a:b"), f"moving-{next(NUMBERS)}"
    old.commit(group, name, {0: 1})
    with Consumer(bootstrap_servers=old.broker, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([name])
        while not consumer.assignment():
            consumer.poll(0.1)
        for line in ("--from zookeeper --to kafka --execute", "--from kafka --to zookeeper"):
            done = command(f"group migrate {group} {line} --zookeeper {old.connect}")
            assert (done.exit_code, done.stdout) == (1, "")
            assert f"error: group {group} is Stable in Kafka: its members must leave first\n" in done.stderr
    assert old.offsets(group, name) == {0: 1}


def test_there_must_be_something_to_migrate(command: Run, old: Old, topic: Callable[..., str]) -> None:
    name = topic(1, "a:b")
    group = f"moving-{next(NUMBERS)}"
    done = command(f"group migrate {group} --from zookeeper --to kafka --zookeeper {old.connect}")
    assert done == (1, "", f"error: group {group} has no committed offsets in zookeeper\n")
    old.commit(group, name, {0: 1})
    done = command(f"group migrate {group} --from kafka --to zookeeper --zookeeper {old.connect}")
    assert done == (1, "", f"error: group {group} has no committed offsets in kafka; it has 1 committed offset in zookeeper\n")
    done = command(f"group migrate {group} --from kafka --to kafka --zookeeper {old.connect}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--from and --to are both kafka" in done.stderr
    assert command(f"group migrate {group} --from kafka --to zookeeper").exit_code == 2


def test_malformed_offsets_are_named_and_refused_unless_left_out(
    command: Run, old: Old, topic: Callable[..., str], admin: Admin
) -> None:
    name, group = topic(3, *(f"{number}:x" for number in range(40))), f"moving-{next(NUMBERS)}"
    node = f"/consumers/{group}/offsets/{name}"
    old.put(f"{node}/0", b"abc")
    old.put(f"{node}/1")
    line = f"group migrate {group} --from zookeeper --to kafka --zookeeper {old.connect}"
    refused = f"2 committed offsets in zookeeper cannot be understood ({name}-0, {name}-1); reset these offsets, or leave them out"
    warning = "warning: 2 malformed offsets in zookeeper: not copied\n"
    done = command(f"{line} --format json")
    assert [(row["source"], row["new_offset"], row["action"]) for row in done.document] == [(None, None, "malformed")] * 2
    assert [row["note"] for row in done.document] == [
        f"the node {node}/0 of ZooKeeper is malformed: the offset is 'abc', not a whole number from 0 to 9223372036854775807",
        f"the node {node}/1 of ZooKeeper is malformed: the offset is '', not a whole number from 0 to 9223372036854775807",
    ]
    assert done.stderr == f"{warning}warning: --execute would refuse: {refused} with --skip-malformed\n{DRY_RUN}"
    old.commit(group, name, {2: 1})
    done = command(f"{line} --execute")
    assert (done.exit_code, done.stderr) == (1, f"{warning}error: nothing was written: {refused} with --skip-malformed\n")
    assert f"{node}/0" in done.stdout
    assert stored_in_kafka(admin, group) == {}
    assert command(f"{line} --skip-malformed").stderr == f"{warning}{DRY_RUN}"
    done = command(f"{line} --execute --skip-malformed")
    assert (done.exit_code, done.stderr) == (0, f"{warning}wrote 1 offset to kafka and read them back\n")
    assert stored_in_kafka(admin, group) == {2: 1}
    assert command(f"group migrate {group} --from kafka --to zookeeper --execute --zookeeper {old.connect}").exit_code == 0


def test_a_commit_during_the_migration_is_an_error(
    command: Run, old: Old, topic: Callable[..., str], admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, group = topic(1, *(f"k:{number}" for number in range(8))), f"moving-{next(NUMBERS)}"
    old.commit(group, name, {0: 1})
    write = Admin.alter_group_offsets

    def commit_too(self: Admin, *arguments: Any) -> None:
        write(self, *arguments)
        old.commit(group, name, {0: 2})

    monkeypatch.setattr(Admin, "alter_group_offsets", commit_too)
    done = command(f"group migrate {group} --from zookeeper --to kafka --execute --zookeeper {old.connect}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"group {group} has committed to zookeeper during the migration: {name}-0 was 1, is 2; stop its members" in done.stderr

    def write_another(self: Admin, group: str, offsets: dict[TopicPartition, Any]) -> None:
        write(self, group, dict.fromkeys(offsets, 7))

    monkeypatch.setattr(Admin, "alter_group_offsets", write_another)
    done = command(f"group migrate {group} --from zookeeper --to kafka --execute --zookeeper {old.connect}")
    assert f"kafka has other offsets than those that were written: {name}-0 was 2, is 7; look at the group" in done.stderr


# -- bad input ------------------------------------------------------------------------------------------------------------


def test_a_wrong_address_ends_in_time_with_the_reason(command: Run, old: Old) -> None:
    began = time.monotonic()
    with closed_port() as port:
        done = command(f"group list --zookeeper 127.0.0.1:{port} -X default.api.timeout.ms=1000")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: no connection to ZooKeeper within 1 s: 127.0.0.1:{port}: Connection refused (")
    done = command(f"group list --zookeeper {old.broker} -X default.api.timeout.ms=1000")
    assert done.exit_code == 1
    assert f"{old.broker}: it accepts connections, but does not answer as ZooKeeper does" in done.stderr
    assert time.monotonic() - began < 15
    done = command(f"group list --zookeeper {old.connect}/nowhere")
    assert done.exit_code == 1
    assert f"ZooKeeper has no node '{old.chroot}/nowhere'" in done.stderr
    done = command("group list --zookeeper 127.0.0.1:port")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "zookeeper_connect='127.0.0.1:port': expected HOST:PORT" in done.stderr


@pytest.mark.parametrize("name", ["a/b", "..", "/"])
def test_a_name_that_no_group_in_zookeeper_can_have(command: Run, old: Old, name: str) -> None:
    for line in ("describe", "reset-offsets -o 0", "delete --execute", "migrate --from zookeeper --to kafka"):
        done = command(f"group {line} --zookeeper {old.connect}", name)
        assert (done.exit_code, done.stdout) == (1, ""), line
        assert "cannot be a node of ZooKeeper" in done.stderr


@pytest.mark.parametrize("name", ['o\'clock "quoted"', "grüppe 群"])
def test_unusual_names_of_groups(command: Run, old: Old, name: str, topic: Callable[..., str]) -> None:
    at = f"--zookeeper {old.connect}"
    assert command(f"group reset-offsets -t {topic(1)} -o end --execute {at}", name).exit_code == 0
    assert [row["group"] for row in command(f"group list --format json {at}").document] == [name]
    assert command(f"group describe --format json {at}", name).document["group"] == name
    assert command(f"group delete --execute {at}", name).stdout == f"deleted group {name}\n"


def test_the_program_itself(old: Old) -> None:
    old.commit("bar", "t", {0: 5})
    done = ottla("group", "list", "--zookeeper", old.connect)
    assert (done.returncode, done.stdout.splitlines()[1].split(), done.stderr) == (0, ["bar", "Empty", "zookeeper"], "")


def test_without_kazoo_the_error_says_how_to_install_it() -> None:
    arguments = ["ottla", "group", "list", "--zookeeper", "localhost"]
    program = f"import sys; sys.modules['kazoo'] = None; sys.argv = {arguments}; from ottla.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: ZooKeeper needs kazoo (pip install 'ottla[zookeeper]')\n"


def test_a_server_that_answers_nothing_keeps_no_command_waiting(command: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = command(f"group describe bar --zookeeper {address} -X default.api.timeout.ms=1000")
        assert time.monotonic() - began < 10
    assert (done.exit_code, done.stdout) == (1, "")
