"""The offsets in the checkpoint directory of a streaming query: read, compared with a cluster, and converted for Spark's connector.

Owns the format of Spark's offset log, and of the connector's log of starting offsets. Must not know a running query, nor Spark.
Invariant: a checkpoint is only read; what is written is a new directory, complete from the moment it has its name.

A directory has, for each batch N, ``offsets/N``: a version, a line of metadata, and a line for each source (``-``: no offset yet);
and ``commits/N`` once the batch is processed. Source: ``OffsetSeqLog`` and ``KafkaSourceInitialOffsetWriter`` of Spark.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ottla.errors import ConfigError, IllegalStateError, OttlaError
from ottla.spark.locations import local_path
from ottla.spark.offsets import NAMED, OWN_KEYS, Offsets, StreamOffset, to_json
from ottla.types import short_list

OFFSETS, COMMITS, SOURCES, METADATA = "offsets", "commits", "sources", "metadata"
VERSION = "v1"
INITIAL_OFFSETS = b"\0v1\n"
"""The beginning of the connector's file ``sources/S/0``; JSON follows."""


class LoggedBatch(NamedTuple):
    """A batch in the offset log. ``sources``: the end offset of each source; ``None`` for one that is not Kafka, or without one."""

    number: int
    is_committed: bool
    written_at: int | None
    """When Spark planned it (ms since 1970)."""
    sources: tuple[StreamOffset | None, ...]


class TopicProgress(NamedTuple):
    """The offsets of a topic at the end of a batch."""

    batch: LoggedBatch
    source: int
    topic: str
    offsets: Mapping[int, int]
    records: int | None
    """Offsets since the batch before; ``None`` for the first batch whose start is not stored."""
    note: str
    """What has changed since the batch before."""


def query_id(location: str) -> str | None:
    """Return the id of the query of a ``checkpointLocation``; ``None`` if it is new, or not on a local disk."""
    path = local_path(location)
    try:
        stored = None if path is None else json.loads(Path(path, METADATA).read_bytes())
    except (OSError, ValueError):
        return None
    return str(stored["id"]) if isinstance(stored, dict) and "id" in stored else None


def read_batches(folder: Path) -> list[LoggedBatch]:
    """Return the batches in a checkpoint, oldest first, without those that a running query removes meanwhile.

    Raises ``ConfigError`` for a folder or a file that is none of Spark's.
    """
    log = folder / OFFSETS
    if not log.is_dir():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{OFFSETS}") if path.is_dir())
        hint = f"it has those of {short_list(inside, NAMED)}: name one of these directories" if inside else None
        raise ConfigError(f"{folder} is not a checkpoint of a streaming query: it has no directory {OFFSETS!r}", hint=hint)
    committed = set(_numbers(folder / COMMITS))
    batches: list[LoggedBatch] = []
    for number in sorted(_numbers(log)):
        with suppress(FileNotFoundError):
            batches.append(_batch(log / str(number), number, number in committed))
    return batches


def progress_of(batches: Iterable[LoggedBatch]) -> Iterator[TopicProgress]:
    """Yield the offsets of each topic of each source after each batch, with what has changed."""
    before: LoggedBatch | None = None
    for batch in batches:
        for source, end in enumerate(batch.sources):
            earlier = before.sources[source] if before is not None and source < len(before.sources) else None
            is_new = before is not None and source >= len(before.sources)
            yield from _topics(batch, source, end, earlier, "the source is new" if is_new else "")
        for source, earlier in enumerate(before.sources if before is not None else ()):
            if earlier is not None and source >= len(batch.sources):
                for topic in sorted({tp.topic for tp in earlier.positions}):
                    yield TopicProgress(batch, source, topic, {}, None, "the source is no longer read")
        before = batch


def convert(folder: Path, target: Path) -> int:
    """Write a copy of a checkpoint without Ottla's own keys, which Spark's connector refuses; return the number of changed files.

    Where the first batch is not processed yet, the copy has its start where the connector looks for it. ``target`` is created when
    the copy is complete, and not after an error.

    Raises ``ConfigError`` if ``folder`` is no checkpoint, or if ``target`` exists or is in it, ``IllegalStateError`` if the query
    runs, and ``OttlaError`` if a file cannot be copied.
    """
    read_batches(folder)
    if target.exists():
        raise ConfigError(f"{target} exists", hint="name a new directory")
    if target.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{target} is in the checkpoint itself", hint="name a directory outside")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        copy = Path(scratch) / target.name
        _copy(folder, copy)
        changed = _convert_copy(copy, folder)
        copy.rename(target)
    return changed


