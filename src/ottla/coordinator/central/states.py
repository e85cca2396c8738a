"""The states of a central group, and their transitions.

Owns the table. It does what a thread, ``requestHandler``, does in the draft of the central coordinator: stop all members, then
start all. Must not know how a group moves along it. Invariant: no member is started before ``ASSIGNING``, which is only reached
when each member has stopped or its lease is over.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class CentralGroupState(enum.Enum):
    """The state of a group."""

    EMPTY = "no members"
    RECOVERING = "this broker was just elected, and waits for the owners that it has found"
    STABLE = "has members, and no rebalance is running"
    STOPPING = "waits until each member has stopped"
    ASSIGNING = "all have stopped: the new generation with its owners is being stored"
    STARTING = "the generation is stored: waits until each member has started"
    FAILED = "too many rebalances failed: backs off"


class CentralGroupInput(enum.Enum):
    """The causes of a change of state."""

    JOINED = "the first member has registered"
    FOUND = "owners were found after the election"
    RECOVERED = "all owners have registered, or their leases are over"
    NECESSARY = "a rebalance is necessary"
    STOPPED = "each member has stopped"
    UNSTOPPED = "a member has registered that has not stopped"
    GENERATION = "the new generation is stored"
    STARTED = "each member has started"
    GAVE_UP = "this was one failed rebalance too many"
    RETRY = "the back-off is over"
    DESERTED = "the last member is gone"


_STATE, _INPUT = CentralGroupState, CentralGroupInput

TRANSITIONS: Mapping[CentralGroupState, Mapping[CentralGroupInput, CentralGroupState]] = {
    _STATE.EMPTY: {_INPUT.JOINED: _STATE.STABLE, _INPUT.FOUND: _STATE.RECOVERING},
    _STATE.RECOVERING: {_INPUT.RECOVERED: _STATE.STABLE, _INPUT.DESERTED: _STATE.EMPTY},
    _STATE.STABLE: {_INPUT.NECESSARY: _STATE.STOPPING, _INPUT.DESERTED: _STATE.EMPTY},
    _STATE.STOPPING: {_INPUT.STOPPED: _STATE.ASSIGNING, _INPUT.DESERTED: _STATE.EMPTY},
    _STATE.ASSIGNING: {
        _INPUT.GENERATION: _STATE.STARTING,
        _INPUT.UNSTOPPED: _STATE.STOPPING,
        _INPUT.DESERTED: _STATE.EMPTY,
    },
    _STATE.STARTING: {_INPUT.STARTED: _STATE.STABLE, _INPUT.GAVE_UP: _STATE.FAILED, _INPUT.DESERTED: _STATE.EMPTY},
    _STATE.FAILED: {_INPUT.RETRY: _STATE.STABLE, _INPUT.DESERTED: _STATE.EMPTY},
}
"""State -> input -> next state."""
