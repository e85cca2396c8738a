"""The publisher of a consumer: each version of the subscription reaches the application."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.client import assembly
from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.shared_state import SharedState
from ottla.client.effects import PushedRequest, ToChannel
from ottla.client.events import Published
from ottla.client.groups.central.frames import Held
from ottla.client.groups.central.membership import CentralMembership
from ottla.protocol.apis import Api
from ottla.protocol.connection import Pushed
from ottla.protocol.messages import ping_request
from tests.unit.client.managers import T0, config, now


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


def test_a_ping_of_the_central_coordinator_counts_as_a_heartbeat() -> None:
    consumer = ConsumerAssembly(config(group_protocol="central"), random.Random(1), SharedState())
    assert consumer.inspection.view(now(0)).heartbeat_at is None
    ping = ping_request.PingRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=1)
    consumer.core._deliver(PushedRequest(ToChannel(1), Pushed(Api.PING, 1, ping)), now(500))
    assert consumer.inspection.view(now(600)).heartbeat_at == 500


def test_two_processes_with_one_consumer_id_have_one_member_id_and_two_incarnations() -> None:
    messages = []
    for seed in (1, 2):
        consumer = ConsumerAssembly(config(group_protocol="central", consumer_id="c"), random.Random(seed), SharedState())
        assert isinstance(consumer.membership, CentralMembership)
        messages.append(consumer.membership.channel._frames.register(None, Held(), -1))
    first, second = messages
    assert first.member_id == second.member_id == "g_c"
    assert len(first.incarnation) == 14
    assert first.incarnation != second.incarnation


def test_a_member_of_a_central_group_publishes_its_lease() -> None:
    shared = SharedState()
    consumer = ConsumerAssembly(config(group_protocol="central"), random.Random(1), shared)
    consumer.core.take_notifications()
    assert shared.lease_until == 0, "it has not registered"
    other = SharedState()
    ConsumerAssembly(config(), random.Random(1), other).core.take_notifications()
    assert other.lease_until is None
