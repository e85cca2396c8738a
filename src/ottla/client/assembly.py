"""Assembles the managers of a consumer: their references to each other, the order of polling, and the handlers of commands.

Owns the wiring, and what follows from the state without a command: the snapshot for the application, and the topics of interest for
the metadata. Must not know sockets or threads, nor the readers of a snapshot. Invariants: a snapshot is published when it differs
from the last one; a command's outcome is published after the snapshot that shows its effect, and every other notification comes
with the snapshot of the same moment; managers are polled in an order in which each acts on the decisions of the earlier ones in the
same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ottla.client import events
from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.calls.shared_state import SharedState
from ottla.client.cluster.coordinator import CoordinatorKind
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.cluster.topics import TopicsManager
from ottla.client.core import ClientCore
from ottla.client.effects import Poll, RequestManager, Unreachable
from ottla.client.events import Completed, Published, Reply
from ottla.client.fetch.manager import FetchManager
from ottla.client.groups.membership import Membership, MembershipContext
from ottla.client.groups.protocol import membership_of
from ottla.client.groups.rebalances import RebalanceRecorder
from ottla.client.health.inspection import Inspection
from ottla.client.poll_timer import PollTimer
from ottla.client.positions.commit import CommitManager
from ottla.client.positions.offsets import OffsetsManager
from ottla.client.positions.stores.interface import OffsetStore
from ottla.client.positions.stores.kafka import KafkaOffsetStore
from ottla.client.positions.validation import PositionValidator
from ottla.client.problems import Problems
from ottla.client.subscription import EARLIEST, LATEST, Ago, Mode, Reset, Snapshot, SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.client.central_assembly import CentralAssembly
    from ottla.client.zookeeper_assembly import ZooKeeperAssembly

_NOTHING: frozenset[type[object]] = frozenset()
_REPORTS: frozenset[type[object]] = frozenset({events.Drained, events.MovedToStreams})
"""Commands that have an effect only while a manager waits for them."""

_NO_TOPICS: frozenset[str] = frozenset()
_RESET_TO: Mapping[str, Reset | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


class ConsumerAssembly:
    """A ``ClientCore`` that is a consumer. A shell runs ``core``; the other attributes are for tests.

    ``host`` is the name of this machine, for the ids of members of ZooKeeper groups.
    """

    def __init__(self, config: ConsumerConfig, random: RandomPort, shared: SharedState, host: str = "localhost") -> None:
        self.core = core = ClientCore(config, random, allow_auto_create=config.allow_auto_create_topics)
        self.polls = PollTimer(config, shared.in_hand)
        self.subscription = SubscriptionState(_reset_to(config))
        self.membership: Membership | None = None
        self.commits: CommitManager | None = None
        self.recorder: RebalanceRecorder | None = None
        problems = Problems(core, self.subscription)
        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        metadata = core.metadata_manager
        unreachable: Unreachable = core.connections.brokers.unreachable
        self._lease_until: Callable[[], int | None] | None = None
        self._introduction: tuple[RequestManager, ...] = ()
        self._central: CentralAssembly | None = None
        zookeeper = None
        if config.group_protocol == "zookeeper":
            from ottla.client.zookeeper_assembly import ZooKeeperAssembly

            zookeeper = session = ZooKeeperAssembly(core, config, backoff)
            self._lease_until = lambda: session.session.lease_until
            problems.zookeeper, unreachable = zookeeper.brokers, zookeeper.unreachable
        if config.group_id is not None:
            store = self._add_member(config, zookeeper, backoff, shared, host)
            assert self.membership is not None
            self.commits = CommitManager(config, store, self.membership, backoff, self.subscription.topic_id)
            self.recorder = RebalanceRecorder(config, self.subscription, self.membership)
            problems.coordinator = self.coordinator
        self.offsets = OffsetsManager(config, self.subscription, metadata, self.commits, backoff, unreachable)
        self.fetches = FetchManager(config, self.subscription, metadata, core.notify, backoff)
        self.validator = PositionValidator(config, self.subscription, metadata, backoff, self.fetches.is_held)
        self.topics = TopicsManager(config, backoff, unreachable)
        self.inspection = Inspection(
            core,
            self.subscription,
            self.membership,
            self.polls,
            self.recorder,
            self.fetches.replicas,
            problems.unreachable,
        )
        if self._central is not None:
            self._central.on_ping = self.inspection.on_ping
        self.publisher = Publisher(core, self.subscription, self.membership, self.recorder, problems, shared, self._lease_until)
        # A request that one manager causes in another must leave in the same pass, since no later event may start another pass:
        # 1. Commits are polled before the membership, since a rebalance waits for them.
        # 2. They are polled again after the managers that may cause a commit or a look-up of committed offsets.
        # 3. The coordinator and the metadata are polled after the managers that may cause their look-ups.
        commits = () if self.commits is None else (self.commits,)
        member = () if self.membership is None else (self.membership,)
        for manager in (*commits, *member, self.validator, self.fetches, self.offsets, *commits, self.topics, *self._introduction):
            core.add_manager(manager)
        if self.recorder is not None:
            core.add_manager(self.coordinator)
            core.add_manager(self.recorder)
        core.add_manager(FollowedTopics(self.subscription, self.membership, metadata))
        core.add_watcher(self.publisher)
        core.before_notifications = self.publisher.publish
        core.deferrable_commands = self._deferrable_commands
        self._register()

    def _add_member(
        self,
        config: ConsumerConfig,
        zookeeper: ZooKeeperAssembly | None,
        backoff: ExponentialBackoff,
        shared: SharedState,
        host: str,
    ) -> OffsetStore:
        """Create the coordinator and the member of the group; return where it stores offsets."""
        core, metadata = self.core, self.core.metadata_manager
        central = None
        if config.group_protocol == "central":
            from ottla.client.central_assembly import CentralAssembly

            central = self._central = CentralAssembly(core, config)
            self.coordinator = central.coordinator(backoff)
        else:
            self.coordinator = core.coordinator_of(CoordinatorKind.GROUP, config.group_id or "", backoff)
        context = MembershipContext(config, self.subscription, self.coordinator, metadata, core.notify, backoff, self.polls)
        if central is not None:
            member = central.member(context, host, shared.returned_offset)
            self._lease_until, self._introduction = (lambda: member.membership.lease_until), (member.introduction,)
            self.membership = member.membership
            return member.store
        if zookeeper is not None:
            self.membership, store = zookeeper.member(context, host)
            return store
        self.membership = membership_of(context, connection_to=core.connections.brokers.get)
        return KafkaOffsetStore(config, self.coordinator, self.membership, metadata, core.connections.brokers.unreachable)

    def _register(self) -> None:
        handlers: dict[type[object], Callable[[Any, Now], None]] = {
            events.Polled: self._polled,
            events.Drained: lambda command, _: self.fetches.drained(command.numbers),
            events.MovedToStreams: lambda command, _: self.fetches.memory.release(command.numbers),
            events.Subscribe: self._subscribe,
            events.Assign: self._assign,
            events.Unsubscribe: self._unsubscribe,
            events.EndFetches: lambda command, _: self.fetches.when_ended(lambda: self._done(command)),
            events.UserData: self._user_data,
            events.Assigned: self._assigned,
            events.RebalancePrepared: self._prepared,
            events.AssignmentAccepted: self._accepted,
            events.ProcessingBegan: lambda command, now: self.polls.begin(command.limit, now),
            events.ProcessingProgressed: lambda _, now: self.polls.progress(now),
            events.ProcessingEnded: lambda _, now: self.polls.end(now),
            events.Inspect: lambda command, now: command.reply(self.inspection.view(now)),
            events.Seek: self._seek,
            events.Rewind: self._rewind,
            events.ResetPositions: self._reset,
            events.LookUpAgain: self._look_up_again,
            events.Pause: self._pause,
            events.Resume: self._resume,
            events.Commit: self._commit,
            events.FetchCommitted: self._fetch_committed,
            events.ListOffsets: self._list_offsets,
            events.DescribeTopics: self._describe_topics,
        }
        for command, handler in handlers.items():
            self.core.register(command, self._guarded(handler))

    def _deferrable_commands(self) -> frozenset[type[object]]:
        return _NOTHING if self.fetches.awaits_memory or self.validator.awaits_consumption else _REPORTS

    def _guarded(self, handler: Callable[[Any, Now], None]) -> Callable[[Any, Now], None]:
        """Return a handler that settles its command if it raises, so that no call waits for ever."""

        def guarded(command: object, now: Now) -> None:
            try:
                handler(command, now)
            except Exception as error:
                if not isinstance(command, events.Command):
                    raise
                known = (
                    error
                    if isinstance(error, OttlaError)
                    else OttlaError(f"{type(command).__name__} failed: {error!r}", cause=error)
                )
                self._reply_to(command)(None, known)

        return guarded

    def _reply_to(self, command: events.Command) -> Reply:
        def reply(value: object, error: OttlaError | None) -> None:
            self.publisher.publish()
            self.core.notify(Completed(command.completion, value, error))

        return reply

    def _done(self, command: events.Command) -> None:
        self._reply_to(command)(None, None)

    # -- commands ---------------------------------------------------------------------------------------------------------

    def _polled(self, command: events.Polled, now: Now) -> None:
        if self.commits is not None and self.membership is not None:
            self.polls.busy_since = command.busy_since
            self.commits.polled(command.positions, now)
            self.membership.polled(now)

    def _subscribe(self, command: events.Subscribe, now: Now) -> None:
        del now
        before = self.subscription
        same = command.pattern is not None and before.mode is Mode.TOPICS and self._lease_until is not None
        same = same and (before.pattern, before.is_black_list) == (command.pattern, command.is_black_list)
        # A member with a lease, in a ZooKeeper or central group, learns the topics of a pattern in a rebalance; the same pattern
        # causes none.
        topics = before.topics if same else command.topics
        self.subscription.streams, self.subscription.is_black_list = command.streams, command.is_black_list
        self.subscription.subscribe(topics, command.pattern)
        self._done(command)

    def _assign(self, command: events.Assign, now: Now) -> None:
        del now
        self.subscription.assign(command.partitions)
        self._done(command)

    def _unsubscribe(self, command: events.Unsubscribe, now: Now) -> None:
        joined = self.subscription.mode is Mode.TOPICS
        if self.commits is not None:
            self.commits.gave_up(command.given_up.partitions)
        if joined and self.recorder is not None:
            self.recorder.left(command.reason, command.given_up, now)
        self.subscription.unsubscribe()
        if joined and self.membership is not None:
            self.membership.leave(command.reason, self._reply_to(command), now, command.operation)
        else:
            self._done(command)

    def _user_data(self, command: events.UserData, now: Now) -> None:
        del now
        if self.membership is not None:
            self.membership.user_data(command)

    def _assigned(self, command: events.Assigned, now: Now) -> None:
        del now
        if self.membership is not None:
            self.membership.assigned(command)

    def _prepared(self, command: events.RebalancePrepared, now: Now) -> None:
        self.polls.answered(now)
        if self.membership is not None and self.commits is not None and self.recorder is not None:
            try:
                self.recorder.gave_up(command.given_up, now)
                self.commits.gave_up(command.given_up.partitions)
            finally:  # without this the rebalance would wait for ever
                self.membership.prepared(command.token, now)
            if command.given_up.partitions and not command.given_up.lost:
                # The application has committed all processed records. With added partitions only, the interval goes on.
                self.commits.restart_auto_commit(now)

    def _accepted(self, command: events.AssignmentAccepted, now: Now) -> None:
        self.polls.answered(now)
        if self.membership is not None and self.recorder is not None:
            try:
                self.recorder.took(command.added, command.in_listeners, now)
            finally:
                self.membership.accepted(command.token)

    def _seek(self, command: events.Seek, now: Now) -> None:
        del now
        for tp, position in command.positions.items():
            if position.leader_epoch is not None:
                self.core.metadata_manager.observe_epoch(tp, position.leader_epoch)
        self.subscription.seek(command.positions, command.ends)
        self._done(command)

    def _rewind(self, command: events.Rewind, now: Now) -> None:
        del now
        self.subscription.rewind(command.positions)
        self._done(command)

    def _reset(self, command: events.ResetPositions, now: Now) -> None:
        del now
        self.subscription.reset(command.partitions, command.timestamp)
        self._done(command)

    def _look_up_again(self, command: events.LookUpAgain, now: Now) -> None:
        del now
        self.offsets.look_up_again()
        self._done(command)

    def _pause(self, command: events.Pause, now: Now) -> None:
        del now
        self.subscription.pause(command.partitions, command.positions)
        self._done(command)

    def _resume(self, command: events.Resume, now: Now) -> None:
        del now
        self.subscription.resume(command.partitions)
        self._done(command)

    def _commit(self, command: events.Commit, now: Now) -> None:
        del now
        assert self.commits is not None
        reply = self._reply_to(command)
        self.commits.commit(command.offsets, command.deadline, command.retry, reply, revoking=command.revoking)

    def _fetch_committed(self, command: events.FetchCommitted, now: Now) -> None:
        del now
        assert self.commits is not None
        self.commits.fetch(command.partitions, command.deadline, self._reply_to(command))

    def _list_offsets(self, command: events.ListOffsets, now: Now) -> None:
        self.offsets.list_offsets(command.timestamps, command.deadline, self._reply_to(command), now)

    def _describe_topics(self, command: events.DescribeTopics, now: Now) -> None:
        del now
        self.topics.describe(command.topics, command.deadline, self._reply_to(command))


class Publisher:
    """Publishes the subscription to the application, and the rebalances to all threads. Polled after the connections."""

    def __init__(
        self,
        core: ClientCore,
        subscription: SubscriptionState,
        membership: Membership | None,
        recorder: RebalanceRecorder | None,
        problems: Problems,
        shared: SharedState,
        lease_until: Callable[[], int | None] | None,
    ) -> None:
        self._core = core
        self._lease_until = lease_until
        self._subscription = subscription
        self._membership = membership
        self._recorder = recorder
        self._problems = problems
        self._shared = shared
        self._published = 0
        self._problem: OttlaError | None = None

    def poll(self, now: Now) -> Poll:
        """Check for a problem. A change is published with the next notifications."""
        problem = self._problems.present(now)
        if problem is not self._problem and str(problem) != str(self._problem):
            self._problem = problem
            self._subscription.version += 1
        return Poll(wake_at=self._problems.wake_at(now))

    def publish(self) -> None:
        """Publish what has changed."""
        if self._recorder is not None:
            self._shared.rebalances, self._shared.rebalancing = self._recorder.records, self._recorder.under_way
        if self._lease_until is not None:
            self._shared.lease_until = self._lease_until() or 0
        if self._published == self._subscription.version:
            return
        group = self._membership.metadata() if self._membership is not None else None
        failure = self._membership.failure if self._membership is not None else None
        subscription = self._subscription
        snapshot = Snapshot(
            mode=subscription.mode,
            topics=subscription.topics,
            pattern=subscription.pattern,
            partitions=subscription.views(),
            group=group,
            failure=failure,
            problem=self._problem,
            was_connected=self._problems.was_connected,
            threads=subscription.threads,
        )
        self._core.notify(Published(snapshot))
        self._published = subscription.version  # last: if a step above raises, the next call publishes this version


class FollowedTopics:
    """Passes the topics of interest to the metadata. Polled after all managers that may change them."""

    def __init__(self, subscription: SubscriptionState, membership: Membership | None, metadata: MetadataManager) -> None:
        self._subscription = subscription
        self._membership = membership
        self._metadata = metadata
        self._followed = _NO_TOPICS, _NO_TOPICS, False, True
        """The topics subscribed to, the topics of other members, whether all topics are of interest, and whether a topic that does
        not exist may be created: not for a pattern, which would bring a deleted topic back."""

    def poll(self, now: Now) -> Poll:
        """Pass the topics to the metadata, if they have changed."""
        del now
        member = self._membership
        wanted = self._subscription.topics
        others, follows_all = (_NO_TOPICS, False) if member is None else (member.group_topics, member.follows_all_topics)
        followed = wanted, others, follows_all, self._subscription.pattern is None
        if followed != self._followed:  # cheap: in nearly every pass these are the same objects
            self._followed = followed
            self._metadata.set_topics(None if follows_all else wanted | others, may_create=followed[3])
        return Poll()


def _reset_to(config: ConsumerConfig) -> Reset | None:
    policy = config.auto_offset_reset
    return Ago(policy // timedelta(milliseconds=1)) if isinstance(policy, timedelta) else _RESET_TO[policy]
