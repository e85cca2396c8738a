"""The states of a member of a consumer group (KIP-848), what moves it from one to the next, and what error codes mean to it.

Owns the tables and nothing else. Must not know requests, timers or who moves a member. Invariant: what is not in a table does not
happen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

UNKNOWN_MEMBER_ID, GROUP_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, GROUP_ID_NOT_FOUND = 25, 30, 35, 69
FENCED_INSTANCE_ID, STALE_MEMBER_EPOCH = 82, 113


class State(enum.Enum):
    """Where the member stands."""

    UNSUBSCRIBED = "no member of the group"
    JOINING = "a heartbeat asks to be let in, or is about to"
    RECONCILING = "was given partitions other than those it has"
    ACKNOWLEDGING = "has what it was given, and is about to say so"
    STABLE = "has what it was given, and the coordinator knows"
    FENCED = "the coordinator has removed it: the application has to be told before it joins again"
    PREPARE_LEAVING = "on its way out: what it had is given up"
    LEAVING = "a last heartbeat says good-bye, or is about to"
    STALE = "left because the application did not poll; its next poll joins again"
    FATAL = "an error that waiting does not mend: over"


class Input(enum.Enum):
    """What moves a member."""

    POLLED = "the application polls and wants to be a member"
    TARGET = "the coordinator gave it partitions other than those it has"
    RECONCILED = "the application has let go and taken on what it was to"
    ACKNOWLEDGED = "the coordinator was told, and nothing else is to be done"
    FENCED = "the coordinator does not know the member, or its epoch, any more"
    RELEASED = "the application has given its partitions up"
    LEAVE = "the application wants out"
    EXPIRED = "the application did not poll in time"
    LEFT = "the good-bye was said, or can not be"
    LEFT_STALE = "the good-bye of a member whose application did not poll was said, or can not be"
    FAIL = "an error that waiting does not mend"


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
"""State -> input -> next state. What is not in here does not happen."""

BEATING = frozenset({State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.STABLE})
"""States in which heartbeats are sent: the member is in the group, or on its way in."""

REBALANCING = frozenset({State.JOINING, State.RECONCILING, State.FENCED, State.STALE})
"""States on the way to other partitions."""


class Reaction(enum.Enum):
    """What an error code calls for."""

    LATER = "send again after a while"
    LOOK_UP = "the coordinator is another one: look it up, then again"
    FENCED = "the coordinator has removed the member: lose everything, join anew"
    GONE = "there is no such consumer group: who was a member of it is none now, and who wants in may have the wrong protocol"
    TELL = "the application has to know, and the member goes on"
    FATAL = "the application has to know, and the member can not go on"


HEARTBEAT_REACTIONS: Mapping[int, Reaction] = {
    7: Reaction.LATER,
    14: Reaction.LATER,
    15: Reaction.LOOK_UP,
    16: Reaction.LOOK_UP,
    UNKNOWN_MEMBER_ID: Reaction.FENCED,
    29: Reaction.TELL,
    GROUP_ID_NOT_FOUND: Reaction.GONE,
    110: Reaction.FENCED,
}
"""Error codes of ConsumerGroupHeartbeat -> what to do; after another one that is retriable ``LATER``, after any other ``FATAL``."""

HINTS: Mapping[int, str] = {
    UNSUPPORTED_VERSION: 'the cluster does not offer the consumer protocol: set group_protocol="classic", or leave it out',
    42: "the broker's message says what it does not like; a new Consumer can try again",
    GROUP_ID_NOT_FOUND: 'the group is a classic one that can not be converted: set group_protocol="classic", or leave it out',
    112: "group_remote_assignor must be one of the broker's group.consumer.assignors",
    128: "a pattern of the consumer protocol is the broker's to match: it must be RE2's, without back references or look-around",
}
"""What to do about errors that end a membership, where the error itself does not say."""

ASSIGNOR_HINT = "another member ran it: every member keeps its partitions until a later assignment succeeds"
"""What follows where the assignor of another member has failed."""

UNKNOWN_HINT = "the membership of this Consumer is over: mend the cause (the broker's log may say more), then make a new Consumer"
