"""Splits a byte stream into frames, which have a length of four bytes in front, and joins pieces into frames.

Owns the limits of a frame. Must not know the content of a frame, nor sockets. Invariant: after an invalid length every call raises
the same error, since no later byte of the stream can be interpreted.

As in ``asyncio.BufferedProtocol``, the caller fills a buffer of the reader (``get_buffer``) and reports the number of bytes
(``buffer_updated``). So the kernel writes a large frame into its final memory, in few calls and without a copy. The memory is
reused for a later frame when nothing refers to the frame or to a view of it.
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
_INITIAL_SIZE = 1 << 16
_GROWTH = 16
"""A frame's buffer grows by this factor as bytes arrive, so that a false length costs little memory: at most this many times the
received bytes are touched, and growing copies a sixteenth of the frame."""

_HUGE = 1 << 20
"""A frame above this many bytes is received into mapped memory, in huge pages if the system has them: touching new small pages
takes longer than filling them (measured for frames of 50 MB: 2.7 GB/s instead of 0.8; a consumer gets its first 4 MB 2 ms
sooner)."""

_MAX_REUSED_SIZE = 1 << 24
"""Buffers up to this many bytes are reused."""

_MAX_REUSED = 3
"""How many buffers of one stream are reused, since clearing new memory takes as long as filling it: two for frames that are being
read, and one for the frame that arrives."""

Frame = bytearray | mmap.mmap | memoryview
"""A frame's content."""


class FileRange(Protocol):
    """A part of a file, for instance of a segment, that is not read before it is sent. Only its size is known here."""

    def __len__(self) -> int: ...


Piece = bytes | memoryview | FileRange
"""A part of an outgoing frame: bytes in memory, or a range of a file."""


class FrameReader:
    """Splits an incoming stream into frames.

    Raises ``ProtocolError`` for a negative length or one above ``limit``.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._header = bytearray(4)
        self._body: bytearray | mmap.mmap | None = None
        self._reusable: list[bytearray | mmap.mmap] = []
        self._size = 0
        self._filled = 0
        self._broken: str | None = None

    def __repr__(self) -> str:
        return f"<FrameReader {self._filled} of {self._size if self._body is not None else 'header'}>"

    def get_buffer(self) -> memoryview:
        """The memory for the next bytes of the stream; never empty."""
        self._check()
        if self._body is None:
            return memoryview(self._header)[self._filled :]
        if self._filled == len(self._body):
            self._body = _grown(self._body, self._size)
        return memoryview(self._body)[self._filled : self._size]

    def buffer_updated(self, count: int) -> Frame | None:
        """Report that ``count`` bytes arrived in the last buffer; return the frame that they complete, if any."""
        self._check()
        self._filled += count
        if self._body is None:
            if self._filled < 4:
                return None
            self._size = self._announced(self._header, 0)
            self._filled = 0
            self._body = self._new_body()
        if self._filled < self._size:
            return None
        body, self._body, self._filled = self._body, None, 0
        self._keep_for_reuse(body)
        return body if len(body) == self._size else memoryview(body)[: self._size]

    def _new_body(self) -> bytearray | mmap.mmap:
        if self._size > _INITIAL_SIZE:
            for index in range(len(self._reusable)):
                if _references(self._reusable, index) == _UNUSED:
                    return self._reusable.pop(index)
        return bytearray(min(self._size, _INITIAL_SIZE))

    def _keep_for_reuse(self, body: bytearray | mmap.mmap) -> None:
        """Keep the memory of a complete frame, to reuse it when nothing else refers to it."""
        if _INITIAL_SIZE < len(body) <= _MAX_REUSED_SIZE:
            self._reusable.append(body)
            del self._reusable[:-_MAX_REUSED]

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, for callers that already have the bytes. A frame inside ``data`` is a view of it."""
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
        """Fill the incomplete frame; return the bytes after it."""
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
        """Whether a frame is incomplete, so that the end of the stream now would truncate it."""
        return self._body is not None or self._filled > 0

    def _announced(self, data: bytearray | memoryview, position: int) -> int:
        """The length of the frame at this position. Raises ``ProtocolError`` for a length that no frame can have."""
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


def _references(buffers: list[bytearray | mmap.mmap], index: int) -> int:
    """The number of references to a buffer, including those of views."""
    return sys.getrefcount(buffers[index]) if hasattr(sys, "getrefcount") else -1


_UNUSED = max(_references([bytearray()], 0), 0)
"""The number of references to a buffer to which only the list refers."""


def _looks_like(start: bytes) -> str:
    """The end of the error text if an invalid length is the beginning of another protocol."""
    if start == b"HTTP":
        return ": the peer speaks HTTP, not Kafka's protocol"
    if start[0] in (0x15, 0x16) and start[1] == 3:
        return ": the peer speaks TLS here, so set security.protocol to SSL or SASL_SSL"
    return ""


def _grown(body: bytearray | mmap.mmap, size: int) -> bytearray | mmap.mmap:
    """A larger buffer with the content of ``body``, for a frame of ``size`` bytes, and an eighth more: the next frame may be a
    little larger."""
    ample = size + size // 8
    grown = _mapped(ample) if size > _HUGE else bytearray(min(ample, len(body) * _GROWTH))
    grown[: len(body)] = body[:]
    return grown


def _mapped(size: int) -> mmap.mmap:
    """Mapped memory: the system provides its pages when they are touched."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        # A kernel without huge pages refuses this, and provides small ones.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def frame_of(content: list[bytes]) -> list[Piece]:
    """A frame with this content, as one piece."""
    body = b"".join(content)
    return [_LENGTH.pack(len(body)) + body]


def frame_with_ranges(content: list[Piece]) -> list[Piece]:
    """A frame with this content: adjacent bytes are joined, file ranges remain separate pieces."""
    frame: list[Piece] = []
    run = [_LENGTH.pack(sum(map(len, content)))]
    for piece in content:
        if isinstance(piece, bytes):
            run.append(piece)
        elif len(piece):
            frame += (b"".join(run), piece)
            run = []
    return [*frame, b"".join(run)] if any(run) else frame
