"""The election of the central coordinator, among brokers on one simulated ZooKeeper."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from ottla.broker.zookeeper.elector import TRANSITIONS, ElectionEvent, ElectionState
from ottla.errors import ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import api_versions_request, consult_request
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import GenerationNode
from ottla.zookeeper.operations import Check, Create, Multi, SetData
from tests.simulation.zookeeper_cluster import SESSION_TIMEOUT, BrokerInCluster, ZooKeeperCluster

SEEDS = range(6)


@pytest.fixture(params=SEEDS)
def cluster(request: pytest.FixtureRequest) -> ZooKeeperCluster:
    """A ZooKeeper without brokers."""
    return ZooKeeperCluster(request.param)


def consult(broker: BrokerInCluster) -> Any:
    return broker.ask(Api.CONSULT, consult_request.ConsultRequest())


def elected(cluster: ZooKeeperCluster) -> BrokerInCluster:
    """The one elected broker, on which all others agree."""
    up = [broker for broker in cluster.brokers if broker.up]
    (found,) = [broker for broker in up if broker.zookeeper.elector.is_elected]
    assert {broker.zookeeper.elector.coordinator_id(cluster.clock.now) for broker in up} == {found.node_id}
    assert cluster.model.data(paths.COORDINATOR) == str(found.node_id).encode()
    assert cluster.model.owner(paths.COORDINATOR) == found.session_id
    assert {broker.zookeeper.elector.epoch for broker in up} == {epoch_of(cluster)}
    return found


def epoch_of(cluster: ZooKeeperCluster) -> int:
    return int(cluster.model.data(paths.COORDINATOR_EPOCH) or 0)


def test_each_state_can_be_left_and_each_session_ends() -> None:
    assert set(TRANSITIONS) == set(ElectionState)
    for state, following in TRANSITIONS.items():
        assert state is ElectionState.OUTSIDE or following[ElectionEvent.LEAVE] is ElectionState.OUTSIDE
        assert set(following.values()) - {state}


def test_one_of_the_brokers_is_elected_and_each_names_it(cluster: ZooKeeperCluster) -> None:
    brokers = cluster.add(1, 2, 3)
    cluster.run()
    found = elected(cluster)
    assert epoch_of(cluster) == 1
    for broker in brokers:
        answer = consult(broker)
        assert (answer.error_code, answer.coordinator_id, answer.coordinator_epoch) == (ErrorCode.none, found.node_id, 1)
        assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [(n, "127.0.0.1", 9000 + n) for n in (1, 2, 3)]
        starts = {json.loads(cluster.model.data(paths.broker(n)) or b"")["timestamp"] for n in (1, 2, 3)}
        assert {one.creator_id for one in answer.brokers} == {f"127.0.0.1-{start}" for start in starts}


def test_no_broker_is_elected_before_it_is_registered(cluster: ZooKeeperCluster) -> None:
    cluster.create_topic("t", (1, 1), None)
    (broker,) = cluster.add(1)
    while not broker.zookeeper.elector.is_elected:
        if cluster.model.data(paths.COORDINATOR) is None and broker.core.zookeeper is not None:
            assert not broker.zookeeper.elector.is_elected
        assert cluster.model.data(paths.COORDINATOR) is None or cluster.model.data(paths.broker(1)) is not None
        cluster.run(1)


def test_another_broker_is_elected_when_the_coordinator_is_killed(cluster: ZooKeeperCluster) -> None:
    cluster.add(1, 2, 3)
    cluster.run()
    first = elected(cluster)
    first.kill()
    cluster.run(2 * SESSION_TIMEOUT)
    second = elected(cluster)
    assert second is not first
    assert epoch_of(cluster) == 2
    first.start()
    cluster.run()
    assert elected(cluster) is second
    assert epoch_of(cluster) == 2


def test_a_coordinator_that_is_restarted_is_elected_again_in_a_new_epoch(cluster: ZooKeeperCluster) -> None:
    (broker,) = cluster.add(1)
    cluster.run()
    broker.restart()
    cluster.run(200)
    assert consult(broker).error_code is ErrorCode.coordinator_not_available  # the node is that of its last session
    cluster.run(2 * SESSION_TIMEOUT)
    assert elected(cluster) is broker
    assert epoch_of(cluster) == 2


def test_an_expired_session_ends_the_term(cluster: ZooKeeperCluster) -> None:
    cluster.add(1, 2)
    cluster.run()
    elected(cluster).expire_session()
    cluster.run()
    elected(cluster)
    assert epoch_of(cluster) == 2


def test_a_short_disconnection_does_not_end_the_term(cluster: ZooKeeperCluster) -> None:
    cluster.add(1, 2)
    cluster.run(SESSION_TIMEOUT)
    found = elected(cluster)
    found.disconnect()
    cluster.run()
    assert elected(cluster) is found
    assert epoch_of(cluster) == 1


def test_a_coordinator_without_zookeeper_resigns_with_its_lease(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It resigns before another broker can be elected, although no event tells it so."""
    cluster.add(1, 2)
    cluster.run(SESSION_TIMEOUT)
    first = elected(cluster)
    (other,) = [broker for broker in cluster.brokers if broker is not first]
    cluster.network.isolate(first.host)
    while first.zookeeper.elector.is_elected:
        assert not other.zookeeper.elector.is_elected
        cluster.run(10)
    assert "its session with ZooKeeper may have ended" in caplog.text
    assert consult(first).error_code is ErrorCode.coordinator_not_available
    cluster.run(2 * SESSION_TIMEOUT)
    assert other.zookeeper.elector.is_elected
    cluster.network.rejoin(first.host)
    cluster.run(SESSION_TIMEOUT)
    assert elected(cluster) is other
    assert epoch_of(cluster) == 2


