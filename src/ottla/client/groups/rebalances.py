"""The record of each rebalance: its time, reason, member, partitions, and how long they were not fetched.

Owns the records of a member's rebalances, and the line in the log for each. Must not know the group's protocol: it reads the
member's status, and is called when the application gives up or takes over partitions. Invariants: every change of the application's
partitions is in exactly one record; records are immutable, and the tuple of them is replaced, never changed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.client.effects import Poll
from ottla.client.events import GivenUp
from ottla.client.groups.membership import Membership
from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.types import FrozenMapping, Now, TopicPartition

_log = logging.getLogger(__name__)

KEPT = 100
"""The number of records that are kept; older ones are only in the log."""

_NAMED = 20
"""The number of partitions that the log names; it only counts the others."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance, as one member saw it. Times are seconds; ``began`` counts from 1970, as ``time.time()`` does."""

    began: float
    duration: float
    """The time until the application had the partitions, including its listeners, commits, and the wait for its ``poll()``."""
    reason: str
    """The cause, as far as the member knows."""
    completed: bool
    """Whether the member is in the group with its partitions; False: it left, or could not join."""
    protocol: str
    """``classic``, ``consumer``, ``zookeeper`` or ``central``."""
    member_id: str
    epoch: int
    """The generation (``classic``, ``central``), the member epoch (``consumer``) or the number of changes of the group's members
    (``zookeeper``) that it ended with; -1: none."""
    assigned: tuple[TopicPartition, ...]
    """The partitions that ``on_assign`` got."""
    revoked: tuple[TopicPartition, ...]
    """The partitions that ``on_revoke`` got. If the protocol revokes all and returns most, partitions are in ``assigned``, too."""
    lost: tuple[TopicPartition, ...]
    """Partitions that others could have taken before this member noticed: those that ``on_lost`` got."""
    unfetched: Mapping[TopicPartition, float]
    """How long this member owned each partition without fetching it; for a partition that was revoked and assigned again, including
    the gap."""
    in_listeners: float
    """How long listeners ran."""
    assignor: str = ""
    """The assignor of a member that computed the assignment; empty: the coordinator computed it, or there is none."""

    def __str__(self) -> str:
        longest = max(self.unfetched.values(), default=0.0)
        what = "rebalance" if self.completed else "end of membership"
        assignor = f" by {self.assignor}" if self.assignor else ""
        return (
            f"{what} in {self.duration:.3f} s ({self.protocol}{assignor}, epoch {self.epoch},"
            f" member {self.member_id or 'unknown'}): {self.reason}; assigned {_listed(self.assigned)}, revoked"
            f" {_listed(self.revoked)}, lost {_listed(self.lost)}; unfetched for {longest:.3f} s at most,"
            f" {self.in_listeners:.3f} s in listeners"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the record as strings, numbers, lists and dictionaries, for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        partitions = {name: [str(tp) for tp in plain[name]] for name in ("assigned", "revoked", "lost")}
        return {**plain, **partitions, "unfetched": {str(tp): spent for tp, spent in self.unfetched.items()}}


def _listed(partitions: tuple[TopicPartition, ...]) -> str:
    if len(partitions) > _NAMED:
        return f"{len(partitions)} partitions"
    return " ".join(map(str, partitions)) or "none"


@dataclass(slots=True, eq=False)
class _Draft:
    """A rebalance in progress."""

    began: Now
    reason: str
    assigned: set[TopicPartition] = field(default_factory=set)
    revoked: set[TopicPartition] = field(default_factory=set)
    lost: set[TopicPartition] = field(default_factory=set)
    stopped: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition -> the time since which it is not fetched."""
    gone: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition -> the time since which it is not owned."""
    unfetched: dict[TopicPartition, int] = field(default_factory=dict)
    in_listeners: int = 0


class RebalanceRecorder:
    """Records the rebalances of one member. A manager without requests, which is polled after the membership."""

    def __init__(self, config: ConsumerConfig, subscription: SubscriptionState, membership: Membership) -> None:
        self.records: tuple[Rebalance, ...] = ()
        """The latest rebalances, oldest first. The tuple is replaced, so that other threads can read it."""
        self.completed = self.failed = 0
        """The total number of rebalances."""
        self.latency_total = 0
        """The total time of the completed ones (ms)."""
        self._group_id = config.group_id
        self._subscription = subscription
        self._membership = membership
        self._draft: _Draft | None = None
        self._failed_at: deque[int] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        return f"<RebalanceRecorder {len(self.records)} records{', one under way' if self._draft is not None else ''}>"

    @property
    def under_way(self) -> bool:
        """Whether the member is in a rebalance."""
        return self._draft is not None

    def failed_within(self, milliseconds: int, now: Now) -> int:
        """The number of recent failed rebalances, without ended memberships."""
        return sum(now.mono - at < milliseconds for at in self._failed_at)

    # -- answers of the application ---------------------------------------------------------------------------------------

    def gave_up(self, what: GivenUp, now: Now) -> None:
        """Record that the application has given up partitions, or has been informed that they are lost."""
        draft = self._open(now)
        (draft.lost if what.lost else draft.revoked).update(what.partitions)
        draft.in_listeners += what.in_listeners

    def took(self, partitions: Iterable[TopicPartition], in_listeners: int, now: Now) -> None:
        """Record that the application has taken over partitions."""
        draft = self._open(now)
        draft.assigned.update(partitions)
        draft.in_listeners += in_listeners

    def left(self, reason: str, what: GivenUp, now: Now) -> None:
        """Record that the application leaves and has given up its partitions. Call this before the membership leaves."""
        interrupted = self._draft is not None
        if not interrupted and not self._membership.status.joined:
            return
        self.gave_up(what, now)
        self._follow_fetching(self._open(now), now)
        self._finish(now, reason=reason, completed=False, failed=interrupted)  # a member that just leaves has not failed

    # -- the request manager ----------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Detect the beginning and the end of a rebalance."""
        status = self._membership.status
        if self._draft is None and status.rebalancing:
            self._open(now)
        if self._draft is not None:
            if status.protocol == "zookeeper" and status.rebalancing and status.reason:
                # 1. Another client deletes the member's node. 2. A watch says that the members have changed: a rebalance begins.
                # 3. The member finds its node gone.
                self._draft.reason = status.reason
            self._follow_fetching(self._draft, now)
            if not status.rebalancing and not self._blocked():
                self._finish(now, completed=status.joined, failed=not status.joined)
        return Poll()

    # -- the record -------------------------------------------------------------------------------------------------------

    def _open(self, now: Now) -> _Draft:
        if self._draft is None:
            self._draft = _Draft(now, self._membership.status.reason or "the member joins the group")
        return self._draft

    def _blocked(self) -> set[TopicPartition]:
        return {tp for tp, state in self._subscription.partitions.items() if state.revoking or state.awaiting_acceptance}

    def _follow_fetching(self, draft: _Draft, now: Now) -> None:
        """Record which partitions are not fetched because of the rebalance, and which are fetched again or no longer owned."""
        blocked, owned = self._blocked(), self._subscription.partitions
        for tp in blocked:
            draft.stopped.setdefault(tp, now.mono)
        for tp in draft.stopped.keys() - blocked:
            if tp in owned:
                draft.unfetched[tp] = draft.unfetched.get(tp, 0) + now.mono - draft.stopped.pop(tp)
            else:
                draft.gone.setdefault(tp, now.mono)
        for tp in draft.gone.keys() & owned.keys():
            del draft.gone[tp]

    def _finish(self, now: Now, *, completed: bool, failed: bool, reason: str = "") -> None:
        draft, self._draft = self._draft, None
        assert draft is not None
        for tp, stopped in draft.stopped.items():
            draft.unfetched[tp] = draft.unfetched.get(tp, 0) + draft.gone.get(tp, now.mono) - stopped
        metadata, status = self._membership.metadata(), self._membership.status
        record = Rebalance(
            began=draft.began.wall / 1000,
            duration=(now.mono - draft.began.mono) / 1000,
            reason=reason or draft.reason,
            completed=completed,
            protocol=status.protocol,
            member_id=metadata.member_id,
            epoch=metadata.generation_id,
            assigned=tuple(sorted(draft.assigned)),
            revoked=tuple(sorted(draft.revoked)),
            lost=tuple(sorted(draft.lost)),
            unfetched=FrozenMapping({tp: spent / 1000 for tp, spent in sorted(draft.unfetched.items())}),
            in_listeners=draft.in_listeners / 1000,
            assignor=status.assignor,
        )
        self.records = (*self.records, record)[-KEPT:]
        self.completed += completed
        self.latency_total += (now.mono - draft.began.mono) * completed
        if failed:
            self.failed += 1
            self._failed_at.append(now.mono)
        _log.info("group %r: %s", self._group_id, record)
