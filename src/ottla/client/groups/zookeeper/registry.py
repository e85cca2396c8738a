"""Reading a ZooKeeper group: its members, and the partitions of the topics that this member subscribes to.

Owns one reading at a time, with the watches that it sets, and the reports of malformed nodes. Must not know states or owners.
Invariants: what is read is watched before it is read, so no change is missed; a node that vanishes between the list and the
reading counts as absent; a malformed node is logged once with its path, and counts as absent; a persistent one is logged
as well, and counts as a member, as for Java's members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ottla.config import ConsumerConfig
from ottla.errors import ConfigError, KeeperCode, OttlaError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import MOST_SURPRISES, AskQueue, Outcome, first_error, is_missing
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.nodes import STATIC, ConsumerThread, MemberRegistration, decode_topic
from ottla.zookeeper.operations import Children, Exists, GetChildren, GetData, Operation, Sync
from ottla.zookeeper.topic_filter import TopicFilter

_log = logging.getLogger(__name__)


class GroupView(NamedTuple):
    """The group as it was read."""

    epoch: int
    """The number of changes of the members since the group exists (``cversion`` of ``ids``)."""
    members: Mapping[str, MemberRegistration]
    """Each member's registration; that of this member too, if its node is there."""
    topics: frozenset[str]
    """The topics that this member subscribes to, as far as they exist."""
    threads: Mapping[str, list[ConsumerThread]]
    """The threads of all members that read each of the topics that matter."""
    partitions: Mapping[str, tuple[int, ...]]
    """The partitions of these topics."""

    def equals(self, other: GroupView) -> bool:
        """Whether nothing has happened in between: members that left and came back have other nodes, so the epoch differs."""
        return (self.epoch, self.partitions) == (other.epoch, other.partitions)


