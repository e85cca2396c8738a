"""The findings of a check of a stopped broker's directory, and the consequence of each.

Owns the kinds of findings, the format of lists of names, and the texts about the next start and a repair. Must not know how
anything is found or repaired. Invariant: the normal traces of a kill are notes, not damage.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from ottla.types import TopicPartition

_LISTED = 20
"""The maximum number of names in one line."""


def format_names(names: Sequence[str]) -> str:
    """Return the names of foreign files as text; only the first if there are many, so that a line of the log stays readable."""
    rest = len(names) - _LISTED
    return ", ".join(map(ascii, names[:_LISTED])) + (f" and {rest:,} more" if rest > 0 else "")


class Consequence(NamedTuple):
    """What the next start and the repair do. ``is_damage`` False: nothing is wrong."""

    start: str
    repair: str
    is_damage: bool = True


class FindingKind(enum.StrEnum):
    """The kind of a finding."""

    BATCHES = "damaged batches"
    END = "damaged end"
    TORN = "torn end"
    HOLE = "hole"
    LOST_END = "lost end"
    LOST_FOLDER = "lost folder"
    UNREADABLE_LOG = "unreadable log"
    UNREADABLE = "unreadable file"
    SECTORS = "unreadable sectors"
    ORPHAN = "orphan"
    INDEX = "index"
    SNAPSHOT = "snapshot"
    TRANSACTIONS = "aborted transactions"
    EPOCHS = "leader epochs"
    SWAP = "damaged swap"
    INTERRUPTED = "interrupted compaction"
    METADATA = "partition.metadata"
    STRAY = "stray"
    CHECKPOINT = "checkpoint"
    CATALOG = "catalog"
    LOST_CATALOG = "lost catalog"
    PROPERTIES = "meta.properties"
    KEPT = "kept damage"
    FOREIGN = "foreign files"


_AGAIN = "rebuilt from the batches"
_LEFT_OUT = "left out of the copy, and kept in the folder damaged beside it"
_LEFT_ALONE = "left as it is"

CONSEQUENCES = {
    FindingKind.BATCHES: Consequence(
        "these offsets cannot be read, all others are served, and the log is not compacted", _LEFT_OUT
    ),
    FindingKind.END: Consequence("cut off, with a copy in the folder damaged; the leader epoch changes", _LEFT_OUT),
    FindingKind.TORN: Consequence("cut off: it is what a kill or a power failure leaves", "left out of the copy", is_damage=False),
    FindingKind.HOLE: Consequence("the log goes on behind the hole", "stays a hole"),
    FindingKind.LOST_END: Consequence("the log goes on at the later offset; the leader epoch changes", "the same"),
    FindingKind.LOST_FOLDER: Consequence("the log goes on at this offset, empty; the leader epoch changes", "the same"),
    FindingKind.UNREADABLE_LOG: Consequence("the partition is offline: KAFKA_STORAGE_ERROR", "left out: its records are missing"),
    FindingKind.UNREADABLE: Consequence("the partition may be offline: KAFKA_STORAGE_ERROR", "left out of the copy"),
    FindingKind.SECTORS: Consequence(
        "the partition is offline, or these offsets cannot be read", "replaced by zeros, and then left out"
    ),
    FindingKind.ORPHAN: Consequence("moved to the folder damaged", "left out of the copy"),
    FindingKind.INDEX: Consequence(f"{_AGAIN}, when the wrong entry is met", _AGAIN),
    FindingKind.SNAPSHOT: Consequence("an older snapshot is used, and the batches after it", _AGAIN),
    FindingKind.TRANSACTIONS: Consequence(
        "rebuilt if it cannot be interpreted; otherwise consumers with read_committed may receive aborted records", _AGAIN
    ),
    FindingKind.EPOCHS: Consequence(f"{_AGAIN} if it cannot be interpreted", f"{_AGAIN}, unless most batches agree with it"),
    FindingKind.SWAP: Consequence("moved to the folder damaged; the segments that it was made of are used", "the same"),
    FindingKind.INTERRUPTED: Consequence("completed", "completed", is_damage=False),
    FindingKind.METADATA: Consequence("written again, if the topic is known", "the same"),
    FindingKind.STRAY: Consequence("renamed to -stray, and kept", "the same"),
    FindingKind.CHECKPOINT: Consequence("the intact one of the file and its copy is used", "written again"),
    FindingKind.CATALOG: Consequence("restored from the intact lines of both files", "the same"),
    FindingKind.LOST_CATALOG: Consequence(
        "topics are found by their folders; settings of topics count as unknown, and nothing is deleted or compacted", "the same"
    ),
    FindingKind.PROPERTIES: Consequence(
        "a missing file is written with a new cluster.id; a damaged one refuses the start", "a new one"
    ),
    FindingKind.KEPT: Consequence(_LEFT_ALONE, "copied", is_damage=False),
    FindingKind.FOREIGN: Consequence(_LEFT_ALONE, "copied", is_damage=False),
}


class Finding(NamedTuple):
    """One finding. ``file`` is relative to the folder of the partition, or to the data directory.

    ``position`` and ``size`` are bytes; the offsets are those from ``first_offset`` to ``next_offset`` (exclusive).
    """

    kind: FindingKind
    topic_partition: TopicPartition | None
    file: str
    what: str
    position: int | None = None
    size: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    is_note: bool = False
    """Whether it is a normal trace of a kill, and nothing is wrong."""

    @property
    def is_damage(self) -> bool:
        """Whether something is wrong."""
        return CONSEQUENCES[self.kind].is_damage and not self.is_note

    @property
    def at_start(self) -> str:
        """What the next start does."""
        return CONSEQUENCES[self.kind].start

    @property
    def at_repair(self) -> str:
        """What a repair does with it."""
        return CONSEQUENCES[self.kind].repair
