"""The names that the broker gives to files in the folder of a partition: those of Apache Kafka.

Owns the names that are the broker's. Must not know the content of the files. Invariant: only files with these names are ever
renamed or removed; all others in a folder are a user's, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

DELETED_SUFFIX = ".deleted"
UNFINISHED = ".tmp"
"""The suffix of a small file while it is written."""

CLEANED_SUFFIX, SWAP = ".cleaned", ".swap"
PARTITION_METADATA = "partition.metadata"
DAMAGED = "damaged"
"""The folder in a partition's folder in which a start keeps bytes that it has cut off and files that it cannot use. Nothing in it
is removed."""

NUMBERED = frozenset({"log", "index", "timeindex", "txnindex", "txnindex.copy", "snapshot"})
"""The suffixes of files that are named after an offset."""

_NUMBERED = rf"[0-9]{{20}}\.(?:{'|'.join(map(re.escape, sorted(NUMBERED)))})"
_SMALL = rf"{_NUMBERED}|{re.escape(PARTITION_METADATA)}|leader-epoch-checkpoint|known-holes"

OFFSET = re.compile(r"[0-9]{20}")
SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")
DELETED_FILE = re.compile(rf"(?:{_NUMBERED}){DELETED_SUFFIX}")
CLEANED_FILE = re.compile(rf"(?:{_NUMBERED})(?:{CLEANED_SUFFIX}|{SWAP})")
SWAP_FILE = re.compile(rf"[0-9]{{20}}\.log{SWAP}")
UNFINISHED_FILE = re.compile(rf"(?:{_SMALL}){UNFINISHED}")
_OWN = re.compile(rf"{_SMALL}|{DAMAGED}|{DELETED_FILE.pattern}|{CLEANED_FILE.pattern}|{UNFINISHED_FILE.pattern}")


def foreign(names: Iterable[str]) -> list[str]:
    """Return those of the names that are not the broker's, sorted."""
    return sorted(name for name in names if not _OWN.fullmatch(name))
