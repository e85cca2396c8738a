"""Faults as values: which requests one is for, what happens to them, how often.

Owns the vocabulary. Must not know how a fault is carried out. Invariant: a rule never changes; how often it struck is the table's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ottla.broker.effects import NodeEndpoint
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api


@dataclass(frozen=True, slots=True)
class Match:
    """The requests that a fault is for. What is empty or ``None`` leaves them as many as they were."""

    apis: frozenset[Api] = frozenset()
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    transactional_id: str | None = None


class Moment(enum.Enum):
    """When a connection is dropped."""

    REQUEST = "request"
    """The request has arrived and nothing is done about it."""
    REPLY = "reply"
    """The request was carried out, its answer was not sent."""
    HALFWAY = "halfway"
    """The first half of the answer was sent."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an error instead of carrying out. With a topic in the match, only what concerns that topic fails."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Delay:
    """Carry out at once, answer later (milliseconds)."""

    delay: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection that the request came from."""

    at: Moment


@dataclass(frozen=True, slots=True)
class LoseReply:
    """Carry out and say nothing, nor to anything that comes later over that connection."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Do nothing at all: requests and timers wait."""


@dataclass(frozen=True, slots=True)
class FailAppends:
    """The disk takes no more of a topic, or of one partition of it."""

    topic: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class MoveCoordinator:
    """Coordinate a group, a transactional id or (neither named) any no longer, until the fault ends; ``to`` is the coordinator in
    answers."""

    group: str | None = None
    to: NodeEndpoint | None = None
    transactional_id: str | None = None

    @property
    def of_groups(self) -> bool:
        """Whether it concerns groups."""
        return self.group is not None or self.transactional_id is None

    @property
    def of_transactions(self) -> bool:
        """Whether it concerns transactional ids."""
        return self.transactional_id is not None or self.group is None


Action = Fail | Delay | Drop | LoseReply | Freeze | FailAppends | MoveCoordinator


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault. ``after``: how many requests are spared first; ``times``: how often it strikes, ``None`` for no limit."""

    number: int
    action: Action
    match: Match = Match()
    times: int | None = 1
    after: int = 0
    lasts: int | None = None
    """Milliseconds until it is over by itself."""


@dataclass(frozen=True, slots=True)
class AddFault:
    """Set a fault."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class RemoveFaults:
    """End one fault, or all of them: what waits is answered, connections that would wait for ever are closed."""

    number: int | None = None


@dataclass(frozen=True, slots=True)
class ExpireMember:
    """Let the session of the members of a group that all given names fit be over now."""

    group: str
    member_id: str | None = None
    client_id: str | None = None
    instance_id: str | None = None

    def fits(self, member: Any) -> bool:
        """Whether a member of the group is meant."""
        wanted = (("member_id", self.member_id), ("client_id", self.client_id), ("instance_id", self.instance_id))
        return all(getattr(member, name) == value for name, value in wanted if value is not None)


Command = AddFault | RemoveFaults | ExpireMember
"""Commands to a core from outside."""
