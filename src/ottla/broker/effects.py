"""What the broker's core asks of its shell: the coordinator's vocabulary, and work for the disk thread.

Owns ``RunJob``. Must not know who runs it. Invariant: each ``RunJob`` comes back exactly once through ``BrokerCore.on_job``,
with the tag it was given, and jobs run one after the other in the order in which they were asked for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ottla.broker.ports import Job
from ottla.coordinator.effects import (
    CancelTimer,
    CloseConnection,
    NoReply,
    Reply,
    RequestContext,
    SetTimer,
    Ticket,
    TimerKey,
)

JobTag = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class RunJob:
    """Do slow work on files, then tell ``on_job(tag, outcome)``: what it returned, or the ``OSError`` it raised."""

    tag: JobTag
    job: Job


Effect = Reply | NoReply | CloseConnection | SetTimer | CancelTimer | RunJob

__all__ = [
    "CancelTimer",
    "CloseConnection",
    "Effect",
    "JobTag",
    "NoReply",
    "Reply",
    "RequestContext",
    "RunJob",
    "SetTimer",
    "Ticket",
    "TimerKey",
]
