"""The offset store in ZooKeeper: what of a commit was stored when it fails in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.groups.zookeeper.claims import Claims
from ottla.client.positions.commit import CommitManager
from ottla.client.positions.stores.zookeeper import ZooKeeperOffsetStore
from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import CommitFailedError, KeeperCode, ZooKeeperError
from ottla.types import Now, OffsetAndMetadata
from ottla.zookeeper import multis
from ottla.zookeeper.nodes import ConsumerThread
from ottla.zookeeper.operations import Create, Multi
from ottla.zookeeper.session import Ask, Session
from tests.unit.client.managers import NO_MEMBER, T0, T1, T2, FixedMembership, Replies, backoff

OFFSETS = {tp: OffsetAndMetadata(number) for number, tp in enumerate((T0, T1, T2))}


class Commits:
    """A member that owns three partitions, and writes one in each multi."""

    def __init__(self) -> None:
        config = ConsumerConfig.parse({"zookeeper_connect": "zk:2181", "group_id": "g"})
        self.session = Session(6_000)
        self.session.on_connected(1, Now(0, 0))
        ((number, _),) = self.session.poll(Now(0, 0)).effects
        self.session.on_answered(number, None, Now(0, 0))
        self.subscription = subscription = SubscriptionState(None)
        subscription.subscribe(frozenset({"t"}), None)
        self.claims = Claims(config, "m", self.session)
        self.claims.owned = dict.fromkeys(OFFSETS, ConsumerThread("m", 0))
        membership = FixedMembership()
        membership.signs = NO_MEMBER
        store = ZooKeeperOffsetStore(config, self.session, subscription, self.claims)
        self.manager = CommitManager(config, store, membership, backoff(), lambda tp: None)  # type: ignore[arg-type]
        self.replies = Replies()
        self.manager.commit(OFFSETS, 60_000, True, self.replies)
        self.mono = 0

    def multi(self) -> Ask[Any]:
        """The next multi; the creation of the nodes above succeeds."""
        asks = [ask for ask in self.manager.poll(Now(self.mono, 0)).sends if isinstance(ask, Ask)]
        (ask,) = (ask for ask in asks if isinstance(ask.operation, Multi))
        assert all(isinstance(other.operation, Create) for other in asks if other is not ask)
        return ask

    def written(self) -> None:
        self.multi().on_result((), Now(self.mono, 0))

    def fail(self, code: KeeperCode) -> None:
        ask = self.multi()
        ask.on_failure(ZooKeeperError(code, ask.operation.path, index=0), Now(self.mono, 0))


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    monkeypatch.setattr(multis, "MULTI_OPERATIONS", 1)
    return Commits()


def claim_again(commits: Commits) -> None:
    commits.claims.owned = dict(commits.claims.owned)
    commits.written()


def lose_the_member(commits: Commits) -> None:
    commits.fail(KeeperCode.NONODE)


def lose_the_connection_and_partitions(commits: Commits) -> None:
    commits.fail(KeeperCode.CONNECTIONLOSS)
    commits.manager.gave_up([T2])
    commits.mono = 100
    commits.manager.poll(Now(100, 0))


def lose_the_connection_and_the_claim(commits: Commits) -> None:
    commits.fail(KeeperCode.CONNECTIONLOSS)
    commits.claims.owned = {T0: ConsumerThread("m", 0)}
    commits.mono = 100
    commits.manager.poll(Now(100, 0))


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (claim_again, "2 of 3 partitions were committed in ZooKeeper: this member of group 'g' has given up the partitions"),
        (lose_the_member, "1 of 3 partitions were committed in ZooKeeper: /consumers/g/ids/m is gone, so another member may own"),
        (
            lose_the_connection_and_partitions,
            "1 of 3 partitions were committed: t-2 was revoked before the commit could be retried",
        ),
        (lose_the_connection_and_the_claim, "1 of 3 partitions were committed in ZooKeeper: this member of group 'g' does not own"),
    ],
)
def test_the_error_of_a_commit_says_what_was_committed(commits: Commits, end: Callable[[Commits], None], text: str) -> None:
    commits.written()
    end(commits)
    assert isinstance(commits.replies.error, CommitFailedError)
    assert text in str(commits.replies.error)


def test_a_commit_that_fails_at_once_says_that_nothing_was_committed(commits: Commits) -> None:
    lose_the_member(commits)
    assert "nothing was committed in ZooKeeper: /consumers/g/ids/m is gone" in str(commits.replies.error)


def test_a_consumer_without_a_subscription_commits_nothing_and_one_that_assigns_is_not_fenced(commits: Commits) -> None:
    commits.subscription.unsubscribe()
    commits.claims.forget()
    commits.manager.poll(Now(0, 0))
    text = "nothing was committed in ZooKeeper: this consumer of group 'g' has neither subscribed nor assigned partitions"
    assert f"{text} (assign() or subscribe() first: " in str(commits.replies.error)
    commits.subscription.assign(frozenset(OFFSETS))
    commits.manager.commit(OFFSETS, 60_000, True, Replies())
    operation = commits.multi().operation
    assert isinstance(operation, Multi)
    assert operation.operations == (Create("/consumers/g/offsets/t/0", b"0"),)


def test_a_large_commit_is_written_part_by_part(commits: Commits) -> None:
    for _ in OFFSETS:
        assert commits.replies.got == []
        commits.written()
    assert commits.replies.value == OFFSETS


def test_without_a_lease_nothing_is_committed(commits: Commits) -> None:
    """A process that was stopped beyond its session learns of the end of the session after it has continued."""
    assert commits.session.has_lease(Now(4_499, 0))
    assert commits.manager.poll(Now(4_500, 0)).sends == ()
    assert commits.replies.got == []
    ((number, _),) = commits.session.poll(Now(4_500, 0)).effects
    commits.session.on_answered(number, None, Now(4_500, 0))
    commits.mono = 4_500
    commits.multi()
