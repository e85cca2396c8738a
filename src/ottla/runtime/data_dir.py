"""The data directory of a broker: its lock, its identity, its topics, and whether it was left by a clean shutdown.

Owns ``meta.properties``, the checkpoints and the marker of a clean shutdown. Must not know the use of a topic, nor the format of
the catalog (``catalog``). Invariants: one process at a time uses it; a folder that belongs to no topic is renamed to ``-stray``,
never adopted and never silently removed.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ottla.broker.findings import format_names
from ottla.broker.log_manager import CLEANER_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from ottla.broker.ports import Catalog, CatalogChange, DiskUsage, StoredTopic
from ottla.errors import StorageError
from ottla.runtime import checkpoint_files
from ottla.runtime.catalog import COPY, CatalogFile
from ottla.runtime.descriptors import OUT_OF_DESCRIPTORS
from ottla.runtime.folders import (
    DELETED_FILE,
    LOCK,
    PARTITION_METADATA,
    UNFINISHED,
    DirectoryLock,
    PinnedFolder,
    foreign,
    read_whole,
    sync_file,
)
from ottla.runtime.log_files import (
    STRAY,
    OpenFiles,
    PartitionFolder,
    deleted_folder_name,
    partition_metadata,
    topic_id_in,
)
from ottla.types import TopicPartition, uuid_text

META, CATALOG, CLEAN_END = "meta.properties", "topics.json", ".kafka_cleanshutdown"
_REPLACED = (
    META,
    CATALOG,
    CATALOG + COPY,
    CLEAN_END,
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    *(name + COPY for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)),
)
"""The small files in the directory itself."""

_OF_KAFKA = ("bootstrap.checkpoint", "__cluster_metadata-0")
"""Files that Apache Kafka has in such a directory."""

_DELETED = "-delete"
_DELETED_FOLDER = re.compile(rf".+-\d+\.[0-9a-f]{{32}}{_DELETED}(\.\d+)?")
_OWN = re.compile(
    rf"\{LOCK}|\.owner|.+-\d+\.[0-9a-f]{{32}}(?:\.\d+)?(?:{_DELETED}|{STRAY})(?:\.\d+)?"
    rf"|(?:{'|'.join(map(re.escape, (*_REPLACED, *_OF_KAFKA)))})(?:\{UNFINISHED}|\.damaged(?:\.\d+)?)?"
)
_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")

_META_VERSION = 1

log = logging.getLogger("ottla.broker")

_METADATA, _ZOOKEEPER = "metadata", "zookeeper"
"""In ``meta.properties``: the topics of its cluster are in ZooKeeper."""


class Identity(NamedTuple):
    """Whose data directory it is."""

    node_id: int
    cluster_id: str


class DataDir:
    """A data directory that this process has locked (``Store``).

    ``cluster_id``: of the cluster that the broker has joined; ``None``: it is its whole cluster, and a new directory gets a new id.

    Raises ``StorageError`` if it cannot be used: not writable, locked, of another node or cluster, or not readable.
    """

    def __init__(self, path: Path, node_id: int, cluster_id: str | None = None, *, durable: bool = True) -> None:
        self.path = path = path.absolute()  # the process may change its working directory
        self._durable = durable
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(path)
        except OSError as error:
            raise StorageError(f"data directory {path} cannot be used: {error.strerror or error}") from error
        self._open = OpenFiles(self._lock.check)
        self._is_untouched = False
        """Whether the last broker ended cleanly, and no log was opened since."""
        self._numbers = itertools.count(1)
        self._written: dict[str, int] = {}
        """The number of the last write of each checkpoint."""
        self._writing = threading.Lock()
        self._unusable: dict[str, OSError] = {}
        """The folders whose topic id could not be read, and the errors."""
        try:
            self.log_dir = str(path.resolve())
            # These and no others: the user may have files here, too.
            self._pin().discard([name + UNFINISHED for name in _REPLACED])
            self.cluster_id = self._read_meta(node_id, cluster_id)
            self._catalog = self._open_catalog()
            self.is_from_earlier_release = self._catalog.is_from_earlier_release
            self._rename_strays()
            self._log_foreign()
            self.clean = (path / CLEAN_END).exists()
            if self.clean:
                (path / CLEAN_END).unlink()
                self._is_untouched = True
                # 1. The marker is removed. 2. The broker writes to logs. 3. After a power failure the marker is there again, since
                # its removal was not on disk. 4. The next start trusts it, and does not scan. So the removal is forced to disk
                # first.
                self._pin().sync_names()
        except OSError as error:
            self.release()
            raise StorageError(f"data directory {path} cannot be used: {error}") from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock. If the start has failed before a log was opened, write the marker of the last clean shutdown again."""
        if self._is_untouched:
            with suppress(OSError):
                self.mark_clean_shutdown()
        self._open.clear()
        self._lock.release()

    def abandon(self) -> None:
        """Close the open files; in a forked child, its copies of them: the lock is the parent's."""
        self._open.clear()
        self._lock.abandon()

    def mark_clean_shutdown(self) -> None:
        """Write the marker of a clean shutdown: every log is on disk, and the next start needs no scan."""
        folder = self._pin()
        folder.write_small(CLEAN_END, json.dumps({"version": 0, "brokerEpoch": -1}).encode())
        folder.sync_names()

    @property
    def is_removed(self) -> bool:
        """Whether the directory was removed or replaced."""
        try:
            self._lock.check()
        except FileNotFoundError:
            return True
        return False

    # Store

    @property
    def has_too_many_open_files(self) -> bool:
        """Whether so many files are open that responses are read into memory."""
        return self._open.has_too_many_open_files

    def close_files(self) -> None:
        """Close the files of logs, except those of responses that are being sent; each is opened again when it is needed."""
        self._open.clear()

    def read_catalog(self) -> Catalog:
        """Return the catalog as it was when the data directory was opened."""
        return self._catalog.catalog

    def change_catalog(self, *changes: CatalogChange) -> None:
        """Write changes of the catalog."""
        self._catalog.change(changes)

    def sync_catalog(self) -> Callable[[], object]:
        """Return the job that forces the catalog to disk."""

        def job() -> None:
            if self._durable:
                sync_file(self.path / CATALOG)
                with suppress(FileNotFoundError):  # the next change writes it
                    sync_file(self.path / (CATALOG + COPY))
                sync_file(self.path)

        return job

    def usage(self) -> DiskUsage:
        """Return the space on the directory's disk."""
        disk = os.statvfs(self.path)
        return DiskUsage(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """Return a checkpoint of offsets; ``None`` if it is missing or damaged, which is logged. Raises ``OSError``."""
        return checkpoint_files.read(self.path / name, has_copy=not self.is_from_earlier_release)

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> Callable[[], object]:
        """Return the job that replaces a checkpoint, on any thread. An older content never replaces a newer one."""
        number = next(self._numbers)

        def job() -> None:
            with self._writing:
                if number > self._written.get(name, 0):
                    checkpoint_files.write(self._pin(), name, offsets)
                    self._written[name] = number

        return job

    def log_files(self, topic: str, topic_id: uuid.UUID, partition: int) -> PartitionFolder:
        """Return the folder of a partition."""
        self._is_untouched = False
        name = f"{topic}-{partition}"
        return PartitionFolder(self.path / name, topic_id, self._open, durable=self._durable, fault=self._unusable.get(name))

    def delete_topic_folders(self, topic: str, topic_id: uuid.UUID, partitions: Iterable[int]) -> Callable[[], object] | None:
        """Rename the folders of a deleted topic now, so that its name is free; return the job that removes them.

        A folder that cannot be renamed is treated as a stray at the next start, or when a new topic of that name needs it.
        """
        renamed = []
        for partition in partitions:
            folder = self.path / f"{topic}-{partition}"
            try:
                if folder.is_dir():
                    self._unusable.pop(folder.name, None)
                    self._open.forget_folder(folder)
                    name = deleted_folder_name(folder.name, topic_id, _DELETED)
                    renamed.append(self._pin().rename_folder(folder.name, name))
            except OSError as error:
                log.error("the folder of the deleted topic could not be renamed: %s", error)
        return (lambda: self._pin().remove_folders(renamed)) if renamed else None

    def remove_leftovers(self) -> Callable[[], object]:
        """Return the job that removes the deleted files and folders that the last broker has left, and nothing that may be the
        user's."""
        folders = [folder.name for folder in self.path.glob(f"*{_DELETED}*") if _DELETED_FOLDER.fullmatch(folder.name)]
        ours = [folder for *_, folder in partition_folders(self.path)]
        files = [f"{folder.name}/{name}" for folder in ours for name in _names_in(folder) if DELETED_FILE.fullmatch(name)]

        def job() -> None:
            self._pin().remove_folders(folders)
            self._pin().discard(files)

        return job

    def _pin(self) -> PinnedFolder:
        return PinnedFolder(self.path, self._lock.check, durable=self._durable)

    def _read_meta(self, node_id: int, joined: str | None) -> str:
        path = self.path / META
        if not path.exists():
            cluster_id = uuid_text(uuid.uuid4()) if joined is None else joined
            if (self.path / CATALOG).exists():
                log.warning("%s is missing: this broker has a new cluster.id, %s", path, cluster_id)
            rows = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": uuid_text(uuid.uuid4())}
            rows |= {} if joined is None else {_METADATA: _ZOOKEEPER}
            content = "".join(f"{name}={value}\n" for name, value in rows.items()).encode()
            self._pin().write_small(META, content, forced=True)  # an empty file would fail the next start
            return cluster_id
        stored = read_properties(path)
        if joined is None and stored.get(_METADATA) == _ZOOKEEPER:
            # It would serve the partitions of other brokers as its own, and the next start with ZooKeeper would remove topics that
            # were created meanwhile.
            raise StorageError(
                f"data directory {self.path} belongs to a broker with ZooKeeper, in cluster {stored['cluster.id']}",
                hint="set zookeeper.connect as at its last start",
            )
        if stored["node.id"] != str(node_id):
            raise StorageError(
                f"data directory {self.path} belongs to node.id {stored['node.id']}, the settings say {node_id}",
                hint="set node.id to what meta.properties says, or use another directory",
            )
        # The broker has read it before it joined. 1. It was new then. 2. Another broker has used it for another cluster, and ended.
        if joined not in (None, stored["cluster.id"]):
            raise StorageError(f"data directory {self.path} belongs to cluster {stored['cluster.id']}, not to {joined}")
        if joined is not None and stored.get(_METADATA) != _ZOOKEEPER:  # an operator has replaced the file
            self._pin().write_small(META, path.read_bytes().rstrip() + f"\n{_METADATA}={_ZOOKEEPER}\n".encode(), forced=True)
        return stored["cluster.id"]

    def _open_catalog(self) -> CatalogFile:
        catalog = CatalogFile.read(self.path / CATALOG, self._open, durable=self._durable)
        for fault in catalog.faults:
            log.warning("%s", fault)
        if is_incomplete(catalog, self.path):
            found = topics_in(self.path)
            if found or catalog.is_lost:
                catalog.recover(found)
                log.error(
                    "changes in %s are lost: topics without a folder, and settings of topics, groups and the broker, may be "
                    "missing. %d topics were found by their folders",
                    self.path / CATALOG,
                    len({topic.name for topic in found}),
                )
        catalog.repair()
        return catalog

    def _rename_strays(self) -> None:
        known = {topic.name: topic for topic in self._catalog.catalog.topics}
        for name, partition, folder in named_folders(self.path):
            topic = known.get(name)
            topic_id = topic.topic_id if topic is not None and partition < topic.partitions else None
            try:
                self._rename_if_stray(topic_id, folder)
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    raise
                self._unusable[folder.name] = error
                if topic_id is None:
                    log.error("%s is left as it is, since its topic is not known: %s", folder, error)

    def _rename_if_stray(self, wanted: uuid.UUID | None, folder: Path) -> None:
        """Rename a folder if it belongs to another topic than ``wanted``, the one whose partition has its name. Raises
        ``OSError``."""
        content = metadata_in(folder)
        topic_id = topic_id_in(content or b"")
        if wanted is not None:
            if topic_id == wanted or (content is None and not any(folder.glob("*.log"))):
                return
            expected = partition_metadata(wanted)
            if topic_id is None or differ_in_one_bit(content or b"", expected):
                PinnedFolder(folder, self._lock.check).write_small(PARTITION_METADATA, expected)
                log.warning("%s was missing or damaged and was written again", folder / PARTITION_METADATA)
                return
        if topic_id is not None:
            stray = self._pin().rename_folder(folder.name, deleted_folder_name(folder.name, topic_id, STRAY))
            log.warning("%s belongs to no topic of this broker: it is now %s", folder, stray)
        elif is_left_behind(folder):
            log.error("%s is left as it is, since its topic is not known: it has no %s", folder, PARTITION_METADATA)

    def _log_foreign(self) -> None:
        """Log the names of files that are not the broker's. They are left as they are."""
        found = foreign_in(self.path, self._catalog.catalog.topics)
        if found := [name for name in found if name not in self._unusable and not is_left_behind(self.path / name)]:
            names = format_names(found)
            log.warning("%s in %s are not the broker's, and are left as they are", names, self.path)


def read_identity(path: Path) -> Identity | None:
    """Return whose data directory this is; ``None``: it is new. For a broker that joins a cluster before it opens its directory.

    Raises ``StorageError`` if ``meta.properties`` cannot be used, or is missing although there are topics: a new identity would let
    the broker join any cluster, and what the cluster does not know of its topics is removed.
    """
    try:
        if (path / META).exists():
            stored = read_properties(path / META)
            return Identity(int(stored["node.id"]), stored["cluster.id"])
        if (path / CATALOG).exists() or (path.is_dir() and any(True for _ in partition_folders(path))):
            raise StorageError(
                f"{path / META} is missing, and the directory has topics: nothing says to which cluster they belong",
                hint="restore the file, or write it: version=1, node.id=NUMBER and cluster.id=ID, a line each",
            )
    except OSError as error:
        raise StorageError(f"data directory {path} cannot be used: {error}") from error
    return None


def named_folders(path: Path) -> Iterable[tuple[str, int, Path]]:
    """Yield the folders in a data directory that have names like those of partitions."""
    for folder in sorted(path.iterdir()):
        named = _FOLDER.fullmatch(folder.name)
        if named is not None and folder.is_dir():
            yield named["topic"], int(named["partition"]), folder


def partition_folders(path: Path) -> Iterable[tuple[str, int, uuid.UUID, Path]]:
    """Yield those of them that have a readable topic id."""
    for topic, partition, folder in named_folders(path):
        topic_id = None
        with suppress(OSError):
            topic_id = topic_id_in(metadata_in(folder) or b"")
        if topic_id is not None:
            yield topic, partition, topic_id, folder


def topics_in(path: Path) -> list[StoredTopic]:
    """Return the topics that partition folders belong to, without their settings; if folders of a topic have different ids, the
    most frequent one first."""
    counts: Counter[tuple[str, uuid.UUID]] = Counter()
    partitions: dict[str, int] = {}
    for topic, partition, topic_id, _ in partition_folders(path):
        counts[topic, topic_id] += 1
        partitions[topic] = max(partition + 1, partitions.get(topic, 0))
    return [StoredTopic(topic, topic_id, partitions[topic], {}) for (topic, topic_id), _ in counts.most_common()]


def is_incomplete(catalog: CatalogFile, path: Path) -> bool:
    """Whether topics must be recovered from the folders of a data directory, too.

    That is so as well if there are folders of topics or partitions that a damaged catalog does not have: its last lines are lost. A
    file that was cut at the end of a line does not show that.
    """
    if catalog.is_lost or catalog.is_new:
        return True
    known = {topic.name: topic for topic in catalog.catalog.topics}
    for name, partition, topic_id, _ in partition_folders(path) if catalog.faults else ():
        topic = known.get(name)
        if topic is None or (topic.topic_id == topic_id and partition >= topic.partitions):
            return True
    return False


def is_replaced(name: str) -> bool:
    """Whether this is one of the small files in a data directory itself."""
    return name in _REPLACED


def foreign_in(path: Path, topics: Iterable[StoredTopic]) -> list[str]:
    """Return the names in a data directory with these topics that are not the broker's, sorted."""
    own = {f"{topic.name}-{number}" for topic in topics for number in range(topic.partitions)}
    return sorted(name for name in os.listdir(path) if name not in own and not _OWN.fullmatch(name))


def is_left_behind(folder: Path) -> bool:
    """Whether a folder has the name of a partition, no ``partition.metadata``, and nothing that is not the broker's."""
    if not _FOLDER.fullmatch(folder.name) or not folder.is_dir():
        return False
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return PARTITION_METADATA not in names and not foreign(names)


def metadata_in(folder: Path) -> bytes | None:
    """Return the content of ``partition.metadata``; ``None`` if it does not exist. Raises ``OSError``."""
    try:
        return read_whole(folder / PARTITION_METADATA)
    except FileNotFoundError:
        return None


def _names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def differ_in_one_bit(one: bytes, other: bytes) -> bool:
    """Whether they differ in a single bit, because of damage: the ids of two topics differ in about half of their bits."""
    return len(one) == len(other) and sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True)) == 1


