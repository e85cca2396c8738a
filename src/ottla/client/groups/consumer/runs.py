"""The states of a member that computes its group's assignment, the transitions between them, and its reactions to error codes.

Owns the tables and nothing else. Must not know requests, timers or which code moves a member. Invariant: a transition that is not
in the table does not happen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ottla.protocol import ErrorCode


class RunState(enum.Enum):
    """The state of the member's assignment."""

    IDLE = "does not compute an assignment"
    PREPARING = "requests the members and topics of the group from the coordinator"
    COMPUTING = "the assignor is running"
    INSTALLING = "sends the assignment, or the assignor's error, to the coordinator"


class RunInput(enum.Enum):
    """The causes of a change of state."""

    REQUESTED = "the response to a heartbeat requests an assignment"
    OUTDATED = "the member has a new epoch, or the assignment is for another epoch of the group"
    PREPARED = "the coordinator has described the group"
    COMPUTED = "the assignor has succeeded or failed"
    INVALID = "the coordinator refuses the assignment: an error is sent instead"
    INSTALLED = "the coordinator has accepted the assignment or the error"
    VOID = "the member has left, the timeout has passed, or the coordinator does not expect an assignment from this member"


_REQUESTED_AGAIN = {RunInput.REQUESTED: RunState.PREPARING, RunInput.OUTDATED: RunState.PREPARING, RunInput.VOID: RunState.IDLE}

TRANSITIONS: Mapping[RunState, Mapping[RunInput, RunState]] = {
    RunState.IDLE: {RunInput.REQUESTED: RunState.PREPARING},
    RunState.PREPARING: {
        RunInput.OUTDATED: RunState.PREPARING,
        RunInput.PREPARED: RunState.COMPUTING,
        RunInput.VOID: RunState.IDLE,
    },
    RunState.COMPUTING: {**_REQUESTED_AGAIN, RunInput.COMPUTED: RunState.INSTALLING},
    RunState.INSTALLING: {
        **_REQUESTED_AGAIN,
        RunInput.INVALID: RunState.INSTALLING,
        RunInput.INSTALLED: RunState.IDLE,
    },
}
"""State -> input -> next state."""


class RunReaction(enum.Enum):
    """The reaction to an error code."""

    LATER = "send again after a while"
    LOOK_UP = "the coordinator is another broker: look it up, then send again"
    PREPARE = "request the group again: the assignment is for another epoch"
    INVALID = "the assignment breaks the rules: send an error instead"
    VOID = "the coordinator does not expect an assignment from this member"
    FAIL = "report the error to the application; the coordinator chooses another member after the timeout"


RUN_REACTIONS: Mapping[int, RunReaction] = {
    ErrorCode.request_timed_out: RunReaction.LATER,
    ErrorCode.coordinator_load_in_progress: RunReaction.LATER,
    ErrorCode.coordinator_not_available: RunReaction.LOOK_UP,
    ErrorCode.not_coordinator: RunReaction.LOOK_UP,
    ErrorCode.illegal_generation: RunReaction.PREPARE,
    ErrorCode.unknown_member_id: RunReaction.VOID,
    ErrorCode.invalid_request: RunReaction.INVALID,
    ErrorCode.group_id_not_found: RunReaction.VOID,
    ErrorCode.fenced_member_epoch: RunReaction.VOID,
    ErrorCode.stale_member_epoch: RunReaction.LATER,
}
"""Error codes of ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment -> reaction; to another one that is retriable
``LATER``, to any other ``FAIL``.

After STALE_MEMBER_EPOCH the next heartbeat brings the new epoch, with which the run starts again."""
