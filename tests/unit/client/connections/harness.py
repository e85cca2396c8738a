"""Connections on a virtual network, with one manager that takes note of what became of its requests.

Owns the manager and its one kind of request. Must not know what is tested. Invariant: a request has one outcome.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from ottla.client.connections.connections import Connections
from ottla.client.effects import AnyNode, ChannelClosed, CompletedRequest, Poll, PushedRequest, Send, Target
from ottla.config import ClientConfig
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import heartbeat_request, heartbeat_response
from ottla.protocol.rpcs import Rpc
from ottla.types import Node, Now
from tests.simulation.network import VirtualNetwork

REQUEST = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
ANSWER = heartbeat_response.HeartbeatResponse(throttle_time=timedelta(0), error_code=ErrorCode.none)


class Recorder:
    """A manager that only takes note of what became of its requests."""

    def __init__(self) -> None:
        self.answered: list[Any] = []
        self.failed: dict[Any, OttlaError] = {}

    @property
    def outcomes(self) -> dict[Any, OttlaError | None]:
        """The error of each request, ``None`` if it was answered."""
        return {**dict.fromkeys(self.answered), **self.failed}

    def poll(self, now: Now) -> Poll:
        return Poll()

    def on_response(self, tag: Any) -> None:
        assert tag not in self.outcomes
        self.answered.append(tag)

    def on_failure(self, tag: Any, error: OttlaError) -> None:
        assert tag not in self.outcomes
        self.failed[tag] = error


class ConnectionsOnNetwork:
    """See the module."""

    def __init__(self, servers: str = "10.0.0.1:9092", **settings: Any) -> None:
        config = ClientConfig.parse(bootstrap_servers=servers, **settings)
        self.connections = Connections(config, random.Random(7))
        self.network = VirtualNetwork(self._poll, self.connections)
        self.manager = Recorder()
        self.channel: list[PushedRequest | ChannelClosed] = []
        """What has happened on channels."""

    def _poll(self, now: Now) -> tuple[list[Any], int | None]:
        effects, wake_at = self.connections.poll(now)
        for arrival in self.connections.take_completions():
            if not isinstance(arrival, CompletedRequest):
                self.channel.append(arrival)
                continue
            request, message, error = arrival
            if error is None:
                request.send.on_response(message, now)
            else:
                request.send.on_failure(error, now)
        return effects, wake_at

    def send(
        self, tag: Any, target: Target | None = None, timeout: int = 30_000, api: Api = Api.HEARTBEAT, request: Any = REQUEST
    ) -> None:
        rpc: Rpc[Any, Any] = Rpc(api)
        send = Send(
            rpc,
            request,
            target or AnyNode(),
            timeout,
            lambda response, now: self.manager.on_response(tag),
            lambda error, now: self.manager.on_failure(tag, error),
        )
        self.connections.enqueue(self.manager, send, self.network.now)

    def know(self, *nodes: Node) -> None:
        self.connections.set_nodes({node.node_id: node for node in nodes}, self.network.now)

    @property
    def connects(self) -> list[str]:
        return [line for line in self.network.log if " connect " in line]
