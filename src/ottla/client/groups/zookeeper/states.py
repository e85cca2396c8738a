"""The states of a member in a ZooKeeper group, and their transitions.

Owns the table. Must not know how a member moves along it. Invariant: a member that is not in ``OWNING`` has no partitions that the
application may read.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """The state of the member."""

    UNSUBSCRIBED = "no member of the group"
    REGISTERING = "its node below `ids` is being created"
    READING = "the group's members and the topics' partitions are being read"
    CLAIMING = "the owner nodes of its partitions are being created"
    WAITING = "another member still owns one of its partitions, or the assignment cannot be computed: it tries again"
    STABLE = "has its partitions, and waits for a change"
    PREPARING = "a rebalance: the application commits and gives up its partitions"
    RELEASING = "its owner nodes are being deleted"
    LOST = "the session has expired: `on_lost` must run before it registers again"
    STALE = "left because the application did not poll; its next poll joins again"
    LEAVING = "its nodes are being deleted, for the last time"


class Input(enum.Enum):
    """The causes of a change of state."""

    POLLED = "the application polls and wants to be a member"
    REGISTERED = "its node is there"
    READ = "the group was read, and the assignment computed"
    CLAIMED = "it owns its partitions"
    CONFLICT = "another member owns a partition, or there is no assignment"
    RETRY = "the owner is gone, or the back-off is over"
    REBALANCE = "a member, a partition or the subscription has changed"
    PREPARED = "the application has given up its partitions"
    RELEASED = "it owns nothing"
    OUTDATED = "it owns nothing, and its node has to be written again"
    UNCERTAIN = "owner nodes of it may exist, since an outcome is unknown"
    UNREGISTERED = "its node has vanished, and the application has no partitions"
    LOSE = "its node has vanished, and the application has partitions"
    EXPIRED = "the application did not poll in time"
    LEAVE = "the application leaves the group"
    LEFT = "its nodes are deleted, or disappear with the session"


_MEMBER = {
    Input.UNREGISTERED: State.REGISTERING,
    Input.LOSE: State.LOST,
    Input.EXPIRED: State.STALE,
    Input.LEAVE: State.LEAVING,
}

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.UNSUBSCRIBED: {Input.POLLED: State.REGISTERING},
    State.REGISTERING: {**_MEMBER, Input.REGISTERED: State.READING, Input.UNCERTAIN: State.RELEASING},
    State.READING: {**_MEMBER, Input.READ: State.CLAIMING, Input.CONFLICT: State.WAITING, Input.OUTDATED: State.REGISTERING},
    State.CLAIMING: {
        **_MEMBER,
        Input.CLAIMED: State.STABLE,
        Input.CONFLICT: State.WAITING,
        Input.UNCERTAIN: State.RELEASING,
    },
    State.WAITING: {**_MEMBER, Input.RETRY: State.READING, Input.UNCERTAIN: State.RELEASING},
    State.STABLE: {**_MEMBER, Input.REBALANCE: State.PREPARING},
    State.PREPARING: {**_MEMBER, Input.PREPARED: State.RELEASING},
    State.RELEASING: {**_MEMBER, Input.RELEASED: State.READING},
    State.LOST: {Input.PREPARED: State.REGISTERING, Input.LEAVE: State.LEAVING},
    State.STALE: {Input.PREPARED: State.REGISTERING, Input.LEAVE: State.LEAVING},
    State.LEAVING: {Input.LEFT: State.UNSUBSCRIBED},
}
"""State -> input -> next state."""

MEMBER_STATES = frozenset(
    {
        State.REGISTERING,
        State.READING,
        State.CLAIMING,
        State.WAITING,
        State.STABLE,
        State.PREPARING,
        State.RELEASING,
    }
)
"""States in which the member is in the group, or is joining it."""

OWNING = frozenset({State.STABLE, State.PREPARING})
"""States in which the application has partitions that it may commit."""

REBALANCING = (MEMBER_STATES | {State.LOST, State.STALE}) - {State.STABLE}
"""States in which the partitions change."""
