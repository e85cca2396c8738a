"""The states of a member of a consumer group (KIP-848), the transitions between them, and its reactions to error codes.

Owns the tables and nothing else. Must not know requests, timers or which code moves a member. Invariant: a transition that is not
in the table does not happen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ottla.protocol import ErrorCode


class State(enum.Enum):
    """The state of the member."""

    UNSUBSCRIBED = "no member of the group"
    JOINING = "a heartbeat to join was sent, or will be"
    RECONCILING = "was assigned partitions that differ from those it owns"
    ACKNOWLEDGING = "has its assignment, and will acknowledge it"
    STABLE = "has its assignment, and the coordinator knows it"
    FENCED = "the coordinator has removed it: `on_lost` must run before it joins again"
    PREPARE_LEAVING = "leaving: it gives up its partitions"
    LEAVING = "a last heartbeat to leave was sent, or will be"
    STALE = "left because the application did not poll; its next poll joins again"
    FATAL = "a permanent error: final"


class Input(enum.Enum):
    """The causes of a change of state."""

    POLLED = "the application polls and wants to be a member"
    TARGET = "the coordinator assigned partitions that differ from those it owns"
    RECONCILED = "the application has given up and taken over its partitions"
    ACKNOWLEDGED = "the acknowledgement was sent, and there is no newer assignment"
    FENCED = "the coordinator no longer knows the member or its epoch"
    RELEASED = "the application has given up its partitions"
    LEAVE = "the application leaves the group"
    EXPIRED = "the application did not poll in time"
    LEFT = "the last heartbeat was answered, or cannot be sent"
    LEFT_STALE = "the same, for a member whose application did not poll"
    FAIL = "a permanent error"


_MEMBER = {
    Input.FENCED: State.FENCED,
    Input.LEAVE: State.PREPARE_LEAVING,
    Input.EXPIRED: State.PREPARE_LEAVING,
    Input.FAIL: State.FATAL,
}

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.UNSUBSCRIBED: {Input.POLLED: State.JOINING, Input.FAIL: State.FATAL},
    State.JOINING: {**_MEMBER, Input.TARGET: State.RECONCILING},
    State.RECONCILING: {**_MEMBER, Input.TARGET: State.RECONCILING, Input.RECONCILED: State.ACKNOWLEDGING},
    State.ACKNOWLEDGING: {**_MEMBER, Input.TARGET: State.RECONCILING, Input.ACKNOWLEDGED: State.STABLE},
    State.STABLE: {**_MEMBER, Input.TARGET: State.RECONCILING},
    State.FENCED: {Input.RELEASED: State.JOINING, Input.LEAVE: State.UNSUBSCRIBED},
    State.PREPARE_LEAVING: {Input.RELEASED: State.LEAVING},
    State.LEAVING: {Input.LEFT: State.UNSUBSCRIBED, Input.LEFT_STALE: State.STALE},
    State.STALE: {Input.RELEASED: State.JOINING, Input.LEAVE: State.UNSUBSCRIBED},
    State.FATAL: {},
}
"""State -> input -> next state."""

HEARTBEAT_STATES = frozenset({State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.STABLE})
"""States in which heartbeats are sent: the member is in the group, or is joining it."""

REBALANCING = frozenset({State.JOINING, State.RECONCILING, State.FENCED, State.STALE})
"""States in which the partitions change."""


class ConsumerReaction(enum.Enum):
    """The reaction to an error code."""

    LATER = "send again after a while"
    LOOK_UP = "the coordinator is another broker: look it up, then send again"
    FENCED = "the coordinator has removed the member: lose everything, join again"
    GONE = "there is no such consumer group: a member has been removed, and a new one may use the wrong protocol"
    REPORT = "report the error to the application; the member goes on"
    FATAL = "report the error to the application; the member cannot go on"


HEARTBEAT_REACTIONS: Mapping[int, ConsumerReaction] = {
    ErrorCode.request_timed_out: ConsumerReaction.LATER,
    ErrorCode.coordinator_load_in_progress: ConsumerReaction.LATER,
    ErrorCode.coordinator_not_available: ConsumerReaction.LOOK_UP,
    ErrorCode.not_coordinator: ConsumerReaction.LOOK_UP,
    ErrorCode.unknown_member_id: ConsumerReaction.FENCED,
    ErrorCode.topic_authorization_failed: ConsumerReaction.REPORT,
    ErrorCode.group_id_not_found: ConsumerReaction.GONE,
    ErrorCode.fenced_member_epoch: ConsumerReaction.FENCED,
}
"""Error codes of ConsumerGroupHeartbeat -> reaction; to another one that is retriable ``LATER``, to any other ``FATAL``."""

HINTS: Mapping[int, str] = {
    ErrorCode.unsupported_version: (
        'the cluster does not offer the consumer protocol: set group_protocol="classic", or leave it out'
    ),
    ErrorCode.invalid_request: "the broker's message says what is wrong; a new Consumer can try again",
    ErrorCode.group_id_not_found: (
        'the group is a classic group that cannot be converted: set group_protocol="classic", or leave it out'
    ),
    ErrorCode.unsupported_assignor: "group_remote_assignor must be one of the broker's group.consumer.assignors",
    ErrorCode.invalid_regular_expression: (
        "in the consumer protocol the broker matches patterns: use RE2 syntax, without back references or look-around"
    ),
}
"""Hints for errors that end a membership, if the error has none."""

ASSIGNOR_HINT = "another member ran it: every member keeps its partitions until a later assignment succeeds"
"""The hint for a failure of another member's assignor."""

UNKNOWN_HINT = "this Consumer cannot join again: fix the cause (the broker's log may say more), then create a new Consumer"
