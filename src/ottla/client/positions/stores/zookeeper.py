"""The offsets of a group in ZooKeeper: one node for each partition, as Kafka 0.8 stores them.

Owns the operations of commits and look-ups, and which offset nodes exist. Must not know the order of commits, nor who waits for
them. Invariants:

- A commit is one multi, or several if one would be too large. Each checks the member's own node, and is only for partitions whose
  owner nodes the member has created. A session's operations are executed in order, and none after its end: so only the owner
  commits.
- Commits are written one after the other, since one whose offset nodes were not as expected is written again: by then a later one
  could be stored, or the partitions could belong to another member.
- A malformed offset is an error of its partition alone: its position must not be reset.

Leader epochs and metadata of a commit are not stored, since 0.8's nodes have no place for them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ottla.client.effects import Poll
from ottla.client.groups.membership import MemberIdentity
from ottla.client.groups.zookeeper.claims import Claims
from ottla.client.positions.stores.interface import (
    CommitDone,
    CommitOutcome,
    CommitRequest,
    Delay,
    FetchDone,
    FetchOutcome,
    stored,
)
from ottla.client.subscription import Mode, SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import CommitFailedError, ConfigError, ConnectionFailedError, KeeperCode, OttlaError, ZooKeeperError
from ottla.types import Now, OffsetAndMetadata, TopicPartition, short_list
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import MOST_SURPRISES, AskQueue, Outcome, first_error, has_code
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.multis import parts
from ottla.zookeeper.nodes import ConsumerThread, decode_offset, encode_offset
from ottla.zookeeper.operations import Check, Create, Exists, GetData, Multi, SetData, Write
from ottla.zookeeper.session import Session, SessionState

IN_ZOOKEEPER = " in ZooKeeper"


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that is written chunk by chunk."""

    request: CommitRequest
    done: CommitDone
    claim: Mapping[TopicPartition, ConsumerThread] | None
    """The partitions that the member owned when the commit began, and has to own until its end; ``None``: it need not own any."""
    chunks: deque[list[TopicPartition]]
    """What is still to be written, a multi each."""
    committed: frozenset[TopicPartition] = frozenset()
    surprises: int = 0

    @property
    def so_far(self) -> str:
        """What of it was committed."""
        before = self.request.before
        return stored(before + len(self.committed), before + len(self.request.offsets), IN_ZOOKEEPER)


