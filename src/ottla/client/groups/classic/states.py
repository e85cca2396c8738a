"""The states of a classic member, the transitions between them, and its reactions to error codes.

Owns the tables and nothing else: the diagram in the documentation is drawn from ``TRANSITIONS``. Must not know requests, timers
or which code moves a member. Invariant: a transition that is not in the table does not happen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from ottla.errors import BrokerError
from ottla.protocol import ErrorCode


class State(enum.Enum):
    """The state of the member."""

    UNJOINED = "no member of the group"
    PREPARING = "the application must commit and give up its partitions"
    JOINING = "JoinGroup is sent, or about to be"
    ASSIGNING = "leader of the group: waits for fresh metadata of all its topics"
    SYNCING = "SyncGroup is sent, or about to be"
    REVOKING = "cooperative: the application must give up partitions that go to other members"
    STABLE = "has its partitions until the next rebalance"
    LEAVING = "LeaveGroup is sent, or about to be"
    FAILED = "an error that is not retriable: the next poll tries again"
    FENCED = "another member uses this instance id: final"


class Input(enum.Enum):
    """The causes of a change of state."""

    POLLED = "the application polls and wants to be a member"
    REBALANCE = "the group, or the subscription, has changed"
    DROPPED = "the coordinator no longer knows the member or its generation"
    EXPIRED = "the application did not poll in time"
    PREPARED = "the application has given up its partitions"
    JOINED = "JoinGroup succeeded"
    LEADS = "JoinGroup succeeded and made this member the leader"
    ASSIGNED = "the leader has assigned the partitions"
    SYNCED = "SyncGroup succeeded"
    TAKEN = "SyncGroup succeeded, and revokes partitions"
    REJOIN = "JoinGroup must be sent again"
    LEAVE = "the application leaves the group"
    LEFT = "LeaveGroup was answered, or cannot be sent"
    FAIL = "an error that is not retriable"
    FENCE = "the instance id belongs to another member"


_ANYWHERE = {Input.LEAVE: State.LEAVING, Input.FENCE: State.FENCED}
_GONE = {Input.DROPPED: State.PREPARING, Input.EXPIRED: State.PREPARING}
_MEMBER = {**_ANYWHERE, **_GONE, Input.REBALANCE: State.PREPARING}

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.UNJOINED: {**_ANYWHERE, Input.POLLED: State.JOINING},
    State.PREPARING: {**_MEMBER, Input.PREPARED: State.JOINING},
    State.JOINING: {
        **_ANYWHERE,
        Input.JOINED: State.SYNCING,
        Input.LEADS: State.ASSIGNING,
        Input.REJOIN: State.JOINING,
        **_GONE,
        Input.FAIL: State.FAILED,
    },
    State.ASSIGNING: {
        **_ANYWHERE,
        Input.ASSIGNED: State.SYNCING,
        Input.REJOIN: State.JOINING,
        **_GONE,
        Input.FAIL: State.FAILED,
    },
    State.SYNCING: {
        **_ANYWHERE,
        Input.SYNCED: State.STABLE,
        Input.TAKEN: State.REVOKING,
        Input.REJOIN: State.JOINING,
        **_GONE,
        Input.FAIL: State.FAILED,
    },
    State.REVOKING: {**_ANYWHERE, **_GONE, Input.PREPARED: State.STABLE},
    State.STABLE: _MEMBER,
    State.LEAVING: {**_ANYWHERE, Input.LEFT: State.UNJOINED},
    State.FAILED: {**_ANYWHERE, **_GONE, Input.POLLED: State.JOINING},
    State.FENCED: {Input.LEAVE: State.FENCED, Input.FENCE: State.FENCED},
}
"""State -> input -> next state."""

IN_GENERATION = frozenset({State.PREPARING, State.ASSIGNING, State.SYNCING, State.REVOKING, State.STABLE})
"""States in which a member with a generation sends heartbeats; in JOINING its parked JoinGroup keeps it alive."""

REBALANCING = frozenset({State.PREPARING, State.JOINING, State.ASSIGNING, State.SYNCING, State.REVOKING})
"""States in which the partitions change."""


class ClassicReaction(enum.Enum):
    """The reaction to an error code."""

    LATER = "send again after a while"
    LOOK_UP = "the coordinator is another broker: look it up, then send again"
    UNKNOWN = "forget the member id and join again"
    OUTDATED = "forget the generation, keep the member id and join again"
    REJOIN = "join again at once"
    ADOPT = "take the member id of the response and join again at once"
    FENCED = "another member has the instance id"
    FATAL = "report the error to the application; its next poll joins again"


SYNC_REACTIONS: Mapping[int, ClassicReaction] = {
    ErrorCode.coordinator_load_in_progress: ClassicReaction.LATER,
    ErrorCode.coordinator_not_available: ClassicReaction.LOOK_UP,
    ErrorCode.not_coordinator: ClassicReaction.LOOK_UP,
    ErrorCode.illegal_generation: ClassicReaction.OUTDATED,
    ErrorCode.unknown_member_id: ClassicReaction.UNKNOWN,
    ErrorCode.rebalance_in_progress: ClassicReaction.REJOIN,
    ErrorCode.fenced_instance_id: ClassicReaction.FENCED,
}
"""Error codes of SyncGroup -> reaction; to another one that is retriable ``LATER``, to any other ``FATAL``."""

JOIN_REACTIONS: Mapping[int, ClassicReaction] = {**SYNC_REACTIONS, ErrorCode.member_id_required: ClassicReaction.ADOPT}
"""Error codes of JoinGroup -> reaction. MEMBER_ID_REQUIRED demands another JoinGroup with the new member id (KIP-394)."""

HEARTBEAT_REACTIONS: Mapping[int, ClassicReaction] = {
    ErrorCode.unknown_server_error: ClassicReaction.LATER,
    ErrorCode.coordinator_load_in_progress: ClassicReaction.LATER,
    ErrorCode.coordinator_not_available: ClassicReaction.LOOK_UP,
    ErrorCode.not_coordinator: ClassicReaction.LOOK_UP,
    ErrorCode.illegal_generation: ClassicReaction.OUTDATED,
    ErrorCode.unknown_member_id: ClassicReaction.UNKNOWN,
    ErrorCode.rebalance_in_progress: ClassicReaction.REJOIN,
    ErrorCode.fenced_instance_id: ClassicReaction.FENCED,
}
"""Error codes of Heartbeat -> reaction; to another one that is retriable ``LATER``, to any other ``FATAL``.

Java's consumer sends the next heartbeat after any other error, and continues to deliver records of partitions in a group that has
removed it.
"""


def reaction_to(error: BrokerError, table: Mapping[int, ClassicReaction]) -> ClassicReaction:
    """Return the reaction to an error by one of these tables."""
    return table.get(error.code, ClassicReaction.LATER if error.retriable else ClassicReaction.FATAL)


class Generation(NamedTuple):
    """The generation of the group, the member's id in it, and the assignor."""

    number: int = -1
    member_id: str = ""
    protocol: str | None = None
