"""The data directory of a stopped broker: making one, damaging it, and what the check finds."""

from __future__ import annotations

from pathlib import Path

from ottla.broker.findings import Finding, FindingKind
from ottla.runtime.check import StoppedDirectory
from tests.unit.broker.damage import filled
from tests.unit.broker.transactional import Producer, make_topic

SECOND = f"{6:020d}"
"""The second segment of a topic: three batches of two records, and each batch but the first in the indexes."""
SIZE = 177
"""Bytes of its first batches."""
LAST = f"{18:020d}"


def check(path: Path) -> list[Finding]:
    directory = StoppedDirectory(path)
    try:
        found = [finding for partition in directory.check(lambda size: None) for finding in partition.findings]
        return [*directory.findings, *found]
    finally:
        directory.release()


def damage(path: Path) -> list[tuple[FindingKind, str]]:
    return [(finding.kind, finding.file) for finding in check(path) if finding.is_damage]


def store(path: Path) -> None:
    """Make a directory after a clean end: two plain topics, and one with transactions."""
    broker = filled(path, "t", "u", **{"index.interval.bytes": "0"})
    make_topic(broker, "x", 1)
    producer = Producer(broker)
    producer.init()
    for commit in (True, False, True):
        producer.write(topic="x")
        producer.end(commit=commit)
    broker.close()


def flipped(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def kill(path: Path) -> None:
    """Make it look like the directory of a broker that was killed before it wrote a recovery point."""
    (path / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        for one in (name, name + ".copy"):
            (path / one).unlink(missing_ok=True)


def times(path: Path) -> dict[str, tuple[int, int]]:
    return {str(one.relative_to(path)): (one.lstat().st_mtime_ns, one.lstat().st_ctime_ns) for one in [path, *path.rglob("*")]}
