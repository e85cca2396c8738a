"""The node of a member below ``ids``.

Owns its creation, what is written in it, and whose it is. Must not know states, nor the other nodes of the group. Invariant: a node
of another session is neither overwritten nor deleted, be it that of an earlier process or of a second member with the same id; none
is created while the group has members of the central coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import KeeperCode, OttlaError, ProtocolError, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import MOST_SURPRISES, AskQueue, has_code, is_missing
from ottla.zookeeper.nodes import BLACK_LIST, STATIC, WHITE_LIST, GenerationNode, MemberRegistration
from ottla.zookeeper.operations import Check, Create, Delete, Exists, GetData, Multi, Node, Stat, Write
from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

_SESSION_HINT = "give each member its own consumer.id (or wait until the session of the earlier process has ended)"
_CENTRAL = "the central coordinator coordinates group {!r}, which has members there"
_CENTRAL_HINT = "use group_protocol='central' for this consumer, too, another group id, or close the group's other consumers first"


def registration_of(subscription: SubscriptionState, now: Now) -> MemberRegistration:
    """What a member with this subscription writes into its node."""
    pattern, streams = subscription.pattern, subscription.streams
    if pattern is None:
        return MemberRegistration({topic: streams.get(topic, 1) for topic in sorted(subscription.topics)}, STATIC, now.wall)
    kind = BLACK_LIST if subscription.is_black_list else WHITE_LIST
    return MemberRegistration({pattern: streams.get(pattern, 1)}, kind, now.wall)


class Registrar:
    """See the module. ``on_taken`` is called if another session has the node of this member id, which is watched, or if the group
    has members of the central coordinator; ``taken_by`` says what it is."""

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
        """What the node contains, as far as an outcome has told; ``None``: nothing."""
        self.may_exist = False
        """Whether a node of this session may exist, since ZooKeeper was asked to create it."""
        self.taken_by = "", ""
        """What the member has to wait for, and a hint for the user."""
        self._creating = False
        """Whether the outcome of a creation is unknown."""
        self._surprises = 0
        """How often the node was not as expected since ``register`` was called."""
        self.path = paths.member(config.group_id or "", member_id)
        self._group_id = config.group_id or ""
        self._generation = paths.generation(self._group_id)
        self._connect = config.zookeeper_connect or ""
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
        self.registered, self.may_exist, self._creating = None, False, False

    def on_session_ended(self) -> None:
        """Note that the node has disappeared with the session, unless its creation is still to come.

        1. The connection breaks, and before the client knows, it hands over the creation. 2. kazoo queues it. 3. The session
        expires, and kazoo sends the creation in the next one.
        """
        self.asks.abandon()
        self.registered, self.may_exist = None, self._creating

    def register(self, registration: MemberRegistration) -> None:
        """Create the node; if it is there with another subscription, delete and create it, so that the other members notice."""
        self._surprises = 0
        self._write(registration)

    def _write(self, registration: MemberRegistration) -> None:
        if self.registered is not None:
            return self._look(registration)
        self.may_exist = self._creating = True
        parents: list[OttlaError] = []

        def note_parent(error: OttlaError, now: Now) -> None:
            if not has_code(error, KeeperCode.NODEEXISTS):
                parents.append(error)

        for parent in (*paths.parents(self.path), paths.owners(self._group_id), paths.offsets(self._group_id)):
            # That a node exists already is as good, and any other error is one of the operation that follows, too.
            self.asks.ask(Create(parent), lambda result, now: None, note_parent)

        def create(*no_members: Write) -> None:
            own = Create(self.path, registration.encode(), ephemeral=True)
            self.asks.ask(Multi((own, *no_members)), lambda result, now: self._on_done(registration, now), failed)

        def looked(node: Node, now: Now) -> None:
            if _has_central_members(node.data, self._generation):
                self._creating = self.may_exist = False
                self._give_way(_CENTRAL.format(self._group_id), _CENTRAL_HINT, now)
            else:
                create(Check(self._generation, node.stat.version))

        def failed(error: OttlaError, now: Now) -> None:
            self._creating = error.retriable
            if has_code(error, KeeperCode.NODEEXISTS) and error.path == self._generation:
                self.asks.ask(GetData(self._generation), looked, failed)
            elif has_code(error, KeeperCode.NODEEXISTS):
                self._look(registration)
            elif has_code(error, KeeperCode.BADVERSION) or (is_missing(error) and error.path == self._generation):
                self._write_again(registration, error, now)  # there is another generation, or none any more
            else:
                self._on_failure(self._cause(parents[0]) if parents and is_missing(error) else error, now)

        return create(Create(self._generation), Delete(self._generation))  # fails if the group is a central one

    def _cause(self, error: OttlaError) -> OttlaError:
        """The error of a parent that could not be created; the topmost one is below the chroot."""
        return paths.missing_root(self._connect) if is_missing(error) and error.path == paths.CONSUMERS else error

    def prepare_deletion(
        self, on_looked: Callable[[tuple[Write, ...], Now], None], on_failure: Callable[[OttlaError, Now], None]
    ) -> None:
        """Pass on the deletion of the node; none if it is not that of this session. Its creation may still be in flight.

        Without the look: 1. A second member with the same id asks for the creation of its node, and gets no answer. 2. It leaves,
        and deletes the node of the first, which loses its partitions.
        """

        def looked(stat: Stat | None, now: Now) -> None:
            on_looked((Delete(self.path, stat.version),) if stat is not None and self._is_own(stat) else (), now)

        self.asks.ask(Exists(self.path), looked, on_failure)

    def _is_own(self, stat: Stat) -> bool:
        return stat.ephemeral_owner == self._session.session_id

    def _look(self, registration: MemberRegistration) -> None:
        """Write the node that exists, unless it belongs to another session."""

        def looked(stat: Stat | None, now: Now) -> None:
            if stat is not None and self._is_own(stat):
                # Perhaps created with an unknown outcome, and another subscription, which the other members may have read.
                return self._replace(registration)
            self.registered = None
            if stat is None:
                return self._write_again(registration, ZooKeeperError(KeeperCode.NONODE, self.path), now)
            self.may_exist = False
            return self._give_way(f"{self.path} belongs to another session", _SESSION_HINT, now)

        self.asks.ask(Exists(self.path, watch=True), looked, self._on_failure)

    def _give_way(self, obstacle: str, hint: str, now: Now) -> None:
        self.taken_by = obstacle, hint
        self._on_taken(now)

    def _replace(self, registration: MemberRegistration) -> None:
        def failed(error: OttlaError, now: Now) -> None:
            self.registered, self._creating = None, error.retriable
            if is_missing(error):
                self._write_again(registration, error, now)
            else:
                self._on_failure(error, now)

        self._creating = True
        operations = Delete(self.path), Create(self.path, registration.encode(), ephemeral=True)
        self.asks.ask(Multi(operations), lambda result, now: self._on_done(registration, now), failed)

    def _write_again(self, registration: MemberRegistration, error: OttlaError, now: Now) -> None:
        """Write the node although it was not as expected, since another client has changed it; later if that goes on."""
        self._surprises += 1
        if self._surprises > MOST_SURPRISES:
            self._on_failure(error, now)
        else:
            self._write(registration)

    def _on_done(self, registration: MemberRegistration, now: Now) -> None:
        self.registered, self._creating = registration, False
        self._on_registered(now)


def _has_central_members(data: bytes, path: str) -> bool:
    """Whether a group has members of the central coordinator.

    Its first generation with members is written by a multi that fails while there are members here, and this member's node by one
    that fails if there is another generation by then. A generation that cannot be understood may have members.
    """
    try:
        return GenerationNode.decode(data, path).members > 0
    except ProtocolError:
        return True
