"""The wait of an idle stream for new records.

Owns a consumer that long-polls the ends of the logs. Must not know what is planned. Invariants: a wait ends within its timeout,
whatever happens to brokers and topics; what it has seen is no more than a reason to look up the ends again.

Without it, a stream would look up the ends of all logs every 50 ms to notice a record within 100 ms: 40 requests per second.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ottla.consumer import Consumer
from ottla.errors import OttlaError
from ottla.spark.client_settings import PLANNER_SETTINGS
from ottla.spark.offsets import Offsets
from ottla.spark.options import SourceOptions
from ottla.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

WATCH_SETTINGS = {"fetch.max.wait.ms": "500", "fetch.min.bytes": "1", "max.partition.fetch.bytes": "1"}
"""A broker answers at once if there is a record. Of the records themselves it sends as few as possible, a batch."""


class Watch:
    """See the module. It has no consumer before the first wait, and none when it is pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer: Consumer | None = None
        self._ends: dict[TopicPartition, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_consumer": None, "_ends": {}}

    def wait(self, ends: Offsets, timeout: float) -> None:
        """Wait until there is a record at one of ``ends``, or behind it, for at most ``timeout`` seconds."""
        until = time.monotonic() + timeout
        if ends:
            try:
                records = self._at(ends).poll(timeout=timeout)
                self._ends.update((tp, after.offset) for tp, after in records.next_offsets().items())
                if records:
                    return
            except OttlaError as error:
                # For example, a topic was deleted. The look-up that follows the wait reports what matters.
                log.info("waiting for records failed, and is tried again: %s", error)
                self.close()
        time.sleep(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Close the connections."""
        consumer, self._consumer, self._ends = self._consumer, None, {}
        if consumer is not None:
            consumer.close(timeout=0)

    def _at(self, ends: Offsets) -> Consumer:
        """The consumer, at these positions."""
        if self._consumer is None:
            self._consumer = Consumer({**PLANNER_SETTINGS, **dict(self._options.client), **WATCH_SETTINGS})
        if ends.keys() != self._ends.keys():
            self._consumer.assign(list(ends))
            self._ends = {}
        if moved := {tp: OffsetAndMetadata(end) for tp, end in ends.items() if self._ends.get(tp) != end}:
            self._consumer._seek_all(moved)
            self._ends.update(ends)
        return self._consumer
