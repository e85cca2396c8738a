"""Random histories of brokers, connections and members: whatever has happened, only the elected broker has written, and in the end
the members have all partitions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.protocol.apis import Api
from ottla.simulation.requests import creating
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import GenerationNode
from ottla.zookeeper.operations import Check, Create, Delete, Multi, Operation, SetData
from tests.simulation.central_members import SimCentralMember
from tests.simulation.zookeeper_cluster import SESSION_TIMEOUT, ZooKeeperCluster

PARTITIONS = 5
STEPS = 40
BELOW = f"{paths.CONSUMERS}/g"


class Writes:
    """What was executed below the node of the group."""

    def __init__(self, cluster: ZooKeeperCluster) -> None:
        self.generations: list[tuple[int, int]] = []
        """Epoch and generation of each ``generation`` that was written."""
        self._cluster = cluster
        cluster.zookeeper.observers.append(self.on_executed)

    def on_executed(self, session: int, operation: Operation[Any], executed: Any) -> None:
        if executed.error is not None or not isinstance(operation, Multi | Create | Delete | SetData):
            return
        writes = operation.operations if isinstance(operation, Multi) else (operation,)
        if not any(write.path.startswith(BELOW) for write in writes):
            return
        assert isinstance(writes[0], Check)
        assert writes[0].path == paths.COORDINATOR_EPOCH
        epoch = int(self._cluster.model.data(paths.COORDINATOR_EPOCH) or 0)
        for write in writes:
            if write.path == paths.generation("g"):
                assert isinstance(write, Create | SetData)
                node = GenerationNode.decode(write.data, write.path)
                assert node.epoch == epoch
                self.generations.append((node.epoch, node.generation))


def owners(cluster: ZooKeeperCluster) -> dict[TopicPartition, str]:
    path = paths.topic_owners("g", "t")
    found = {int(name): cluster.model.data(f"{path}/{name}") or b"" for name in cluster.model.children(path)}
    return {TopicPartition("t", number): data.decode() for number, data in found.items()}


@pytest.mark.parametrize("seed", range(25))
def test_only_the_elected_broker_writes_and_the_members_come_to_share(seed: int) -> None:
    chance, cluster = random.Random(seed), ZooKeeperCluster(seed)
    cluster.add(1, 2, 3)
    cluster.run()
    cluster.brokers[0].ask(Api.CREATE_TOPICS, creating("t", partitions=PARTITIONS))
    writes = Writes(cluster)
    members = [SimCentralMember(cluster, f"m{number}", {"t": 1}) for number in range(3)]
    for _ in range(STEPS):
        broker = chance.choice(cluster.brokers)
        match chance.choice(
            ("disconnect", "hold", "behind", "expire", "kill", "start", "server", "isolate", "rejoin", "calm", "calm")
        ):
            case "disconnect":
                broker.disconnect()
            case "hold":
                broker.hold(chance.choice((5, 50, SESSION_TIMEOUT)))
            case "behind" if broker.session_id is not None and cluster.zookeeper.is_connected(broker.session_id):
                cluster.zookeeper.fall_behind(broker.session_id)
            case "expire" if broker.up and broker.session_id is not None:
                broker.expire_session()
            case "kill" if broker.up:
                broker.kill()
            case "start" if not broker.up:
                broker.start()
            case "server":
                cluster.zookeeper.stop()
                cluster.run(chance.choice((1, 200, SESSION_TIMEOUT)))
                cluster.zookeeper.start()
            case "isolate" if not cluster.network.is_isolated(broker.host):
                cluster.network.isolate(broker.host)
            case "rejoin" if cluster.network.is_isolated(broker.host):
                cluster.network.rejoin(broker.host)
            case _:
                pass
        cluster.run(chance.choice((0, 3, 20, 300, SESSION_TIMEOUT)))
    for broker in cluster.brokers:
        if cluster.network.is_isolated(broker.host):
            cluster.network.rejoin(broker.host)
        if not broker.up:
            broker.start()
    for _ in range(20):
        cluster.run(SESSION_TIMEOUT)
        held = {tp: f"{member.member_id}-{thread}" for member in members for tp, thread in member.held.items()}
        if len(held) == sum(len(member.held) for member in members) == PARTITIONS and owners(cluster) == held:
            break
    else:
        raise AssertionError([(member.member_id, member.epoch, member.generation, member.held) for member in members])
    assert writes.generations == sorted(writes.generations)
    assert [generation for _, generation in writes.generations] == sorted(generation for _, generation in writes.generations)
    elected = [broker for broker in cluster.brokers if broker.zookeeper.elector.is_elected]
    assert len(elected) == 1
    assert {member.epoch for member in members} == {elected[0].zookeeper.elector.epoch}
    assert not elected[0].core.state.central._parts if elected[0].core.state.central is not None else False
