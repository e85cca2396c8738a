"""kio's readers, made safe for untrusted bytes and as tolerant as Kafka's own.

Owns the order of steps: the walk that checks lengths, the cut of the records, kio; and if these refuse a message, the same again on
a copy in which everything that Kafka accepts is written as kio reads it. Must not know any message. Invariant: kio only sees
messages that a walk has checked; whatever Kafka reads is read, at no extra cost for other messages.
"""

from __future__ import annotations

from typing import Any

from ottla.errors import ProtocolError
from ottla.protocol import bounds, cutting
from ottla.protocol.leniency import Rewrite
from ottla.protocol.schema import cache


class Reader:
    """Reads messages of one of kio's classes: returns the message and its size in bytes.

    Raises ``ProtocolError``, or what kio raises, for bytes that are not such a message.
    """

    def __init__(self, cls: type[Any]) -> None:
        from kio.serial import entity_reader

        self._class = cls
        self._read = entity_reader(cls)
        self._walk = bounds.walk_of(cls)

    def __call__(self, frame: memoryview | bytes, position: int) -> tuple[Any, int]:
        """The message at a position."""
        try:
            if self._walk is not None:
                self._walk(frame, position)
            return self._read(frame, position)
        except ProtocolError:
            raise
        except Exception as refusal:
            return self._read_rewritten(frame, position, None, refusal)

    def around_records(self, frame: memoryview, position: int, put: cutting.Put) -> tuple[Any, int]:
        """The same for a message with records, which ``put`` inserts as views of the frame."""
        places: list[bounds.RecordsSpan] = []
        try:
            assert self._walk is not None, "records belong to partitions, which are in an array"
            self._walk(frame, position, places)
            rest = cutting.without_records(frame, places, flexible=self._class.__flexible__)
            message, size = self._read(rest, position)
            size += len(frame) - len(rest)
        except ProtocolError:
            raise
        except Exception as refusal:
            places.clear()
            message, size = self._read_rewritten(frame, position, places, refusal)
        put(message, (frame[place.begin : place.end] for place in places))
        return message, size

    def _read_rewritten(
        self, frame: memoryview | bytes, position: int, places: list[bounds.RecordsSpan] | None, refusal: Exception
    ) -> tuple[Any, int]:
        rewrite = Rewrite(frame)
        bounds.lenient_walk_of(self._class)(frame, position, places, rewrite)
        if not rewrite.changed:
            raise refusal
        copy = rewrite.result()
        message, size = self._read(copy, position)
        return message, size + len(frame) - len(copy)


@cache
def reader(cls: type[Any]) -> Reader:
    """The reader of kio's class ``cls``."""
    return Reader(cls)
