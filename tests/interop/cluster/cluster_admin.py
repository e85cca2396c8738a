"""The administration of a cluster during a test: topics, leaders, and the check that all replicas are in sync.

Owns the admin clients: Ottla's, and kafka-python's for calls that Ottla lacks. librdkafka's is no alternative: after the death of
nodes it may hang and abort. Must not know the invariants of groups. Invariant: each call is retried until it succeeds, because a
cluster in trouble rejects or loses requests, and the controller responds before the nodes have applied a change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import kafka
import kafka.admin

from ottla import Admin, TopicPartition
from ottla.errors import InvalidPartitionsError, OttlaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from ottla.types import PartitionInfo

PATIENCE = 120.0
"""Seconds after which something that an operator does will never work."""
_ATTEMPT = 15.0
_PREFERRED = 0
T = TypeVar("T")


def patiently(what: str, attempt: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Call ``attempt`` until it returns something other than ``None``. Fails the test at the timeout."""
    until = time.monotonic() + seconds
    why: object = "not so"
    while time.monotonic() < until:
        try:
            found = attempt()
        except (OttlaError, kafka.errors.KafkaError) as error:
            why = error
        else:
            if found is not None:
                return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s: {why}")


class Operator:
    """Administers one cluster."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = Admin(bootstrap_servers=servers, default_api_timeout=_ATTEMPT, request_timeout=_ATTEMPT)

    def create(self, name: str, partitions: int, replicas: int) -> None:
        """Create a topic, and wait until all its partitions have leaders."""

        def make() -> bool:
            with suppress(TopicAlreadyExistsError):  # of an attempt before this one nothing may have been heard
                self._admin.create_topics({name: partitions}, replication_factor=replicas)
            return True

        patiently(f"create {name}", make)
        self._wait_for_leaders(name, partitions)

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""

        def remove() -> bool:
            with suppress(UnknownTopicOrPartitionError):
                self._admin.delete_topics([name])
            return True

        patiently(f"delete {name}", remove)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, and wait until they have leaders."""

        def more() -> bool:
            with suppress(InvalidPartitionsError):  # it has them
                self._admin.create_partitions({name: partitions})
            return True

        patiently(f"grow {name}", more)
        self._wait_for_leaders(name, partitions)

    def move(self, name: str, nodes: Iterable[int]) -> None:
        """Reassign each partition to the next nodes, and elect the first of them as leader."""
        ring = sorted(nodes)
        wanted = {}
        for number, replicas in self._replicas(name).items():
            at = ring.index(replicas[0]) + 1
            wanted[number] = tuple(ring[(at + more) % len(ring)] for more in range(len(replicas)))
        moves = {kafka.TopicPartition(name, number): list(replicas) for number, replicas in wanted.items()}
        self._by_kafka_python(f"move {name}", lambda client: client.alter_partition_reassignments(moves))
        patiently(f"see {name} moved", lambda: self._replicas(name) == wanted or None)
        self.prefer()

    def prefer(self) -> None:
        """Elect the preferred leaders, where possible."""
        self._by_kafka_python("elect leaders", lambda client: client.elect_leaders(_PREFERRED, raise_errors=False))

    def leader(self, name: str, partition: int) -> int:
        """Return the leader of a partition, once there is one."""
        return patiently(f"find the leader of {name}-{partition}", lambda: self.partition(name, partition).leader)

    def partition(self, name: str, partition: int) -> PartitionInfo:
        """Return leader and replicas of a partition."""
        return patiently(f"see {name}-{partition}", lambda: self._admin.describe_topics([name])[name].partitions[partition])

    def coordinator(self, group: str) -> int:
        """Return the coordinator of a group."""
        return patiently(
            f"find the coordinator of {group}", lambda: self._admin.describe_groups([group])[group].coordinator.node_id
        )

    def wait_until_whole(self, nodes: Iterable[int]) -> None:
        """Wait until all nodes are there, and each partition of each topic has a leader and all its replicas in sync."""
        expected = set(nodes)

        def whole() -> bool | None:
            there = {node.node_id for node in self._admin.describe_cluster().nodes}
            topics = self._admin.list_topics(include_internal=True).values()
            partitions = [one for topic in topics for one in topic.partitions]
            in_sync = all(one.leader is not None and set(one.isr) == set(one.replicas) for one in partitions)
            return (there == expected and in_sync) or None

        patiently("all replicas in sync", whole)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group from its coordinator."""
        found = patiently(f"ask for the offsets of {group}", lambda: self._admin.group_offsets(group))
        return {(tp.topic, tp.partition): position.offset for tp, position in found.items()}

    def ends(self, name: str) -> dict[int, int]:
        """Return the end offset of each partition of a topic."""
        asked = dict.fromkeys((TopicPartition(name, number) for number in self._replicas(name)), "latest")
        found = patiently(f"find the ends of {name}", lambda: self._admin.list_offsets(asked))
        return {tp.partition: end.offset for tp, end in found.items() if end is not None}

    def close(self) -> None:
        """Close the clients."""
        self._admin.close()

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        def there() -> bool | None:
            found = self._admin.describe_topics([name])[name].partitions
            return (len(found) >= partitions and all(one.leader is not None for one in found)) or None

        patiently(f"see {name}", there)

    def _replicas(self, name: str) -> dict[int, tuple[int, ...]]:
        found = patiently(f"see {name}", lambda: self._admin.describe_topics([name]))
        return {one.partition: one.replicas for one in found[name].partitions}

    def _by_kafka_python(self, what: str, ask: Callable[[kafka.admin.KafkaAdminClient], object]) -> None:
        def attempt() -> bool:
            client = kafka.admin.KafkaAdminClient(bootstrap_servers=self._servers.split(","))
            try:
                ask(client)
            finally:
                client.close()
            return True

        patiently(what, attempt)
