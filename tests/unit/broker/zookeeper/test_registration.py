"""Brokers that register in ZooKeeper, and see each other there."""

from __future__ import annotations

import json
import logging
import re
import uuid

import pytest

from ottla.broker.effects import NodeEndpoint, Registered
from ottla.coordinator.effects import ApiError
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, encode_response
from ottla.protocol.messages import heartbeat_request, metadata_request
from ottla.simulation.zookeeper_broker import Thread
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import encode_broker, encode_topic
from ottla.zookeeper.operations import Create
from ottla.zookeeper.session import SessionReport
from tests.simulation.requests import fetch_message
from tests.simulation.zookeeper_cluster import SESSION_TIMEOUT, BrokerInCluster, ZooKeeperCluster

ID = uuid.UUID(int=1 << 100)
SEEDS = range(6)


@pytest.fixture(params=SEEDS)
def cluster(request: pytest.FixtureRequest) -> ZooKeeperCluster:
    """A ZooKeeper without brokers."""
    return ZooKeeperCluster(request.param)


def ids_known_to(broker: BrokerInCluster) -> list[int]:
    return [*broker.catalog.cluster.brokers]


def test_a_broker_registers_as_kafka_does(cluster: ZooKeeperCluster) -> None:
    start = cluster.clock.now.wall
    (broker,) = cluster.add(3)
    cluster.run()
    assert json.loads(cluster.model.data(paths.broker(3)) or b"") == {
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": ["PLAINTEXT://127.0.0.1:9003"],
        "jmx_port": -1,
        "host": "127.0.0.1",
        "timestamp": str(start),
        "port": 9003,
        "version": 4,
    }
    assert cluster.model.owner(paths.broker(3)) == broker.session_id
    assert broker.registered == [Registered()]
    assert broker.zookeeper.is_registered


def test_a_broker_registers_last(cluster: ZooKeeperCluster) -> None:
    cluster.create_topic("t", (1, 1), None)
    (broker,) = cluster.add(1)
    while not broker.registered:
        assert (paths.broker(1) not in {one.path for one in broker.asked}) or cluster.states("t") == {0: 0, 1: 0}
        cluster.run(1)
    assert broker.catalog.topics.get("t") is not None
    registrations = [one for one in broker.asked if isinstance(one, Create) and one.path == paths.broker(1)]
    assert len(registrations) == 1


def test_brokers_come_and_go(cluster: ZooKeeperCluster) -> None:
    one, two, three = cluster.add(1, 2, 3)
    cluster.run()
    assert ids_known_to(one) == ids_known_to(two) == ids_known_to(three) == [1, 2, 3]
    assert one.catalog.cluster.brokers[2] == NodeEndpoint(2, "127.0.0.1", 9002)
    two.kill()
    cluster.run(2 * SESSION_TIMEOUT)
    assert ids_known_to(one) == ids_known_to(three) == [1, 3]
    two.start()
    cluster.run()
    assert ids_known_to(one) == ids_known_to(two) == [1, 2, 3]
    cluster.check()


def test_a_malformed_broker_is_logged_once_and_the_others_count(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    cluster.put(paths.broker(8), b"{")
    cluster.put(f"{paths.BROKER_IDS}/x")
    one, _ = cluster.add(1, 2)
    cluster.run()
    one.disconnect()
    cluster.run()
    assert ids_known_to(one) == [1, 2]
    messages = [record.getMessage() for record in caplog.records if paths.broker(8) in record.getMessage()]
    assert len(messages) == 2  # of each broker one


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("7", rb'{"host":"h\ud800","port":9}'),
        ("7", b'{"host":"%s","port":9}' % (b"h" * 40_000)),
        ("9999999999", b'{"host":"h","port":9}'),
    ],
)
def test_a_node_of_another_client_leaves_the_answers_to_clients_encodable(name: str, data: bytes) -> None:
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.put(f"{paths.BROKER_IDS}/{name}", data)
    cluster.run()
    for version in (8, SPOKEN[Api.METADATA].maximum):
        message = metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)
        response = one.ask(Api.METADATA, message, version)
        assert encode_response(RequestHeader(Api.METADATA, version, 1, "test"), response), "the connection would be closed"
        assert [broker.node_id for broker in response.brokers] == [1]