def test_a_coordinator_that_has_resigned_is_elected_again_in_the_same_session(cluster: ZooKeeperCluster) -> None:
    """Its lease ended, and its session did not: its node is replaced, and the epoch is another one."""
    (broker,) = cluster.add(1)
    cluster.run(SESSION_TIMEOUT)
    session_id = broker.session_id
    cluster.zookeeper.stop()
    cluster.run(SESSION_TIMEOUT)
    assert not broker.zookeeper.elector.is_elected
    cluster.zookeeper.start()
    cluster.run()
    assert elected(cluster) is broker
    assert broker.session_id == session_id
    assert epoch_of(cluster) == 2


@pytest.mark.parametrize("path", [paths.COORDINATOR, paths.COORDINATOR_EPOCH])
@pytest.mark.parametrize("change", ["delete", "write"])
def test_a_coordinator_resigns_if_another_client_changes_its_nodes(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture, path: str, change: str
) -> None:
    caplog.set_level(logging.WARNING)
    cluster.add(1, 2)
    cluster.run()
    if change == "delete":
        cluster.remove(path)
    else:
        cluster.put(path, b"7")
    cluster.run()
    elected(cluster)
    assert "is no longer the central coordinator of epoch 1: another client has" in caplog.text
    assert epoch_of(cluster) == (8 if (path, change) == (paths.COORDINATOR_EPOCH, "write") else 2)


def test_a_foreign_coordinator_is_followed_and_nothing_is_written(cluster: ZooKeeperCluster) -> None:
    cluster.put(paths.COORDINATOR, b"9")
    one, _ = cluster.add(1, 2)
    cluster.run()
    answer = consult(one)
    assert (answer.error_code, answer.coordinator_id) == (ErrorCode.coordinator_not_available, -1)  # it is not registered
    assert one.zookeeper.elector.coordinator_id(cluster.clock.now) == 9
    assert cluster.model.data(paths.COORDINATOR_EPOCH) is None
    cluster.remove(paths.COORDINATOR)
    cluster.run()
    elected(cluster)


