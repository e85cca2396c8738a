"""``ottla group`` and ``ottla consume`` on a central group: with members, without, and by a user who does not know what it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Producer
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import BrokerCluster, cluster_of, until
from tests.end_to_end.central_consumers import Member
from tests.end_to_end.polling_members import members
from tests.end_to_end.programs import ottla

pytestmark = pytest.mark.long

PARTITIONS = 4
CENTRAL = ("-X", "group.protocol=central")
OTHERS = [(), ("-X", "group.protocol=consumer"), ("-X", "group.protocol=classic")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    with ZooKeeperServer(settings={"tickTime": 500}) as server, cluster_of(2, server.connect_string, folder) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: BrokerCluster, request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test, which is also the name of the test's group."""
    name: str = request.node.name[:100]
    cluster.create_topic(name, PARTITIONS)
    produce(cluster, name)
    return name


def produce(cluster: BrokerCluster, topic: str) -> None:
    """Write three records to each partition."""
    with Producer(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as producer:
        for number in range(3 * PARTITIONS):
            producer.send(topic, b"x", partition=number % PARTITIONS)


def member(cluster: BrokerCluster, topic: str, name: str) -> Member:
    servers = [broker.bootstrap_servers for broker in cluster.brokers]
    return Member(servers, topic, group_id=topic, consumer_id=name, client_id=f"client-{name}")


def run(cluster: BrokerCluster, *arguments: str) -> str:
    """Run a command, on the broker that is not elected: any broker has to do. Returns what it prints."""
    done = ottla(*arguments, bootstrap_servers=cluster.brokers[1].bootstrap_servers)
    assert (done.returncode, done.stderr) in [(0, ""), (0, "nothing was changed; add --execute to do it\n")]
    return done.stdout


def refusal(cluster: BrokerCluster, *arguments: str) -> str:
    done = ottla(*arguments, bootstrap_servers=cluster.brokers[1].bootstrap_servers, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def described(cluster: BrokerCluster, group: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(cluster, "group", "describe", group, "--format", "json"))
    return document


def column(document: dict[str, Any], name: str) -> list[Any]:
    return [row[name] for row in document["partitions"]]


def test_a_group_at_work(cluster: BrokerCluster, topic: str) -> None:
    one, two = member(cluster, topic, "a"), member(cluster, topic, "b")
    with members(one, two):
        until(lambda: (one.owned, two.owned) == ([0, 1], [2, 3]))
        until(lambda: len({*one.handled, *two.handled}) == 3 * PARTITIONS)
        until(lambda: column(described(cluster, topic), "committed") == [3] * PARTITIONS)
        document = described(cluster, topic)
        coordinator = cluster.brokers[cluster.json("consumers", "coordinator") - 1001].bootstrap_servers
        assert {name: document[name] for name in ("state", "protocol", "assignor", "coordinator")} == {
            "state": "Stable",
            "protocol": "central",
            "assignor": "range",
            "coordinator": coordinator,
        }
        assert {item["member_id"]: (item["client_id"], item["partitions"]) for item in document["members"]} == {
            f"{topic}_a": ("client-a", [{"topic": topic, "partition": number} for number in (0, 1)]),
            f"{topic}_b": ("client-b", [{"topic": topic, "partition": number} for number in (2, 3)]),
        }
        assert column(document, "lag") == [0] * PARTITIONS
        assert column(document, "member_id") == [f"{topic}_a"] * 2 + [f"{topic}_b"] * 2
        assert f"group {topic}: Stable, protocol central, assignor range, coordinator {coordinator}" in run(
            cluster, "group", "describe", topic
        )
        listed = json.loads(run(cluster, "group", "list", "--format", "json"))
        assert {"group": topic, "state": "Stable", "protocol": "central"} in listed
        for arguments in (("reset-offsets", topic, "-o", "beginning", "--execute"), ("delete", topic, "--execute")):
            assert refusal(cluster, "group", *arguments) == f"error: group {topic} is Stable: its members must leave first\n"
        assert column(described(cluster, topic), "committed") == [3] * PARTITIONS


@pytest.mark.slow
def test_a_group_at_rest(cluster: BrokerCluster, topic: str) -> None:
    with members(member(cluster, topic, "a")) as (one,):
        until(lambda: len({*one.handled}) == 3 * PARTITIONS)
    produce(cluster, topic)
    document = described(cluster, topic)
    assert (document["state"], document["protocol"], document["members"]) == ("Empty", "central", [])
    assert column(document, "lag") == [3] * PARTITIONS
    run(cluster, "group", "reset-offsets", topic, "-o", "beginning")
    assert column(described(cluster, topic), "committed") == [3] * PARTITIONS, "without --execute nothing changes"
    rows = json.loads(run(cluster, "group", "reset-offsets", topic, "-o", "beginning", "--execute", "--format", "json"))
    assert [(row["committed"], row["new_offset"]) for row in rows] == [(3, 0)] * PARTITIONS
    assert column(described(cluster, topic), "lag") == [6] * PARTITIONS
    assert run(cluster, "consume", "-t", topic, "-g", topic, "-e", *CENTRAL) == "x\n" * 6 * PARTITIONS
    assert column(described(cluster, topic), "lag") == [0] * PARTITIONS
    assert run(cluster, "group", "delete", topic, "--execute") == f"deleted group {topic}\n"
    assert topic not in run(cluster, "group", "list")
    assert "there is no group" in refusal(cluster, "group", "describe", topic)


@pytest.mark.slow
def test_a_consumer_of_another_protocol_is_told_at_once_what_the_group_is(cluster: BrokerCluster, topic: str) -> None:
    def refusals() -> Iterator[str]:
        for options in OTHERS:
            text = refusal(cluster, "consume", "-t", topic, "-g", topic, "-e", *options)
            assert "INCONSISTENT_GROUP_PROTOCOL" in text
            assert "group.protocol=central" in text
            yield text

    with members(member(cluster, topic, "a")) as (one,):
        until(lambda: len(one.owned) == PARTITIONS)
        with_members = [*refusals()]
        assert len(one.owned) == PARTITIONS
    for texts in (with_members, [*refusals()]):
        assert [f"group {topic!r} is central: set group.protocol=central" in text for text in texts] == [True, True, False]
