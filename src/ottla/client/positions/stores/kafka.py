"""The offsets of a group in Kafka: OffsetCommit and OffsetFetch at the group's coordinator.

Owns the two requests and the reactions to their errors. Must not know the order of commits, nor who waits for them. Invariants: no
request is created while the coordinator is unknown; a topic that was deleted and recreated since its records were read is never
committed to.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterable, Mapping

from ottla.client.cluster.coordinator import COORDINATOR, CoordinatorManager
from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.client.effects import AnySend, Poll, Send, ToCoordinator, Unreachable
from ottla.client.groups.membership import MemberIdentity, Membership
from ottla.client.positions.stores.interface import CommitDone, CommitOutcome, CommitRequest, Delay, FetchDone, FetchOutcome
from ottla.config import ConsumerConfig
from ottla.errors import (
    BrokerError,
    OttlaError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    broker_error,
)
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import (
    offset_commit_request,
    offset_commit_response,
    offset_fetch_request,
    offset_fetch_response,
)
from ottla.types import Now, OffsetAndMetadata, TopicPartition


class CommitReaction(enum.Enum):
    """The reaction to an error code."""

    RETRY = "retry after the back-off"
    FIND_COORDINATOR = "the group has another coordinator: find it, then retry"
    MEMBERSHIP = "the identity was refused: the membership decides"
    RENEW_IDENTITY = "the member's identity has changed: retry with the current one"
    RETRY_UNLESS_REVOKING = "retry after the back-off, unless a revocation waits: a deleted topic must not delay it"


HAS_MEMBERS = "the group has members: a consumer that assigns partitions by hand needs a group_id of its own"

_COMMIT_REACTIONS: Mapping[int, CommitReaction] = {
    ErrorCode.unknown_topic_or_partition: CommitReaction.RETRY_UNLESS_REVOKING,
    ErrorCode.request_timed_out: CommitReaction.FIND_COORDINATOR,
    ErrorCode.coordinator_load_in_progress: CommitReaction.RETRY,
    ErrorCode.coordinator_not_available: CommitReaction.FIND_COORDINATOR,
    ErrorCode.not_coordinator: CommitReaction.FIND_COORDINATOR,
    ErrorCode.illegal_generation: CommitReaction.MEMBERSHIP,
    ErrorCode.unknown_member_id: CommitReaction.MEMBERSHIP,
    ErrorCode.rebalance_in_progress: CommitReaction.MEMBERSHIP,
    ErrorCode.fenced_instance_id: CommitReaction.MEMBERSHIP,
    ErrorCode.unknown_topic_id: CommitReaction.RETRY_UNLESS_REVOKING,
    ErrorCode.fenced_member_epoch: CommitReaction.MEMBERSHIP,
    ErrorCode.stale_member_epoch: CommitReaction.MEMBERSHIP,
}
_FETCH_REACTIONS: Mapping[int, CommitReaction] = {
    ErrorCode.unknown_topic_or_partition: CommitReaction.RETRY,
    ErrorCode.request_timed_out: CommitReaction.FIND_COORDINATOR,
    ErrorCode.coordinator_load_in_progress: CommitReaction.RETRY,
    ErrorCode.coordinator_not_available: CommitReaction.FIND_COORDINATOR,
    ErrorCode.not_coordinator: CommitReaction.FIND_COORDINATOR,
    ErrorCode.unknown_member_id: CommitReaction.RENEW_IDENTITY,
    ErrorCode.unstable_offset_commit: CommitReaction.RETRY,
    ErrorCode.unknown_topic_id: CommitReaction.RETRY,
    ErrorCode.stale_member_epoch: CommitReaction.RENEW_IDENTITY,
}
"""Error codes of OffsetCommit and OffsetFetch -> reaction. The caller gets the error of any other code."""


class KafkaOffsetStore:
    """See the module. ``commits_allowed`` returns whether the member may commit now.

    ``knows_members``: whether the coordinator knows the members of the group, by their generation or epoch.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: CoordinatorManager,
        membership: Membership,
        metadata: MetadataManager,
        unreachable: Unreachable,
        commits_allowed: Callable[[Now], bool] = lambda now: True,
        *,
        knows_members: bool = True,
    ) -> None:
        self.may_commit = commits_allowed
        self.knows_members = knows_members
        self._config = config
        self._coordinator = coordinator
        self._membership = membership
        self._metadata = metadata
        self._unreachable = unreachable
        self._unsent: list[AnySend] = []
        """Requests that were created and not returned yet. If the next step of a poll raises, the next poll returns them."""

    def __repr__(self) -> str:
        return f"<KafkaOffsetStore {len(self._unsent)} unsent>"

    def is_ready(self, now: Now) -> bool:
        """See ``OffsetStore``. If the coordinator is unknown, this starts a look-up."""
        del now
        return self._coordinator.target() is not None

    def is_about_topic(self, error: OttlaError) -> bool:
        """See ``OffsetStore``."""
        return isinstance(error, BrokerError) and _COMMIT_REACTIONS.get(error.code) is CommitReaction.RETRY_UNLESS_REVOKING

    def delay(self) -> Delay:
        """See ``OffsetStore``."""
        known, named = self._coordinator.node_id, self._coordinator.named
        cut_off = self._unreachable(COORDINATOR, () if named is None else (ToCoordinator(named),))
        silent = "no answer" if known is None else f"node {known} has not answered yet"
        return Delay(cut_off, self._coordinator.failure, silent)

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """See ``OffsetStore``."""
        self._coordinator.on_fatal(observer)

    def poll(self, now: Now) -> Poll:
        """See ``OffsetStore``."""
        del now
        sends, self._unsent = tuple(self._unsent), []
        return Poll(sends)

    # -- commits ----------------------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, done: CommitDone) -> CommitOutcome | None:
        """See ``OffsetStore``."""
        recreated = self._recreated(request, request.offsets)
        if recreated == request.offsets.keys():
            return CommitOutcome(error=UnknownTopicIdError(self._description(min(recreated), recreated)), retry=False)
        target = self._coordinator.target()
        assert target is not None, "is_ready() was false"
        send = Send(
            rpcs.OFFSET_COMMIT,
            self._commit_message(request, recreated),
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_committed(request, recreated, response, done, now),
            lambda error, now: self._not_answered(error, lambda: done(CommitOutcome(error=error), now), now),
        )
        self._unsent.append(send)
        return None

    def _commit_message(
        self, request: CommitRequest, recreated: frozenset[TopicPartition]
    ) -> offset_commit_request.OffsetCommitRequest:
        topics: dict[str, list[offset_commit_request.OffsetCommitRequestPartition]] = {}
        # The id in which the positions were read, not that of the metadata: the topic may have been deleted and recreated since.
        ids = {tp.topic: topic_id for tp, topic_id in request.topic_ids.items() if tp not in recreated}
        for tp, position in request.offsets.items():
            if tp in recreated:
                continue
            epoch = -1 if position.leader_epoch is None else position.leader_epoch
            topics.setdefault(tp.topic, []).append(
                offset_commit_request.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=position.offset,
                    committed_leader_epoch=epoch,
                    committed_metadata=position.metadata,
                )
            )
        return offset_commit_request.OffsetCommitRequest(
            group_id=self._config.group_id or "",
            generation_id_or_member_epoch=request.identity.generation,
            member_id=request.identity.member_id,
            group_instance_id=request.identity.instance_id,
            topics=tuple(
                offset_commit_request.OffsetCommitRequestTopic(
                    name=topic, topic_id=ids.get(topic) or self._metadata.current.topic_id(topic), partitions=tuple(items)
                )
                for topic, items in topics.items()
            ),
        )

    def _recreated(self, request: CommitRequest, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Partitions whose topic was deleted and recreated since they were read.

        1. The topic is deleted, so the member has to revoke its partitions, and commits their positions first. 2. The topic is
        created again. 3. The request would name the new topic: its records before the end of the old log would never be read.
        """
        current = self._metadata.current
        ids = ((tp, request.topic_ids.get(tp), current.topic_id(tp.topic)) for tp in partitions)
        return frozenset(tp for tp, read, now in ids if read is not None and now is not None and read != now)

    def _description(self, tp: TopicPartition, recreated: frozenset[TopicPartition]) -> str:
        suffix = ", which was deleted and recreated" if tp in recreated else ""
        return f"committing {tp} for group {self._config.group_id!r}{suffix}"

    def _on_committed(
        self,
        request: CommitRequest,
        recreated: frozenset[TopicPartition],
        response: offset_commit_response.OffsetCommitResponse,
        done: CommitDone,
        now: Now,
    ) -> None:
        """End the commit, also if a reaction to its errors raises: otherwise it would be in flight for ever."""
        committed: frozenset[TopicPartition] = frozenset()
        try:
            codes = self._codes(request, response)
            committed = frozenset(tp for tp, code in codes.items() if not code)
            failed = {tp: code for tp, code in codes.items() if code} | dict.fromkeys(recreated, ErrorCode.unknown_topic_id)
            outcome = self._commit_outcome(request, recreated, committed, failed, now)
        except Exception as bug:
            done(CommitOutcome(committed, self._interrupted(f"a commit of group {self._config.group_id!r}", bug), retry=False), now)
            raise
        done(outcome, now)

    def _codes(self, request: CommitRequest, response: offset_commit_response.OffsetCommitResponse) -> dict[TopicPartition, int]:
        names = {topic_id: tp.topic for tp, topic_id in request.topic_ids.items()}
        current = self._metadata.current
        return {
            TopicPartition(topic.name or _name_of(topic.topic_id, names, current), part.partition_index): int(part.error_code)
            for topic in response.topics
            for part in topic.partitions
        }

    def _commit_outcome(
        self,
        request: CommitRequest,
        recreated: frozenset[TopicPartition],
        committed: frozenset[TopicPartition],
        failed: Mapping[TopicPartition, int],
        now: Now,
    ) -> CommitOutcome:
        """Return the outcome: the first error decides; missing authorizations are reported together."""
        denied = [tp.topic for tp, code in failed.items() if code == ErrorCode.topic_authorization_failed]
        for tp, code in failed.items():
            if code != ErrorCode.topic_authorization_failed:
                return self._commit_refused(request, code, self._description(tp, recreated), now)._replace(committed=committed)
        if denied:
            error = TopicAuthorizationFailedError(f"committing offsets of {', '.join(sorted(set(denied)))}")
            return CommitOutcome(committed, error, retry=False)
        return CommitOutcome(committed)

    def _commit_refused(self, request: CommitRequest, code: int, what: str, now: Now) -> CommitOutcome:
        reaction = _COMMIT_REACTIONS.get(code)
        if reaction is CommitReaction.MEMBERSHIP:
            error = self._membership.commit_refused(code, request.identity, now)
            if request.identity.generation < 0 and code == ErrorCode.unknown_member_id:
                error.hint = HAS_MEMBERS
            return CommitOutcome(error=error)
        if reaction is None or (reaction is CommitReaction.RETRY_UNLESS_REVOKING and request.revoking):
            return CommitOutcome(error=broker_error(code, what), retry=False)
        return CommitOutcome(error=self._react(reaction, broker_error(code, what)))

    # -- look-ups ---------------------------------------------------------------------------------------------------------

    def fetch(self, partitions: frozenset[TopicPartition], reader: MemberIdentity, done: FetchDone) -> None:
        """See ``OffsetStore``."""
        target = self._coordinator.target()
        assert target is not None, "is_ready() was false"
        message = self._fetch_message(partitions, reader)
        # The metadata may not have a topic any more when the response names it by its id alone.
        topics = message.groups[0].topics or ()
        names = {topic.topic_id: topic.name for topic in topics if topic.topic_id is not None}
        send = Send(
            rpcs.OFFSET_FETCH,
            message,
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_fetched(partitions, names, response, done, now),
            lambda error, now: self._not_answered(error, lambda: done(FetchOutcome({}, error), now), now),
        )
        self._unsent.append(send)

    def _fetch_message(
        self, partitions: frozenset[TopicPartition], reader: MemberIdentity
    ) -> offset_fetch_request.OffsetFetchRequest:
        topics: dict[str, list[int]] = {}
        for tp in sorted(partitions):
            topics.setdefault(tp.topic, []).append(tp.partition)
        group = offset_fetch_request.OffsetFetchRequestGroup(
            group_id=self._config.group_id or "",
            member_id=reader.member_id or None,
            member_epoch=reader.generation,
            topics=tuple(
                offset_fetch_request.OffsetFetchRequestTopics(
                    name=topic, topic_id=self._metadata.current.topic_id(topic), partition_indexes=tuple(numbers)
                )
                for topic, numbers in topics.items()
            ),
        )
        return offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=True)

    def _on_fetched(
        self,
        partitions: frozenset[TopicPartition],
        names: Mapping[uuid.UUID, str],
        response: offset_fetch_response.OffsetFetchResponse,
        done: FetchDone,
        now: Now,
    ) -> None:
        """End the look-up, also if a reaction to its error raises."""
        try:
            outcome = self._fetch_outcome(partitions, names, response)
        except Exception as bug:
            what = f"a look-up of committed offsets of group {self._config.group_id!r}"
            done(FetchOutcome({}, self._interrupted(what, bug), retry=False), now)
            raise
        done(outcome, now)

    def _fetch_outcome(
        self,
        partitions: frozenset[TopicPartition],
        names: Mapping[uuid.UUID, str],
        response: offset_fetch_response.OffsetFetchResponse,
    ) -> FetchOutcome:
        """Return the offsets of all partitions, or the error of one of them.

        A partition that is not in the response has an error, too: without a committed offset its position would be reset.
        """
        group = next((item for item in response.groups if item.group_id in (self._config.group_id, "")), None)
        what = f"looking up the commits of group {self._config.group_id!r}"
        if group is None:
            return FetchOutcome({}, OttlaError(f"{what}: the response does not contain the group"))
        if group.error_code:
            return self._fetch_refused(int(group.error_code), what)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for topic in group.topics:
            name = topic.name or _name_of(topic.topic_id, names, self._metadata.current)
            for part in topic.partitions:
                if part.error_code:
                    return self._fetch_refused(int(part.error_code), f"{what} in {name}-{part.partition_index}")
                epoch = part.committed_leader_epoch if part.committed_leader_epoch >= 0 else None
                tp = TopicPartition(name, part.partition_index)
                if tp in partitions:
                    offset = part.committed_offset
                    found[tp] = OffsetAndMetadata(offset, part.metadata or "", epoch) if offset >= 0 else None
        if missing := sorted(partitions - found.keys()):
            return FetchOutcome({}, OttlaError(f"{what}: the response does not contain {', '.join(map(str, missing[:5]))}"))
        return FetchOutcome(found)

    def _fetch_refused(self, code: int, what: str) -> FetchOutcome:
        reaction, error = _FETCH_REACTIONS.get(code), broker_error(code, what)
        if reaction is None:
            return FetchOutcome({}, error, retry=False)
        return FetchOutcome({}, self._react(reaction, error))

    # -- errors -----------------------------------------------------------------------------------------------------------

    def _not_answered(self, error: OttlaError, end: Callable[[], None], now: Now) -> None:
        """End the request, whatever the coordinator manager does with the error."""
        try:
            self._coordinator.request_failed(error, now)
        finally:
            end()

    @staticmethod
    def _interrupted(what: str, bug: Exception) -> OttlaError:
        """The outcome of a request whose response could not be handled. The exception itself goes on to the core."""
        return bug if isinstance(bug, OttlaError) else OttlaError(f"{what} failed: {bug!r}", cause=bug)

    def _react(self, reaction: CommitReaction, error: OttlaError) -> OttlaError:
        if reaction is CommitReaction.FIND_COORDINATOR:
            self._coordinator.mark_moved(str(error))
        error.retriable = error.retriable or reaction is CommitReaction.RENEW_IDENTITY
        return error


def _name_of(topic_id: uuid.UUID | None, names: Mapping[uuid.UUID, str], metadata: Metadata) -> str:
    """The name of a topic that a response names by its id."""
    if topic_id is None:
        return ""
    return names.get(topic_id) or metadata.topic_name(topic_id) or str(topic_id)
