"""What a consumer can be asked about the cluster and its group: commits, offsets, topics, lag.

Owns these calls. Must not know which broker answers. Invariant: a question changes nothing of what is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client import commands
from ottla.client.calls.mailbox import Call
from ottla.client.calls.positions import PositionCalls
from ottla.client.subscription import LATEST
from ottla.types import ConsumerGroupMetadata, Now, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition


class LookupCalls(PositionCalls):
    """See the module. On top of the positions: a lag is the distance from one to the end."""

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: int, now: Now
    ) -> Call[dict[TopicPartition, OffsetAndMetadata | None]]:
        """See ``Consumer.committed``."""
        self._mailbox.now = now
        self._require_group("committed()")
        command = commands.FetchCommitted(frozenset(partitions), now.mono + timeout)
        try:
            found = yield from self._mailbox.ask(command, "committed()", command.deadline, wakeable=True)
        finally:
            self.pace.in_committed += self._mailbox.now.mono - now.mono
        return dict(found)

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: int, now: Now
    ) -> Call[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """The offsets of timestamps; see ``Consumer.offsets_for_times``."""
        self._mailbox.now = now
        command = commands.ListOffsets(dict(timestamps), now.mono + timeout)
        found = yield from self._mailbox.ask(command, "looking offsets up", command.deadline, wakeable=True)
        return {tp: found.get(tp) for tp in timestamps}

    def lag(self, tp: TopicPartition, timeout: int, now: Now) -> Call[int]:
        """See ``Consumer.lag``."""
        deadline = now.mono + timeout
        position = yield from self.position(tp, timeout, now)
        end = self.collector.end(tp)
        if end is None:
            found = yield from self.list_offsets({tp: LATEST}, max(0, deadline - self._mailbox.now.mono), self._mailbox.now)
            answer = found[tp]
            end = position if answer is None else answer.offset
        return max(0, end - position)

    def describe_topics(self, topics: Iterable[str] | None, timeout: int, now: Now) -> Call[Mapping[str, Any]]:
        """What the cluster says of topics, ``None`` being all."""
        self._mailbox.now = now
        command = commands.DescribeTopics(None if topics is None else frozenset(topics), now.mono + timeout)
        found: Mapping[str, Any] = yield from self._mailbox.ask(command, "describing topics", command.deadline, wakeable=True)
        return found

    def group_metadata(self) -> ConsumerGroupMetadata:
        """See ``Consumer.group_metadata``. No broker is asked: it is in the snapshot."""
        self._require_group("group_metadata()")
        unknown = ConsumerGroupMetadata(self._config.group_id or "", group_instance_id=self._config.group_instance_id)
        return self.snapshot.group or unknown
