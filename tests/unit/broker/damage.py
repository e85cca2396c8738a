"""A broker with topics of many small batches, and damage to its files.

Must not know what the damage should cost.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ottla.records import NewRecord, encode_batch, read_header
from ottla.simulation.clock import START
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import stored

BATCHES = 12


def filled(path: Path, *topics: str, segment_bytes: int = 3 * 200, **configs: str) -> CoreUnderTest:
    """A broker with topics of one partition: batches of two records, a few to a segment."""
    broker = CoreUnderTest(path)
    for name in topics:
        broker.core.catalog.create_topic(name, 1, {"segment.bytes": "1048576", **configs})
        log = broker.core.catalog.log(name, 0)
        log.config = log.config.__class__(
            **{
                **{n: getattr(log.config, n) for n in log.config.__slots__},
                "segment_bytes": segment_bytes,
                "index_interval_bytes": 0,
            }
        )
        for number in range(BATCHES):
            records = [NewRecord(b"%d" % number, b"v" * 50, timestamp=START.wall + number) for _ in range(2)]
            data = encode_batch(records)
            broker.core.catalog.append(log, data, read_header(data), broker.now)
            broker.run_jobs()
    return broker


def bases(broker: CoreUnderTest, topic: str) -> list[int]:
    return [header.base_offset for header in stored(broker.core.catalog.log(topic, 0))]


ALL = [2 * number for number in range(BATCHES)]


def flipped(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def with_bad_sector(patch: pytest.MonkeyPatch, path: Path, position: int) -> None:
    """Let a byte of a file be unreadable. As in Linux, a read that begins before it returns what is there."""
    real = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        if os.path.samestat(os.fstat(fd), path.stat()) and at <= position < at + size:
            if at == position:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            size = position - at
        return real(fd, size, at)

    patch.setattr(os, "pread", pread)
