"""A network without sockets and with a virtual clock: performs the effects of ``Connections`` against brokers made of functions.

Owns the virtual clock, the name table and the peers behind addresses. Must not know what is tested. Invariant: time moves
only in ``run_until`` and ``advance``, and all that is due at one moment has happened when they return.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ottla.client.core import ClientCore, CorePoll
from ottla.client.effects import Address, Authenticate, Close, Connect, ConnectionEffect, Resolve, Write
from ottla.config import AdminConfig, ClientConfig, ConsumerConfig
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.framing import FrameReader
from ottla.protocol.messages import api_versions_response
from ottla.protocol.sasl import SaslChallenge, SaslResponse
from ottla.simulation.clock import START, Clock
from ottla.types import Now
from ottla.zookeeper.session import Disconnect, Perform
from tests.simulation.files import content

Answer = Callable[[RequestHeader, Any], Any]


class NoAnswer(Exception):
    """Raised by a peer's function: this request is not answered."""


@dataclass
class Peer:
    """A broker behind an address. ``mode``: accept, refuse, silent (no TCP answer), mute (no answer at all), garbage, hang up."""

    answer: Answer | None = None
    mode: str = "accept"
    versions: dict[Api, VersionRange] = field(default_factory=lambda: dict(SPOKEN))
    requests: list[tuple[Api, Any]] = field(default_factory=list)
    connects: int = 0
    tls_error: OttlaError | None = None
    """What becomes of the TLS handshake."""

    def respond(self, header: RequestHeader, message: Any) -> Any:
        if header.api is Api.API_VERSIONS:
            return self.api_versions()
        self.requests.append((header.api, message))
        if self.answer is None:
            raise NoAnswer
        return self.answer(header, message)

    def api_versions(self) -> Any:
        keys = tuple(
            api_versions_response.ApiVersion(api_key=int(api), min_version=low, max_version=high)
            for api, (low, high) in self.versions.items()
        )
        return api_versions_response.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, throttle_time=timedelta(0))


