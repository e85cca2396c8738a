"""What happens to a group of the consumer protocol, as values.

Owns the events that are not written, and the list of all that change a consumer group. Must not know who decides on an event or
what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.assignors import GroupSpec
from ottla.coordinator.consumer.client_side import AssignorMessage, AssignorRun
from ottla.coordinator.events import DurableConsumerEvent, VolatileEvent


@dataclass(frozen=True, slots=True)
class TopicMetadataRefreshed(VolatileEvent):
    """The epoch of a consumer group takes account of the topics in this version of theirs."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexResolutionStarted(VolatileEvent):
    """The regular expressions of a consumer group are being matched with the topics in this version of theirs."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexResolutionEnded(VolatileEvent):
    """They have been matched, or could not be."""


@dataclass(frozen=True, slots=True)
class AssignorRunStarted(VolatileEvent):
    """A member is asked to compute the next target assignment."""

    run: AssignorRun


@dataclass(frozen=True, slots=True)
class AssignorRunPrepared(VolatileEvent):
    """It has been shown the group."""

    group_epoch: int
    spec: GroupSpec


@dataclass(frozen=True, slots=True)
class AssignorRunTimedOut(VolatileEvent):
    """It has not delivered in time."""


@dataclass(frozen=True, slots=True)
class AssignorRunEnded(VolatileEvent):
    """The run has ended: the target assignment is written, or unchanged if the ``messages`` are errors."""

    messages: Mapping[str, AssignorMessage]


AssignorRunEvent = AssignorRunStarted | AssignorRunPrepared | AssignorRunTimedOut | AssignorRunEnded
"""What happens where members run assignors themselves."""
ConsumerEvent = DurableConsumerEvent | TopicMetadataRefreshed | RegexResolutionStarted | RegexResolutionEnded | AssignorRunEvent
"""What happens to one group of the consumer protocol."""
