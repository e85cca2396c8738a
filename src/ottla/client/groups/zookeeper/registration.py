"""The node of a member below ``ids``.

Owns its creation, and what is written in it. Must not know states, nor the other nodes of the group. Invariant: the node belongs to
the present session; while an earlier session still has it, nothing is overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import KeeperCode, OttlaError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, has_code, is_missing
from ottla.zookeeper.nodes import BLACK_LIST, STATIC, WHITE_LIST, MemberRegistration
from ottla.zookeeper.operations import Create, Delete, Exists, Multi, SetData, Stat
from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)


def registration_of(subscription: SubscriptionState, now: Now) -> MemberRegistration:
    """What a member with this subscription writes into its node."""
    pattern, streams = subscription.pattern, subscription.streams
    if pattern is None:
        return MemberRegistration({topic: streams.get(topic, 1) for topic in sorted(subscription.topics)}, STATIC, now.wall)
    kind = BLACK_LIST if subscription.is_black_list else WHITE_LIST
    return MemberRegistration({pattern: streams.get(pattern, 1)}, kind, now.wall)


class Registrar:
    """See the module. ``on_taken`` is called if an earlier session of the same member id still has the node, which is watched."""

    def __init__(
        self,
        config: ConsumerConfig,
        member_id: str,
        session: Session,
        on_registered: Callable[[Now], None],
        on_taken: Callable[[Now], None],
        on_failure: Callable[[OttlaError, Now], None],
    ) -> None:
        self.asks = AskQueue(config.request_timeout_ms)
        self.registered: MemberRegistration | None = None
        """What the node contains; ``None``: it is not there."""
        self.path = paths.member(config.group_id or "", member_id)
        self._group_id = config.group_id or ""
        self._session = session
        self._on_registered, self._on_taken, self._on_failure = on_registered, on_taken, on_failure

    def __repr__(self) -> str:
        return f"<Registrar {self.path} {self.registered}>"

    def is_outdated(self, registration: MemberRegistration) -> bool:
        """Whether the node contains another subscription."""
        written = self.registered
        return written is not None and (written.subscription, written.pattern) != (registration.subscription, registration.pattern)

    def forget(self) -> None:
        """Note that the node is gone."""
        self.asks.abandon()
        self.registered = None

    def register(self, registration: MemberRegistration) -> None:
        """Create the node; if it is there with another subscription, delete and create it, so that the other members notice."""
        data = registration.encode()

        def done(result: object, now: Now) -> None:
            del result
            self.registered = registration
            self._on_registered(now)

        def failed(error: OttlaError, now: Now) -> None:
            self.registered = None
            if has_code(error, KeeperCode.NODEEXISTS):
                return self._look_at_existing(registration, data, now)
            if is_missing(error) and replaces:
                return self.register(registration)
            return self._on_failure(error, now)

        replaces = self.registered is not None
        if replaces:
            self.asks.ask(Multi((Delete(self.path), Create(self.path, data, ephemeral=True))), done, failed)
            return
        for parent in (*paths.parents(self.path), paths.owners(self._group_id), paths.offsets(self._group_id)):
            # That a node exists already is as good, and any other error is one of the operation that follows, too.
            self.asks.ask(Create(parent), lambda result, now: None, lambda error, now: None)
        self.asks.ask(Create(self.path, data, ephemeral=True), done, failed)

    def _look_at_existing(self, registration: MemberRegistration, data: bytes, now: Now) -> None:
        """The node exists: created by this session with an unknown outcome, or left by an earlier session."""
        del now

        def looked(stat: Stat | None, now: Now) -> None:
            if stat is None:
                return self.register(registration)
            if stat.ephemeral_owner != self._session.session_id:
                return self._on_taken(now)
            return self.asks.ask(SetData(self.path, data), lambda result, now: written(now), self._on_failure)

        def written(now: Now) -> None:
            self.registered = registration
            self._on_registered(now)

        self.asks.ask(Exists(self.path, watch=True), looked, self._on_failure)
