"""The states of a member of a central group, their transitions, and the reactions to a Register that is refused.

Owns the tables and nothing else. Must not know frames, the channel or which code moves a member. Invariant: a member that is not in
``HOLDING`` has no partitions that the application may read.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ottla.client.cluster.consultation import NOT_ELECTED_HINT
from ottla.protocol import ErrorCode


class State(enum.Enum):
    """The state of the member. Whether it has a channel at the moment is the state of the channel."""

    UNSUBSCRIBED = "no member of the group"
    JOINING = "has no partitions: it registers, and waits for a Start"
    STABLE = "has its partitions, perhaps none, of one generation"
    STOPPING = "a Stop has arrived: the application commits and gives up its partitions"
    STOPPED = "has given up its partitions, and waits for a Start"
    LOST = "its partitions may belong to other members: `on_lost` must run before it goes on"
    STALE = "left because the application did not poll; its next poll joins again"
    LEAVING = "a Leave was sent, or will be"
    FATAL = "a permanent error: final"


class Input(enum.Enum):
    """The causes of a change of state."""

    POLLED = "the application polls and wants to be a member"
    START = "the coordinator gives it its share of a generation"
    STOP = "the coordinator ends a generation"
    PREPARED = "the application has given up its partitions"
    LOSE = "the lease is over, or the group has a newer generation"
    EXPIRED = "the application did not poll in time"
    LEAVE = "the application leaves the group"
    LEFT = "the channel is closed, or there was none"
    FAIL = "a permanent error"


_MEMBER = {Input.EXPIRED: State.STALE, Input.LEAVE: State.LEAVING, Input.FAIL: State.FATAL}

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.UNSUBSCRIBED: {Input.POLLED: State.JOINING, Input.FAIL: State.FATAL},
    State.JOINING: {**_MEMBER, Input.START: State.STABLE, Input.STOP: State.STOPPED},
    State.STABLE: {**_MEMBER, Input.START: State.STABLE, Input.STOP: State.STOPPING, Input.LOSE: State.LOST},
    State.STOPPING: {**_MEMBER, Input.PREPARED: State.STOPPED, Input.LOSE: State.LOST},
    State.STOPPED: {**_MEMBER, Input.START: State.STABLE, Input.STOP: State.STOPPED},
    State.LOST: {Input.PREPARED: State.JOINING, Input.LEAVE: State.LEAVING, Input.FAIL: State.FATAL},
    State.STALE: {Input.PREPARED: State.JOINING, Input.LEAVE: State.LEAVING, Input.FAIL: State.FATAL},
    State.LEAVING: {Input.LEFT: State.UNSUBSCRIBED},
    State.FATAL: {},
}
"""State -> input -> next state."""

HOLDING = frozenset({State.STABLE, State.STOPPING})
"""States in which the application has partitions that it may commit."""

REGISTERED = HOLDING | {State.JOINING, State.STOPPED}
"""States in which the member has a channel, or opens one."""

REBALANCING = (REGISTERED | {State.LOST, State.STALE}) - {State.STABLE}
"""States in which the partitions change."""


class RegisterReaction(enum.Enum):
    """The reaction to an error code of Register."""

    LATER = "register again after a while"
    LOOK_UP = "the coordinator is another broker: consult, then register there"
    GIVE_UP = "lose what the member holds, then register with nothing"
    REPORT = "report the error to the application, and register again after a while: others may remove the cause"
    FATAL = "report the error to the application; the member cannot go on"


REGISTER_REACTIONS: Mapping[int, RegisterReaction] = {
    ErrorCode.request_timed_out: RegisterReaction.LATER,
    ErrorCode.coordinator_load_in_progress: RegisterReaction.LATER,
    ErrorCode.coordinator_not_available: RegisterReaction.LOOK_UP,
    ErrorCode.not_coordinator: RegisterReaction.LOOK_UP,
    ErrorCode.illegal_generation: RegisterReaction.GIVE_UP,
    ErrorCode.unknown_member_id: RegisterReaction.GIVE_UP,
    ErrorCode.unreleased_instance_id: RegisterReaction.GIVE_UP,
    ErrorCode.inconsistent_group_protocol: RegisterReaction.REPORT,
}
"""Error codes of Register -> reaction; to another one that is retriable ``LATER``, to any other ``FATAL``.

An evicted member must give up what it holds before it may register again. So must one whose id another process has: that one is the
owner of what it holds.
"""

HINTS: Mapping[int, str] = {
    ErrorCode.invalid_regular_expression: (
        "in a central group the broker matches patterns: use RE2 syntax, without back references or look-around"
    ),
    ErrorCode.invalid_session_timeout: "session_timeout must be within the broker's group.min.session.timeout.ms and maximum",
    ErrorCode.unreleased_instance_id: (
        "another process has this member's consumer_id: give each its own; if that one was killed, wait until its session is over:"
        " the member goes on trying"
    ),
    ErrorCode.inconsistent_group_protocol: "the member goes on trying",
    ErrorCode.coordinator_not_available: NOT_ELECTED_HINT,
    ErrorCode.not_coordinator: NOT_ELECTED_HINT,
}
"""Hints that take the place of those that the errors have in all groups."""

UNKNOWN_HINT = "this Consumer cannot join again: fix the cause (the broker's log may say more), then create a new Consumer"
