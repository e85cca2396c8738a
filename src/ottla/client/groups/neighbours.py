"""Whom a membership works with, whatever protocol it speaks.

Owns the list of them. Must not know what a membership does with any. Invariant: every membership takes the same, so the choice of a
protocol changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.groups.coordinator import CoordinatorManager
from ottla.client.poll_watch import PollWatch
from ottla.client.subscription import Subscription
from ottla.config import ConsumerConfig


class Neighbours(NamedTuple):
    """See the module. ``notify`` tells the application."""

    config: ConsumerConfig
    subscription: Subscription
    coordinator: CoordinatorManager
    metadata: MetadataManager
    notify: Callable[[object], None]
    backoff: ExponentialBackoff
    polls: PollWatch
