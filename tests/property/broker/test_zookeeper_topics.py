"""Changes of topics in ZooKeeper, by several brokers and a tool at a time, while connections are lost at random.

Whatever happens: a change that has succeeded is there, one that was refused left nothing, and a deleted topic leaves no node.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from typing import Any

from hypothesis import given, settings, strategies as st

from ottla.broker.cluster import TopicRegistration
from ottla.broker.zookeeper import topic_calls
from ottla.coordinator.effects import ApiError
from ottla.errors import KeeperCode, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.simulation.zookeeper import ZooKeeperModel
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import decode_configs, decode_topic_node, encode_partition_state
from ottla.zookeeper.operations import Create, Operation
from tests.example_counts import examples

NOW = Now(0, 0)
NAME = "t"
Steps = Generator[Any, Any, Any]


class Brokers:
    """Calls that are under way at the same time, each operation in an order that is drawn."""

    def __init__(self, data: st.DataObject) -> None:
        self.model = ZooKeeperModel()
        self.session = self.model.open(6000, NOW)
        self.data = data
        self.losses = 5
        for root in paths.CLUSTER_ROOTS:
            for path in (*paths.parents(root), root):
                self.model.execute(self.session, Create(path), NOW)

    def perform(self, operation: Operation[Any]) -> Any:
        lost = self.data.draw(st.sampled_from([None] * 6 + ["before", "after"])) if self.losses else None
        self.losses -= lost is not None
        if lost == "before":
            return ZooKeeperError(KeeperCode.CONNECTIONLOSS, operation.path)
        executed = self.model.execute(self.session, operation, NOW)
        if lost == "after":
            return ZooKeeperError(KeeperCode.CONNECTIONLOSS, operation.path)
        return executed.result if executed.error is None else executed.error

    def run(self, *calls: Steps) -> list[Any]:
        """Return the result or the ``ApiError`` of each call."""
        results: list[Any] = [None] * len(calls)
        pending: dict[int, Any] = dict.fromkeys(range(len(calls)))
        while pending:
            number = self.data.draw(st.sampled_from(sorted(pending)))
            try:
                operations = calls[number].send(pending[number])
                pending[number] = [self.perform(operation) for operation in operations]
            except StopIteration as end:
                results[number] = end.value
                del pending[number]
            except (ApiError, ZooKeeperError) as error:
                results[number] = error
                del pending[number]
        return results

    def topic(self) -> Any:
        data = self.model.data(paths.topic(NAME))
        return None if data is None else decode_topic_node(data, NAME)

    def write_state(self, partition: int) -> None:
        """Write a partition's state, as its leader does."""
        for path in (paths.partition_state(NAME, partition).rpartition("/")[0], paths.partition_state(NAME, partition)):
            self.model.execute(self.session, Create(path, encode_partition_state(1)), NOW)


def registration(number: int, partitions: int = 2) -> TopicRegistration:
    return TopicRegistration(NAME, uuid.UUID(int=number), (number,) * partitions, {"retention.ms": str(number)})


def code(result: Any) -> ErrorCode | None:
    return result.code if isinstance(result, ApiError) else None


def place(partitions: int) -> tuple[int, ...]:
    return (9,) * partitions


@given(st.data(), st.booleans())
@settings(max_examples=examples(200))
def test_of_several_brokers_one_creates_a_topic(data: st.DataObject, has_settings: bool) -> None:
    brokers = Brokers(data)
    if has_settings:  # an operator has set them before
        brokers.model.execute(brokers.session, Create(paths.topic_config(NAME), b"{}"), NOW)
    results = brokers.run(*(topic_calls.create_topic(registration(number)) for number in (1, 2, 3)))
    (winner,) = [number for number, result in zip((1, 2, 3), results, strict=True) if result is None]
    assert {code(result) for result in results if result is not None} == {ErrorCode.topic_already_exists}
    assert brokers.topic()[:2] == (uuid.UUID(int=winner), (winner, winner))
    configs = brokers.model.data(paths.topic_config(NAME))
    assert configs is not None
    assert decode_configs(configs, "") == {"retention.ms": str(winner)}
    assert brokers.model.data(paths.partitions(NAME)) == b""


@given(st.data())
@settings(max_examples=examples(200))
def test_of_several_brokers_one_extends_a_topic(data: st.DataObject) -> None:
    brokers = Brokers(data)
    brokers.run(topic_calls.create_topic(registration(1)))
    topic_id = uuid.UUID(int=1)
    results = brokers.run(
        topic_calls.extend_topic(NAME, topic_id, 4, (7, 8), place),
        topic_calls.extend_topic(NAME, topic_id, 3, None, place),
        topic_calls.extend_topic(NAME, uuid.UUID(int=5), 9, None, place),
        topic_calls.alter_topic(NAME, topic_id, {"retention.ms": "77"}),
    )
    assert code(results[2]) is ErrorCode.unknown_topic_or_partition, "another topic with this name"
    assert results[3] is None
    if code(results[0]) is None:
        assert results[0] == brokers.topic().replicas == (1, 1, 7, 8)
        assert code(results[1]) is ErrorCode.invalid_partitions or results[1] == (1, 1, 9)
    else:
        assert code(results[0]) is ErrorCode.invalid_partitions
        assert results[1] == brokers.topic().replicas == (1, 1, 9)


@given(st.data(), st.integers(0, 3), st.booleans())
@settings(max_examples=examples(200))
def test_a_deleted_topic_leaves_nothing_although_its_leaders_go_on_writing(
    data: st.DataObject, states: int, was_there: bool
) -> None:
    brokers = Brokers(data)
    if was_there:
        brokers.run(topic_calls.create_topic(registration(1)))
    for partition in range(states):
        brokers.write_state(partition)
    (marked,) = brokers.run(topic_calls.mark_deleted(NAME, uuid.UUID(int=1)))
    assert (code(marked) is ErrorCode.unknown_topic_or_partition) is not was_there
    if not was_there:
        return
    late = [3]

    def leader(operation: Operation[Any]) -> Any:
        if late and data.draw(st.booleans()):
            brokers.write_state(late.pop())
        return perform(operation)

    perform: Callable[[Operation[Any]], Any] = brokers.perform
    brokers.perform = leader  # type: ignore[method-assign]
    assert brokers.run(topic_calls.remove_topic(NAME), topic_calls.remove_topic(NAME)) == [None, None]
    assert brokers.topic() is None
    assert brokers.model.children(paths.DELETED_TOPICS) == brokers.model.children(paths.TOPIC_CONFIGS) == ()
    assert brokers.run(topic_calls.create_topic(registration(2))) == [None], "the name can be used again"
