"""The calls about positions: ``seek``, ``pause``, ``resume``, ``position``, ``lag``, and the look-up of offsets.

Owns these calls; the collector has the consumed positions, the network thread the fetch positions. Must not know how offsets are
looked up or fetched. Invariants: only an assigned partition has a position, so a call about another one raises an error; a look-up
changes no position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.client import events
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.mailbox import Call, CallErrors, Mailbox
from ottla.client.events import Offsets
from ottla.client.subscription import EARLIEST, LATEST
from ottla.errors import OttlaTimeoutError
from ottla.types import Now, OffsetAndTimestamp, TopicPartition


class PositionCalls:
    """See the module. It reads positions and log ends from the collector, and raises through ``errors``; it changes neither."""

    def __init__(self, mailbox: Mailbox, collector: FetchCollector, errors: CallErrors) -> None:
        self._mailbox = mailbox
        self._collector = collector
        self._errors = errors

    def seek(self, positions: Offsets, now: Now, ends: Mapping[TopicPartition, int] | None = None) -> Call[None]:
        """See ``Consumer.seek`` and ``events.Seek``."""
        self._mailbox.now = now
        self._mailbox.take()
        self._errors.require_assigned(positions)
        self._take_back(positions)
        yield from self._mailbox.ask(events.Seek(dict(positions), ends or {}), "seek()", self._mailbox.default_deadline)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.seek_to_beginning``."""
        yield from self._reset(partitions, EARLIEST, now)

    def seek_to_end(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.seek_to_end``."""
        yield from self._reset(partitions, LATEST, now)

    def _reset(self, partitions: Iterable[TopicPartition], timestamp: int, now: Now) -> Call[None]:
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions) or frozenset(self._collector.snapshot.partitions)
        self._errors.require_assigned(wanted)
        self._take_back(wanted)
        yield from self._mailbox.ask(events.ResetPositions(wanted, timestamp), "seek()", self._mailbox.default_deadline)

    def pause(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.pause``."""
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions)
        self._errors.require_assigned(wanted)
        self._take_back(wanted)
        if self._collector.streams is not None:
            self._collector.streams.user_paused |= wanted
        views, positions = self._collector.snapshot.partitions, self._collector.positions(with_current=True)
        consumed = {tp: (views[tp].epoch, positions[tp]) for tp in wanted if tp in positions}
        yield from self._mailbox.ask(events.Pause(wanted, consumed), "pause()", self._mailbox.default_deadline)

    def resume(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.resume``."""
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions)
        self._errors.require_assigned(wanted)
        if self._collector.streams is not None:
            self._collector.streams.user_paused -= wanted
        yield from self._mailbox.ask(events.Resume(wanted), "resume()", self._mailbox.default_deadline)

    def _take_back(self, partitions: Collection[TopicPartition]) -> None:
        """Take back the records of these partitions that wait in streams: they would be handed out in spite of the call."""
        self._mailbox.rewind(self._collector.withdraw(partitions))

    def position(self, tp: TopicPartition, timeout: int, now: Now) -> Call[int]:
        """See ``Consumer.position``."""
        self._mailbox.now = now
        deadline = now.mono + timeout
        yield from self._mailbox.require_caught_up("position()", deadline)
        while True:
            self._mailbox.take()
            self._errors.require_assigned((tp,))
            position = self._collector.position(tp)
            if position is not None:
                return position.offset
            self._errors.raise_failure()
            problem = self._collector.snapshot.partitions[tp].problem or self._collector.snapshot.problem
            if problem is not None and (not problem.retriable or self._mailbox.now.mono >= deadline):
                self._errors.raise_problem(problem)
            if self._mailbox.now.mono >= deadline:
                raise OttlaTimeoutError(f"the position of {tp} is not known yet", hint="call poll(), or raise the timeout")
            self._mailbox.raise_wakeup()
            yield from self._mailbox.wait("a position", deadline)

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: int, now: Now
    ) -> Call[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """The offsets of timestamps; see ``Consumer.offsets_for_times``."""
        self._mailbox.now = now
        command = events.ListOffsets(dict(timestamps), now.mono + timeout)
        offsets = yield from self._mailbox.ask(command, "looking offsets up", command.deadline, wakeable=True)
        return {tp: offsets.get(tp) for tp in timestamps}

    def lag(self, tp: TopicPartition, timeout: int, now: Now) -> Call[int]:
        """See ``Consumer.lag``."""
        deadline = now.mono + timeout
        position = yield from self.position(tp, timeout, now)
        end = self._collector.log_end(tp)
        if end is None:
            left = max(0, deadline - self._mailbox.now.mono)
            latest = (yield from self.list_offsets({tp: LATEST}, left, self._mailbox.now))[tp]
            end = position if latest is None else latest.offset
        return max(0, end - position)
