"""What a listener may not do: iterate over the consumer that calls it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from ottla import AsyncConsumer, Consumer
from ottla.errors import IllegalStateError

TEXT = "a rebalance listener iterates over its consumer"


def test_an_iteration_in_a_listener_raises_instead_of_waiting_for_ever(served: str, topic: Callable[..., str]) -> None:
    name = topic(1, "a:1")
    raised: list[Exception] = []

    def on_assign(consumer: Consumer[Any, Any], _: object) -> None:
        with pytest.raises(IllegalStateError, match=TEXT) as error:
            next(iter(consumer))
        raised.append(error.value)

    with Consumer(bootstrap_servers=served, group_id=f"of-{name}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([name], on_assign=on_assign)
        assert [record.value for record in consumer.poll(30)] == [b"1"]
    assert len(raised) == 1


def test_an_iteration_in_an_async_listener_raises_too(served: str, topic: Callable[..., str]) -> None:
    name = topic(1, "a:1")
    raised: list[Exception] = []

    async def on_assign(consumer: AsyncConsumer[Any, Any], _: object) -> None:
        with pytest.raises(IllegalStateError, match=TEXT) as error:
            await anext(aiter(consumer))
        raised.append(error.value)

    async def program() -> None:
        async with AsyncConsumer(bootstrap_servers=served, group_id=f"of-{name}", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe([name], on_assign=on_assign)
            assert [record.value for record in await consumer.poll(30)] == [b"1"]

    asyncio.run(program())
    assert len(raised) == 1


def test_an_iteration_in_a_listener_raises_though_other_partitions_have_records(served: str, topic: Callable[..., str]) -> None:
    """The listener would go on for as long as records come, and the rebalance would wait for it."""
    read, added = topic(1, *(f"{number}:{number}" for number in range(20))), topic(1)
    raised: list[Exception] = []

    def on_assign(consumer: Consumer[Any, Any], _: object) -> None:
        with pytest.raises(IllegalStateError, match=TEXT) as error:
            next(iter(consumer))
        raised.append(error.value)

    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "group_protocol": "consumer", "max_poll_records": 1}
    with Consumer(bootstrap_servers=served, group_id=f"of-{read}", **settings) as consumer:
        consumer.subscribe([read])
        offsets = [record.offset for record in consumer.poll(30)]
        consumer.subscribe([read, added], on_assign=on_assign)
        deadline = time.monotonic() + 30
        while not raised and time.monotonic() < deadline:
            time.sleep(0.1)  # so that records are left when the assignment comes
            offsets += [record.offset for record in consumer.poll()]
        assert len(raised) == 1
        offsets += [record.offset for record in consumer.poll(30)]
    assert offsets == [*range(len(offsets))]