def test_a_restarted_broker_waits_for_the_session_of_its_last_process(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.run()
    one.restart()
    cluster.run(1000)
    assert not one.zookeeper.is_registered
    cluster.run(SESSION_TIMEOUT)
    assert one.registered == [Registered()]
    assert cluster.model.owner(paths.broker(1)) == one.session_id
    cluster.check()
    assert ids_known_to(two) == [1, 2]


@pytest.mark.parametrize("after", range(15, 30))
def test_the_id_becomes_free_while_the_broker_looks_at_its_node(cluster: ZooKeeperCluster, after: int) -> None:
    """The watch of the node may be reported before the read that has set it, and that still sees the node."""
    (one,) = cluster.add(1)
    cluster.run()
    last_session = one.session_id
    assert last_session is not None
    one.restart()
    cluster.run(after)
    cluster.zookeeper.expire(last_session)
    cluster.run(150)
    assert one.registered == [Registered()]
    cluster.run()
    cluster.check()


def test_the_id_of_another_broker_is_refused(cluster: ZooKeeperCluster) -> None:
    (first,) = cluster.add(1)
    cluster.run()
    second = BrokerInCluster(cluster, 1, port=9999)
    second.start()
    cluster.run(SESSION_TIMEOUT)
    assert second.registered == []
    cluster.run(SESSION_TIMEOUT)
    (told,) = second.registered
    assert isinstance(told.error, ConfigError)
    assert "broker id 1 " in str(told.error)
    assert "127.0.0.1:9001" in str(told.error)
    assert "node.id" in (told.error.hint or "")
    first.kill()
    cluster.run(3 * SESSION_TIMEOUT)
    assert len(second.registered) == 1, "it never will be registered"
    assert paths.broker(1).rpartition("/")[2] not in cluster.model.children(paths.BROKER_IDS)


def heartbeat(broker: BrokerInCluster) -> ErrorCode:
    message = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    code: ErrorCode = broker.ask(Api.HEARTBEAT, message).error_code
    return code


def error_of_fetch(broker: BrokerInCluster) -> ErrorCode:
    (topic,) = broker.ask(Api.FETCH, fetch_message(topic="t", topic_id=ID)).responses
    code: ErrorCode = topic.partitions[0].error_code
    return code


@pytest.mark.parametrize("malformed", [False, True])
def test_a_broker_whose_id_another_one_has_leads_nothing_until_that_has_ended(cluster: ZooKeeperCluster, malformed: bool) -> None:
    """1. A broker is stopped for longer than its session lasts. 2. A replacement is registered. 3. The broker goes on."""
    first, other = cluster.add(1, 3)
    cluster.create_topic("t", (1,), ID)
    cluster.create_topic("__consumer_offsets", (1,) * 50, uuid.UUID(int=2 << 100))
    cluster.run()
    assert (error_of_fetch(first), heartbeat(first)) == (ErrorCode.none, ErrorCode.unknown_member_id)
    first.sigstop()
    cluster.run(2 * SESSION_TIMEOUT)
    second = BrokerInCluster(cluster, 1, port=9999)
    if malformed:
        cluster.put(paths.broker(1), b"{}")
    else:
        second.start()
    cluster.run()
    first.sigcont(Thread.LOOP)
    for _ in range(3):
        cluster.run(2000)
        assert (error_of_fetch(first), heartbeat(first)) == (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator)
        found = first.catalog.cluster.leader_endpoint(first.catalog.topic("t"), 0)
        assert found == (None if malformed else NodeEndpoint(1, "127.0.0.1", 9999)), "clients find the other one"
        assert ids_known_to(first) == ([3] if malformed else [1, 3])
        with pytest.raises(ApiError, match="registered with the id"):
            first.catalog.changes.create("u", 1, {})
    if malformed:
        cluster.remove(paths.broker(1))
    else:
        assert error_of_fetch(second) is ErrorCode.none
        second.kill()
    cluster.run(2 * SESSION_TIMEOUT)
    assert (error_of_fetch(first), heartbeat(first)) == (ErrorCode.none, ErrorCode.unknown_member_id)
    assert first.zookeeper.is_registered
    assert cluster.states("t") == {0: 0}
    assert ids_known_to(other) == [1, 3]


def test_a_broker_that_comes_back_with_another_address_waits_and_leads_then(cluster: ZooKeeperCluster) -> None:
    (first,) = cluster.add(1)
    cluster.create_topic("t", (1,), ID)
    cluster.run()
    first.kill()
    again = BrokerInCluster(cluster, 1, port=9999, store=first.store)
    again.start()
    cluster.run(1000)
    assert error_of_fetch(again) is ErrorCode.not_leader_or_follower
    cluster.run(2 * SESSION_TIMEOUT)
    assert again.registered == [Registered()]
    assert error_of_fetch(again) is ErrorCode.none


def test_a_server_that_was_away_gives_the_last_process_its_time_again() -> None:
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run()
    one.restart()
    cluster.run(2000)
    cluster.zookeeper.stop()
    cluster.run(2 * SESSION_TIMEOUT)
    cluster.zookeeper.start()
    cluster.run(2 * SESSION_TIMEOUT)
    assert one.registered == [Registered()]
    cluster.check()


def test_a_broker_whose_id_is_taken_while_it_was_away_says_so_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    (first,) = cluster.add(1)
    cluster.run()
    cluster.network.isolate(first.host)
    cluster.run(2 * SESSION_TIMEOUT)
    second = BrokerInCluster(cluster, 1, port=9999)
    second.start()
    cluster.run()
    assert second.registered == [Registered()]
    cluster.network.rejoin(first.host)
    cluster.run(4 * SESSION_TIMEOUT)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "127.0.0.1:9999" in errors[0]
    assert first.registered == [Registered()]
    assert not first.zookeeper.is_registered
    second.kill()
    cluster.run(2 * SESSION_TIMEOUT)
    cluster.check()


def test_an_expired_session_is_followed_by_another_registration(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, two = cluster.add(1, 2)
    cluster.create_topic("t", (1, 2), ID)
    cluster.run()
    session_id = one.session_id
    one.expire_session()
    cluster.create_topic("u", (1,))
    cluster.run(1)
    assert one.catalog.topics.get("t") is not None
    cluster.run(1000)
    cluster.check()
    assert one.session_id != session_id
    assert one.registered == [Registered()], "reported once"
    assert cluster.model.owner(paths.broker(1)) == one.session_id
    assert ids_known_to(two) == [1, 2]
    messages = [record.getMessage() for record in caplog.records]
    assert any("has expired" in message for message in messages)
    assert f"broker {one.node_id} is registered in ZooKeeper again" in messages
    assert any("connected again, in another session" in message for message in messages)


def test_answers_of_an_earlier_connection_do_not_count() -> None:
    """1. The connection breaks and is restored, and both are reported. 2. Another thread reports what was answered before."""
    cluster = ZooKeeperCluster()
    (broker,) = cluster.add(1)
    while not broker.counts()["GetChildren"]:
        cluster.run(1)
    broker.hold(20)
    session_id = broker.session_id
    assert session_id is not None
    cluster.run(10)
    before = broker.counts()
    broker.report(SessionReport(lambda session, now: session.on_disconnected()))
    broker.hold(500)
    broker.report(SessionReport(lambda session, now: session.on_connected(session_id, now)))
    cluster.run(200)
    assert broker.counts() - before == {"GetChildren": 3}
    cluster.run(500)
    cluster.check()


def test_a_connection_that_breaks_costs_no_registration(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.run()
    registrations = one.counts()["Create"]
    one.disconnect()
    cluster.run()
    cluster.check()
    assert one.counts()["Create"] == registrations
    assert one.zookeeper.is_registered
    assert ids_known_to(two) == [1, 2]


@pytest.mark.parametrize("after", range(30))
def test_a_connection_that_breaks_during_the_registration(after: int) -> None:
    cluster = ZooKeeperCluster(after)
    cluster.create_topic("t", (1, 2))
    one, two = cluster.add(1, 2)
    cluster.run(after)
    one.disconnect()
    cluster.run(after)
    if two.session_id is not None:
        two.expire_session()
    cluster.run(2000)
    cluster.check()
    assert one.registered == two.registered == [Registered()]


def test_a_node_that_another_client_deletes_is_created_again(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.run()
    cluster.remove(paths.broker(1))
    cluster.run()
    cluster.check()
    assert ids_known_to(two) == [1, 2]
    assert one.registered == [Registered()]


def test_a_node_that_another_client_replaces_is_noticed_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run()
    cluster.remove(paths.broker(1))
    cluster.put(paths.broker(1), b"{}")
    cluster.run(2 * SESSION_TIMEOUT)
    assert not one.zookeeper.is_registered
    assert cluster.model.data(paths.broker(1)) == b"{}"
    assert sum("an unknown address" in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR) == 1
    cluster.remove(paths.broker(1))
    cluster.run()
    cluster.check()


def test_a_node_of_this_session_with_other_data_is_written_again() -> None:
    """The creation that kazoo has queued in the last session is performed in this one."""
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run(4)
    assert one.session_id is not None
    cluster.zookeeper.execute(one.session_id, Create(paths.broker(1), encode_broker("h", 1, 0), ephemeral=True))
    cluster.run()
    cluster.check()
    assert json.loads(cluster.model.data(paths.broker(1)) or b"")["port"] == 9001


def test_the_last_view_of_the_cluster_stays_while_zookeeper_is_away() -> None:
    cluster = ZooKeeperCluster()
    one, two = cluster.add(1, 2)
    cluster.create_topic("t", (1, 2), ID)
    cluster.run()
    cluster.zookeeper.stop()
    cluster.run(60_000)
    assert ids_known_to(one) == [1, 2]
    assert one.catalog.topics.get("t") is not None
    cluster.zookeeper.start()
    cluster.put(paths.topic("t"), encode_topic((1, 2, 2), ID))
    cluster.run(1000)
    cluster.check()
    assert ids_known_to(two) == [1, 2]


def test_the_end_of_an_outage_is_told_as_its_beginning_was_and_a_long_one_is_explained_once(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (one,) = cluster.add(1)
    cluster.run()
    caplog.clear()
    cluster.zookeeper.stop()
    cluster.run(100_000)
    cluster.zookeeper.start()
    cluster.run(2 * SESSION_TIMEOUT)
    assert one.zookeeper.is_registered
    records = [record for record in caplog.records if record.name.endswith(("registration", "session_log"))]
    assert all(record.levelno == logging.WARNING for record in records)
    kinds = ("is lost; reconnecting", "gives this broker no session for 30 s", "is connected again")
    assert [next(kind for kind in kinds if kind in record.getMessage()) for record in records] == [*kinds]


def shown(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a log that shows warnings has about the session, without the connect string."""
    names = ("registration", "session_log")
    records = [record for record in caplog.records if record.name.endswith(names) and record.levelno >= logging.WARNING]
    caplog.clear()
    return [re.sub(r" \(.*?\)", "", record.getMessage()) for record in records]


@pytest.mark.parametrize("is_new", [False, True])
def test_short_connections_are_logged_once_and_then_counted_once_a_minute(caplog: pytest.LogCaptureFixture, is_new: bool) -> None:
    """1. A server closes each connection at once. 2. At some time it stops that; or it ends, and is started again."""
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run(10_000)
    caplog.clear()
    lost, back = "the connection to ZooKeeper is lost; reconnecting", "ZooKeeper is connected again"
    registered = "broker 1 is registered in ZooKeeper again"
    expired = "the session with ZooKeeper has expired: this broker is not registered; it goes on with what it last knew"

    def lose(times: int) -> None:
        for _ in range(times):
            one.expire_session() if is_new else one.disconnect()
            cluster.run(500)

    lose(130)
    lines = shown(caplog)
    more = next(line for line in lines if "more times" in line)
    first = [lost, expired, f"{back}, in another session", registered] if is_new else [lost, back]
    assert lines[: len(first)] == first
    assert sorted(lines[len(first) :]) == sorted([more, *(first[1:] if is_new else [])]), "and once a minute that a session expires"
    assert re.fullmatch(r"the connection to ZooKeeper was lost \d+ more times in the last minute; there is one now", more)
    cluster.run(60_000)
    assert [line.split(" lost ")[0] for line in shown(caplog)] == ["the connection to ZooKeeper was"]
    cluster.run(200_000)
    assert shown(caplog) == []
    lose(2)
    cluster.zookeeper.stop()
    cluster.run(100_000)
    cluster.zookeeper.start()
    cluster.run(2 * SESSION_TIMEOUT)
    lines = shown(caplog)
    assert lines[: len(first)] == first
    assert lines[len(first)].startswith("ZooKeeper gives this broker no session for 30 s")
    assert lines[len(first) + 1] == "the connection to ZooKeeper was lost 2 more times in the last minute; there is none now"
    assert lines[len(first) + 2].startswith(back), "the end of an outage is shown if the outage was"
