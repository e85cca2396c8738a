"""All links of a client: which one serves a target, which one is to be opened, and why none is of use.

Owns the brokers that are known and the choice between links. Must not open, close or send. Invariant: while a broker that the
cluster named can be reached, no bootstrap server is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.client.backoff import RandomPort
from ottla.client.connections.link import ESTABLISHED_STATES, OPENING_STATES, Link, LinkState
from ottla.client.effects import AnyNode, Send, ToCoordinator, ToNode
from ottla.config import ClientConfig, HostPort
from ottla.errors import AuthenticationError, ConnectionFailedError, OttlaError, OttlaTimeoutError
from ottla.types import Node, Now

STAGGER = 250
"""Milliseconds after which, where any broker will do, another is tried beside one that has not answered yet (as RFC 8305)."""

_ELSEWHERE = "clients connect to the addresses that the cluster advertises: check advertised.listeners and the network"


class Links:
    """See the module."""

    def __init__(self, config: ClientConfig, random: RandomPort) -> None:
        self.nodes: dict[int, Node] = {}
        self._config = config
        self._random = random
        self._links: dict[HostPort | ToNode | ToCoordinator, Link] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def get(self, key: HostPort | ToNode | ToCoordinator) -> Link | None:
        """The link to a target, if there is one."""
        return self._links.get(key)

    def set_nodes(self, nodes: Mapping[int, Node]) -> list[tuple[Link, Node]]:
        """What the cluster's metadata says now; gives the links whose brokers have moved, and where they are now."""
        self.nodes = dict(nodes)
        moved: list[tuple[Link, Node]] = []
        for node in nodes.values():
            self._adopt(ToNode(node.node_id), node)
            for key in (ToNode(node.node_id), ToCoordinator(node.node_id)):
                link = self._links.get(key)
                if link is not None and (link.host, link.port) != (node.host, node.port):
                    moved.append((link, node))
        return moved

    def forget(self) -> None:
        """Know nothing of the cluster any more."""
        self._links.clear()
        self.nodes = {}

    def to(self, target: ToNode | ToCoordinator) -> Link | None:
        """The link to one broker; ``None`` where the cluster has no such broker."""
        link = self._links.get(target)
        node = self.nodes.get(target.node_id)
        if link is None and node is not None:
            link = self._links[target] = Link(target, node.host, node.port)
        return link if node is not None or (link is not None and link.state in ESTABLISHED_STATES) else None

    def any(self, now: Now) -> Link | None:
        """The least loaded link that is ready; else one to open, beside those that take long to answer."""
        ready = [link for link in self._links.values() if link.state is LinkState.READY and link.throttled_until <= now.mono]
        if ready:
            return min(ready, key=lambda link: len(link.in_flight))
        candidates = self._candidates()
        if any(link.state in OPENING_STATES and now.mono < link.opened_at + STAGGER for link in candidates):
            return None
        usable = [link for link in candidates if link.usable(now)]
        if not usable:
            return None
        fewest = min(link.failures for link in usable)
        usable = [link for link in usable if link.failures == fewest]
        return usable[int(self._random.random() * len(usable))]

    def resolving(self, host: str, port: int) -> list[Link]:
        """The links that wait for the addresses of a name."""
        return [
            link for link in self._links.values() if link.state is LinkState.RESOLVING and (link.host, link.port) == (host, port)
        ]

    def _candidates(self) -> list[Link]:
        """Links to the brokers that are known; to the bootstrap servers while none is, or none of them can be reached."""
        known = [link for node_id in self.nodes if (link := self.to(ToNode(node_id))) is not None]
        rebootstrap = self._config.metadata_recovery_strategy == "rebootstrap" and all(link.failures for link in known)
        if known and not rebootstrap:
            return known
        return known + [self._links.setdefault(server, Link(server, *server)) for server in self._config.bootstrap_servers]

    def _adopt(self, key: ToNode, node: Node) -> None:
        """The connection to a bootstrap server that turns out to be this broker is kept as the broker's own."""
        if key in self._links:
            return
        place = (node.host, node.port)
        for server, link in self._links.items():
            if isinstance(server, HostPort) and link.state is LinkState.READY and place in (server, link.addresses[0]):
                del self._links[server]
                link.key, link.host, link.port = key, node.host, node.port
                self._links[key] = link
                return

    # -- why none is of use -----------------------------------------------------------------------------------------------

    def failures(self) -> dict[str, str]:
        """Every address that was tried without success since it last answered -> why it failed, or what is still awaited."""
        failures: dict[str, str] = {}
        for link in self._links.values():
            failures.update(link.attempts)
            if link.state in OPENING_STATES:
                failures.setdefault(link.address, link.awaited)  # what went wrong the last time says more
        return failures

    @property
    def first_try_since(self) -> int | None:
        """Since when, at an address that was never tried before, an attempt is under way; ``None``: all have been tried."""
        tries = [link.opened_at for link in self._links.values() if link.state in OPENING_STATES and not link.failures]
        return max(tries, default=None)

    def failures_of(self, target: ToNode | ToCoordinator) -> Mapping[str, str]:
        """Why one broker cannot be reached, address by address; empty while it answers or was not tried."""
        link = self._links.get(target)
        return {} if link is None or link.answered else link.attempts

    def unreachable(self, who: str = "", targets: Iterable[ToNode | ToCoordinator] = (), /) -> OttlaError | None:
        """See ``effects.Unreachable``."""
        failures: dict[str, str] = {}
        for target in targets:
            failures.update(self.failures_of(target))
        cut_off = ConnectionFailedError(f"{who} could not be reached", failures, hint=_ELSEWHERE) if failures else None
        return self.connection_failure() or cut_off

    def refusal(self) -> AuthenticationError | None:
        """The login, or the TLS handshake, that was refused when a broker was last tried."""
        return next((link.refusal for link in self._links.values() if link.refusal is not None), None)

    def refused_everywhere(self) -> AuthenticationError | None:
        """A refusal, once every broker has been tried and none is of use: there is nothing to wait for."""
        refusal = self.refusal()
        if refusal is None or not all(link.failures and link.state not in OPENING_STATES for link in self._candidates()):
            return None
        return refusal

    def connection_failure(self) -> ConnectionFailedError | AuthenticationError | None:
        """An error that lists all that was tried, or ``None`` while some broker answers or nothing has failed yet."""
        if any(link.answered for link in self._links.values()):
            return None
        failures = self.failures()
        if not failures:
            return None
        refusal = self.refusal()
        if refusal is not None and all(link.failures for link in self._candidates()):
            return refusal
        return ConnectionFailedError(
            "no broker could be reached", failures, hint="check bootstrap_servers and that the brokers are up"
        )

    def not_sent(self, send: Send) -> OttlaError:
        """Why a request could not be sent in its time."""
        within = f"within {send.timeout / 1000:g} s"
        if isinstance(send.target, AnyNode):
            failure = self.connection_failure()
            return failure or OttlaTimeoutError(f"{send.api.name} could not be sent {within}: no broker was ready for it")
        link = self._links.get(send.target)
        if link is not None and link.refusal is not None:
            return link.refusal
        said = "; ".join(f"{address}: {reason}" for address, reason in link.attempts.items()) if link is not None else ""
        state = said or (link.state.value if link is not None else "unknown")
        return OttlaTimeoutError(f"{send.api.name} could not be sent to node {send.target.node_id} {within}: {state}")
