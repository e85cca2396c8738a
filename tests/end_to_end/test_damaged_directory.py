"""A consumer group on a broker whose data directory has lost records while it was stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import confluent_kafka
import pytest

from ottla import Broker, Consumer


def _produce(broker: Broker, values: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("t", str(value).encode(), partition=0)
        producer.flush(10)


def _read(broker: Broker, count: int) -> list[tuple[int, int]]:
    """Offsets and values of the next records of the group."""
    found: list[tuple[int, int]] = []
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        while len(found) < count:
            found += [(record.offset, int(record.value)) for record in consumer.poll(20)]
    return found


def _cut(folder: Path) -> None:
    (segment,) = folder.glob("*.log")
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2 + 10])


@pytest.mark.parametrize("fault", [_cut, shutil.rmtree])
def test_a_group_at_the_end_misses_no_record_that_comes_after_a_loss(
    tmp_path: Path, fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The offsets of lost records are not used again: the group has read them, and would skip what they mean now."""
    with Broker(tmp_path) as broker:
        _produce(broker, range(40))
        assert _read(broker, 40) == [(value, value) for value in range(40)]
        broker.close()
        fault(tmp_path / "t-0")  # type: ignore[operator]
        broker.start()
        assert "t-0: " in caplog.text
        _produce(broker, range(40, 60))
        assert _read(broker, 20) == [(value, value) for value in range(40, 60)]
