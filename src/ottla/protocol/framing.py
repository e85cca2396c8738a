"""Frames: four bytes of length, then that many bytes. Cuts a byte stream into frames and builds frames out of pieces.

Owns the limits of a frame; must not know what is inside one, nor sockets. Invariant: a stream that broke a limit stays broken:
every later call raises the same error, since nothing after a bad length can be trusted.

A reader lends out the buffer to fill (``get_buffer``) and learns how much arrived (``buffer_updated``), so that a large
frame goes from the kernel into its own memory in as few calls as the socket allows, without a copy. That memory holds a later frame
as soon as nothing refers to this one, be it a view of a part.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import sys
from typing import Protocol

from ottla.errors import ProtocolError

MAX_FRAME = 104_857_600
"""Kafka's default for ``socket.request.max.bytes``: 100 MiB."""

_LENGTH = struct.Struct(">i")
_FIRST = 1 << 16
_GROWTH = 16
"""A frame's buffer grows to its announced length only as bytes arrive, so that a lying length costs its sender, not us: what is
touched is at most this many times what has arrived, and what is copied in growing a sixteenth of the frame."""

_HUGE = 1 << 20
"""A frame above this many bytes gets memory of its own, in huge pages where the system has them: touching fresh small pages costs
more than filling them (measured for 50 MB frames: 2.7 GB/s instead of 0.8; the first 4 MB of a consumer come 2 ms sooner)."""

_KEPT = 1 << 24
"""The memory of a frame up to this many bytes holds later ones, too."""

_LENT = 3
"""Frames of one stream whose memory is used again, since clearing fresh memory costs as much as filling it: two that are read, and
one that arrives."""

Frame = bytearray | mmap.mmap | memoryview
"""A frame's content."""


class FileRange(Protocol):
    """Bytes that stay where they are until they are sent, e.g. a part of a segment file. Only its size is known here."""

    def __len__(self) -> int: ...


Piece = bytes | FileRange
"""What an outgoing frame is made of: bytes in memory and ranges of files."""


class FrameReader:
    """Cuts an incoming stream into frames.

    Raises ``ProtocolError`` for a negative length or one above ``limit``.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._header = bytearray(4)
        self._body: bytearray | mmap.mmap | None = None
        self._rooms: list[bytearray | mmap.mmap] = []
        self._size = 0
        self._filled = 0
        self._broken: str | None = None

    def __repr__(self) -> str:
        return f"<FrameReader {self._filled} of {self._size if self._body is not None else 'header'}>"

    def get_buffer(self) -> memoryview:
        """The memory that the next bytes of the stream belong in; never empty."""
        self._check()
        if self._body is None:
            return memoryview(self._header)[self._filled :]
        if self._filled == len(self._body):
            self._body = _grown(self._body, self._size)
        return memoryview(self._body)[self._filled : self._size]

    def buffer_updated(self, count: int) -> Frame | None:
        """Take note that ``count`` bytes arrived in the last buffer; return a frame when that completed one."""
        self._check()
        self._filled += count
        if self._body is None:
            if self._filled < 4:
                return None
            self._size = self._announced(self._header, 0)
            self._filled = 0
            self._body = self._first_room()
        if self._filled < self._size:
            return None
        body, self._body, self._filled = self._body, None, 0
        self._lend(body)
        return body if len(body) == self._size else memoryview(body)[: self._size]

    def _first_room(self) -> bytearray | mmap.mmap:
        if self._size > _FIRST:
            for at in range(len(self._rooms)):
                if _references(self._rooms, at) == _UNUSED:
                    return self._rooms.pop(at)
        return bytearray(min(self._size, _FIRST))

    def _lend(self, room: bytearray | mmap.mmap) -> None:
        """A frame goes out: once nothing refers to its memory any more it may hold another one."""
        if _FIRST < len(room) <= _KEPT:
            self._rooms.append(room)
            del self._rooms[:-_LENT]

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that ``data`` completes, for callers that hold the bytes already; whole ones are parts of ``data``."""
        self._check()
        frames: list[Frame] = []
        rest = memoryview(data)
        if self.in_frame:
            rest = self._fill(rest, frames)
        position, size = 0, len(rest)
        while size - position >= 4:
            end = position + 4 + self._announced(rest, position)
            if end > size:
                break
            frames.append(rest[position + 4 : end])
            position = end
        self._fill(rest[position:], frames)
        return frames

    def _fill(self, rest: memoryview, frames: list[Frame]) -> memoryview:
        """Bytes for the frame that has begun; returns what is behind it."""
        while rest:
            buffer = self.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            buffer.release()
            rest = rest[count:]
            frame = self.buffer_updated(count)
            if frame is not None:
                frames.append(frame)
                break
        return rest

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and is not complete: the end of the stream now would cut it off."""
        return self._body is not None or self._filled > 0

    def _announced(self, data: bytearray | memoryview, position: int) -> int:
        """The length that a frame at this position announces; raises ``ProtocolError`` for one that no frame can have."""
        (length,) = _LENGTH.unpack_from(data, position)
        if length < 0:
            self._broken = f"a frame announces the negative length {length}: the peer does not speak Kafka's protocol"
        elif length > self._limit:
            self._broken = (
                f"a frame announces {length} bytes, the limit is {self._limit}{_looks_like(bytes(data[position : position + 4]))}"
            )
        self._check()
        return int(length)

    def _check(self) -> None:
        if self._broken is not None:
            raise ProtocolError(self._broken)


def _references(rooms: list[bytearray | mmap.mmap], at: int) -> int:
    """The number of references to a buffer, including views of it."""
    return sys.getrefcount(rooms[at]) if hasattr(sys, "getrefcount") else -1


_UNUSED = max(_references([bytearray()], 0), 0)
"""The number of references to a buffer that only the list refers to: no other code can reach it."""


def _looks_like(start: bytes) -> str:
    """What a length that cannot be one may be instead: the first bytes of another protocol."""
    if start == b"HTTP":
        return ": the peer speaks HTTP, not Kafka's protocol"
    if start[0] in (0x15, 0x16) and start[1] == 3:
        return ": the peer speaks TLS here, so set security.protocol to SSL or SASL_SSL"
    return ""


def _grown(body: bytearray | mmap.mmap, size: int) -> bytearray | mmap.mmap:
    """A larger buffer for a frame of ``size`` bytes of which ``body`` is full, and some to spare: the next may be a little
    larger."""
    ample = size + size // 8
    grown = _reserved(ample) if size > _HUGE else bytearray(min(ample, len(body) * _GROWTH))
    grown[: len(body)] = body[:]
    return grown


def _reserved(size: int) -> mmap.mmap:
    """Memory that is there once it is touched."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        # A kernel without huge pages refuses: small ones do as well.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def frame_of(content: list[bytes]) -> list[Piece]:
    """A frame with this content, in one piece."""
    body = b"".join(content)
    return [_LENGTH.pack(len(body)) + body]


def frame_with_ranges(content: list[Piece]) -> list[Piece]:
    """A frame with this content: bytes joined, file ranges between them as they are."""
    frame: list[Piece] = []
    run = [_LENGTH.pack(sum(map(len, content)))]
    for piece in content:
        if isinstance(piece, bytes):
            run.append(piece)
        elif len(piece):
            frame += (b"".join(run), piece)
            run = []
    return [*frame, b"".join(run)] if any(run) else frame
