"""The checkpoints of a data directory on disk: Kafka's file, and a copy with a checksum.

Owns both formats. Must not know what the offsets mean. Invariant: a file that is damaged or cannot be read is never taken for one
without offsets; damage is logged.

The copy exists because Kafka's format has no checksum: one flipped bit in the file of log starts would make retention delete
records that are intact. It has the content of Kafka's file and a last line ``crc``, and is written first, so an intact copy is at
least as new. A file that differs from its intact copy was damaged, or a kill came between the two.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ottla.runtime.folders import PinnedFolder, read_whole
from ottla.types import TopicPartition

COPY = ".copy"
_VERSION = "0"

log = logging.getLogger("ottla.broker")


def write(folder: PinnedFolder, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint. Raises ``OSError``."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    content = "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()
    folder.write_small(name + COPY, b"%bcrc %08x\n" % (content, zlib.crc32(content)), forced=True)
    folder.write_small(name, content, forced=True)


class CheckpointContent(NamedTuple):
    """The content of a checkpoint and its copy. ``faults``: their problems, as a log level and a message."""

    offsets: dict[TopicPartition, int] | None
    faults: list[tuple[int, str]]
    error: OSError | None = None
    """Why the only file that may be intact cannot be read."""
    is_without_copy: bool = False
    """Whether there is no copy, and the file may be intact."""
    is_empty: bool = False
    """Whether there is no copy, and nothing in the file."""
    is_older: bool = False
    """Whether the file has another content than its intact copy: a kill may have come between the two."""


def read(path: Path, *, has_copy: bool = True) -> dict[TopicPartition, int] | None:
    """Return the offsets; ``None`` if they are missing or damaged. Raises ``OSError`` if the only intact file may be one that
    cannot be read. ``has_copy`` False: an earlier release has written it, which made no copies."""
    result = inspect(path, has_copy=has_copy)
    for level, fault in result.faults:
        log.log(level, "%s", fault)
    if result.error is not None:
        raise result.error
    return result.offsets


def inspect(path: Path, *, has_copy: bool = True) -> CheckpointContent:
    """Read the two files; return their content and their problems."""
    faults: list[tuple[int, str]] = []
    errors: list[OSError] = []
    file, copy = _content(path, errors), _checked(_content(path.with_name(path.name + COPY), errors))
    offsets = _offsets(copy) if copy is not None else None
    is_copied = offsets is not None
    rest = ": its copy is used" if is_copied else ""
    faults += [(logging.ERROR, f"{error.filename} cannot be read: {error.strerror}{rest}") for error in errors]
    if is_copied:
        if file != copy and not errors:
            wrong = "is missing" if file is None else "was not written completely or is damaged"
            faults.append((logging.WARNING, f"{path} {wrong}: its copy is used"))
        return CheckpointContent(offsets, faults, is_older=file is not None and _offsets(file) is not None)
    offsets = _offsets(file) if file is not None else None
    if offsets is not None and not has_copy:
        return CheckpointContent(offsets, faults)
    if offsets is not None:
        faults.append((logging.WARNING, f"{path.name + COPY} is missing or damaged: whether {path} is intact cannot be checked"))
        return CheckpointContent(offsets, faults, is_without_copy=not path.with_name(path.name + COPY).exists())
    if errors:
        return CheckpointContent(None, faults, errors[0])
    if file is not None:
        faults.append((logging.ERROR, f"{path} is damaged, and so is its copy or there is none"))
    return CheckpointContent(None, faults, is_empty=file == b"" and not path.with_name(path.name + COPY).exists())


def _content(path: Path, errors: list[OSError]) -> bytes | None:
    try:
        return read_whole(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        errors.append(error)
        return b""


def _checked(content: bytes | None) -> bytes | None:
    """Return the content of a copy before its checksum, if that matches."""
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
