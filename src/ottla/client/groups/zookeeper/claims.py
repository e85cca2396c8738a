"""The owner nodes of a member: one for each partition that it reads.

Owns which owner nodes this member has or may have, and the operations that create and delete them. Must not know states, nor how
partitions are assigned. Invariants:

- Owner nodes are created in one multi that checks the member's own node: all or none, and none in another session.
- Only nodes of this session are deleted. After an operation with an unknown outcome the nodes are read first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.config import ConsumerConfig
from ottla.errors import KeeperCode, OttlaError, ProtocolError, ZooKeeperError
from ottla.types import Now, TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, first_error, has_code, is_missing
from ottla.zookeeper.multis import REQUEST_BYTES, request_bytes
from ottla.zookeeper.nodes import ConsumerThread, decode_owner, encode_owner
from ottla.zookeeper.operations import Check, Create, Delete, GetData, Multi, Write
from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)


class Holder(NamedTuple):
    """The owner of a partition that another member was assigned."""

    tp: TopicPartition
    owner: str
    """The consumer thread, as the node names it."""
    is_ephemeral: bool

    def __str__(self) -> str:
        return f"{self.tp} is owned by {self.owner}{'' if self.is_ephemeral else ', in a node that no session deletes'}"


class Claims:
    """See the module. ``session`` is only read: it tells which nodes are this session's.

    Of the two functions of each call, exactly one is called, or none after ``abandon``.
    """

    def __init__(self, config: ConsumerConfig, member_id: str, session: Session) -> None:
        self.asks = AskQueue(config.request_timeout_ms)
        self.owned: Mapping[TopicPartition, ConsumerThread] = {}
        """The partitions whose owner nodes this member has."""
        self.possible: frozenset[TopicPartition] = frozenset()
        """Partitions whose owner nodes this member may have, since it tried to create or to delete them."""
        self.blocked_by: dict[str, Holder] = {}
        """Path -> the other owner, since the latest conflict. Each of these nodes is watched."""
        self._fired: set[str] = set()
        """The watches that have fired since the owners of partitions are being read: their answers may arrive later."""
        self.member_path = paths.member(config.group_id or "", member_id)
        self._group_id = config.group_id or ""
        self._session = session
        self._chroot = "".join((config.zookeeper_connect or "").partition("/")[1:])

    def __repr__(self) -> str:
        return f"<Claims {len(self.owned)} owned, {len(self.possible)} possible>"

    def owner_path(self, tp: TopicPartition) -> str:
        """The node of a partition's owner."""
        return paths.owner(self._group_id, tp.topic, tp.partition)

    def on_fired(self, path: str) -> bool:
        """Note that a watch has fired; return whether it was the last one of ``blocked_by``."""
        self._fired.add(path)
        return self.blocked_by.pop(path, None) is not None and not self.blocked_by

    def forget(self) -> None:
        """Drop everything, since the session has ended: its nodes disappear."""
        self.asks.abandon()
        self.owned, self.possible, self.blocked_by = {}, frozenset(), {}

    def abandon(self) -> None:
        """Ignore the outcomes of operations in flight. What they may have created is still ``possible``."""
        self.asks.abandon()
        self.blocked_by = {}

    def advice(self) -> str | None:
        """What to do about an owner node of another that remains whatever its member does; ``None``: there is none."""
        kept = next((path for path, holder in self.blocked_by.items() if not holder.is_ephemeral), None)
        return None if kept is None else f"delete the node {kept}: no session deletes it"

    # -- claiming ---------------------------------------------------------------------------------------------------------

    def check_size(self, wanted: Mapping[TopicPartition, ConsumerThread]) -> None:
        """Raise ``OttlaError`` if these partitions fit into no request: a server would close the connection, again and again."""
        size = request_bytes(self._claim_of(wanted), self._chroot)
        if size > REQUEST_BYTES:
            text = f"claiming {len(wanted):,} partitions takes a request of {size:,} bytes"
            hint = "start more members, or subscribe to fewer topics"
            raise OttlaError(f"{text}, and ZooKeeper accepts 1 MB (jute.maxbuffer)", hint=hint)

    def _claim_of(self, wanted: Mapping[TopicPartition, ConsumerThread]) -> Multi:
        creates = [Create(self.owner_path(tp), encode_owner(thread), ephemeral=True) for tp, thread in wanted.items()]
        return Multi((Check(self.member_path), *creates))

    def claim(
        self,
        wanted: Mapping[TopicPartition, ConsumerThread],
        on_claimed: Callable[[Now], None],
        on_conflict: Callable[[Now], None],
        on_failure: Callable[[OttlaError, Now], None],
    ) -> None:
        """Create the owner nodes of these partitions, all or none. After a conflict ``blocked_by`` has the other owners."""
        self.blocked_by = {}
        before, self.possible = self.possible, self.possible | frozenset(wanted)
        self.asks.ensure(paths.owners(self._group_id))
        for topic in sorted({tp.topic for tp in wanted}):
            self.asks.ensure(paths.topic_owners(self._group_id, topic))

        def claimed(result: object, now: Now) -> None:
            del result
            self.owned = dict(wanted)
            on_claimed(now)

        def failed(error: OttlaError, now: Now) -> None:
            if isinstance(error, ZooKeeperError) and not error.outcome_unknown:
                # An earlier attempt may have been executed all the same, with an answer that was lost.
                self.possible = before
            if has_code(error, KeeperCode.NODEEXISTS):
                return self._find_owners(list(wanted), on_conflict, on_failure)
            return on_failure(error, now)

        self.asks.ask(self._claim_of(wanted), claimed, failed)

    def _find_owners(
        self,
        wanted: list[TopicPartition],
        on_conflict: Callable[[Now], None],
        on_failure: Callable[[OttlaError, Now], None],
    ) -> None:
        """Read and watch the owner nodes of all partitions, since more than the first may be owned by others."""
        by_path = {self.owner_path(tp): tp for tp in wanted}
        self._fired = set()

        def read(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return on_failure(error, now)
            self.possible -= frozenset(wanted)
            for (path, tp), outcome in zip(by_path.items(), outcomes, strict=True):
                if is_missing(outcome) or path in self._fired:
                    continue
                if outcome.stat.ephemeral_owner == self._session.session_id:
                    # Left over from an operation of this member whose outcome was unknown.
                    self.possible |= {tp}
                else:
                    self.blocked_by[path] = Holder(tp, _owner_text(outcome.data, path), bool(outcome.stat.ephemeral_owner))
            return on_conflict(now)

        self.asks.ask_all([GetData(path, watch=True) for path in by_path], read)

    # -- releasing --------------------------------------------------------------------------------------------------------

    def release(
        self, last: tuple[Write, ...], on_released: Callable[[Now], None], on_failure: Callable[[OttlaError, Now], None]
    ) -> None:
        """Delete all owner nodes of this member, and execute ``last`` in the same multi."""
        if self.possible == self.owned.keys():
            self._delete(frozenset(self.owned), last, on_released, on_failure)
        else:
            self._read_and_delete(last, on_released, on_failure)

    def _read_and_delete(
        self, last: tuple[Write, ...], on_released: Callable[[Now], None], on_failure: Callable[[OttlaError, Now], None]
    ) -> None:
        by_path = {self.owner_path(tp): tp for tp in sorted(self.possible | self.owned.keys())}
        if not by_path:
            return self._delete(frozenset(), last, on_released, on_failure)

        def read(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return on_failure(error, now)
            own = frozenset(
                tp
                for tp, outcome in zip(by_path.values(), outcomes, strict=True)
                if not is_missing(outcome) and outcome.stat.ephemeral_owner == self._session.session_id
            )
            return self._delete(own, last, on_released, on_failure)

        return self.asks.ask_all([GetData(path) for path in by_path], read)

    def _delete(
        self,
        partitions: frozenset[TopicPartition],
        last: tuple[Write, ...],
        on_released: Callable[[Now], None],
        on_failure: Callable[[OttlaError, Now], None],
    ) -> None:
        self.owned = {}
        self.possible = frozenset(partitions)
        deletes = [Delete(self.owner_path(tp)) for tp in sorted(partitions)]

        def released(result: object, now: Now) -> None:
            del result
            self.possible = frozenset()
            on_released(now)

        def failed(error: OttlaError, now: Now) -> None:
            if has_code(error, KeeperCode.NONODE) and isinstance(error, ZooKeeperError) and 0 < (error.index or 0) <= len(deletes):
                # Java's members delete owner nodes without a look at whose they are.
                _log.warning("the owner node %s was deleted by another client", error.path)
                return self._read_and_delete(last, on_released, on_failure)
            return on_failure(error, now)

        self.asks.ask(Multi((Check(self.member_path), *deletes, *last)), released, failed)


def _owner_text(data: bytes, path: str) -> str:
    try:
        return str(decode_owner(data, path))
    except ProtocolError:
        return f"{data[:60]!r} (malformed)"
