"""What a check of a stopped broker's directory can find, and what follows from each of it.

Owns the kinds of findings, how foreign names are listed, and the words for what the next start and a repair do about them. Must not
know how anything is found or repaired. Invariant: what a kill leaves behind in the normal course of things is a note, not damage.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from ottla.types import TopicPartition

_LISTED = 20
"""The maximum number of foreign names that are listed."""


def listed(names: Sequence[str]) -> str:
    """The names of foreign files, if they are many only the first: a line in the log has a length that a person can read."""
    rest = len(names) - _LISTED
    return ", ".join(map(ascii, names[:_LISTED])) + (f" and {rest:,} more" if rest > 0 else "")


class Consequence(NamedTuple):
    """What the next start and the repair do. ``is_damage`` False: nothing is wrong."""

    start: str
    repair: str
    is_damage: bool = True


class Kind(enum.StrEnum):
    """What was found."""

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


_AGAIN = "made again from the batches"
_LEFT_OUT = "left out of the copy, and kept in the folder damaged beside it"
_LEFT_ALONE = "left as it is"

CONSEQUENCES = {
    Kind.BATCHES: Consequence("these offsets cannot be read, all others are served, and the log is not compacted", _LEFT_OUT),
    Kind.END: Consequence("cut off, with a copy in the folder damaged; the leader epoch changes", _LEFT_OUT),
    Kind.TORN: Consequence("cut off: it is what a kill or a power failure leaves", "left out of the copy", is_damage=False),
    Kind.HOLE: Consequence("the log goes on behind the hole", "stays a hole"),
    Kind.LOST_END: Consequence("the log goes on at the later offset; the leader epoch changes", "the same"),
    Kind.LOST_FOLDER: Consequence("the log goes on at this offset, empty; the leader epoch changes", "the same"),
    Kind.UNREADABLE_LOG: Consequence("the partition is offline: KAFKA_STORAGE_ERROR", "left out: its records are missing"),
    Kind.UNREADABLE: Consequence("the partition may be offline: KAFKA_STORAGE_ERROR", "left out of the copy"),
    Kind.SECTORS: Consequence("the partition is offline, or these offsets cannot be read", "replaced by zeros, and then left out"),
    Kind.ORPHAN: Consequence("moved to the folder damaged", "left out of the copy"),
    Kind.INDEX: Consequence(f"{_AGAIN}, when the wrong entry is met", _AGAIN),
    Kind.SNAPSHOT: Consequence("an older snapshot is used, and the batches after it", _AGAIN),
    Kind.TRANSACTIONS: Consequence(
        "made again if it cannot be interpreted; otherwise consumers with read_committed may receive aborted records", _AGAIN
    ),
    Kind.EPOCHS: Consequence(f"{_AGAIN} if it cannot be interpreted", f"{_AGAIN}, unless most batches agree with it"),
    Kind.SWAP: Consequence("moved to the folder damaged; what it was made of is used", "the same"),
    Kind.INTERRUPTED: Consequence("completed", "completed", is_damage=False),
    Kind.METADATA: Consequence("written again, if the topic is known", "the same"),
    Kind.STRAY: Consequence("renamed to -stray, and kept", "the same"),
    Kind.CHECKPOINT: Consequence("the intact one of the file and its copy is used", "written again"),
    Kind.CATALOG: Consequence("restored from the intact lines of both files", "the same"),
    Kind.LOST_CATALOG: Consequence(
        "topics are found by their folders; settings of topics count as unknown, and nothing is deleted or compacted", "the same"
    ),
    Kind.PROPERTIES: Consequence("a missing file is written with a new cluster.id; a damaged one refuses the start", "a new one"),
    Kind.KEPT: Consequence(_LEFT_ALONE, "copied", is_damage=False),
    Kind.FOREIGN: Consequence(_LEFT_ALONE, "copied", is_damage=False),
}


class Finding(NamedTuple):
    """Something that was found. ``file`` is relative to the folder of the partition, or to the data directory.

    ``position`` and ``size`` are bytes; the offsets are those from ``first_offset`` on and before ``next_offset``.
    """

    kind: Kind
    place: TopicPartition | None
    file: str
    what: str
    position: int | None = None
    size: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    is_note: bool = False
    """Whether nothing is wrong, since a kill may leave it so."""

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
        """What becomes of it in a repaired copy."""
        return CONSEQUENCES[self.kind].repair
