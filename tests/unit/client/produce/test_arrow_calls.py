"""The calls of ``send_arrow``: what it waits for, for how long, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.produce.calls import PATIENCE, ProducerCalls
from ottla.client.produce.outcome import Wait
from ottla.client.produce.topics import AwaitTopic
from ottla.config.producer import ProducerConfig
from ottla.errors import ConnectionFailedError, InvalidTopicError, OttlaError, OttlaTimeoutError
from ottla.types import Now
from tests.arrow_input import accumulator

MAX_BLOCK = 1_000


class App:
    """A producer whose network thread the test plays. ``t`` has one partition."""

    def __init__(self, **settings: Any) -> None:
        self.mono = 0
        config = ProducerConfig.parse(bootstrap_servers="one:9092", max_block_ms=MAX_BLOCK, **settings)
        memory = config.buffer_memory
        self.accumulator = accumulator(memory=memory, max_record=min(memory, 1 << 20), mono=lambda: self.mono)
        self.submitted: list[Any] = []
        self.calls = ProducerCalls(config, self.accumulator, self.submitted.append, lambda: 0)

    @property
    def now(self) -> Now:
        return Now(self.mono, self.mono)

    @property
    def awaited(self) -> AwaitTopic:
        """What the call waits for."""
        command = self.submitted[-1]
        assert isinstance(command, AwaitTopic)
        return command

    def slowly(self, *arrays: list[bytes], duration: int = 60_000) -> pa.RecordBatchReader:
        """A source that works for ``duration`` before each array."""

        def read() -> Iterator[pa.RecordBatch]:
            for values in arrays:
                self.mono += duration
                yield pa.record_batch({"value": pa.array(values, pa.binary())})

        return pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), read())


def test_the_time_to_wait_for_a_topic_begins_after_the_source_has_worked() -> None:
    app = App()
    next(app.calls.send_arrow(app.slowly([b"x"]), "new", app.now))
    assert app.awaited.deadline == 60_000 + MAX_BLOCK


def test_the_time_to_wait_for_memory_begins_after_the_source_has_worked() -> None:
    app = App(buffer_memory=10_000)
    call = app.calls.send_arrow(app.slowly([b"x" * 9_000], [b"x" * 9_000]), "t", app.now)
    wait = next(call)
    assert isinstance(wait, Wait)
    assert wait.until == 120_000 + MAX_BLOCK
    app.mono = 120_000 + MAX_BLOCK
    with pytest.raises(OttlaTimeoutError, match="no memory for the record within 1 s") as caught:
        call.send(app.now)
    assert caught.value.__notes__ == ["1 rows before that were accepted; flush() and close() raise if they are not written"]


def test_it_sends_what_it_holds_when_no_memory_becomes_free_for_a_while() -> None:
    app = App(buffer_memory=100_000)
    app.accumulator.set_partitions("stuck", 1)
    for _ in range(6):
        app.accumulator.append("stuck", b"x" * 10_000)
    app.accumulator.set_partitions("t", 4)
    before = app.accumulator.close_all()
    table = pa.table({"key": [str(number) for number in range(100)], "value": [b"x" * 1000] * 100})
    call = app.calls.send_arrow(table, "t", app.now)
    wait = next(call)
    assert wait.until == PATIENCE
    assert list(app.accumulator.incomplete) == before
    app.mono = PATIENCE
    wait = call.send(app.now)
    assert wait.until == PATIENCE + MAX_BLOCK
    sent = [batch for batch in app.accumulator.incomplete if batch not in before]
    assert sent
    app.mono = PATIENCE + MAX_BLOCK
    with pytest.raises(OttlaTimeoutError, match="held by unacknowledged records of stuck-0 with"):
        call.send(app.now)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OttlaTimeoutError("topic 'new' was not found"), "row 2: topic 'new' was not found"),
        (InvalidTopicError("topic 'new'"), "row 2: topic 'new' [INVALID_TOPIC_EXCEPTION]"),
        (ConnectionFailedError("no broker could be reached", {}), "no broker could be reached"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_the_error_of_a_topic_names_its_first_row(error: OttlaError, text: str) -> None:
    app = App()
    call = app.calls.send_arrow(pa.table({"value": [b"x"] * 4, "topic": ["t", "t", "new", "new"]}), None, app.now)
    next(call)
    app.awaited.outcome.settle(error=error)
    with pytest.raises(type(error)) as caught:
        call.send(app.now)
    assert str(caught.value).startswith(text)
    assert not str(error).startswith("row"), "the error that the network thread keeps stays as it is"


def test_the_error_of_a_partition_names_its_first_row() -> None:
    app = App()
    call = app.calls.send_arrow(pa.table({"value": [b"x"] * 4, "partition": [0, 7, 3, 7]}), "t", app.now)
    next(call)
    assert (app.awaited.topic, app.awaited.partition) == ("t", 7)
    app.awaited.outcome.settle(error=OttlaTimeoutError("no partition 7 appeared"))
    with pytest.raises(OttlaTimeoutError, match=r"^row 1: no partition 7 appeared$"):
        call.send(app.now)
