"""Where a consumer reads on: ``seek``, ``pause``, ``resume``, ``position``.

Owns these calls. Must not know how positions are looked up or fetched. Invariant: only what is assigned has a position, so a call
about anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client import commands
from ottla.client.calls.base import CallBase
from ottla.client.calls.mailbox import Call
from ottla.client.commands import Offsets
from ottla.client.subscription import EARLIEST, LATEST
from ottla.errors import OttlaTimeoutError
from ottla.types import Now, TopicPartition


class PositionCalls(CallBase):
    """See the module."""

    def seek(self, positions: Offsets, now: Now) -> Call[None]:
        """See ``Consumer.seek``."""
        self._mailbox.now = now
        self._mailbox.take()
        self._require_assigned(positions)
        yield from self._mailbox.ask(commands.Seek(dict(positions)), "seek()", self._deadline())

    def seek_to_beginning(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.seek_to_beginning``."""
        yield from self._reset(partitions, EARLIEST, now)

    def seek_to_end(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.seek_to_end``."""
        yield from self._reset(partitions, LATEST, now)

    def _reset(self, partitions: Iterable[TopicPartition], timestamp: int, now: Now) -> Call[None]:
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions) or frozenset(self.snapshot.partitions)
        self._require_assigned(wanted)
        yield from self._mailbox.ask(commands.ResetPositions(wanted, timestamp), "seek()", self._deadline())

    def pause(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.pause``."""
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions)
        self._require_assigned(wanted)
        views, positions = self.snapshot.partitions, self.collector.positions(with_current=True)
        known = {tp: (views[tp].epoch, positions[tp]) for tp in wanted if tp in positions}
        yield from self._mailbox.ask(commands.Pause(wanted, known), "pause()", self._deadline())

    def resume(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.resume``."""
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions)
        self._require_assigned(wanted)
        yield from self._mailbox.ask(commands.Resume(wanted), "resume()", self._deadline())

    def position(self, tp: TopicPartition, timeout: int, now: Now) -> Call[int]:
        """See ``Consumer.position``."""
        self._mailbox.now = now
        deadline = now.mono + timeout
        yield from self._catch_up("position()", deadline)
        while True:
            self._mailbox.take()
            self._require_assigned((tp,))
            position = self.collector.position(tp)
            if position is not None:
                return position.offset
            self._raise_failure()
            problem = self.snapshot.partitions[tp].problem or self.snapshot.problem
            if problem is not None and (not problem.retriable or self._mailbox.now.mono >= deadline):
                self._raise_problem(problem)
            if self._mailbox.now.mono >= deadline:
                raise OttlaTimeoutError(f"the position of {tp} is not known yet", hint="poll(), or give it more time")
            self._mailbox.raise_wakeup()
            yield from self._mailbox.wait("a position", deadline)
