"""What the commands for jobs ask of the planners of their streams.

Owns the environment variables, which are set before the JVM starts: Spark starts each planner in a Python process that inherits
them. Must not know who asks, nor why. Invariant: without the variables, as in every program of users, nothing changes.
"""

from __future__ import annotations

import os

from ottla.spark.offsets import Offsets
from ottla.types import TopicPartition

DRAIN = "OTTLA_PIPELINE_DRAIN"
"""The path of a file. As soon as it exists, a stream offers no more records."""

SAMPLE = "OTTLA_PIPELINE_SAMPLE"
"""A number of records. Each stream reads as many of the latest ones, whatever its starting offsets are, and commits no progress."""


def is_draining() -> bool:
    """Whether the streams of this process offer no more records."""
    path = os.environ.get(DRAIN)
    return path is not None and os.path.exists(path)


def sample_size() -> int | None:
    """The number of records of a sample; ``None`` outside of ``ottla pipeline check``."""
    size = os.environ.get(SAMPLE)
    return None if size is None else int(size)


def sample_starts(begins: Offsets, ends: Offsets, count: int) -> dict[TopicPartition, int]:
    """Return where to begin to read the latest ``count`` offsets of all partitions, as evenly as the logs allow."""
    starts: dict[TopicPartition, int] = {}
    by_size = sorted(ends, key=lambda tp: (ends[tp] - begins.get(tp, 0), tp))
    for number, tp in enumerate(by_size):
        share = min(ends[tp] - begins.get(tp, 0), count // (len(by_size) - number))
        starts[tp] = ends[tp] - share
        count -= share
    return starts
