"""Faults as values: the requests that match, what happens to them, how often.

Owns the vocabulary. Must not know how a fault is carried out. Invariant: a rule never changes; the table counts its strikes.
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
    """The requests that a fault strikes. An empty field or ``None`` matches all."""

    apis: frozenset[Api] = frozenset()
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    transactional_id: str | None = None


class Moment(enum.Enum):
    """When a connection is dropped."""

    REQUEST = "request"
    """The request has arrived, and is not carried out."""
    REPLY = "reply"
    """The request was carried out, its answer was not sent."""
    HALFWAY = "halfway"
    """The first half of the answer was sent."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Reply with an error instead of carrying the request out. With a topic in the match, only the part about that topic fails."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Delay:
    """Carry the request out at once, reply later (milliseconds)."""

    delay: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection that the request came from."""

    at: Moment


@dataclass(frozen=True, slots=True)
class LoseReply:
    """Carry the request out and never reply, nor to later requests on that connection."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop everything: requests and timers wait."""


@dataclass(frozen=True, slots=True)
class FailAppends:
    """Fail appends to a topic, or to one partition of it, as a full disk does."""

    topic: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class MoveCoordinator:
    """Stop coordinating a group, a transactional id or (if neither is given) any, until the fault ends; responses name ``to`` as
    the coordinator."""

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
    """Milliseconds until it ends by itself."""


@dataclass(frozen=True, slots=True)
class AddFault:
    """Set a fault."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class RemoveFaults:
    """End one fault, or all of them: delayed responses are sent, and connections with a lost response are closed."""

    number: int | None = None


@dataclass(frozen=True, slots=True)
class ExpireMember:
    """Expire the sessions of the members of a group that match all given names."""

    group: str
    member_id: str | None = None
    client_id: str | None = None
    instance_id: str | None = None

    def fits(self, member: Any) -> bool:
        """Whether a member of the group matches."""
        wanted = (("member_id", self.member_id), ("client_id", self.client_id), ("instance_id", self.instance_id))
        return all(getattr(member, name) == value for name, value in wanted if value is not None)


Command = AddFault | RemoveFaults | ExpireMember
"""Commands to a core from outside."""