def _copy(folder: Path, copy: Path) -> None:
    """Copy a checkpoint. In a copy made while a batch begins or ends, state, offsets and commits can be of different batches."""
    running = IllegalStateError(f"the query of {folder} runs: files changed while they were copied", hint="stop the query first")
    before = _logged(folder)
    try:
        shutil.copytree(folder, copy)
    except shutil.Error as error:  # its text is a list of all files that were not copied
        if any(not os.path.lexists(source) for source, _, _ in error.args[0]):
            raise running from error
        raise OttlaError(f"cannot copy {folder}: {error.args[0][0][2]}") from error
    if _logged(folder) != before:
        raise running


def _logged(folder: Path) -> set[tuple[str, int]]:
    return {(log, number) for log in (OFFSETS, COMMITS) for number in _numbers(folder / log)}


def _convert_copy(copy: Path, folder: Path) -> int:
    changed = 0
    batches = read_batches(copy)
    for batch in batches:
        path = copy / OFFSETS / str(batch.number)
        try:
            version, metadata, *sources = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{folder / OFFSETS / path.name} is not UTF-8: {error}") from error
        plain = [_without_own_keys(line) for line in sources]
        if plain != sources:
            changed += 1
            path.write_text("\n".join((version, metadata, *plain)), encoding="utf-8")
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file as it was
    for number, source in enumerate(batches[0].sources if batches else ()):
        if source is not None and source.first_start is not None:
            _write_initial(copy / SOURCES / str(number) / "0", source.first_start)
    return changed


def _numbers(folder: Path) -> Iterator[int]:
    if folder.is_dir():
        yield from (int(path.name) for path in folder.iterdir() if path.name.isascii() and path.name.isdigit())


def _batch(path: Path, number: int, is_committed: bool) -> LoggedBatch:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) < 2 or lines[0].strip() != VERSION:
        found = lines[0][:40] if lines else ""
        raise ConfigError(f"{path} is no offset log of version {VERSION}: it begins with {found!r}")
    metadata = _json(lines[1])
    at = metadata.get("batchTimestampMs") if isinstance(metadata, dict) else None
    return LoggedBatch(
        number, is_committed, at if isinstance(at, int) and at > 0 else None, tuple(map(StreamOffset.parse, lines[2:]))
    )


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _topics(
    batch: LoggedBatch, source: int, end: StreamOffset | None, earlier: StreamOffset | None, note: str
) -> Iterator[TopicProgress]:
    if end is None:
        return
    start: Offsets = end.first_start or (earlier.positions if earlier is not None else {})
    recreated = earlier.recreated(end.topic_ids) if earlier is not None else set()
    for topic in dict.fromkeys(tp.topic for tp in sorted(end.positions)):
        ends = {tp: offset for tp, offset in end.positions.items() if tp.topic == topic}
        known = topic not in recreated and (earlier is not None or end.first_start is not None)
        records = sum(offset - start.get(tp, 0) for tp, offset in ends.items()) if known else None
        notes = [note] if note else []
        if topic in recreated:
            notes.append("the topic was recreated")
        elif earlier is not None and all(tp.topic != topic for tp in earlier.positions):
            notes.append("the topic is new")
        elif earlier is not None and (new := len(ends.keys() - earlier.positions.keys())):
            notes.append("1 partition is new" if new == 1 else f"{new} partitions are new")
        yield TopicProgress(batch, source, topic, {tp.partition: each for tp, each in ends.items()}, records, "; ".join(notes))
    gone = {tp.topic for tp in earlier.positions} - {tp.topic for tp in end.positions} if earlier is not None else set()
    for topic in sorted(gone):
        yield TopicProgress(batch, source, topic, {}, None, "the topic is no longer read")


def _without_own_keys(line: str) -> str:
    stored = _json(line)
    if not isinstance(stored, dict) or not OWN_KEYS & stored.keys():
        return line
    return json.dumps({key: value for key, value in stored.items() if key not in OWN_KEYS}, separators=(",", ":"))


def _write_initial(path: Path, starts: Offsets) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(INITIAL_OFFSETS + json.dumps(to_json(starts), separators=(",", ":")).encode())
