"""The flag of a group in ``groupsBeingRebalanced``, and its transitions.

Owns the table. The draft has one bit, which loses changes:

1. A rebalance of the group runs, and its bit is set.
2. A member registers. The bit is set already, so nothing is queued.
3. The rebalance ends without the new member, and nothing starts another.

So a change during a rebalance makes the flag dirty, and the end of the rebalance queues a check. Invariant: after a request there
is a check.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class RebalanceFlag(enum.Enum):
    """Whether a group is being rebalanced."""

    IDLE = "nothing to do"
    QUEUED = "a check whether a rebalance is necessary waits until it is possible"
    RUNNING = "a rebalance is running"
    DIRTY = "a rebalance is running, and something has changed that it does not consider"


class FlagInput(enum.Enum):
    """The causes of a change of the flag."""

    REQUEST = "a member, a subscription or a topic has changed"
    UNNECESSARY = "the check found no rebalance necessary"
    BEGIN = "the check found a rebalance necessary"
    ASSIGNED = "the owners were computed from all that has changed so far"
    END = "the rebalance has ended"
    DESERTED = "the last member is gone"


_FLAG, _INPUT = RebalanceFlag, FlagInput

TRANSITIONS: Mapping[RebalanceFlag, Mapping[FlagInput, RebalanceFlag]] = {
    _FLAG.IDLE: {_INPUT.REQUEST: _FLAG.QUEUED, _INPUT.DESERTED: _FLAG.IDLE},
    _FLAG.QUEUED: {
        _INPUT.REQUEST: _FLAG.QUEUED,
        _INPUT.UNNECESSARY: _FLAG.IDLE,
        _INPUT.BEGIN: _FLAG.RUNNING,
        _INPUT.DESERTED: _FLAG.IDLE,
    },
    _FLAG.RUNNING: {
        _INPUT.REQUEST: _FLAG.DIRTY,
        _INPUT.ASSIGNED: _FLAG.RUNNING,
        _INPUT.END: _FLAG.IDLE,
        _INPUT.DESERTED: _FLAG.IDLE,
    },
    _FLAG.DIRTY: {
        _INPUT.REQUEST: _FLAG.DIRTY,
        _INPUT.ASSIGNED: _FLAG.RUNNING,
        _INPUT.END: _FLAG.QUEUED,
        _INPUT.DESERTED: _FLAG.IDLE,
    },
}
"""Flag -> input -> next flag."""
