"""The heartbeats of a member of a consumer group: only what the coordinator does not know yet is said.

Owns how the fields of ConsumerGroupHeartbeat are filled, and what was said last. Must not know states or timers. Invariant: a field
is left out only if the coordinator has heard it since the member joined or the last heartbeat failed.

Sources: KIP-848 (fields left out mean no change), KIP-1082 (the client makes its member id).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ottla.client.backoff import RandomPort
from ottla.client.groups.membership import leaves
from ottla.client.subscription import Subscription
from ottla.config import ConsumerConfig
from ottla.protocol import duration
from ottla.protocol.messages import consumer_group_heartbeat_request as messages
from ottla.types import ConsumerGroupMetadata, GroupMembershipOperation

JOIN_GROUP_EPOCH, LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH = 0, -1, -2
"""Member epochs that ask for something. The last is a static member's: its partitions wait for it."""

_UNCHANGED = -1
"""What stands for "as before" where a number cannot be left out."""


Offers: TypeAlias = "tuple[messages.ClientAssignor, ...] | None"
"""The assignors that a member can run; ``None``: the field is not sent."""


class AssignmentSource(NamedTuple):
    """The member's assignor that computed an assignment, its user data for this member, and the epoch of the group."""

    assignor: str
    user_data: bytes | None
    group: ConsumerGroupMetadata


class Assignment(NamedTuple):
    """Partitions by topic id. ``number`` distinguishes assignments of the same partitions: each is acknowledged.

    ``source``: which member's assignor computed it; ``None``: the coordinator did.
    """

    number: int
    partitions: Mapping[uuid.UUID, frozenset[int]]
    source: AssignmentSource | None = None


def new_member_id(random: RandomPort) -> str:
    """An id that no other member has: 16 random bytes, in the 22 letters that Kafka writes ids in."""
    data = bytes(int(random.random() * 256) for _ in range(16))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Heartbeats:
    """Makes the heartbeats of one member. ``forget()`` after one that may not have been heard."""

    def __init__(self, config: ConsumerConfig, subscription: Subscription, member_id: str, offers: Callable[[], Offers]) -> None:
        self._config = config
        self._offers = offers
        self._subscription = subscription
        self._member_id = member_id
        self._said: dict[str, Any] = {}
        self._had_pattern = False

    def forget(self) -> None:
        """Say everything in the next heartbeat."""
        self._said.clear()

    @property
    def has_news(self) -> bool:
        """Whether the coordinator has not heard yet what is subscribed to."""
        return any(self._said.get(name, value) != value for name, value in self._wish().items())

    def beat(self, epoch: int, held: Assignment | None) -> messages.ConsumerGroupHeartbeatRequest:
        """The next heartbeat of a member that holds this; ``None``: nothing was taken on yet."""
        values = {"rebalance_timeout": duration(self._config.max_poll_interval_ms), **self._wish(), "topic_partitions": held}
        news = {name: value for name, value in values.items() if name not in self._said or self._said[name] != value}
        if "topic_partitions" in news:
            news["topic_partitions"] = _topic_partitions(held)
        message = self._message(epoch, **news)
        self._said.update(values)
        return message

    def farewell(self, operation: GroupMembershipOperation) -> messages.ConsumerGroupHeartbeatRequest | None:
        """The last heartbeat; ``None`` where there is none. For a static member that remains its partitions are kept."""
        self.forget()
        if leaves(self._config, operation):
            return self._message(LEAVE_GROUP_EPOCH)
        return None if self._config.group_instance_id is None else self._message(LEAVE_GROUP_STATIC_EPOCH)

    def _wish(self) -> dict[str, Any]:
        """What the member wants to read and from where, and who is to share it out."""
        pattern = self._subscription.pattern
        wish: dict[str, Any] = {"subscribed_topic_names": () if pattern is not None else tuple(sorted(self._subscription.topics))}
        self._had_pattern = self._had_pattern or pattern is not None
        if self._had_pattern:
            wish["subscribed_topic_regex"] = pattern or ""
        if self._config.client_rack:
            wish["rack_id"] = self._config.client_rack
        if self._config.group_remote_assignor is not None:
            wish["server_assignor"] = self._config.group_remote_assignor
        offers = self._offers()
        if offers is not None:
            wish["client_assignors"] = offers
        return wish

    def _message(self, epoch: int, **news: Any) -> messages.ConsumerGroupHeartbeatRequest:
        fields: dict[str, Any] = {"rebalance_timeout": duration(_UNCHANGED), "topic_partitions": None, **news}
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id or "",
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=self._config.group_instance_id,
            **fields,
        )


def _topic_partitions(held: Assignment | None) -> tuple[messages.TopicPartitions, ...]:
    return tuple(
        messages.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
        for topic_id, numbers in (held.partitions if held is not None else {}).items()
    )
