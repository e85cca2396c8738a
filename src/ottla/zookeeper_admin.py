"""``ZooKeeperAdmin``: the groups of Kafka 0.8's consumers, which keep their members and offsets in ZooKeeper.

Owns the signatures. Must not know operations, connections or retries. Invariant: importing this module does not need kazoo; only
the constructor does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from ottla import arguments
from ottla.arguments import Timeout
from ottla.client.admin.zookeeper import reading, writing
from ottla.client.admin.zookeeper.results import (
    MalformedNode,
    ZooKeeperGroupDescription,
    ZooKeeperGroupListing,
    ZooKeeperGroupMember,
    ZooKeeperPartition,
)
from ottla.client.admin.zookeeper.writing import Progress
from ottla.config import ConsumerConfig
from ottla.config.spelling import read, table
from ottla.types import Node, OffsetAndMetadata, TopicPartition
from ottla.zookeeper.calls import Call, ResultT

if TYPE_CHECKING:
    from ottla.runtime.zookeeper_calls import ZooKeeperCalls

__all__ = [
    "MalformedNode",
    "ZooKeeperAdmin",
    "ZooKeeperGroupDescription",
    "ZooKeeperGroupListing",
    "ZooKeeperGroupMember",
    "ZooKeeperPartition",
]

_log = logging.getLogger(__name__)


class ZooKeeperAdmin:
    """A client for the groups of Kafka 0.8's consumers: ``ZooKeeperAdmin("zk1:2181,zk2:2181/kafka")``.

    ``zookeeper_connect`` is as in the brokers' settings, with the chroot if there is one. The constructor does no I/O; it raises
    ``ConfigError`` without kazoo. One thread at a time may call it. ``timeout`` (seconds or a ``timedelta``; ``None``:
    ``default_api_timeout``) is how long a call waits for a connection, and for each answer: a call for a large group consists of
    thousands of operations. All calls raise:

    * ``ConnectionFailedError`` if ZooKeeper cannot be reached, with each server and why;
    * ``OttlaTimeoutError`` if it does not answer;
    * ``ConfigError`` if the chroot does not exist, or a group cannot have such a name;
    * ``ZooKeeperError`` if ZooKeeper refuses an operation.

    Nodes that cannot be understood are skipped: descriptions contain them, other calls log a warning.
    """

    def __init__(self, zookeeper_connect: str, *, default_api_timeout: float | timedelta = 60.0) -> None:
        setting = table(ConsumerConfig)["zookeeper_connect"]
        self._connect: str = read(setting, "zookeeper_connect", zookeeper_connect, in_seconds=False)
        self._timeout = arguments.duration(default_api_timeout, "default_api_timeout")
        # Imported here, since it needs kazoo.
        from ottla.runtime.zookeeper_calls import ZooKeeperCalls

        self._calls: ZooKeeperCalls = ZooKeeperCalls(self._connect)

    def __repr__(self) -> str:
        return f"<ZooKeeperAdmin {self._connect}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: create one where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the session. Closing twice does no harm."""
        self._calls.close()

    # -- groups -----------------------------------------------------------------------------------------------------------

    def list_groups(self, *, timeout: Timeout = None) -> tuple[ZooKeeperGroupListing, ...]:
        """All groups, in the order of their ids."""
        return self._run(reading.list_groups(), timeout)

    def describe_group(self, group: str, *, timeout: Timeout = None) -> ZooKeeperGroupDescription:
        """A group, its members, and the offset and owner of each partition. Raises ``GroupIdNotFoundError``."""
        return self._run(reading.describe_group(arguments.text(group, "group")), timeout)

    def group_state(self, group: str, *, timeout: Timeout = None) -> str:
        """``"Active"``: the group has live members; ``"Empty"``: it has none; ``"Dead"``: there is no such group."""
        return self._run(reading.group_state(arguments.text(group, "group")), timeout)

    def delete_group(
        self, group: str, *, validate_only: bool = False, progress: Progress | None = None, timeout: Timeout = None
    ) -> None:
        """Delete a group and its committed offsets.

        Raises ``GroupIdNotFoundError``, and ``NonEmptyGroupError`` if the group has members. A group with more than 1,000 nodes is
        deleted in parts; a member that joins meanwhile ends that, and the call can be repeated. ``progress`` is called after each
        part, with the number of nodes that are deleted, and of all. ``validate_only``: raise as the deletion would, and change
        nothing.
        """
        name, only_check = arguments.text(group, "group"), arguments.boolean(validate_only, "validate_only")
        self._run(writing.delete_group(name, progress or _no_progress, validate_only=only_check), timeout)

    def delete_group_topic(
        self,
        group: str,
        topic: str,
        *,
        validate_only: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Delete a group's committed offsets of one topic, as ``delete_group``.

        Raises ``UnknownTopicOrPartitionError``, too, if the group has none.
        """
        name, wanted = arguments.text(group, "group"), arguments.text(topic, "topic")
        only_check = arguments.boolean(validate_only, "validate_only")
        self._run(writing.delete_group_topic(name, wanted, progress or _no_progress, validate_only=only_check), timeout)

    # -- offsets ----------------------------------------------------------------------------------------------------------

    def group_offsets(self, group: str, *, timeout: Timeout = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group: for each partition the next offset to read. Empty if there is no such group."""
        offsets, malformed = self._run(reading.group_offsets(arguments.text(group, "group")), timeout)
        _warn(malformed)
        return {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        expected: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        progress: Progress | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Commit offsets for a group without members, and create the group if there is none. ZooKeeper stores no metadata.

        ``expected``: what ``group_offsets`` has returned; raises ``IllegalStateError`` if a committed offset is another one by now.
        Raises ``NonEmptyGroupError`` if the group has members. More than 1,000 offsets are written in parts; a member that joins
        meanwhile ends that, and the call can be repeated. ``progress`` is called after each part, with the number of offsets that
        are written, and of all.
        """
        name, wanted = arguments.text(group, "group"), arguments.positions(offsets)
        seen = None if expected is None else arguments.positions(expected, "expected")
        before = None if seen is None else {partition: at.offset for partition, at in seen.items()}
        new = {partition: at.offset for partition, at in wanted.items()}
        self._run(writing.alter_group_offsets(name, new, before, progress or _no_progress), timeout)

    # -- the cluster ------------------------------------------------------------------------------------------------------

    def brokers(self, *, listener: str = "PLAINTEXT", timeout: Timeout = None) -> tuple[Node, ...]:
        """The registered brokers with their addresses for a listener or a security protocol."""
        found, malformed = self._run(reading.brokers(arguments.text(listener, "listener")), timeout)
        _warn(malformed)
        return found

    def cluster_id(self, *, timeout: Timeout = None) -> str | None:
        """The id of the Kafka cluster; ``None`` if its version has none (before 0.10.1)."""
        return self._run(reading.cluster_id(), timeout)

    def _run(self, call: Call[ResultT], timeout: Timeout) -> ResultT:
        return self._calls.run(call, arguments.milliseconds(timeout, self._timeout))


def _warn(malformed: Iterable[MalformedNode]) -> None:
    for node in malformed:
        _log.warning("skipped: %s", node.error)


def _no_progress(done: int, of: int) -> None:
    del done, of
