"""``Consumer`` as far as it needs no broker: invalid arguments raise, and it opens nothing before the first call."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from ottla import Consumer, OffsetAndMetadata, TopicPartition
from ottla.errors import ConfigError, IllegalStateError, InvalidGroupIdError, WakeupError
from ottla.runtime.network_thread import NetworkThread

TP = TopicPartition("t", 0)


@pytest.fixture
def consumer() -> Consumer:
    return Consumer(bootstrap_servers="localhost:1", group_id="g")


def test_the_constructor_opens_nothing(consumer: Consumer) -> None:
    before = threading.active_count()
    assert repr(consumer) == "<Consumer group 'g', 0 partitions>"
    assert (consumer.assignment(), consumer.subscription(), consumer.paused()) == (set(), set(), set())
    assert consumer.group_metadata() == ("g", -1, "", None)
    consumer.wakeup()
    consumer.close()
    assert threading.active_count() == before


def test_settings_are_those_of_kafka_in_any_spelling() -> None:
    Consumer({"bootstrap.servers": "localhost:1", "max.poll.interval.ms": 5_000}, group_id="g", session_timeout=4).close()
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        Consumer(bootstrap_servers="localhost:1", auto_ofset_reset="latest")  # type: ignore[call-arg]


def test_a_string_instead_of_a_collection_of_topics_raises(consumer: Consumer) -> None:
    with pytest.raises(TypeError, match=r"subscribe\(\['orders'\]\)"):
        consumer.subscribe("orders")
    with pytest.raises(ConfigError, match=r"for a regular expression pass pattern='orders-\.\*'"):
        consumer.subscribe("^orders-.*")


@pytest.mark.parametrize("offset", [-1, OffsetAndMetadata(-5)])
def test_negative_offsets_raise(consumer: Consumer, offset: int | OffsetAndMetadata) -> None:
    with pytest.raises(ValueError, match="negative"):
        consumer.seek(TP, offset)
    with pytest.raises(ValueError, match="negative"):
        consumer.commit({TP: offset})


def test_negative_times_raise(consumer: Consumer) -> None:
    with pytest.raises(ValueError, match="beginning_offsets"):
        consumer.offsets_for_times({TP: -2})
    with pytest.raises(ValueError, match="timeout is negative"):
        consumer.poll(timedelta(seconds=-1))


def test_values_that_are_no_partitions_raise(consumer: Consumer) -> None:
    with pytest.raises(TypeError, match="TopicPartition"):
        consumer.seek(("t", "0"), 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TopicPartition"):
        consumer.pause(["t"])  # type: ignore[list-item]


def test_calls_that_need_a_group_raise_without_one() -> None:
    with Consumer(bootstrap_servers="localhost:1") as alone:
        for call in (lambda: alone.commit({TP: 1}), lambda: alone.commit_async({TP: 1}), alone.group_metadata, alone.committed):
            with pytest.raises(InvalidGroupIdError, match="set group_id"):
                call()
        with pytest.raises(IllegalStateError, match="set group_id"):
            alone.subscribe(["t"])


def test_a_wakeup_before_the_first_poll_ends_it(consumer: Consumer) -> None:
    consumer.wakeup()
    consumer.assign([TP])
    with pytest.raises(WakeupError):
        consumer.poll(10)
    assert not consumer.poll(0)
    consumer.close(timeout=0)


def test_after_close_every_call_raises(consumer: Consumer) -> None:
    consumer.close()
    consumer.close()
    for call in (
        consumer.poll,
        consumer.unsubscribe,
        consumer.assignment,
        consumer.commit,
        consumer.commit_async,
        consumer.list_topics,
        consumer.group_metadata,
        lambda: next(iter(consumer)),
    ):
        with pytest.raises(IllegalStateError, match="closed"):
            call()


def test_a_processing_block_that_fails_to_begin_is_not_open(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    consumer = Consumer(bootstrap_servers="localhost:1", group_id="g", security_protocol="SSL", ssl_ca_location=missing)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"ca\.pem"), consumer.processing(limit=60):
            raise AssertionError("the network thread has started without its certificates")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        consumer.poll()


def test_close_inside_a_processing_block_leaves_the_error_of_the_block(consumer: Consumer) -> None:
    def exit_by_signal() -> None:
        consumer.close()
        raise SystemExit

    with pytest.raises(SystemExit), consumer.processing(limit=60):
        exit_by_signal()


def test_a_processing_block_ends_after_close(consumer: Consumer) -> None:
    with consumer.processing(limit=60):
        consumer.close()


def test_a_report_of_progress_after_close_has_no_effect(consumer: Consumer) -> None:
    with consumer.processing(limit=60) as job:
        consumer.close()
        job.progress()


def test_a_consumer_is_live_while_its_network_thread_is_started(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    start = NetworkThread.start
    live: list[bool] = []

    def observed(network: NetworkThread) -> None:
        live.append(consumer.health().live)
        start(network)

    monkeypatch.setattr(NetworkThread, "start", observed)
    consumer.assign([TP])
    consumer.close(timeout=0)
    assert live == [True]