class GroupReader:
    """See the module. ``on_read`` gets the view; ``on_unreadable`` why there can be none, and ``on_failure`` any other error.

    ``reads_all_topics``: the assignor needs the topics of all members, not just those of this one.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        member_id: str,
        on_read: Callable[[GroupView, Now], None],
        on_unreadable: Callable[[ConfigError, Now], None],
        on_failure: Callable[[OttlaError, Now], None],
        *,
        reads_all_topics: bool,
    ) -> None:
        self.asks = AskQueue(config.request_timeout_ms)
        self.watched: frozenset[str] = frozenset()
        """The paths whose changes concern the member, since the last reading began."""
        self._group_id = config.group_id or ""
        self._exclude_internal = config.exclude_internal_topics
        self._member_id = member_id
        self._on_read, self._on_unreadable, self._on_failure = on_read, on_unreadable, on_failure
        self._reads_all_topics = reads_all_topics
        self._malformed = MalformedNodes()
        self._persistent: frozenset[str] = frozenset()
        """The members' nodes of the last reading that belong to no session."""
        self._surprises = 0
        """How often topics were created and deleted since the reading began."""

    def begin(self, registration: MemberRegistration) -> None:
        """Read the group for a member that subscribes to this."""
        self._surprises = 0
        self._list(registration)

    def _list(self, registration: MemberRegistration) -> None:
        self.asks.abandon()
        ids = paths.ids(self._group_id)
        self.watched = frozenset({ids})
        operations: list[Operation[object]] = [Sync(ids), GetChildren(ids, watch=True)]
        if registration.pattern != STATIC:
            self.watched |= {paths.TOPICS}
        if registration.pattern != STATIC or self._reads_all_topics:
            operations.append(GetChildren(paths.TOPICS, watch=registration.pattern != STATIC))

        def listed(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes[:2]) or first_error(outcomes[2:], KeeperCode.NONODE)
            if error is not None:
                return self._on_failure(error, now)
            topics = () if len(outcomes) == 2 or is_missing(outcomes[2]) else outcomes[2].names
            return self._read_members(outcomes[1], topics, registration, now)

        self.asks.ask_all(operations, listed)

    def _read_members(self, ids: Children, topics: Collection[str], registration: MemberRegistration, now: Now) -> None:
        members = {self._member_id: registration} if self._member_id in ids.names else {}
        by_path = {paths.member(self._group_id, name): name for name in ids.names if name != self._member_id}
        epoch = ids.stat.cversion
        if not by_path:
            return self._read_topics(epoch, members, topics, registration, now)

        def read(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return self._on_failure(error, now)
            persistent = set()
            for (path, name), outcome in zip(by_path.items(), outcomes, strict=True):
                member = self._malformed.decoded(path, outcome, MemberRegistration.decode)
                if member is not None:
                    members[name] = member
                    if not outcome.stat.ephemeral_owner:
                        persistent.add(path)
            self._note_persistent(frozenset(persistent))
            return self._read_topics(epoch, members, topics, registration, now)

        return self.asks.ask_all([GetData(path) for path in by_path], read)

    def _note_persistent(self, found: frozenset[str]) -> None:
        """Log the nodes that are new among those that remain without a process."""
        for path in sorted(found - self._persistent):
            what_follows = "no process stands behind it, so nothing reads its partitions; delete it"
            _log.warning("the node %s of ZooKeeper is persistent: %s", path, what_follows)
        self._persistent = found

    def _read_topics(
        self,
        epoch: int,
        members: Mapping[str, MemberRegistration],
        topics: Collection[str],
        registration: MemberRegistration,
        now: Now,
    ) -> None:
        try:
            own = frozenset(self._streams(self._member_id, registration, topics))
            only = None if self._reads_all_topics else own
            threads = self._threads(members, topics if only is None else only, only)
            by_path = {paths.topic(name): name for name in sorted(threads.keys() | own)}
        except ConfigError as error:
            return self._on_unreadable(error, now)
        self.watched |= by_path.keys()
        if not by_path:
            return self._on_read(GroupView(epoch, members, own, threads, {}), now)

        def read(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return self._on_failure(error, now)
            partitions: dict[str, tuple[int, ...]] = {}
            for (path, name), outcome in zip(by_path.items(), outcomes, strict=True):
                numbers = self._malformed.decoded(path, outcome, decode_topic)
                if numbers is not None:
                    partitions[name] = numbers
            view = GroupView(epoch, members, own & partitions.keys(), threads, partitions)
            missing = {path: outcome for path, outcome in zip(by_path, outcomes, strict=True) if is_missing(outcome)}
            return self._await_missing(missing, view, registration, now)

        return self.asks.ask_all([GetData(path, watch=True) for path in by_path], read)

    def _await_missing(
        self, missing: Mapping[str, OttlaError], view: GroupView, registration: MemberRegistration, now: Now
    ) -> None:
        """Watch the creation of topics that do not exist; if one was created meanwhile, read again; later if that goes on."""
        if not missing:
            return self._on_read(view, now)

        def looked(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes)
            if error is not None:
                return self._on_failure(error, now)
            if all(outcome is None for outcome in outcomes):
                return self._on_read(view, now)
            self._surprises += 1
            if self._surprises > MOST_SURPRISES:
                return self._on_failure(next(iter(missing.values())), now)
            return self._list(registration)

        return self.asks.ask_all([Exists(path, watch=True) for path in missing], looked)

    def _threads(
        self, members: Mapping[str, MemberRegistration], topics: Collection[str], only: frozenset[str] | None
    ) -> dict[str, list[ConsumerThread]]:
        """The threads of all members for each topic that one of them reads; with ``only`` just for these."""
        threads: dict[str, list[ConsumerThread]] = {}
        for member_id, registration in members.items():
            # The same objects for all topics: a pattern may match thousands.
            most = max(registration.subscription.values(), default=0)
            all_threads = [ConsumerThread(member_id, number) for number in range(most)]
            for topic, count in self._streams(member_id, registration, topics).items():
                # No member can read a topic whose name is none, which another client may have registered.
                if topic in only if only is not None else paths.is_name(topic):
                    threads.setdefault(topic, []).extend(all_threads[:count])
        return threads

    def _streams(self, member_id: str, registration: MemberRegistration, topics: Collection[str]) -> Mapping[str, int]:
        """The number of streams of each topic that a member reads. A pattern is matched with ``topics``.

        Raises ``ConfigError`` for a pattern that Java reads and ``re`` does not, or not in the same way.
        """
        if registration.pattern == STATIC:
            return registration.subscription
        ((regex, count),) = registration.subscription.items()
        try:
            topic_filter = TopicFilter(regex, registration.pattern)
        except ConfigError as error:
            raise ConfigError(f"the pattern of member {member_id}: {error}", cause=error) from error
        return {topic: count for topic in topics if topic_filter.allows(topic, self._exclude_internal)}
