"""The checkpoints of a data directory on disk: Kafka's file, and a copy with a checksum.

Owns both formats. Must not know what the offsets mean. Invariant: a file that is damaged or cannot be read is never taken for one
without offsets; what is damaged is said in the log.

The copy is there because Kafka's format has no checksum: one flipped bit in the file of log starts would make retention delete
records that are intact. It has the content of Kafka's file and a last line ``crc``, and is written first, so an intact copy is at
least as new. A file that differs from its intact copy was damaged, or a kill came between the two.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path

from ottla.runtime.folders import PinnedFolder
from ottla.types import TopicPartition

COPY = ".copy"
_VERSION = "0"

log = logging.getLogger("ottla.broker")


def write(folder: PinnedFolder, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint. Raises ``OSError``."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    content = "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()
    folder.write_small(name + COPY, b"%bcrc %08x\n" % (content, zlib.crc32(content)), forced=True)
    folder.write_small(name, content)


def read(path: Path, *, has_copy: bool = True) -> dict[TopicPartition, int] | None:
    """The offsets; ``None`` where they are missing or damaged. Raises ``OSError`` where the only intact file may be one that cannot
    be read. ``has_copy`` False: an earlier release has written it, which made no copies."""
    errors: list[OSError] = []
    file, copy = _content(path, errors), _checked(_content(path.with_name(path.name + COPY), errors))
    offsets = _offsets(copy) if copy is not None else None
    if offsets is not None:
        if file != copy:
            wrong = "is missing" if file is None else "was not written completely or is damaged"
            log.warning("%s %s: its copy is used", path, wrong)
        return offsets
    offsets = _offsets(file) if file is not None else None
    if offsets is not None and not has_copy:
        return offsets
    if offsets is not None:
        log.warning("%s is missing or damaged: whether %s is intact cannot be checked", path.name + COPY, path)
    elif errors:
        raise errors[0]
    elif file is not None:
        log.error("%s is damaged, and so is its copy or there is none", path)
    return offsets


def _content(path: Path, errors: list[OSError]) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.error("%s cannot be read: %s", path, error)
        errors.append(error)
        return b""


def _checked(content: bytes | None) -> bytes | None:
    """The content of a copy before its checksum, if that fits."""
    if content is None:
        return None
    text, _, crc = content.rpartition(b"crc ")
    return text if crc == b"%08x\n" % zlib.crc32(text) else None


def _offsets(content: bytes) -> dict[TopicPartition, int] | None:
    try:
        version, count, *lines = content.decode("ascii").splitlines()
        rows = [line.rsplit(" ", 2) for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        return offsets if version == _VERSION and int(count) == len(offsets) else None
    except ValueError:
        return None
