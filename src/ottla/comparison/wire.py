"""What goes over connections because of a group, counted from the bytes that pass by.

Owns what counts, and the frames of Kafka and of ZooKeeper as far as counting needs them. Must not know sockets, nor who is at the
ends of a connection. Invariants: the counts do not depend on where the bytes are split; after bytes that cannot be read nothing
more of their connection is counted, and no error is raised.
"""

from __future__ import annotations

import struct
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from ottla.comparison.life import COUNTED, GROUP, Traffic
from ottla.protocol.apis import PUSHED

_NAMES: Mapping[int, str] = {api.value: name for api, name in COUNTED.items()}

LONGEST_FRAME = 100 << 20
"""Bytes, as a broker allows. A greater length is none: the connection speaks another protocol."""

PING, AUTH, SET_WATCHES, NOTIFICATION = -2, -4, -8, -1
"""Numbers (xid) that ZooKeeper has for frames that are no operations."""
CREATE, DELETE, SET_DATA, SYNC, CHECK, MULTI, CREATE_2, CLOSE_SESSION = 1, 2, 5, 9, 13, 14, 15, -11
"""Types of ZooKeeper's requests."""
OFFSETS = f"/consumers/{GROUP}/offsets"
NO_EVENT = -1
"""The type of a notification that is about the session, not about a node."""


class Tally:
    """The sums of all connections. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: Counter[str] = Counter()
        self._operations = self._single_operations = self._offset_operations = self._notifications = 0

    def add_message(self, api: str) -> None:
        """A request or a response of an API."""
        with self._lock:
            self._messages[api] += 1

    def add_operation(self, single: int, *, is_about_offsets: bool) -> None:
        """An operation of ZooKeeper, for which 0.8 would have issued ``single``."""
        with self._lock:
            self._operations += 1
            self._single_operations += single
            self._offset_operations += is_about_offsets

    def add_notification(self) -> None:
        """A watch has fired."""
        with self._lock:
            self._notifications += 1

    def total(self) -> Traffic:
        """Everything so far."""
        with self._lock:
            counts = self._operations, self._single_operations, self._offset_operations, self._notifications
            return Traffic(Counter(self._messages), *counts)


class Frames:
    """Splits a stream into frames, which have a length of four bytes in front."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that these bytes complete. Raises ``ValueError`` for a length that is none."""
        self._bytes += data
        while len(self._bytes) >= 4:
            end = 4 + int.from_bytes(self._bytes[:4], "big", signed=True)
            if not 4 <= end <= LONGEST_FRAME:
                raise ValueError(f"a frame of {end - 4} bytes")
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[4:end])
            del self._bytes[:end]
            yield frame


class Meter(ABC):
    """Counts what passes by on one connection of a client to a server."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._from_client, self._from_server = Frames(), Frames()
        self._is_lost = False

    def to_server(self, data: bytes) -> None:
        """The client sends these bytes."""
        self._count(self._from_client, data, self._on_request)

    def to_client(self, data: bytes) -> None:
        """The server sends these bytes."""
        self._count(self._from_server, data, self._on_response)

    def _count(self, frames: Frames, data: bytes, count: Callable[[bytes], None]) -> None:
        if self._is_lost:
            return
        try:
            for frame in frames.feed(data):
                count(frame)
        except (ValueError, struct.error):
            self._is_lost = True

    @abstractmethod
    def _on_request(self, frame: bytes) -> None:
        """Count a frame of the client. Raises ``ValueError`` or ``struct.error`` if it cannot be read."""

    @abstractmethod
    def _on_response(self, frame: bytes) -> None:
        """The same for a frame of the server."""


class KafkaMeter(Meter):
    """Counts requests and responses between a client of Ottla and a broker, in both directions of a member's channel."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(tally)
        self._unanswered: dict[int, str] = {}
        """Correlation id -> the API of a request that counts."""

    def _on_request(self, frame: bytes) -> None:
        api, _, correlation_id = struct.unpack_from(">hhi", frame)
        if api in _NAMES:
            self._tally.add_message(_NAMES[api])
            if api not in PUSHED:  # otherwise it is a member's answer, to which there is no response
                self._unanswered[correlation_id] = _NAMES[api]

    def _on_response(self, frame: bytes) -> None:
        (api,) = struct.unpack_from(">h", frame)
        # A response begins with its correlation id. Clients choose ids whose first two bytes are no key of a pushed API.
        if api in PUSHED:
            self._tally.add_message(_NAMES[api])
            return
        (correlation_id,) = struct.unpack_from(">i", frame)
        name = self._unanswered.pop(correlation_id, None)
        if name is not None:
            self._tally.add_message(name)


