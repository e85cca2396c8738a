"""A small world without threads: consumers' cores and a broker's core on an in-memory link, under a virtual clock.

Owns the clock, the broker and the applications, and the requests that belong to none of them. Must not know why it exists.
Invariant: the same calls give the same history; all happens in events of the clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ottla.config import ConsumerConfig
from ottla.protocol import ErrorCode, duration
from ottla.protocol.apis import Api
from ottla.protocol.messages import create_partitions_request, delete_topics_request, offset_fetch_request
from ottla.records import NewRecord, encode_batch
from ottla.simulation.application import App, Program
from ottla.simulation.broker import Brokers, SimBroker
from ottla.simulation.brokers import SimBrokers
from ottla.simulation.clock import Clock
from ottla.simulation.files import MemoryStore, OpenStore
from ottla.simulation.network import Network
from ottla.simulation.registrations import Registrations
from ottla.simulation.requests import Unanswered, creating, produce_message
from ottla.simulation.zookeeper_server import SimZooKeeper
from ottla.types import Now, TopicPartition
from ottla.zookeeper import paths


class World:
    """A cluster of brokers, ZooKeeper, some applications, one network and one clock."""

    def __init__(
        self,
        seed: int = 0,
        open_store: Callable[[], OpenStore] | None = None,
        *,
        brokers: int = 1,
        chance: random.Random | None = None,
        clock: Clock | None = None,
        in_zookeeper: bool = False,
        **settings: Any,
    ) -> None:
        """``open_store`` opens the data directory of the brokers, at each start; by default its files are in memory. With
        ``in_zookeeper`` each broker has a core of its own, with files in memory; otherwise one core stands for all. ``chance``
        decides about delays; without it all are the shortest."""
        self.seed = seed
        self.clock = Clock() if clock is None else clock
        self.network = Network(self.clock, chance)
        self.zookeeper = SimZooKeeper(self.clock, self.network, chance)
        self.apps: dict[str, App] = {}
        self.broker: Brokers
        self.brokers: SimBrokers | None = None
        """The same, if each broker has a core of its own."""
        if in_zookeeper:
            self.broker = self.brokers = SimBrokers(self.network, self.clock, self.zookeeper, settings, brokers)
        else:
            self.broker = self._one_core(open_store, settings, brokers)
        self.produced: dict[TopicPartition, int] = {}
        self.protocol = "classic"
        """What tests that run both protocols have their members speak."""

    def _one_core(self, open_store: Callable[[], OpenStore] | None, settings: dict[str, Any], brokers: int) -> SimBroker:
        files = MemoryStore(lambda: self.clock.now.wall)
        broker = SimBroker(self.network, self.clock, open_store or (lambda: files), settings, brokers)
        broker.register(Registrations(self.zookeeper))
        return broker

    @property
    def now(self) -> Now:
        return self.clock.now

    def create_topic(self, topic: str, partitions: int) -> None:
        answer = self.broker.ask(Api.CREATE_TOPICS, creating(topic, partitions=partitions))
        _check(answer.topics[0].error_code)

    def grow(self, topic: str, partitions: int) -> None:
        """Grow a topic to ``partitions`` partitions."""
        wanted = create_partitions_request.CreatePartitionsTopic(name=topic, count=partitions, assignments=None)
        message = create_partitions_request.CreatePartitionsRequest(topics=(wanted,), timeout=duration(1000), validate_only=False)
        answer = self.broker.ask(Api.CREATE_PARTITIONS, message)
        _check(answer.results[0].error_code)

    def delete_topic(self, topic: str) -> None:
        named = delete_topics_request.DeleteTopicState(name=topic, topic_id=None)
        answer = self.broker.ask(
            Api.DELETE_TOPICS, delete_topics_request.DeleteTopicsRequest(topics=(named,), timeout=duration(1000))
        )
        _check(answer.responses[0].error_code)
        self.produced = {tp: count for tp, count in self.produced.items() if tp.topic != topic}

    def produce(self, topic: str, partition: int, count: int) -> None:
        """Produce ``count`` records, each with its offset as value."""
        tp = TopicPartition(topic, partition)
        start = self.produced.get(tp, 0)
        batch = encode_batch([NewRecord(None, b"%d" % offset) for offset in range(start, start + count)])
        self.produced[tp] = start + count
        topic_id = self.broker.topic_id(topic)
        answer = self.broker.ask(Api.PRODUCE, produce_message(bytes(batch), topic, partition, topic_id=topic_id))
        assert not answer.responses[0].partition_responses[0].error_code, answer

    def app(self, name: str, **settings: Any) -> App:
        """A new application with short timeouts; without a group by default, and with the classic protocol if it has one."""
        defaults: dict[str, Any] = {"auto_offset_reset": "earliest", "client_id": name}
        if settings.get("group_protocol") == "zookeeper":
            defaults.update(zookeeper_connect="zookeeper:2181")
        else:
            nodes = self.broker.cluster.nodes.values()
            defaults.update(bootstrap_servers=",".join(f"{node.host}:{node.port}" for node in nodes))
        if settings.get("group_id") is not None:
            defaults.update(group_protocol="classic", max_poll_interval_ms=20_000)
        if settings.get("group_protocol") == "central":
            defaults.update(session_timeout_ms=6_000)
        if settings.get("group_id") is not None and settings.get("group_protocol", "classic") == "classic":
            defaults.update(session_timeout_ms=6_000, heartbeat_interval_ms=1_000)
        chance = random.Random(self.seed * 1000 + len(self.apps))
        config = ConsumerConfig.parse({**defaults, **settings})
        self.apps[name] = app = App(name, config, self.clock, self.network, self.broker, self.zookeeper, chance)
        return app

    def run(self, milliseconds: int) -> None:
        """Let time pass (milliseconds)."""
        self.clock.run(milliseconds)

    def run_until(self, condition: Callable[[], bool], limit: int = 60_000) -> None:
        """Run until the condition holds; fails after ``limit`` milliseconds."""
        until = self.now.mono + limit
        while not condition():
            assert self.clock.step(until), f"not within {limit} ms"

    def call(self, app: App, program: Program, limit: int = 120_000) -> Any:
        """Run one call of an idle application to its end."""
        app.start(program)
        self.run_until(lambda: not app.running, limit)
        if app.error is not None:
            raise app.error
        return app.result

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """The committed offsets of a group, by partition; partitions without a commit are left out."""
        topic_id = self.broker.topic_id(topic)
        wanted = offset_fetch_request.OffsetFetchRequestTopics(
            name=topic, topic_id=topic_id, partition_indexes=tuple(range(partitions))
        )
        asked = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=(wanted,))
        answer = self.broker.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(asked,), require_stable=False))
        found = answer.groups[0].topics[0].partitions
        return {item.partition_index: item.committed_offset for item in found if item.committed_offset >= 0}

    def committed_in_zookeeper(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """The same for a ZooKeeper group."""
        found = {number: self.zookeeper.model.data(paths.offset(group, topic, number)) for number in range(partitions)}
        return {number: int(data) for number, data in found.items() if data is not None}


def _check(error: ErrorCode) -> None:
    """Raise ``Unanswered`` for an error."""
    if error is not ErrorCode.none:
        raise Unanswered(f"refused with {error.name}")
