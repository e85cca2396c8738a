"""The network between hosts: how long a message takes, and which hosts do not reach each other.

Owns delays, order and partitions. Must not know what a message is. Invariants: the messages of one channel, which is one direction
of one connection, arrive in the order of their sending; a message between two hosts that are separated when it is sent or when it
would arrive does not arrive, so their connections break as soon as they reach each other again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from ottla.simulation.clock import Clock

LATENCY = 1
"""Milliseconds from one host to another, at least."""

OnHeal = Callable[[str], None]
"""Called with the host that can be reached again; messages to it or from it were lost."""


class Network:
    """See the module. Without ``chance`` each message takes ``LATENCY``, otherwise up to ``slowest`` milliseconds."""

    def __init__(self, clock: Clock, chance: random.Random | None = None) -> None:
        self.slowest = 5
        self._clock = clock
        self._chance = chance
        self._separated: set[frozenset[str]] = set()
        self._isolated: set[str] = set()
        self._arrivals: dict[Hashable, int] = {}
        """Channel -> when its last message arrives."""
        self._on_heal: dict[str, OnHeal] = {}

    def add_host(self, host: str, on_heal: OnHeal) -> None:
        """Add a host that has connections to break."""
        self._on_heal[host] = on_heal

    def reaches(self, one: str, other: str) -> bool:
        """Whether messages arrive."""
        return not self._isolated & {one, other} and frozenset((one, other)) not in self._separated

    def send(self, sender: str, receiver: str, channel: Hashable, arrive: Callable[[], None]) -> None:
        """Have a message arrive at ``receiver``, after all earlier ones of its channel."""
        if not self.reaches(sender, receiver):
            return
        delay = LATENCY if self._chance is None else self._chance.randint(LATENCY, self.slowest)
        at = max(self._clock.now.mono + delay, self._arrivals.get(channel, 0))
        self._arrivals[channel] = at
        self._clock.at(at, lambda: arrive() if self.reaches(sender, receiver) else None)

    def hold(self, channel: Hashable, duration: int) -> None:
        """Have no message of a channel arrive for ``duration`` milliseconds."""
        self._arrivals[channel] = max(self._arrivals.get(channel, 0), self._clock.now.mono + duration)

    def separate(self, one: str, other: str) -> None:
        """Let no message pass between two hosts."""
        self._separated.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        """End a separation."""
        if frozenset((one, other)) in self._separated:
            self._separated.remove(frozenset((one, other)))
            self._break_connections(one, other)

    def isolate(self, host: str) -> None:
        """Let no message pass to or from a host."""
        self._isolated.add(host)

    def is_isolated(self, host: str) -> bool:
        """Whether a host reaches no other."""
        return host in self._isolated

    def rejoin(self, host: str) -> None:
        """End an isolation."""
        if host in self._isolated:
            self._isolated.remove(host)
            for other in [other for other in self._on_heal if other != host]:
                self._break_connections(host, other)

    def _break_connections(self, one: str, other: str) -> None:
        if self.reaches(one, other):
            for host, peer in ((one, other), (other, one)):
                if host in self._on_heal:
                    self._on_heal[host](peer)
