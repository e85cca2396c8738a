"""The events of a group of the consumer protocol, as values.

Owns the volatile events, and the list of all that change a consumer group. Must not know which handler decides on an event or how
it changes the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.assignors import GroupSpec
from ottla.coordinator.consumer.client_side import AssignorMessage, AssignorRun
from ottla.coordinator.events import DurableConsumerEvent, VolatileEvent


@dataclass(frozen=True, slots=True)
class TopicMetadataRefreshed(VolatileEvent):
    """The group has compared its topics with this version of the topic image."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexResolutionStarted(VolatileEvent):
    """The group's regular expressions are being resolved against this version of the topic image."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexResolutionEnded(VolatileEvent):
    """The resolution of regular expressions has ended or failed."""


@dataclass(frozen=True, slots=True)
class AssignorRunStarted(VolatileEvent):
    """A member was chosen to compute the next target assignment."""

    run: AssignorRun


@dataclass(frozen=True, slots=True)
class AssignorRunPrepared(VolatileEvent):
    """PrepareAssignment has returned the group to that member."""

    group_epoch: int
    spec: GroupSpec


@dataclass(frozen=True, slots=True)
class AssignorRunTimedOut(VolatileEvent):
    """That member did not install an assignment in time."""


@dataclass(frozen=True, slots=True)
class AssignorRunEnded(VolatileEvent):
    """That member has installed the target assignment, or has reported an error: then the ``messages`` are errors."""

    messages: Mapping[str, AssignorMessage]


AssignorRunEvent = AssignorRunStarted | AssignorRunPrepared | AssignorRunTimedOut | AssignorRunEnded
"""The events of client-side assignors."""
ConsumerEvent = DurableConsumerEvent | TopicMetadataRefreshed | RegexResolutionStarted | RegexResolutionEnded | AssignorRunEvent
"""The events of one group of the consumer protocol."""
