"""Several brokers with a core each in the simulator's world: groups on them survive what happens to brokers.

Owns the scenarios in which a broker is killed, stopped, or loses ZooKeeper. Must not know how the simulator makes that happen.
"""

from __future__ import annotations

import pytest

from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_request
from ottla.simulation.application import App, member, offsets
from ottla.simulation.brokers import SimBrokers
from ottla.simulation.outcome import Generation
from ottla.simulation.run import run
from ottla.simulation.world import World
from ottla.simulation.zookeeper_broker import Thread, ZooKeeperBroker
from ottla.simulation.zookeeper_server import HOST, Break
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from tests.simulation.world import QUICK_GROUPS

PARTITIONS = 4
PROTOCOLS = ["classic", "consumer", "central"]


@pytest.fixture
def world() -> World:
    """Three brokers, with a topic ``t`` of four partitions with a hundred records each."""
    world = World(in_zookeeper=True, brokers=3, **QUICK_GROUPS)
    world.create_topic("t", PARTITIONS)
    produce(world)
    return world


def produce(world: World) -> None:
    for partition in range(PARTITIONS):
        world.produce("t", partition, 100)


def brokers_of(world: World) -> SimBrokers:
    assert world.brokers is not None
    return world.brokers


def join(world: World, protocol: str, *names: str) -> list[App]:
    """Members that run, once they share all partitions."""
    apps = [world.app(name, group_id="g", group_protocol=protocol) for name in names]
    for app in apps:
        app.start(member(app, commits=True))
    settle(world, *apps)
    return apps


def settle(world: World, *apps: App) -> None:
    def settled() -> bool:
        owned = [tp.partition for app in apps for tp in app.calls.owned]
        return sorted(owned) == list(range(PARTITIONS)) and all(app.membership.state.name == "STABLE" for app in apps)

    world.run_until(settled)


def check_handled(world: World, *apps: App) -> None:
    """Check that all records were handled, and all is committed."""
    world.run(5_000)
    count = world.produced[TopicPartition("t", 0)]
    for partition in range(PARTITIONS):
        assert {offset for app in apps for offset in offsets(app.handled, partition)} == set(range(count))
    in_zookeeper = apps[0].config.group_protocol == "central"
    committed = world.committed_in_zookeeper if in_zookeeper else world.committed
    assert committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), count)


def coordinator(world: World) -> ZooKeeperBroker:
    brokers = brokers_of(world)
    return brokers.nodes[brokers.coordinator("g")]


def test_each_broker_leads_its_share_and_knows_the_others(world: World) -> None:
    brokers = brokers_of(world)
    asked = metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)
    for broker in brokers.running:
        answer = brokers.ask_of(broker, Api.METADATA, asked, world.now.mono + 1_000)
        leaders = {one.partition_index: one.leader_id for topic in answer.topics for one in topic.partitions}
        assert leaders == {0: 1, 1: 2, 2: 3, 3: 1}
        assert {one.node_id for one in answer.brokers} == {1, 2, 3}
    assert [world.zookeeper.model.owner(paths.broker(number)) for number in (1, 2, 3)] == [
        broker.session_id for broker in brokers.running
    ]


@pytest.mark.always
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_survives_the_death_of_its_coordinator(world: World, protocol: str) -> None:
    apps = join(world, protocol, "a", "b")
    broker = coordinator(world)
    broker.kill()
    world.run(1_000)
    brokers_of(world).start(broker.node_id)
    world.run(10_000)
    produce(world)
    settle(world, *apps)
    check_handled(world, *apps)


@pytest.mark.always
@pytest.mark.parametrize("first", Thread)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_survives_a_coordinator_that_stops_for_longer_than_its_session(world: World, protocol: str, first: Thread) -> None:
    apps = join(world, protocol, "a", "b")
    broker = coordinator(world)
    session_id, asked = broker.session_id, len(broker.asked)
    broker.sigstop()
    world.run(15_000)
    assert session_id not in world.zookeeper.model.sessions
    assert len(broker.asked) == asked, "it does nothing meanwhile"
    assert broker.session_id == session_id, "it does not know"
    broker.sigcont(first)
    world.run(10_000)
    assert broker.session_id in world.zookeeper.model.sessions
    produce(world)
    settle(world, *apps)
    check_handled(world, *apps)


@pytest.mark.always
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_survives_a_coordinator_without_zookeeper(world: World, protocol: str) -> None:
    apps = join(world, protocol, "a", "b")
    broker = coordinator(world)
    session_id = broker.session_id
    world.network.separate(broker.host, HOST)
    world.run(12_000)
    assert session_id not in world.zookeeper.model.sessions
    world.network.join(broker.host, HOST)
    world.run(10_000)
    assert broker.session_id in world.zookeeper.model.sessions
    produce(world)
    settle(world, *apps)
    check_handled(world, *apps)


@pytest.mark.parametrize("where", Break)
def test_a_connection_breaks_in_a_multi(world: World, where: Break) -> None:
    """The operation is executed, or not; in both cases the broker learns that its connection is lost, and tries again."""
    apps = join(world, "central", "a")
    broker = coordinator(world)
    seen: list[str] = []
    world.zookeeper.observers.append(lambda session_id, operation, executed: seen.append(type(operation).__name__))
    assert broker.client.session_id is not None
    world.zookeeper.break_in_multi(broker.client.session_id, where)
    connection = broker.client.connection
    world.produce("t", 0, 100)
    world.run_until(lambda: broker.client.connection != connection)
    assert ("Multi" in seen) is (where is Break.AFTER)
    for partition in range(1, PARTITIONS):
        world.produce("t", partition, 100)
    check_handled(world, *apps)


def test_a_broker_starts_when_zookeeper_is_there(world: World) -> None:
    brokers = brokers_of(world)
    brokers.kill(2)
    world.zookeeper.stop()
    brokers.start(2)
    world.run(3_000)
    assert not brokers.nodes[2].up
    world.zookeeper.start()
    world.run_until(lambda: brokers.nodes[2].up and brokers.nodes[2].zookeeper.is_registered)


def test_a_topic_is_extended_and_deleted(world: World) -> None:
    world.grow("t", 6)
    world.produce("t", 5, 1)
    world.delete_topic("t")
    assert brokers_of(world).topic("t") is None


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("generation", [Generation.CLASSIC, Generation.CONSUMER])
def test_random_runs_on_brokers_with_a_core_each(generation: Generation) -> None:
    outcomes = [run(generation, seed, in_zookeeper=True) for seed in range(1, 21)]
    assert [(outcome.seed, outcome.failure, outcome.details) for outcome in outcomes if outcome.failure is not None] == []
    assert sum(outcome.handled for outcome in outcomes) > 1_000
