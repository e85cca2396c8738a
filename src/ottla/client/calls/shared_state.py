"""The state that the threads of a client share beside their two queues.

Owns every attribute that one thread writes and another one reads. Must not know sockets or brokers. Invariant: no attribute needs a
lock, for the reason given with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.client.poll_timer import InHand
from ottla.client.subscription import Consumed, Mode, Snapshot

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.client.calls.delivery import Delivery
    from ottla.client.calls.streams import Streams
    from ottla.client.groups.rebalances import Rebalance
    from ottla.client.health.metrics import Consumption, MetricName, PollMetrics
    from ottla.types import Now, OffsetAndMetadata, TopicPartition


class FetchedLog(NamedTuple):
    """The log of a partition in a response. See ``FetchedPartition``. All responses of an epoch have the same id, or none."""

    begin: int
    end: int
    topic_id: UUID | None


class SharedState:
    """The attributes that cross threads. Every other mutable object of a client belongs to one thread.

    Each attribute has one writer: the network thread, or the application thread. The readers are the other one of the two, and
    "any thread": those that call ``health()``, ``metrics()``, ``rebalances`` and a ``ProcessingJob``, and the helper threads that
    resolve names and compute logins. An ``Admin`` uses ``asleep``, ``deferrable``, ``stopping`` and ``closed`` only.

    CPython reads or writes an attribute, and an item of a dictionary, in one step. So a reader gets the old value or the new one,
    never a mixture. Two attributes that are read one after the other may be of different moments; where that matters, the
    attribute says what makes it safe.
    """

    __slots__ = (
        "asleep",
        "closed",
        "consumption",
        "deferrable",
        "delivery",
        "job",
        "lease_until",
        "logs",
        "poll_metrics",
        "positions",
        "progress_at",
        "rebalances",
        "rebalancing",
        "snapshot",
        "stopping",
        "streams",
    )

    # Set by the calls of a consumer when they are created, and never replaced.

    poll_metrics: PollMetrics
    """Written by the application thread in polls, commits and listeners, read by any thread that calls ``metrics()``.

    Numbers only grow, and a ``Meter`` replaces its samples as a whole. A reader may miss the latest event.
    """
    consumption: Consumption
    """As ``poll_metrics``. A reader copies the dictionary of topics, in one step, before it iterates over it."""

    def __init__(self) -> None:
        # -- written by the network thread ------------------------------------------------------------------------------

        self.asleep = False
        """Whether the network thread waits for its sockets. Read by any thread that submits a command.

        The submitting thread appends the command and then reads this; the network thread sets this and then looks at the
        commands. Whichever comes first, one of the two sees the other, so no command waits for the end of a sleep.
        """
        self.deferrable: frozenset[type[object]] = frozenset()
        """The classes of commands that need not end a sleep. Read by any thread that submits a command.

        It is replaced as a whole before ``asleep`` is set, and read after ``asleep``: the value belongs to the current sleep.
        """
        self.rebalances: tuple[Rebalance, ...] = ()
        """The latest rebalances, oldest first. Read by any thread. A tuple of frozen values, replaced as a whole."""
        self.rebalancing = False
        """Whether the member is in a rebalance. Read by any thread, through ``ProcessingJob.rebalancing``. One boolean."""
        self.lease_until: int | None = None
        """Until when no other member can own the partitions (monotonic ms; 0: they may own them now). ``None``: no lease is needed.

        With ZooKeeper, the session surely lasts until then; in a central group, the session at the coordinator. Read by the
        application thread before it returns records. One number, which only grows while the session lasts.
        """

        # -- written by the application thread --------------------------------------------------------------------------

        self.stopping = False
        """Whether the network thread is to end, or has ended. Read by the network thread and by any thread that submits.

        It only ever changes from false to true, so it does not matter that a network thread that fails sets it, too.
        """
        self.closed = False
        """Whether the client is closed. Read by any thread. It only ever changes from false to true."""
        self.job: object | None = None
        """The ``ProcessingJob`` that is running. Read by any thread, in ``ProcessingJob.progress()``, which compares the reference.

        The block may end just after that. The network thread ignores progress that arrives after the end.
        """
        self.snapshot = Snapshot()
        """The subscription as last published. Read by any thread that calls ``health()`` or ``metrics()``. It never changes."""
        self.delivery: Delivery | None = None
        """The records of the last poll. Read by the network thread once ``max_poll_interval`` has passed, to log their number.

        A reader copies the list of parts, which only grows, in one step; a part never changes; the progress is one number.
        """
        self.streams: Streams | None = None
        """The streams that get the records, if the application uses them. Read by the network thread as ``delivery`` is.

        Set once, before the first poll. A reader copies the list of queues in one step; the progress of each is a few plain reads.
        """
        self.positions: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        """For each partition, epoch and position after the returned records. Read by the same threads as ``snapshot``.

        Readers use ``get()`` only. An epoch that is not that of ``snapshot`` shows that the two are of different moments.
        """
        self.logs: dict[TopicPartition, tuple[int, FetchedLog]] = {}
        """For each partition, epoch, and the log according to the latest response. Read as ``positions`` is."""
        self.progress_at: dict[TopicPartition, int] = {}
        """When the application last received records of a partition (monotonic ms). Read as ``positions`` is."""

    def may_return_records(self, now: Now) -> bool:
        """Whether no other member can own the partitions: without a lease, the member's session may have expired."""
        lease_until = self.lease_until
        return lease_until is None or now.mono < lease_until or self.snapshot.mode is not Mode.TOPICS

    # -- what other threads compute from it -------------------------------------------------------------------------------

    def in_hand(self) -> InHand:
        """The records that the application has received and has not finished."""
        if self.streams is not None:
            return self.streams.in_hand()
        delivery = self.delivery
        return InHand() if delivery is None else delivery.in_hand()

    def returned_offset(self, tp: TopicPartition) -> int | None:
        """The offset after all returned records of a partition; ``None`` while it has no position."""
        view = self.snapshot.partitions.get(tp)
        if view is None:
            return None
        epoch, position = self.positions.get(tp, (-1, view.position))
        current = position if epoch == view.epoch else view.position
        return None if current is None else current.offset

    def log_end(self, tp: TopicPartition) -> int | None:
        """The offset up to which a partition could be read at the latest response; ``None`` before the first one."""
        latest = self.logs.get(tp)
        return None if latest is None else latest[1].end

    def log_begin(self, tp: TopicPartition) -> int | None:
        """The first offset of a partition's log at the latest response; ``None`` if it is not known."""
        latest = self.logs.get(tp)
        return latest[1].begin if latest is not None and latest[1].begin >= 0 else None

    def fetched_topic_id(self, tp: TopicPartition) -> UUID | None:
        """The id of the topic that a partition was fetched from since its position was set; ``None``: no broker has compared it."""
        latest = self.logs.get(tp)
        return None if latest is None else latest[1].topic_id

    def consumed(self) -> dict[TopicPartition, Consumed]:
        """How far the application has come in each partition. The values of a partition may be of slightly different moments."""
        return {
            tp: Consumed(self.returned_offset(tp), self.log_end(tp), self.progress_at.get(tp), self.log_begin(tp))
            for tp in self.snapshot.partitions
        }

    def metrics(self, now: Now) -> dict[MetricName, float]:
        """The metrics that the application thread counts."""
        return {**self.poll_metrics.metrics(now), **self.consumption.metrics(self.consumed(), now)}
