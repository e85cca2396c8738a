"""The connections of one client: what its core does with them, and what arrives on them.

Owns the client's end of the link. Must not know what else the client does. Invariant: all happens in events of the clock, and the
link carries the real bytes of the wire protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ottla.client.connections.connections import Connections
from ottla.client.effects import Close, Connect, Write
from ottla.simulation.broker import Brokers
from ottla.simulation.clock import Clock
from ottla.simulation.cluster import name_of
from ottla.simulation.network import Network


class Link:
    """``run`` runs an action of the network thread, now or later; nothing arrives at a client that is not ``alive``."""

    def __init__(
        self,
        name: str,
        connections: Connections,
        clock: Clock,
        network: Network,
        broker: Brokers,
        *,
        alive: Callable[[], bool],
        run: Callable[[Callable[[], None]], None],
        pass_soon: Callable[[], None],
    ) -> None:
        self.name = name
        """That of the client's host."""
        self.numbers: dict[int, int] = {}
        """The client's id of each connection -> its number in the network."""
        self._connections = connections
        self._clock = clock
        self._network = network
        self._broker = broker
        self._alive = alive
        self._run = run
        self._pass_soon = pass_soon

    def perform(self, effect: Any) -> None:
        """Do what the core wants done."""
        broker = self._broker
        match effect:
            case Connect(connection_id, address):
                number = self.numbers[connection_id] = next(broker.connection_numbers)
                node = broker.cluster.at(address.ip, address.port)
                self._send(number, node.node_id, lambda: self._connect(connection_id, number, node.node_id))
            case Write(connection_id, pieces):
                data = b"".join(cast("list[bytes]", pieces))
                number = self.numbers.get(connection_id, -1)  # it may have broken since: then nothing is sent
                self._send(number, broker.node_of(number), lambda: broker.receive(number, data))
            case Close(connection_id, _):
                self._hang_up(self.numbers.pop(connection_id, -1))
            case _:
                raise AssertionError(effect)

    def hang_up(self) -> None:
        """Break all connections, after what was sent before, as the end of the process does."""
        for number in self.numbers.values():
            self._hang_up(number)

    def _hang_up(self, number: int) -> None:
        self._send(number, self._broker.node_of(number), lambda: self._broker.hang_up(number))

    def _send(self, number: int, node_id: int | None, arrive: Callable[[], None]) -> None:
        """Send something over a connection, unless the other end has closed it."""
        if node_id is not None:
            self._network.send(self.name, name_of(node_id), (number, "to the broker"), arrive)

    def _connect(self, connection_id: int, number: int, node_id: int) -> None:
        if not self._alive() or connection_id not in self.numbers:
            return
        is_up = node_id in self._broker.cluster.up
        if is_up:
            self._broker.accept(self, number, node_id)
        self._run(partial(self._connected if is_up else self._refused, connection_id))

    def _connected(self, connection_id: int) -> None:
        if connection_id in self.numbers:
            self._connections.on_connected(connection_id, self._clock.now)
            self._pass_soon()

    def _refused(self, connection_id: int) -> None:
        if connection_id in self.numbers:
            self._connections.on_connect_failed(connection_id, "connection refused", self._clock.now)
            self._pass_soon()

    def deliver(self, number: int, data: bytes) -> None:
        """Receive bytes from the broker."""
        self._run(partial(self._received, number, data))

    def _received(self, number: int, data: bytes) -> None:
        connection_id = self._connection_id(number)
        if connection_id is not None:
            self._connections.receive(connection_id, data, self._clock.now)
            self._pass_soon()

    def lose(self, number: int, reason: str) -> None:
        """Handle the loss of a connection."""
        self._run(partial(self._lost, number, reason))

    def _lost(self, number: int, reason: str) -> None:
        connection_id = self._connection_id(number)
        if connection_id is not None:
            del self.numbers[connection_id]
            self._connections.on_closed(connection_id, reason, self._clock.now)
            self._pass_soon()

    def has_open(self, number: int) -> bool:
        """Whether the client has not closed its end of a connection."""
        return self._alive() and self._connection_id(number) is not None

    def _connection_id(self, number: int) -> int | None:
        return next((key for key, value in self.numbers.items() if value == number), None)
