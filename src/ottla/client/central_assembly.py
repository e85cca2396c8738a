"""The parts of a consumer that exist only in a group of the central coordinator: the consultation, the member and its offset store.

Owns how these parts are connected. Must not know the other managers. Invariant: nothing here is imported before a consumer with
``group.protocol=central`` is created.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.consultation import Consultation
from ottla.client.cluster.coordinator import CoordinatorManager
from ottla.client.core import ClientCore
from ottla.client.effects import ToChannel
from ottla.client.groups.central.channel import response_timeout
from ottla.client.groups.central.frames import Frames
from ottla.client.groups.central.introduction import Introduction
from ottla.client.groups.central.membership import CentralMembership
from ottla.client.groups.central.states import HOLDING
from ottla.client.groups.membership import MembershipContext, new_member_id
from ottla.client.positions.stores.central import CentralOffsetStore
from ottla.client.positions.stores.interface import OffsetStore
from ottla.config import ConsumerConfig
from ottla.errors import AllKnownBrokersNotAvailableError
from ottla.protocol.connection import Pushed
from ottla.types import Now, TopicPartition


class CentralMember(NamedTuple):
    """The member of a central group, where it stores offsets, and the manager that announces the group."""

    membership: CentralMembership
    store: OffsetStore
    introduction: Introduction


class CentralAssembly:
    """What depends on the central coordinator."""

    def __init__(self, core: ClientCore, config: ConsumerConfig) -> None:
        self._core = core
        self._config = config
        self.on_ping: Callable[[Now], None] = lambda now: None
        """Called with each request of the coordinator, for the consumer's health."""
        core.connections.brokers.failure_class = AllKnownBrokersNotAvailableError

    def coordinator(self, backoff: ExponentialBackoff) -> CoordinatorManager:
        """Return the look-up of the coordinator, by consulting any broker."""
        # Brokers answer from memory. One that does not must not cost the member its lease: the next one is consulted before.
        question = Consultation(response_timeout(self._config, 6), self._core.learn_node)
        return self._core.coordinator_by(question, f"group {self._config.group_id!r}", backoff)

    def member(self, context: MembershipContext, host: str, position_of: Callable[[TopicPartition], int | None]) -> CentralMember:
        """Create the member of the group. ``host`` is a part of its id."""
        core = self._core
        frames = Frames(self._config, new_member_id(self._config, host, core.random), f"{int(core.random.random() * 2**53):014x}")
        membership = CentralMembership(context, frames, core.connections.disconnect, position_of)

        def on_pushed(target: ToChannel, pushed: Pushed, now: Now) -> None:
            self.on_ping(now)
            membership.on_pushed(target, pushed, now)

        core.on_pushed(on_pushed)
        core.on_channel_closed(membership.on_channel_closed)
        introduction = Introduction(
            context,
            frames,
            lambda: membership.is_registered,
            lambda: membership.state in HOLDING,
        )
        unreachable = core.connections.brokers.unreachable
        store = CentralOffsetStore(self._config, context.coordinator, membership, context.metadata, unreachable)
        store.introduction = introduction
        return CentralMember(membership, store, introduction)