class ZooKeeperMeter(Meter):
    """Counts the operations of a client of ZooKeeper and the notifications for it, as far as they concern one of ``roots``, or a
    node below one. ``None``: all."""

    def __init__(self, tally: Tally, roots: tuple[str, ...] | None = None) -> None:
        super().__init__(tally)
        self._roots = roots
        self._asks_to_connect = self._is_connected = False

    def _on_request(self, frame: bytes) -> None:
        if not self._asks_to_connect:
            self._asks_to_connect = True
            return
        record = _Record(frame)
        number, kind = record.integer(), record.integer()
        if number in (PING, AUTH, SET_WATCHES) or kind in (CLOSE_SESSION, SYNC):
            return
        parts = list(_parts(record)) if kind == MULTI else [(kind, record.string())]
        if self._concerns(path for _, path in parts):
            paths = [path for part, path in parts if part != CHECK]
            self._tally.add_operation(len(paths), is_about_offsets=all(path.startswith(OFFSETS) for path in paths))

    def _on_response(self, frame: bytes) -> None:
        if not self._is_connected:
            self._is_connected = True
            return
        record = _Record(frame)
        if record.integer() != NOTIFICATION:
            return
        record.skip(12)  # the rest of the header: a transaction and an error code
        kind, _, path = record.integer(), record.integer(), record.string()
        if kind != NO_EVENT and self._concerns([path]):
            self._tally.add_notification()

    def _concerns(self, paths: Iterable[str]) -> bool:
        if self._roots is None:
            return True
        return any(path == root or path.startswith(f"{root}/") for path in paths for root in self._roots)


class _Record:
    """Reads ZooKeeper's encoding from the front of a frame. Its methods raise ``ValueError`` or ``struct.error`` at the end."""

    def __init__(self, frame: bytes) -> None:
        self._frame, self._at = frame, 0

    def skip(self, count: int) -> None:
        """Skip bytes."""
        if not 0 <= count <= len(self._frame) - self._at:
            raise ValueError(f"{count} bytes beyond the end of a frame")
        self._at += count

    def integer(self) -> int:
        """Read an int32."""
        (value,) = struct.unpack_from(">i", self._frame, self._at)
        self._at += 4
        return int(value)

    def boolean(self) -> bool:
        """Read a boolean, which has one byte."""
        self.skip(1)
        return self._frame[self._at - 1] != 0

    def data(self) -> bytes:
        """Read bytes; those of null are none."""
        start = self._at + 4
        self.skip(max(self.integer(), 0))
        return self._frame[start : self._at]

    def string(self) -> str:
        """Read a string."""
        return self.data().decode()

    def skip_acls(self) -> None:
        """Skip a vector of permissions, scheme and id."""
        for _ in range(self.integer()):
            self.integer()
            self.data()
            self.data()


def _parts(record: _Record) -> Iterator[tuple[int, str]]:
    """Yield type and path of each operation of a multi."""
    while (kind := _part_header(record)) is not None:
        yield kind, record.string()
        if kind not in (CREATE, CREATE_2, DELETE, SET_DATA, CHECK):
            raise ValueError(f"an operation of type {kind} in a multi")
        if kind not in (DELETE, CHECK):
            record.data()
        if kind in (CREATE, CREATE_2):
            record.skip_acls()
        record.integer()  # the flags of a new node, or the expected version


def _part_header(record: _Record) -> int | None:
    """Return the type of the next operation of a multi; ``None`` at its end."""
    kind, is_end = record.integer(), record.boolean()
    record.integer()  # an error, in responses
    return None if is_end else kind