class VirtualNetwork:
    """Drives a ``poll(now) -> (effects, wake_at)`` and the ``Connections`` that it reports to."""

    def __init__(self, poll: Callable[[Now], tuple[list[ConnectionEffect], int | None] | CorePoll], connections: Any) -> None:
        self.clock = Clock(Now(1_000, START.wall + 1_000))
        self.names: dict[str, list[str]] = {}
        """Name -> numeric addresses; a name that is not here cannot be resolved."""
        self.peers: dict[Address, Peer] = {}
        self.log: list[str] = []
        """What was done, in order, with the time it was done at."""
        self.respond: Callable[[SaslChallenge], SaslResponse | OttlaError] | None = None
        """The mechanism of a login."""
        self._poll = poll
        self._quiet = connections
        self._news = False
        self._readers: dict[int, FrameReader] = {}
        self._open: dict[int, Peer] = {}

    @property
    def now(self) -> Now:
        return self.clock.now

    @property
    def mono(self) -> int:
        return self.clock.now.mono

    @property
    def open(self) -> list[int]:
        """Connections that are established and not closed."""
        return list(self._open)

    def peer(self, place: str, **settings: Any) -> Peer:
        """Put a peer behind ``IP:PORT``."""
        ip, port = place.rsplit(":", 1)
        return self.peers.setdefault(Address(ip, int(port)), Peer(**settings))

    @property
    def _connections(self) -> Any:
        """The ``Connections``, which are polled once more after a report."""
        self._news = True
        return self._quiet

    def settle(self) -> int | None:
        """Run all that is due now; returns the next requested time."""
        for _ in range(1000):
            self._news = False
            effects, wake_at, *_ = self._poll(self.now)
            for effect in effects:
                assert not isinstance(effect, Perform | Disconnect), "this network has no ZooKeeper"
                self._perform(effect)
            if not self._news and (wake_at is None or wake_at > self.mono):
                left, *_ = self._poll(self.now)
                assert not left, f"a real shell would not poll again, and this be left: {left}"
                return wake_at
        raise AssertionError(f"it never settles: {self.log[-10:]}")

    def run_until(self, mono: int) -> None:
        """Let time pass up to ``mono``, polling at each requested time."""
        while True:
            wake_at = self.settle()
            if wake_at is None or wake_at > mono:
                break
            self.clock.move_to(wake_at)
        self.clock.move_to(max(self.mono, mono))
        self.settle()

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.run_until(self.mono + milliseconds)

    def hang_up(self, connection_id: int, reason: str = "the peer closed the connection") -> None:
        """Close one connection from the peer's side."""
        del self._open[connection_id]
        self._connections.on_closed(connection_id, reason, self.now)

    def reply(self, connection_id: int, header: RequestHeader, message: Any) -> None:
        """Send the response that ``NoAnswer`` deferred. ``bytes`` are sent as they are, one by one."""
        data = message if isinstance(message, bytes) else b"".join(map(content, encode_response(header, message)))
        for byte in data:
            before = self._state
            self._connections.receive(connection_id, bytes((byte,)), self.now)
            # A shell polls only for a reason; without one, a change may never take effect.
            assert self._state == before or not self._quiet.response_incomplete

    @property
    def _state(self) -> object:
        """The state that a poll may act on."""
        return self._quiet.has_completions, [link.state for link in self._quiet.brokers]

    def _perform(self, effect: ConnectionEffect) -> None:
        match effect:
            case Resolve(host, port):
                self.log.append(f"{self.mono} resolve {host}")
                if host in self.names:
                    found = [Address(ip, port) for ip in self.names[host]]
                    self._connections.on_resolved(host, port, found, self.now)
                else:
                    self._connections.on_resolve_failed(host, port, "Name or service not known", self.now)
            case Connect(connection_id, address):
                self.log.append(f"{self.mono} connect {address}")
                self._connect(connection_id, address)
            case Authenticate(connection_id, challenge):
                assert self.respond is not None
                response = self.respond(challenge)
                if isinstance(response, OttlaError):
                    self._connections.on_sasl_failed(connection_id, response, self.now)
                else:
                    self._connections.on_sasl_response(connection_id, response, self.now)
            case Write(connection_id, pieces):
                if connection_id in self._open:
                    self._write(connection_id, b"".join(map(content, pieces)))
            case Close(connection_id, reason):
                self.log.append(f"{self.mono} close {connection_id}: {reason}")
                self._open.pop(connection_id, None)

    def _connect(self, connection_id: int, address: Address) -> None:
        peer = self.peers.get(address)
        if peer is None or peer.mode == "refuse":
            return self._connections.on_connect_failed(connection_id, "Connection refused", self.now)
        peer.connects += 1
        if peer.mode == "silent":
            return None
        if peer.tls_error is not None:
            self._connections.on_securing(connection_id, self.now)
            return self._connections.on_tls_failed(connection_id, peer.tls_error, self.now)
        self._open[connection_id], self._readers[connection_id] = peer, FrameReader()
        return self._connections.on_connected(connection_id, self.now)

    def _write(self, connection_id: int, data: bytes) -> None:
        peer = self._open[connection_id]
        if peer.mode == "garbage":
            return self._connections.receive(connection_id, b"HTTP/1.1 400 Bad Request\r\n\r\n", self.now)
        if peer.mode == "hang up":
            return self.hang_up(connection_id)
        if peer.mode == "mute":
            return None
        for frame in self._readers[connection_id].feed(data):
            header, message = decode_request(bytes(frame))
            try:
                answer = peer.respond(header, message)
            except NoAnswer:
                continue
            self.reply(connection_id, header, answer)
        return None


class ClientOnNetwork:
    """A client's core on a virtual network."""

    def __init__(self, config: ClientConfig | ConsumerConfig | AdminConfig) -> None:
        self.core = ClientCore(config, random.Random(5))
        self.network = VirtualNetwork(self.core.poll, self.core.connections)