def cluster_in_zookeeper(path: Path) -> str | None:
    """Return the id of the cluster of a broker with ZooKeeper, whose directory this is; ``None`` for another directory. Raises
    ``StorageError``."""
    if not (path / META).exists():
        return None
    stored = read_properties(path / META)
    return stored["cluster.id"] if stored.get(_METADATA) == _ZOOKEEPER else None


def read_properties(path: Path) -> dict[str, str]:
    """Read ``meta.properties``. Raises ``StorageError`` if it cannot be used."""
    content = read_whole(path)
    hint = "restore it, or move it away: the broker creates a new one, with another cluster.id, and keeps its topics"
    if not content.strip():
        raise StorageError(f"{path} is damaged: it is empty", hint=hint)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is damaged: byte {error.start} is not UTF-8", hint=hint) from None
    pairs = [line.partition("=") for line in lines if line.strip() and line.strip()[0] not in "#!"]
    stored = {name.strip(): value.strip() for name, _, value in pairs}
    version = stored.get("version", "")
    if version.isdecimal() and int(version) > _META_VERSION:
        raise StorageError(
            f"{path} has version {version}; this release of Ottla reads versions 0 and {_META_VERSION}",
            hint="start the broker with the release of Ottla that wrote the file, or a newer one",
        )
    for name in ("version", "node.id", "cluster.id"):
        value = stored.get("broker.id", "") if name == "node.id" and version == "0" else stored.get(name, "")
        if not value:
            raise StorageError(f"{path} is damaged: it has no {name}", hint=hint)
        if name != "cluster.id" and not value.isdecimal():
            raise StorageError(f"{path} is damaged: {name}={value!r} is not a number", hint=hint)
        stored[name] = value
    return stored
