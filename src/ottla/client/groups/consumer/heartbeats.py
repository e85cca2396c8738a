"""The heartbeats of a member of a consumer group, which contain only fields that have changed.

Owns the fields of ConsumerGroupHeartbeat, and the values that were last sent. Must not know states or timers. Invariant: a field is
left out only if it was sent since the member joined and since the last heartbeat that failed:

1. A heartbeat with a new subscription is sent, and the connection breaks.
2. The coordinator may have received it or not. So the next heartbeat has all fields.

Sources: KIP-848 (fields left out mean no change), KIP-1082 (the client makes its member id). The same is in ``HeartbeatState`` of
Apache Kafka's ``ConsumerHeartbeatRequestManager``.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ottla.client.backoff import RandomPort
from ottla.client.groups.membership import leaves
from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.protocol import duration
from ottla.protocol.messages import consumer_group_heartbeat_request as messages
from ottla.types import ConsumerGroupMetadata, GroupMembershipOperation

JOIN_GROUP_EPOCH, LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH = 0, -1, -2
"""Special member epochs. With the last a static member leaves for a while: its partitions are kept for it."""

_UNCHANGED = -1
"""The value of a number that has not changed, since numbers cannot be left out."""


Offers: TypeAlias = "tuple[messages.ClientAssignor, ...] | None"
"""The assignors that a member can run; ``None``: the field is not sent."""


class AssignmentSource(NamedTuple):
    """The client-side assignor that computed an assignment, its user data for this member, and the group's metadata."""

    assignor: str
    user_data: bytes | None
    group: ConsumerGroupMetadata


class Assignment(NamedTuple):
    """Partitions by topic id. ``number`` distinguishes assignments of the same partitions: each is acknowledged.

    ``source``: the client-side assignor that computed it; ``None``: the coordinator did.
    """

    number: int
    partitions: Mapping[uuid.UUID, frozenset[int]]
    source: AssignmentSource | None = None


def new_member_id(random: RandomPort) -> str:
    """Return a random member id in Kafka's format: 16 bytes in URL-safe base64, 22 characters."""
    data = bytes(int(random.random() * 256) for _ in range(16))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Heartbeats:
    """Makes the heartbeats of one member. Call ``reset()`` after one that may not have arrived."""

    def __init__(
        self, config: ConsumerConfig, subscription: SubscriptionState, member_id: str, offers: Callable[[], Offers]
    ) -> None:
        self._config = config
        self._offers = offers
        self._subscription = subscription
        self._member_id = member_id
        self._last_sent: dict[str, Any] = {}
        self._had_pattern = False

    def reset(self) -> None:
        """Send all fields in the next heartbeat."""
        self._last_sent.clear()

    @property
    def has_changes(self) -> bool:
        """Whether the subscription or a setting has changed since the last heartbeat."""
        return any(self._last_sent.get(name, value) != value for name, value in self._settings().items())

    def build(self, epoch: int, owned: Assignment | None) -> messages.ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat of a member that owns this assignment; ``None``: it has not reconciled any yet."""
        values = {"rebalance_timeout": duration(self._config.max_poll_interval_ms), **self._settings(), "topic_partitions": owned}
        changed = {name: value for name, value in values.items() if name not in self._last_sent or self._last_sent[name] != value}
        if "topic_partitions" in changed:
            changed["topic_partitions"] = _topic_partitions(owned)
        message = self._message(epoch, **changed)
        self._last_sent.update(values)
        return message

    def build_leave(self, operation: GroupMembershipOperation) -> messages.ConsumerGroupHeartbeatRequest | None:
        """Return the last heartbeat, ``None`` if there is none. The coordinator keeps the partitions of a static member that
        remains.
        """
        self.reset()
        if leaves(self._config, operation):
            return self._message(LEAVE_GROUP_EPOCH)
        return None if self._config.group_instance_id is None else self._message(LEAVE_GROUP_STATIC_EPOCH)

    def _settings(self) -> dict[str, Any]:
        """Return the subscription, rack and assignors."""
        pattern = self._subscription.pattern
        fields: dict[str, Any] = {"subscribed_topic_names": () if pattern is not None else tuple(sorted(self._subscription.topics))}
        self._had_pattern = self._had_pattern or pattern is not None
        if self._had_pattern:
            fields["subscribed_topic_regex"] = pattern or ""
        if self._config.client_rack:
            fields["rack_id"] = self._config.client_rack
        if self._config.group_remote_assignor is not None:
            fields["server_assignor"] = self._config.group_remote_assignor
        offers = self._offers()
        if offers is not None:
            fields["client_assignors"] = offers
        return fields

    def _message(self, epoch: int, **changed: Any) -> messages.ConsumerGroupHeartbeatRequest:
        fields: dict[str, Any] = {"rebalance_timeout": duration(_UNCHANGED), "topic_partitions": None, **changed}
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id or "",
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=self._config.group_instance_id,
            **fields,
        )


def _topic_partitions(owned: Assignment | None) -> tuple[messages.TopicPartitions, ...]:
    return tuple(
        messages.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
        for topic_id, numbers in (owned.partitions if owned is not None else {}).items()
    )
