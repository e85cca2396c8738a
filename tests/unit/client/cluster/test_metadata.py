"""What is believed of the cluster, and when it is asked again."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from typing import Any

import pytest

from ottla.client.cluster.metadata import REFRESHES, Metadata, MetadataManager
from ottla.client.effects import AnyNode, Poll, Send
from ottla.client.events import TopicErrorNotification
from ottla.config import ClientConfig
from ottla.errors import OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_response as m
from ottla.types import Node, Now, TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
FIRST_ID, SECOND_ID = uuid.UUID(int=1), uuid.UUID(int=2)


def topic(name: str, *partitions: tuple[int, int], topic_id: uuid.UUID | None = FIRST_ID, error: int = 0) -> Any:
    """A topic whose partitions are (leader, leader epoch)."""
    parts = tuple(
        m.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=(1, 2),
            isr_nodes=(1,),
        )
        for index, (leader, epoch) in enumerate(partitions)
    )
    return m.MetadataResponseTopic(error_code=ErrorCode(error), name=name, topic_id=topic_id, partitions=parts)


def answer(*topics: Any, error: int = 0, nodes: tuple[int, ...] = (1, 2)) -> Any:
    return m.MetadataResponse(
        throttle_time=timedelta(0),
        brokers=tuple(m.MetadataResponseBroker(node_id=node, host=f"host{node}", port=9092) for node in nodes),
        cluster_id="cluster",
        controller_id=1,
        topics=topics,
        error_code=ErrorCode(error),
    )


class Metadatas:
    """A manager under a virtual clock."""

    def __init__(self, **settings: Any) -> None:
        self.mono = 0
        self.notifications: list[Any] = []
        config = ClientConfig.parse(bootstrap_servers="x:1", **settings)
        self.manager = MetadataManager(config, random.Random(1), self.notifications.append, allow_auto_create=True)

    @property
    def now(self) -> Now:
        return Now(self.mono, self.mono)

    @property
    def current(self) -> Metadata:
        return self.manager.current

    def poll(self, after: int = 0) -> Poll:
        self.mono += after
        return self.manager.poll(self.now)

    def ask(self, after: int = 0) -> Any:
        """The request that is due now."""
        (send,) = self.poll(after).sends
        assert isinstance(send, Send)
        assert send.api is Api.METADATA
        assert send.target == AnyNode()
        return send.message

    def answer(self, *topics: Any, **more: Any) -> None:
        self.manager.on_response(answer(*topics, **more), self.now)

    def refresh(self, *topics: Any, **more: Any) -> None:
        """One full round."""
        self.manager.request_update()
        self.ask(after=2_000)
        self.answer(*topics, **more)


def test_the_first_request_is_for_brokers_alone() -> None:
    metadata = Metadatas()
    assert metadata.ask().topics == ()
    metadata.answer()
    assert metadata.current.version == 1
    assert metadata.current.nodes == {1: Node(1, "host1", 9092), 2: Node(2, "host2", 9092)}
    assert metadata.current.cluster_id == "cluster"


def test_a_snapshot_has_topics_by_name_and_id() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    assert [item.name for item in metadata.ask().topics] == ["a"]
    metadata.answer(topic("a", (1, 5), (-1, 6)))
    current = metadata.current
    assert current.topic_id("a") == FIRST_ID
    assert current.topic_name(FIRST_ID) == "a"
    assert current.leader(A0) == (Node(1, "host1", 9092), 5)
    assert current.leader(A1) is None
    assert [part.partition for part in current.partitions_for("a")] == [0, 1]
    assert current.partitions_for("other") == ()


def test_a_request_for_an_update_during_a_request_is_kept() -> None:
    metadata = Metadatas()
    metadata.ask()
    assert metadata.poll().sends == ()
    awaited = metadata.manager.request_update()
    metadata.answer()
    assert metadata.current.version <= awaited
    metadata.ask(after=2_000)
    metadata.answer()
    assert metadata.current.version > awaited


def test_metadata_is_refreshed_after_its_maximum_age() -> None:
    metadata = Metadatas(metadata_max_age=60)
    metadata.ask()
    metadata.answer()
    assert metadata.poll() == Poll((), 60_000)
    assert metadata.poll(59_999).sends == ()
    metadata.ask(after=1)


def test_an_update_waits_for_the_back_off() -> None:
    metadata = Metadatas(retry_backoff_ms=100)
    metadata.ask()
    metadata.answer()
    metadata.manager.request_update()
    poll = metadata.poll()
    assert poll.sends == ()
    assert poll.wake_at is not None
    assert 80 <= poll.wake_at <= 120


def test_new_topics_are_requested_at_once() -> None:
    metadata = Metadatas()
    metadata.ask()
    metadata.answer()
    metadata.manager.set_topics(frozenset({"a"}))
    assert len(metadata.ask().topics) == 1
    metadata.answer(topic("a", (1, 1)))
    metadata.manager.set_topics(frozenset({"a"}))
    assert metadata.poll().sends == ()
    metadata.manager.set_topics(None)
    assert metadata.ask().topics is None


def test_auto_creation_is_requested_only_with_names() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    assert metadata.ask().allow_auto_topic_creation
    metadata.answer(topic("a", (1, 1)))
    metadata.manager.set_topics(None)
    assert not metadata.ask().allow_auto_topic_creation
    metadata.answer(topic("a", (1, 1)))
    metadata.manager.set_topics(frozenset({"a", "b"}), may_create=False)
    assert not metadata.ask().allow_auto_topic_creation


def test_transient_topics_are_kept_for_a_while() -> None:
    metadata = Metadatas(metadata_max_age=60)
    metadata.manager.add_transient(["t"])
    assert [item.name for item in metadata.ask().topics] == ["t"]
    metadata.answer(topic("t", (1, 1)))
    metadata.manager.add_transient(["t"])
    assert metadata.poll(50_000).sends == ()
    assert [item.name for item in metadata.ask(after=10_000).topics] == ["t"]
    metadata.answer(topic("t", (1, 1)))
    assert metadata.ask(after=60_000).topics == ()


def test_a_failed_request_is_repeated_with_growing_delays() -> None:
    metadata = Metadatas(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    delays = []
    metadata.ask()
    for _ in range(8):
        metadata.manager.on_failure(OttlaTimeoutError("no"), metadata.now)
        wake_at = metadata.poll().wake_at
        assert wake_at is not None
        delays.append(wake_at - metadata.mono)
        metadata.mono = wake_at
        metadata.ask()
    assert 80 <= delays[0] <= 120
    assert 160 <= delays[1] <= 240
    assert all(800 <= delay <= 1_200 for delay in delays[4:])
    assert isinstance(metadata.manager.failure, OttlaTimeoutError)
    metadata.answer()
    assert metadata.manager.failure is None


def test_an_older_leader_epoch_is_ignored() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (1, 5)))
    metadata.refresh(topic("a", (2, 4)))
    assert metadata.current.leader(A0) == (Node(1, "host1", 9092), 5)
    metadata.refresh(topic("a", (2, 6)))
    assert metadata.current.leader(A0) == (Node(2, "host2", 9092), 6)


def test_a_recreated_topic_begins_with_its_own_epochs() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (1, 5)))
    metadata.refresh(topic("a", (2, 0), topic_id=SECOND_ID))
    assert metadata.current.leader(A0) == (Node(2, "host2", 9092), 0)
    assert metadata.current.topic_name(FIRST_ID) is None


def test_requests_have_an_observed_epoch_until_metadata_follows() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (1, 5)))
    metadata.manager.observe_epoch(A0, 7)
    assert metadata.current.leader(A0) == (Node(1, "host1", 9092), 7)
    metadata.ask(after=2_000)
    metadata.answer(topic("a", (2, 6)))
    assert metadata.current.leader(A0) == (Node(2, "host2", 9092), 7), "a newer leader is news, though behind what was seen"
    metadata.refresh(topic("a", (1, 5)))
    assert metadata.current.leader(A0) == (Node(2, "host2", 9092), 7), "an answer that is behind another is not believed"
    metadata.refresh(topic("a", (2, 7)))
    assert metadata.current.leader(A0) == (Node(2, "host2", 9092), 7)


@pytest.mark.parametrize("leaves", [False, True])
def test_refusals_of_an_epoch_are_counted_while_the_metadata_has_the_partition(leaves: bool) -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (1, 5)))
    metadata.manager.epoch_refused(A0, 5, metadata.now)
    if leaves:
        metadata.refresh()
    for _ in range(REFRESHES):
        metadata.refresh(topic("a", (1, 5)))
    metadata.manager.epoch_refused(A0, 5, metadata.now)
    assert metadata.current.leader(A0) == (Node(1, "host1", 9092), 5 if leaves else None)


def test_a_snapshot_never_changes() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (1, 5)))
    before = metadata.current
    metadata.manager.observe_epoch(A0, 9)
    metadata.refresh(topic("a", (2, 9)), nodes=(2,))
    assert before.leader(A0) == (Node(1, "host1", 9092), 5)
    assert before is not metadata.current


def test_leaders_of_an_error_response_are_used_if_they_are_newer() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (1, 5), (1, 5)))
    version = metadata.current.version
    moved = Node(3, "host3", 9092)
    assert metadata.manager.update_leaders({A0: (3, 6), A1: (3, 5)}, [moved])
    assert metadata.current.leader(A0) == (moved, 6)
    assert metadata.current.leader(A1) == (Node(1, "host1", 9092), 5)
    assert metadata.current.version == version + 1
    assert not metadata.manager.update_leaders({A0: (4, 9)}, [])


def test_a_leader_on_an_unknown_node_is_no_leader() -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    metadata.refresh(topic("a", (2, 5)), nodes=(1,))
    assert metadata.current.leader(A0) is None


@pytest.mark.parametrize(("code", "told"), [(17, True), (29, True), (3, False), (5, False)])
def test_an_error_of_a_topic_is_reported_and_retried(code: int, told: bool) -> None:
    metadata = Metadatas()
    metadata.manager.set_topics(frozenset({"a"}))
    for _ in range(2):
        metadata.refresh(topic("a", topic_id=None, error=code))
    notifications = [item for item in metadata.notifications if isinstance(item, TopicErrorNotification)]
    assert [item.topic for item in notifications] == (["a", "a"] if told else [])
    error = metadata.current.topics["a"].error
    assert error is not None
    assert error.code == code
    poll = metadata.poll()
    assert poll.wake_at is not None
    assert poll.wake_at <= metadata.mono + 1_200


def test_a_broker_can_demand_a_rebootstrap() -> None:
    metadata = Metadatas()
    metadata.ask()
    metadata.answer(error=ErrorCode.rebootstrap_required)
    assert metadata.manager.rebootstrap_required(metadata.now)
    assert not metadata.manager.rebootstrap_required(metadata.now)


def test_five_minutes_without_a_response_cause_a_rebootstrap() -> None:
    metadata = Metadatas()
    metadata.ask()
    metadata.manager.on_failure(OttlaTimeoutError("no"), metadata.now)
    metadata.mono += 299_999
    assert not metadata.manager.rebootstrap_required(metadata.now)
    metadata.mono += 1
    assert metadata.manager.rebootstrap_required(metadata.now)


def test_without_the_recovery_strategy_there_is_no_rebootstrap() -> None:
    metadata = Metadatas(metadata_recovery_strategy="none")
    metadata.ask()
    metadata.answer(error=ErrorCode.rebootstrap_required)
    metadata.mono += 600_000
    assert not metadata.manager.rebootstrap_required(metadata.now)
