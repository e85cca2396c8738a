"""The topics of a producer: which ones are refreshed, and the calls that wait for one."""

from __future__ import annotations

import random
import threading

from ottla.client.produce.topics import AwaitTopic, ProducerTopics
from ottla.config.producer import ProducerConfig
from ottla.errors import AuthenticationError, ConnectionFailedError, OttlaError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.records.accumulator import RecordAccumulator
from ottla.types import TopicPartition
from tests.unit.client.managers import Cluster, now

IDLE = 5_000


class Topics:
    """The topics of a producer in a cluster with topic ``t``, which has three partitions."""

    def __init__(self) -> None:
        self.mono = 0
        self.unreachable: OttlaError | None = None
        self.cluster = Cluster()
        self.accumulator = RecordAccumulator(
            batch_size=1_000,
            memory=100_000,
            max_record=10_000,
            lock=threading.Lock(),
            nanoseconds=lambda: 0,
            mono=lambda: self.mono,
            random=random.Random(0),
            wake=lambda: None,
            settled=lambda _batch: None,
            unseen=lambda _batch: None,
        )
        config = ProducerConfig.parse(bootstrap_servers="one:9092", metadata_max_idle_ms=IDLE)
        self.topics = ProducerTopics(config, self.cluster.manager, self.accumulator, lambda: self.unreachable)

    def wait(self, topic: str, partition: int = 0, deadline: int = 60_000) -> AwaitTopic:
        command = AwaitTopic(topic, partition, deadline)
        self.topics.wait(command, now(self.mono))
        return command

    def poll(self) -> None:
        self.topics.poll(now(self.mono))


def test_a_topic_that_is_known_is_passed_on() -> None:
    topics = Topics()
    command = topics.wait("t", 2)
    topics.poll()
    assert command.outcome.done
    assert topics.accumulator.topics["t"].partition_count == 3


def test_a_topic_that_is_not_used_is_forgotten_and_found_again() -> None:
    topics = Topics()
    topics.wait("t")
    topics.poll()
    topics.mono = 2 * IDLE
    topics.cluster.tell(topics.mono)
    topics.poll()
    assert topics.accumulator.topics["t"].partition_count == 0
    assert topics.accumulator.append("t", b"") is None
    command = topics.wait("t")
    topics.poll()  # the metadata is still that from before
    assert command.outcome.done
    assert topics.accumulator.append("t", b"") is not None


def test_a_topic_that_is_used_is_not_forgotten() -> None:
    topics = Topics()
    topics.wait("t")
    topics.poll()
    topics.mono = 2 * IDLE
    assert topics.accumulator.append("t", b"") is not None
    topics.cluster.tell(topics.mono)
    topics.poll()
    assert topics.accumulator.topics["t"].partition_count == 3


def test_a_topic_with_batches_without_an_outcome_is_not_forgotten() -> None:
    """They may wait longer than the topic may be idle, until a partition has a leader again."""
    topics = Topics()
    topics.wait("t")
    topics.poll()
    delivery = topics.accumulator.append("t", b"")
    assert delivery is not None
    for topics.mono in (2 * IDLE, 4 * IDLE):
        topics.cluster.tell(topics.mono)
        topics.poll()
        assert topics.accumulator.topics["t"].partition_count == 3
    topics.accumulator.release(delivery.batch)
    topics.cluster.tell(topics.mono)
    topics.poll()
    assert topics.accumulator.topics["t"].partition_count == 0


def test_a_record_that_is_appended_while_its_topic_is_forgotten_brings_it_back() -> None:
    topics = Topics()
    topics.wait("t")
    topics.poll()
    topics.mono = 2 * IDLE
    topics.cluster.tell(topics.mono)
    topics.poll()
    topics.accumulator.set_partitions("t", 3)  # the thread that appends has looked at the number before it became 0
    topics.accumulator.append("t", b"")
    topics.accumulator.set_partitions("t", 0)
    topics.cluster.tell(topics.mono, leaders={})
    topics.poll()
    topics.cluster.tell(topics.mono)
    topics.poll()
    assert topics.accumulator.topics["t"].partition_count == 3


def test_a_topic_that_a_call_waits_for_is_not_forgotten() -> None:
    topics = Topics()
    command = topics.wait("t", 3)
    topics.poll()
    topics.mono = 2 * IDLE
    topics.cluster.tell(topics.mono)
    topics.poll()
    assert not command.outcome.done
    topics.cluster.tell(topics.mono, leaders={TopicPartition("t", number): 1 for number in range(4)})
    topics.poll()
    assert command.outcome.done
    assert topics.accumulator.append("t", b"", partition=3) is not None


def test_a_call_fails_at_its_deadline() -> None:
    topics = Topics()
    missing, beyond = topics.wait("missing", deadline=1_000), topics.wait("t", 9, deadline=1_000)
    topics.mono = 999
    topics.poll()
    assert not missing.outcome.done
    topics.mono = 1_000
    topics.poll()
    for command, text in ((missing, "topic 'missing' was not found"), (beyond, "partitions 0 to 2, and no partition 9")):
        assert isinstance(command.outcome.error, OttlaTimeoutError)
        assert text in str(command.outcome.error)
        assert command.outcome.error.hint


def test_the_error_for_an_unknown_topic_says_to_create_it() -> None:
    topics = Topics()
    missing = topics.wait("missing", deadline=1_000)
    topics.cluster.tell(errors={"missing": ErrorCode.unknown_topic_or_partition})
    topics.mono = 1_000
    topics.poll()
    assert "was not found within 60 s: " in str(missing.outcome.error)
    assert str(missing.outcome.error).endswith(
        "[UNKNOWN_TOPIC_OR_PARTITION] (create the topic, or let the brokers create topics: auto.create.topics.enable=true)"
    )


def test_a_refused_login_ends_a_call_at_once() -> None:
    topics = Topics()
    missing = topics.wait("missing")
    topics.unreachable = ConnectionFailedError("no broker could be reached", {})
    topics.poll()
    assert not missing.outcome.done, "brokers may come up"
    topics.unreachable = AuthenticationError("the login was refused")
    topics.poll()
    assert missing.outcome.error is topics.unreachable
