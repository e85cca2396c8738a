"""Splitting a stream into frames, and joining pieces into frames."""

from __future__ import annotations

import random
import struct

import pytest

from ottla.errors import ProtocolError
from ottla.protocol.framing import MAX_FRAME, Frame, FrameReader, frame_of, frame_with_ranges


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def received(reader: FrameReader, body: bytes) -> Frame:
    """The frame with this body, read as from a socket: into the reader's memory. ``feed`` returns a view of what it is given."""
    left, frame = memoryview(framed(body)), None
    while left:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(left), 3_000_000)
        buffer[:count] = left[:count]
        left = left[count:]
        buffer.release()
        assert frame is None
        frame = reader.buffer_updated(count)
    assert frame is not None
    return frame


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_frames_are_complete_however_the_bytes_arrive(step: int) -> None:
    bodies = [b"", b"a", b"second", bytes(300)]
    stream = b"".join(framed(body) for body in bodies)
    reader = FrameReader()
    found = [frame for at in range(0, len(stream), step) for frame in reader.feed(stream[at : at + step])]
    assert found == bodies
    assert not reader.in_frame


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 1 << 20, 5_000_000, 1 << 24, (1 << 24) + 1, 40_000_000])
def test_a_large_frame_is_filled_in_place(size: int) -> None:
    body = random.Random(size).randbytes(size)
    reader = FrameReader()
    assert received(reader, body)[:] == body
    assert reader.feed(framed(b"next")) == [b"next"]


@pytest.mark.parametrize(
    "sizes", [(300_000, 300_000), (300_000, 200_000), (300_000, 900_000), (3_000_000, 3_100_000), (300_000, 5)]
)
def test_the_memory_of_a_frame_holds_the_next_one(sizes: tuple[int, int]) -> None:
    reader = FrameReader()
    first, second = (random.Random(size).randbytes(size) for size in sizes)
    assert bytes(received(reader, first)) == first
    assert bytes(received(reader, second)) == second
    assert reader.feed(framed(b"end")) == [b"end"]


def test_the_memory_of_a_frame_is_left_alone_while_a_part_of_it_is_in_use() -> None:
    reader = FrameReader()
    bodies = [random.Random(number).randbytes(300_000) for number in range(6)]
    parts = []
    for body in bodies:
        parts.append(memoryview(received(reader, body))[1_000:200_000])
    assert [bytes(part) for part in parts] == [body[1_000:200_000] for body in bodies]


def test_unreferenced_memory_is_reused() -> None:
    """New memory grows as bytes arrive; memory that is reused has the size of the frame from the beginning."""
    reader = FrameReader()
    frames: list[Frame] = []
    for number in range(20):
        frames = frames[-1:]  # two at a time: one that is being read, and one that arrives
        reader.feed(struct.pack(">i", 300_000))
        assert len(reader.get_buffer()) == (300_000 if number >= 2 else 1 << 16)
        (frame,) = reader.feed(bytes([number]) * 300_000)
        frames.append(frame)
    assert [frame[0] for frame in frames] == [18, 19]


@pytest.mark.parametrize(("length", "why"), [(-1, "negative length -1"), (MAX_FRAME + 1, "the limit is")])
def test_a_bad_length_breaks_the_stream_for_good(length: int, why: str) -> None:
    reader = FrameReader()
    with pytest.raises(ProtocolError, match=why):
        reader.feed(struct.pack(">i", length))
    with pytest.raises(ProtocolError, match=why):
        reader.feed(framed(b"fine"))


def test_a_false_length_reserves_little_memory() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">i", MAX_FRAME) + b"x")
    assert len(reader.get_buffer()) <= 1 << 16
    assert reader.in_frame


class Range:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_ranges_stay_apart_and_are_counted() -> None:
    middle, empty = Range(1000), Range(0)
    first, second, third = frame_with_ranges([b"he", b"ad", middle, empty, b"tail"])
    assert first == struct.pack(">i", 1008) + b"head"
    assert second is middle
    assert third == b"tail"


def test_a_range_may_come_last() -> None:
    last = Range(5)
    assert frame_with_ranges([b"head", last]) == [struct.pack(">i", 9) + b"head", last]


def test_a_frame_without_ranges_is_one_piece() -> None:
    for make in (frame_of, frame_with_ranges):
        assert make([b"bo", b"dy"]) == [framed(b"body")]
        assert make([]) == [framed(b"")]