@pytest.mark.parametrize("data", [b"", b"x", b"-1", b"2147483647", b"\xff", b"9" * 5000])
def test_a_malformed_epoch_is_reported_once_and_waited_for(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    cluster.put(paths.COORDINATOR_EPOCH, data)
    (broker,) = cluster.add(1)
    cluster.run(10_000)
    broker.disconnect()
    cluster.run(10_000)
    assert not broker.zookeeper.elector.is_elected
    assert caplog.text.count("no broker is elected until") == 1
    cluster.put(paths.COORDINATOR_EPOCH, b"41")
    cluster.run()
    assert elected(cluster) is broker
    assert epoch_of(cluster) == 42


@pytest.mark.parametrize("delay", range(0, 40, 2))
def test_the_connection_breaks_during_the_election(delay: int) -> None:
    """Before or after the multi is executed: there is one coordinator, and no epoch twice."""
    cluster = ZooKeeperCluster()
    (broker,) = cluster.add(1)
    while not any(isinstance(one, Multi) and one.operations[-1].path == paths.COORDINATOR_EPOCH for one in broker.asked):
        cluster.run(1)
    cluster.run(delay)
    broker.disconnect()
    cluster.run(3 * SESSION_TIMEOUT)
    assert elected(cluster) is broker
    assert epoch_of(cluster) in (1, 2)


def test_brokers_that_come_and_go_never_have_two_coordinators_of_one_epoch(cluster: ZooKeeperCluster) -> None:
    cluster.add(1, 2, 3)
    terms: dict[int, int] = {}
    for step in range(12):
        for _ in range(40):
            cluster.run(25)
            for broker in cluster.brokers:
                if broker.up and broker.zookeeper.elector.is_elected:
                    assert terms.setdefault(broker.zookeeper.elector.epoch, broker.node_id) == broker.node_id
        victim = cluster.brokers[step % 3]
        match step % 4:
            case 0:
                victim.disconnect()
            case 1:
                victim.expire_session()
            case 2:
                victim.restart()
            case _:
                victim.hold(SESSION_TIMEOUT)
    cluster.run(3 * SESSION_TIMEOUT)
    elected(cluster)


def test_only_brokers_with_zookeeper_advertise_the_apis(cluster: ZooKeeperCluster) -> None:
    (broker,) = cluster.add(1)
    cluster.run()
    message = api_versions_request.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    advertised = {one.api_key for one in broker.ask(Api.API_VERSIONS, message).api_keys}
    assert {Api.CONSULT, Api.REGISTER, Api.LEAVE, Api.PING, Api.STOP, Api.START} <= advertised


def test_a_broker_that_is_cut_off_names_no_coordinator(cluster: ZooKeeperCluster) -> None:
    """It does not learn that another one was elected meanwhile."""
    cluster.add(1, 2, 3)
    cluster.run(SESSION_TIMEOUT)
    first = elected(cluster)
    lonely = next(broker for broker in cluster.brokers if broker is not first)
    cluster.network.isolate(lonely.host)
    cluster.run(10)
    assert consult(lonely).coordinator_id == first.node_id  # its session lives: it may be a short disturbance
    first.kill()
    cluster.run(SESSION_TIMEOUT - 10)
    answer = consult(lonely)
    assert (answer.error_code, answer.coordinator_id) == (ErrorCode.coordinator_not_available, -1)
    assert answer.error_message == "this broker is cut off from ZooKeeper"
    cluster.run(SESSION_TIMEOUT)
    cluster.network.rejoin(lonely.host)
    while consult(lonely).error_code is not ErrorCode.none:
        cluster.run(1)
    assert consult(lonely).coordinator_id != first.node_id  # nor is it named in between


def test_the_epoch_goes_on_after_an_operator_has_deleted_it(cluster: ZooKeeperCluster) -> None:
    cluster.add(1, 2)
    cluster.run()
    for _ in range(3):
        elected(cluster).expire_session()
        cluster.run()
    assert epoch_of(cluster) == 4
    cluster.remove(paths.COORDINATOR_EPOCH)
    cluster.run()
    elected(cluster)
    assert epoch_of(cluster) == 5
    cluster.put(paths.COORDINATOR_EPOCH, b"2")
    cluster.run()
    elected(cluster)
    assert epoch_of(cluster) == 6


@pytest.mark.parametrize("written", [1, 7, 2**31 - 3, 2**31 - 2, 2**31 - 1])
def test_the_epoch_is_above_that_of_each_group(cluster: ZooKeeperCluster, written: int) -> None:
    """All brokers were restarted after an operator had deleted the epoch. A member of the group refuses earlier epochs."""
    cluster.put(paths.generation("g"), GenerationNode(3, 0, 6000, written).encode())
    cluster.add(1, 2)
    cluster.run(1000)
    found = elected(cluster)
    assert epoch_of(cluster) == (written + 1 if written < 2**31 - 2 else 1)  # no election has reached that
    assert found.core.state.central is not None
    assert found.core.state.central.is_central("g")


def test_a_late_write_of_an_early_term_fails_after_the_epoch_was_deleted(cluster: ZooKeeperCluster) -> None:
    """The nodes are created again, and their versions must not be those that the first coordinator knows."""
    cluster.add(1, 2)
    cluster.run()
    first = elected(cluster)
    version = first.zookeeper.elector._epoch_version
    first.zookeeper.elector.on_event = lambda event, now: None  # type: ignore[method-assign]
    (other,) = [broker for broker in cluster.brokers if broker is not first]
    cluster.remove(paths.COORDINATOR)
    cluster.remove(paths.COORDINATOR_EPOCH)
    cluster.run()
    assert other.zookeeper.elector.is_elected
    assert first.zookeeper.elector._epoch_version == version  # it does not know
    with pytest.raises(ZooKeeperError, match="BADVERSION"):
        cluster.execute(Multi((Check(paths.COORDINATOR_EPOCH, version),)))


def test_a_coordinator_resigns_if_the_epoch_was_deleted_and_is_the_same_again(cluster: ZooKeeperCluster) -> None:
    cluster.add(1)
    cluster.run()
    found = elected(cluster)
    found.hold(100)
    data = cluster.model.data(paths.COORDINATOR_EPOCH) or b""
    version = found.zookeeper.elector._epoch_version
    cluster.remove(paths.COORDINATOR_EPOCH)
    cluster.execute(Create(paths.COORDINATOR_EPOCH, data))
    for _ in range(version):
        cluster.execute(SetData(paths.COORDINATOR_EPOCH, data))
    cluster.run(1000)
    elected(cluster)
    assert epoch_of(cluster) == 2
