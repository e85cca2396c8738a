"""What happens to a group of the consumer protocol, as values.

Owns the events that are not written, and the list of all that change a consumer group. Must not know who decides on an event or
what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.assignors import GroupSpec
from ottla.coordinator.consumer.client_side import Message, Run
from ottla.coordinator.events import DurableConsumerEvent, VolatileEvent


@dataclass(frozen=True, slots=True)
class TopicsLookedAt(VolatileEvent):
    """The epoch of a consumer group takes account of the topics in this version of theirs."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexesSent(VolatileEvent):
    """The regular expressions of a consumer group are being matched with the topics in this version of theirs."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexesMatched(VolatileEvent):
    """They have been matched, or could not be."""


@dataclass(frozen=True, slots=True)
class RunStarted(VolatileEvent):
    """A member is asked to compute the next target assignment."""

    run: Run


@dataclass(frozen=True, slots=True)
class RunPrepared(VolatileEvent):
    """It has been shown the group."""

    group_epoch: int
    question: GroupSpec


@dataclass(frozen=True, slots=True)
class RunGivenUp(VolatileEvent):
    """It has not delivered in time."""


@dataclass(frozen=True, slots=True)
class RunEnded(VolatileEvent):
    """The run has ended: the target assignment is written, or unchanged if the ``messages`` are errors."""

    messages: Mapping[str, Message]


ClientSideEvent = RunStarted | RunPrepared | RunGivenUp | RunEnded
"""What happens where members run assignors themselves."""
ConsumerEvent = DurableConsumerEvent | TopicsLookedAt | RegexesSent | RegexesMatched | ClientSideEvent
"""What happens to one group of the consumer protocol."""
