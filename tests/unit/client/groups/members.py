"""A single member of a group, which the tests of both protocols' memberships share.

Owns the member's context and its notifications to the application. Must not know the requests of a protocol. Invariant: a request
gets a response only from the test.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ottla.client.effects import AnySend
from ottla.client.groups.consumer.membership import ConsumerMembership
from ottla.client.groups.consumer.states import State
from ottla.client.groups.membership import MembershipContext
from ottla.client.poll_timer import InHand, PollTimer
from ottla.client.subscription import SubscriptionState
from ottla.protocol import ErrorCode, duration
from ottla.protocol.apis import Api
from ottla.protocol.messages import consumer_group_heartbeat_response as messages
from tests.unit.client.managers import NO_THROTTLE, Asked, Cluster, FixedCoordinator, backoff, config

INTERVAL = 1_000
"""Milliseconds between two heartbeats of a member of a consumer group."""


class GroupMember(Asked):
    """A member that subscribes to ``t``; ``notifications`` are those to the application."""

    def __init__(self, membership: Callable[[MembershipContext], Any], **settings: Any) -> None:
        self.subscription = SubscriptionState(None)
        self.coordinator = FixedCoordinator()
        self.cluster = Cluster()
        self.notifications: list[Any] = []
        self.config = config(**{"max_poll_interval_ms": 20_000, **settings})
        context = MembershipContext(
            self.config,
            self.subscription,
            self.coordinator,  # type: ignore[arg-type]
            self.cluster.manager,
            self.notifications.append,
            backoff(),
            PollTimer(self.config, InHand),
        )
        super().__init__(membership(context))
        self.subscription.subscribe(frozenset({"t"}))

    def tell(self, kind: type[Any]) -> Any:
        """The only notification of a kind since the last look."""
        (found,) = [item for item in self.notifications if isinstance(item, kind)]
        self.notifications.clear()
        return found

    def polled(self) -> None:
        self.manager.polled(self.now)


class ConsumerGroupMember(GroupMember):
    """A member of a consumer group (KIP-848)."""

    manager: ConsumerMembership

    def __init__(self, **settings: Any) -> None:
        super().__init__(ConsumerMembership, **{"group_protocol": "consumer", **settings})

    @property
    def state(self) -> State:
        return self.manager.state

    def beat(self, at: int | None = None) -> AnySend:
        return self.one(Api.CONSUMER_GROUP_HEARTBEAT, at)

    def answer_beat(
        self, send: AnySend, partitions: Mapping[uuid.UUID, Collection[int]] | None, *, epoch: int, code: int = 0
    ) -> None:
        """Answer a heartbeat; without ``partitions`` the assignment is left out, which means that it is as before."""
        assignment = None
        if partitions is not None:
            items = tuple(
                messages.TopicPartitions(topic_id=topic, partitions=tuple(sorted(numbers))) for topic, numbers in partitions.items()
            )
            assignment = messages.Assignment(topic_partitions=items)
        answer = messages.ConsumerGroupHeartbeatResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode(code),
            error_message="because" if code else None,
            member_id=None if code else self.manager.member_id,
            member_epoch=0 if code else epoch,
            heartbeat_interval=duration(0 if code else INTERVAL),
            assignment=assignment,
        )
        self.answer(send, answer)