class ZooKeeperOffsetStore:
    """See the module. ``claims`` are those of the group's member. Partitions of ``assign()`` have no owners, and are not fenced."""

    knows_members = False
    """See ``OffsetStore``."""

    def __init__(self, config: ConsumerConfig, session: Session, subscription: SubscriptionState, claims: Claims) -> None:
        self._config = config
        self._group_id = config.group_id or ""
        self._session = session
        self._subscription = subscription
        self._claims = claims
        self._asks = AskQueue(config.request_timeout_ms)
        self._current: _Commit | None = None
        """The commit that is being written."""
        self._waiting: deque[_Commit] = deque()
        self._refused: deque[Callable[[Now], None]] = deque()
        """Ends what needs no operation: look-ups of partitions that cannot exist, commits of what was given up."""
        self._existing: set[TopicPartition] = set()
        """Partitions that are known to have an offset node."""
        self._malformed = MalformedNodes("the partition is not read")

    def __repr__(self) -> str:
        return f"<ZooKeeperOffsetStore {self._group_id!r}>"

    def is_ready(self, now: Now) -> bool:
        """See ``OffsetStore``."""
        del now
        return self._session.state is SessionState.CONNECTED

    def may_commit(self, now: Now) -> bool:
        """See ``OffsetStore``. Without a lease another member may own the partitions."""
        return self._subscription.mode is Mode.MANUAL or self._session.has_lease(now)

    def is_about_topic(self, error: OttlaError) -> bool:
        """See ``OffsetStore``. ZooKeeper stores offsets of any topic."""
        del error
        return False

    def delay(self) -> Delay:
        """See ``OffsetStore``."""
        cut_off = None
        if self._session.state is not SessionState.CONNECTED:
            cut_off = ConnectionFailedError(
                "ZooKeeper could not be reached", {self._config.zookeeper_connect or "": self._session.state.value}
            )
        return Delay(cut_off, None, "ZooKeeper has not answered yet")

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """See ``OffsetStore``: while ZooKeeper does not answer, waiting is never pointless."""

    def poll(self, now: Now) -> Poll:
        """See ``OffsetStore``."""
        self._end_refused(now)
        return Poll(self._asks.take())

    # -- commits ----------------------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, done: CommitDone) -> CommitOutcome | None:
        """See ``OffsetStore``. Fails for partitions that this member does not own."""
        fenced = self._subscription.mode is not Mode.MANUAL
        foreign = sorted(request.offsets.keys() - self._claims.owned.keys()) if fenced else []
        if foreign:
            so_far = stored(request.before, request.before + len(request.offsets), IN_ZOOKEEPER)
            text, hint = f"{so_far}: this member of group {self._group_id!r} does not own {short_list(foreign, 5)}", None
            if self._subscription.mode is Mode.NONE:
                text = f"{so_far}: this consumer of group {self._group_id!r} has neither subscribed nor assigned partitions"
                hint = "assign() or subscribe() first: offsets in ZooKeeper are those of the owner of a partition"
            error = CommitFailedError(text, hint=hint)
            return CommitOutcome(error=error, retry=False)
        try:
            by_path = [(self._path(tp), tp) for tp in sorted(request.offsets)]
        except ConfigError as error:
            return CommitOutcome(error=error, retry=False)
        chunks = deque([tp for _, tp in part] for part in parts(by_path))
        commit = _Commit(request, done, self._claims.owned if fenced else None, chunks)
        if self._current is None:
            self._current = commit
            self._write_chunk(commit)
        else:
            self._waiting.append(commit)
        return None

    def _end(self, commit: _Commit, outcome: CommitOutcome, now: Now) -> None:
        """End the commit that is being written, and begin the next that the member may still write."""
        if commit is not self._current:
            return  # it has ended already, and its ``done`` has raised
        try:
            commit.done(outcome, now)
        finally:
            self._begin_next()
        self._end_refused(now)

    def _begin_next(self) -> None:
        self._current = None
        while self._waiting and self._current is None:
            following = self._waiting.popleft()
            if self._is_claimed(following):
                self._current = following
                self._write_chunk(following)
            else:
                self._refused.append(functools.partial(following.done, self._not_claimed(following)))

    def _end_refused(self, now: Now) -> None:
        while self._refused:
            self._refused.popleft()(now)

    def _is_claimed(self, commit: _Commit) -> bool:
        return commit.claim is None or commit.claim is self._claims.owned

    def _not_claimed(self, commit: _Commit) -> CommitOutcome:
        text = f"{commit.so_far}: this member of group {self._group_id!r} has given up the partitions"
        return CommitOutcome(commit.committed, CommitFailedError(text), retry=False)

    def _write_chunk(self, commit: _Commit) -> None:
        """Write the next chunk of a commit."""
        chunk = commit.chunks[0]
        # A check of each owner node as well would nearly double the time of a commit. The nodes of this session are deleted by this
        # member alone, before it gives its partitions up.
        checks: list[Write] = [Check(self._claims.member_path)] if commit.claim is not None else []
        offsets = {tp: encode_offset(commit.request.offsets[tp].offset) for tp in chunk}
        writes = [
            SetData(self._path(tp), data) if tp in self._existing else Create(self._path(tp), data) for tp, data in offsets.items()
        ]
        for topic in sorted({tp.topic for tp in chunk if tp not in self._existing}):
            parent = paths.topic_offsets(self._group_id, topic)
            for path in (*paths.parents(parent), parent):
                self._asks.ensure(path)

        def written(result: object, now: Now) -> None:
            del result
            self._existing.update(chunk)
            commit.committed |= frozenset(chunk)
            commit.chunks.popleft()
            if not commit.chunks:
                self._end(commit, CommitOutcome(commit.committed), now)
            elif self._is_claimed(commit):
                self._write_chunk(commit)
            else:
                self._end(commit, self._not_claimed(commit), now)

        def failed(error: OttlaError, now: Now) -> None:
            self._on_chunk_failed(commit, chunk, len(checks), error, now)

        self._asks.ask(Multi((*checks, *writes)), written, failed)

    def _on_chunk_failed(self, commit: _Commit, chunk: list[TopicPartition], checks: int, error: OttlaError, now: Now) -> None:
        """If the member owns the partitions, only the existence of an offset node was not as expected: look, and write again."""
        unexpected = has_code(error, KeeperCode.NONODE, KeeperCode.NODEEXISTS)
        if isinstance(error, ZooKeeperError) and unexpected and error.index is not None and error.index < checks:
            text = f"{commit.so_far}: {error.path} is gone, so another member may own the partitions"
            self._end(commit, CommitOutcome(commit.committed, CommitFailedError(text, cause=error), retry=False), now)
        elif unexpected and commit.surprises < MOST_SURPRISES:
            commit.surprises += 1
            looks = [Exists(self._path(tp)) for tp in chunk]
            self._asks.ask_all(looks, lambda outcomes, now: self._on_looked(commit, chunk, outcomes, now))
        else:
            self._end(commit, CommitOutcome(commit.committed, error), now)

    def _on_looked(self, commit: _Commit, chunk: list[TopicPartition], outcomes: list[Outcome], now: Now) -> None:
        error = first_error(outcomes)
        if error is not None:
            return self._end(commit, CommitOutcome(commit.committed, error), now)
        if not self._is_claimed(commit):
            return self._end(commit, self._not_claimed(commit), now)
        for tp, outcome in zip(chunk, outcomes, strict=True):
            if outcome is None:
                self._existing.discard(tp)
            else:
                self._existing.add(tp)
        return self._write_chunk(commit)

    def fetch(self, partitions: frozenset[TopicPartition], reader: MemberIdentity, done: FetchDone) -> None:
        """See ``OffsetStore``."""
        del reader
        try:
            by_path = {self._path(tp): tp for tp in sorted(partitions)}
        except ConfigError as error:
            self._refused.append(functools.partial(done, FetchOutcome({}, error, retry=False)))
            return

        def read(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return done(FetchOutcome({}, error), now)
            found: dict[TopicPartition, OffsetAndMetadata | None] = {}
            for (path, tp), outcome in zip(by_path.items(), outcomes, strict=True):
                offset = self._malformed.decoded(path, outcome, decode_offset)
                if not isinstance(outcome, OttlaError):
                    self._existing.add(tp)
                if path in self._malformed.errors:
                    error = error or self._malformed.errors[path]
                else:
                    found[tp] = None if offset is None else OffsetAndMetadata(offset)
            return done(FetchOutcome(found, error, retry=False), now)

        self._asks.ask_all([GetData(path) for path in by_path], read)

    def _path(self, tp: TopicPartition) -> str:
        return paths.offset(self._group_id, tp.topic, tp.partition)
