"""A member of a central group, as small as it can be: it registers, obeys, and reports what it holds after a failover.

Owns what the member holds, and its channel. Must not know what a broker decides. Invariant: it gives up what it holds before it
answers a Stop, and takes over what a Start gives it before it answers that.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.effects import Ticket
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consult_request,
    leave_request,
    ping_response,
    register_request,
    start_response,
    stop_response,
)
from ottla.types import TopicPartition
from tests.simulation.zookeeper_cluster import BrokerInCluster, ZooKeeperCluster

RETRY = 100
"""Milliseconds."""
_ANSWERS = {
    Api.PING: ping_response.PingResponse,
    Api.STOP: stop_response.StopResponse,
    Api.START: start_response.StartResponse,
}


class SimCentralMember:
    """See the module."""

    def __init__(self, cluster: ZooKeeperCluster, member_id: str, topics: dict[str, int], group_id: str = "g") -> None:
        self.group_id, self.member_id, self.topics = group_id, member_id, topics
        self.epoch = self.generation = -1
        self.held: dict[TopicPartition, int] = {}
        self.pushed: list[tuple[Api, Any]] = []
        """What the coordinator has sent."""
        self.errors: list[ErrorCode] = []
        """The answers to Registers that were none."""
        self.is_silent = self.has_left = False
        self.broker: BrokerInCluster | None = None
        """The coordinator, while there is a channel."""
        self.session_timeout = 6000
        self._cluster = cluster
        self._asked: tuple[BrokerInCluster, int, Ticket] | None = None
        self._connections = abs(hash(member_id)) % 1000 * 1000
        cluster.clock.after(1, self._consult)

    def leave(self) -> None:
        """Leave the group."""
        self.has_left = True
        if self.broker is not None:
            message = leave_request.LeaveRequest(
                group_id=self.group_id, member_id=self.member_id, coordinator_epoch=self.epoch, generation=self.generation
            )
            self.broker.send(Api.LEAVE, message, self._connections)

    def on_push(self, api: Api, correlation_id: int, message: Any) -> None:
        """Obey, and answer."""
        if self.is_silent or self.broker is None:
            return
        self.pushed.append((api, message))
        if api is Api.STOP:
            self.held = {}
        if api is Api.START:
            self.epoch, self.generation = message.coordinator_epoch, message.generation
            self.held = {
                TopicPartition(topic.topic, one.partition): one.thread for topic in message.topics for one in topic.partitions
            }
        answer: Any = _ANSWERS[api](
            error_code=ErrorCode.none,
            group_id=self.group_id,
            member_id=self.member_id,
            coordinator_epoch=message.coordinator_epoch,
            generation=message.generation,
        )
        self.broker.send(api, answer, self._connections, correlation_id)

    def on_closed(self) -> None:
        """Look for the coordinator again."""
        self.broker = self._asked = None
        if not (self.is_silent or self.has_left):
            self._cluster.clock.after(RETRY, self._consult)

    def _consult(self) -> None:
        up = [broker for broker in self._cluster.brokers if broker.up]
        if not up:
            return self._cluster.clock.after(RETRY, self._consult)
        ticket = up[0].send(Api.CONSULT, consult_request.ConsultRequest())
        found = up[0].replies.pop(ticket)
        coordinator = next((broker for broker in up if broker.node_id == found.coordinator_id), None)
        if coordinator is None:
            return self._cluster.clock.after(RETRY, self._consult)
        return self._register(coordinator)

    def _register(self, coordinator: BrokerInCluster) -> None:
        self._connections += 1
        owned: dict[str, list[Any]] = {}
        for (topic, partition), thread in self.held.items():
            owned.setdefault(topic, []).append(register_request.OwnedPartition(partition=partition, thread=thread))
        message = register_request.RegisterRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            incarnation=self.member_id,
            session_timeout_ms=self.session_timeout,
            rebalance_timeout_ms=self.session_timeout,
            assignor="range",
            topics=tuple(register_request.Subscription(topic=topic, streams=n) for topic, n in self.topics.items()),
            coordinator_epoch=self.epoch,
            generation=self.generation,
            own_generation=self.generation,
            owned_topics=tuple(
                register_request.OwnedTopic(topic=topic, partitions=tuple(partitions)) for topic, partitions in owned.items()
            ),
        )
        coordinator.channels[self._connections] = self
        self.broker = coordinator
        ticket = coordinator.send(Api.REGISTER, message, self._connections)
        self._asked = coordinator, self._connections, ticket
        self._await(coordinator, self._connections, ticket, 100)

    def _await(self, coordinator: BrokerInCluster, connection: int, ticket: Ticket, attempts: int) -> None:
        if self._asked != (coordinator, connection, ticket):
            return None
        response = coordinator.replies.pop(ticket, None)
        if response is None and attempts:
            return self._cluster.clock.after(10, lambda: self._await(coordinator, connection, ticket, attempts - 1))
        if response is None or response.error_code is not ErrorCode.none:
            if response is not None:
                self.errors.append(response.error_code)
            self.broker = None
            coordinator.channels.pop(connection, None)
            if not (self.is_silent or self.has_left):
                self._cluster.clock.after(RETRY, self._consult)
        return None
