"""A member of a central group as an immutable value, and the states of a member.

Owns the fields, the questions that the member has not answered, and the table of states. Must not know how a member moves along it.
Invariant: the correlation ids of the Pings on a channel grow, and so do those of a member's Stops and Starts, so that a late answer
to an earlier request is recognized.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.apis import Api


class MemberState(enum.Enum):
    """The state of a member, as the coordinator knows it."""

    REGISTERED = "waits for a Start; may still read what it held before"
    STOPPING = "must stop: a Stop is sent, or will be when it has a channel"
    STOPPED = "holds nothing"
    STARTING = "gets its share: a Start is sent, or will be when it has a channel"
    READING = "has started"


class MemberInput(enum.Enum):
    """The causes of a change of state."""

    REGISTER = "it has registered again"
    STOP = "a rebalance begins"
    STOP_ANSWERED = "it has answered its Stop"
    START = "it gets its share"
    START_ANSWERED = "it has answered its Start"


_STATE, _INPUT = MemberState, MemberInput

TRANSITIONS: Mapping[MemberState, Mapping[MemberInput, MemberState]] = {
    _STATE.REGISTERED: {
        _INPUT.REGISTER: _STATE.REGISTERED,
        _INPUT.STOP: _STATE.STOPPING,
        _INPUT.START: _STATE.STARTING,
    },
    _STATE.STOPPING: {_INPUT.STOP: _STATE.STOPPING, _INPUT.STOP_ANSWERED: _STATE.STOPPED},
    _STATE.STOPPED: {_INPUT.STOP: _STATE.STOPPING, _INPUT.START: _STATE.STARTING},
    _STATE.STARTING: {
        _INPUT.REGISTER: _STATE.REGISTERED,
        _INPUT.STOP: _STATE.STOPPING,
        _INPUT.START: _STATE.STARTING,
        _INPUT.START_ANSWERED: _STATE.READING,
    },
    _STATE.READING: {_INPUT.REGISTER: _STATE.REGISTERED, _INPUT.STOP: _STATE.STOPPING, _INPUT.START: _STATE.STARTING},
}
"""State -> input -> next state."""


PINGS_IN_A_SESSION = 6
"""An answer is proved to the member by the next ping, so two thirds of the session are left of its lease, at least, when the
coordinator dies. With the default time-outs, 45 s for the member and 18 s for the broker's session with ZooKeeper, that is longer
than it takes until the next coordinator is elected and the member is registered there. With three pings it would be 15 s."""


def ping_interval_ms(session_timeout_ms: int) -> int:
    """Return how often a member is pinged."""
    return max(1, session_timeout_ms // PINGS_IN_A_SESSION)


class Question(NamedTuple):
    """A request to a member that it has not answered."""

    api: Api
    correlation_id: int
    generation: int
    at: int
    """When it was sent (milliseconds on the monotonic clock)."""


class LastPing(NamedTuple):
    """The last Ping on a channel. It is beside the group (``CentralState.pings``): to replace a member costs as much as there are
    members, and each of them has a Ping six times in a session."""

    question: Question
    is_answered: bool = False


@dataclass(frozen=True, slots=True)
class CentralMember:
    """One member. Timeouts are milliseconds."""

    member_id: str
    incarnation: str
    """Which instance of the consumer has this member id."""
    connection: int | None
    """Its channel; ``None``: lost."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignor: str
    topics: Mapping[str, int]
    """The topics that it names -> its threads for each."""
    pattern: str | None = None
    streams: int = 1
    """Its threads for each topic of the pattern."""
    state: MemberState = MemberState.REGISTERED
    generation: int = -1
    """The last generation that it is known to have started, or has reported; -1: none, or an earlier one."""
    differs: bool = False
    """Whether it holds something else than the owners of its generation say, so that it must be stopped first."""
    pushes: int = 0
    """The number of Stops and Starts to it so far, which is the correlation id of the last one."""
    command: Question | None = None
    """The last Stop or Start, if it is not answered."""
    complained: bool = False
    """Whether a frame of it was refused, and logged."""

    @property
    def ping_interval_ms(self) -> int:
        """How often it is pinged."""
        return ping_interval_ms(self.session_timeout_ms)
