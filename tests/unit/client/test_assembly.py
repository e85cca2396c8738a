"""The publisher of a consumer: each version of the subscription reaches the application."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.client import assembly
from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import Published
from tests.unit.client.managers import T0, config


def test_a_snapshot_that_could_not_be_created_is_published_later(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = ConsumerAssembly(config(), random.Random(1), SharedState())
    consumer.subscription.assign([T0])

    def out_of_memory(**fields: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(assembly, "Snapshot", out_of_memory)
        with pytest.raises(MemoryError):
            consumer.core.take_notifications()
    (published,) = consumer.core.take_notifications()
    assert isinstance(published, Published)
    assert set(published.snapshot.partitions) == {T0}
