"""What a consumer's core publishes: its status to the application, the needed topics to the metadata.

Owns the version that was published last, the problem that goes with it, and the topics last passed to the metadata. Must not
know who listens. Invariant: a snapshot is published when it differs from the last one, and shows one moment.
"""

from __future__ import annotations

from ottla.client.cluster.metadata import MetadataManager
from ottla.client.core import ClientCore
from ottla.client.effects import AsksNothing, Poll
from ottla.client.groups.membership import Membership
from ottla.client.notifications import Published
from ottla.client.problems import Problems
from ottla.client.subscription import Snapshot, Subscription
from ottla.errors import OttlaError
from ottla.types import Now

_NO_TOPICS: frozenset[str] = frozenset()


class FollowedTopics(AsksNothing):
    """Tells the metadata which topics matter. Asked behind all that may change it."""

    def __init__(self, subscription: Subscription, membership: Membership | None, metadata: MetadataManager) -> None:
        self._subscription = subscription
        self._membership = membership
        self._metadata = metadata
        self._followed = _NO_TOPICS, _NO_TOPICS, False
        """The topics that are subscribed to, those of other members that matter as well, and whether all do."""

    def poll(self, now: Now) -> Poll:
        """See which they are now."""
        del now
        member = self._membership
        wanted = self._subscription.topics
        followed = (wanted, _NO_TOPICS, False) if member is None else (wanted, member.group_topics, member.follows_all_topics)
        if followed != self._followed:  # the same sets in nearly every pass: that is seen without a look into them
            self._followed = followed
            self._metadata.set_topics(None if followed[2] else wanted | followed[1])
        return Poll()


class Publisher(AsksNothing):
    """Tells the application what the subscription looks like. Asked when the connections have moved."""

    def __init__(self, core: ClientCore, subscription: Subscription, membership: Membership | None, problems: Problems) -> None:
        self._core = core
        self._subscription = subscription
        self._membership = membership
        self._problems = problems
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
        """Tell the application, if there is anything new."""
        if self._published == self._subscription.version:
            return
        self._published = self._subscription.version
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
            was_connected=self._core.metadata.version > 0,
        )
        self._core.notify(Published(snapshot))
