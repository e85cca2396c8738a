"""The data directory of a broker: whose it is, which topics are in it, and how it was left.

Owns ``meta.properties``, the checkpoints and the marker of a clean shutdown. Must not know what a topic is for, nor the
format of the catalog (``catalog``). Invariants: one process at a time; a folder that belongs to no topic is set aside, never
adopted and never silently removed.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ottla.broker.logs import CLEANED, LOG_STARTS, RECOVERY_POINTS
from ottla.broker.ports import Catalog, CatalogChange, DiskUsage, StoredTopic
from ottla.errors import StorageError
from ottla.runtime.catalog import CatalogFile
from ottla.runtime.folders import SET_ASIDE, UNFINISHED, DirectoryLock, PinnedFolder, sync_file
from ottla.runtime.log_files import PARTITION_METADATA, STRAY, OpenFiles, PartitionFolder, given_up_name, topic_id_in, uuid_text
from ottla.types import TopicPartition

META, CATALOG, CLEAN_END = "meta.properties", "topics.json", ".kafka_cleanshutdown"
_REPLACED = (META, CATALOG, CLEAN_END, RECOVERY_POINTS, LOG_STARTS, CLEANED)
"""The small files in the directory itself."""

_DELETED = "-delete"
_GIVEN_UP = re.compile(rf".+-\d+\.[0-9a-f]{{32}}{_DELETED}(\.\d+)?")
_DAMAGED = ".damaged"
_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")

log = logging.getLogger("ottla.broker")


class DataDir:
    """A data directory that this process has locked (``Store``).

    Raises ``StorageError`` where it cannot be used: not writable, locked, of another node, or not readable.
    """

    def __init__(self, path: Path, node_id: int, *, durable: bool = True) -> None:
        self.path = path = path.absolute()  # the process may go to another directory
        self._durable = durable
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(path)
        except OSError as error:
            raise StorageError(f"data directory {path} cannot be used: {error.strerror or error}") from error
        self._open = OpenFiles(self._lock.check)
        self._numbers = itertools.count(1)
        self._written: dict[str, int] = {}
        """The number of the last write of each checkpoint."""
        self._writing = threading.Lock()
        try:
            self.log_dir = str(path.resolve())
            # These and no others: files of the user's may be here, too.
            self._pin().discard([name + UNFINISHED for name in _REPLACED])
            self.cluster_id = self._read_meta(node_id)
            self._catalog = self._open_catalog()
            self._set_strays_aside()
            self.clean = (path / CLEAN_END).exists()
            (path / CLEAN_END).unlink(missing_ok=True)
        except OSError as error:
            self.release()
            raise StorageError(f"data directory {path} cannot be used: {error}") from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others use the directory at once."""
        self._open.clear()
        self._lock.release()

    def abandon(self) -> None:
        """Close what is open; in a forked child, the child's copies of it: the lock is the parent's."""
        self._open.clear()
        self._lock.abandon()

    def end_well(self) -> None:
        """Leave the marker that says: every log was brought to disk, nothing needs a scan."""
        folder = self._pin()
        folder.write_small(CLEAN_END, json.dumps({"version": 0, "brokerEpoch": -1}).encode())
        folder.sync_names()

    # Store

    @property
    def is_crowded(self) -> bool:
        """Whether so many files are open that ranges are read into memory."""
        return self._open.is_crowded

    def close_files(self) -> None:
        """Close the files of logs, apart from those of answers on their way; each is opened again when it is needed."""
        self._open.clear()

    def read_catalog(self) -> Catalog:
        """The content when the data directory was opened."""
        return self._catalog.catalog

    def change_catalog(self, *changes: CatalogChange) -> None:
        """Write changes of the catalog."""
        self._catalog.change(changes)

    def sync_catalog(self) -> Callable[[], object]:
        """Force the catalog to disk."""

        def job() -> None:
            if self._durable:
                sync_file(self.path / CATALOG)
                sync_file(self.path)

        return job

    def usage(self) -> DiskUsage:
        """The disk that the directory is on."""
        disk = os.statvfs(self.path)
        return DiskUsage(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint of offsets; empty where it is missing or damaged."""
        try:
            version, count, *lines = (self.path / name).read_text("ascii").splitlines()
            rows = [line.rsplit(" ", 2) for line in lines]
            offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
            return offsets if version == "0" and int(count) == len(offsets) else {}
        except (OSError, ValueError):
            return {}

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> Callable[[], object]:
        """Replace a checkpoint of offsets. From any thread; an older content never replaces a newer one."""
        number = next(self._numbers)

        def job() -> None:
            lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
            content = "\n".join(["0", str(len(lines)), *lines, ""]).encode()
            with self._writing:
                if number > self._written.get(name, 0):
                    self._pin().write_small(name, content)
                    self._written[name] = number

        return job

    def log_files(self, topic: str, topic_id: uuid.UUID, partition: int) -> PartitionFolder:
        """The folder of a partition."""
        return PartitionFolder(self.path / f"{topic}-{partition}", topic_id, self._open, durable=self._durable)

    def set_aside_topic(self, topic: str, topic_id: uuid.UUID, partitions: Iterable[int]) -> Callable[[], object] | None:
        """Rename the folders of a deleted topic now, so that its name is free; return the work of removing them.

        A folder that cannot be renamed is treated as a stray at the next start, or when a new topic of that name needs it.
        """
        renamed = []
        for partition in partitions:
            folder = self.path / f"{topic}-{partition}"
            try:
                if folder.is_dir():
                    self._open.forget_folder(folder)
                    name = given_up_name(folder.name, topic_id, _DELETED)
                    renamed.append(self._pin().rename_folder(folder.name, name))
            except OSError as error:
                log.error("the folder of the deleted topic could not be renamed: %s", error)
        return (lambda: self._pin().remove_folders(renamed)) if renamed else None

    def leftovers(self) -> Callable[[], object]:
        """Remove what the last broker had given up and not removed yet, and nothing that may be the user's."""
        folders = [folder.name for folder in self.path.glob(f"*{_DELETED}*") if _GIVEN_UP.fullmatch(folder.name)]
        ours = [folder for *_, folder in self._partition_folders()]
        files = [f"{folder.name}/{file.name}" for folder in ours for file in folder.glob(f"*{SET_ASIDE}")]

        def job() -> None:
            self._pin().remove_folders(folders)
            self._pin().discard(files)

        return job

    def _pin(self) -> PinnedFolder:
        return PinnedFolder(self.path, self._lock.check, durable=self._durable)

    def _read_meta(self, node_id: int) -> str:
        path = self.path / META
        if not path.exists():
            cluster_id = uuid_text(uuid.uuid4())
            rows = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": uuid_text(uuid.uuid4())}
            self._pin().write_small(META, "".join(f"{name}={value}\n" for name, value in rows.items()).encode())
            return cluster_id
        lines = path.read_text("utf-8", "replace").splitlines()
        stored = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
        for name in ("node.id", "cluster.id"):
            if name not in stored:
                raise StorageError(
                    f"{path} is damaged: it has no {name}",
                    hint="move it away: the broker creates a new one, with another cluster.id, and keeps its topics",
                )
        if stored["node.id"] != str(node_id):
            raise StorageError(
                f"data directory {self.path} belongs to node.id {stored['node.id']}, the settings say {node_id}",
                hint="set node.id to what meta.properties says, or use another directory",
            )
        return stored["cluster.id"]

    def _open_catalog(self) -> CatalogFile:
        path = self.path / CATALOG
        if not path.exists():
            return CatalogFile(path, self._open, Catalog(self._topics_in_folders()))
        try:
            return CatalogFile.read(path, self._open)
        except (ValueError, KeyError, TypeError) as error:
            topics = self._topics_in_folders()
            kept = path.replace(path.with_name(path.name + _DAMAGED))
            log.error(
                "%s is damaged (%s): %d topics were found by their folders; settings, and topics that were never written to, are "
                "lost. The damaged file was kept as %s",
                path,
                error,
                len(topics),
                kept.name,
            )
            return CatalogFile(path, self._open, Catalog(topics))

    def _topics_in_folders(self) -> tuple[StoredTopic, ...]:
        found: dict[str, StoredTopic] = {}
        for topic, partition, topic_id, _ in self._partition_folders():
            known = found.get(topic)
            count = max(partition + 1, known.partitions if known is not None else 0)
            found[topic] = StoredTopic(topic, topic_id, count, {})
        return tuple(found.values())

    def _partition_folders(self) -> Iterable[tuple[str, int, uuid.UUID, Path]]:
        for folder in sorted(self.path.iterdir()):
            named = _FOLDER.fullmatch(folder.name)
            if named is None or not (folder / PARTITION_METADATA).is_file():
                continue
            topic_id = topic_id_in((folder / PARTITION_METADATA).read_bytes())
            if topic_id is not None:
                yield named["topic"], int(named["partition"]), topic_id, folder

    def _set_strays_aside(self) -> None:
        known = {topic.name: topic for topic in self._catalog.catalog.topics}
        for name, partition, topic_id, folder in self._partition_folders():
            topic = known.get(name)
            if topic is None or topic.topic_id != topic_id or partition >= topic.partitions:
                stray = self._pin().rename_folder(folder.name, given_up_name(folder.name, topic_id, STRAY))
                log.warning("%s belongs to no topic of this broker: it is now %s", folder, stray)
