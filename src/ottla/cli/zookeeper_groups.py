"""``ottla group ... --zookeeper``: the groups of Kafka 0.8's consumers, which keep their members and offsets in ZooKeeper.

Owns the output about these groups. Must not know ZooKeeper's nodes, except to show them. Invariants: brokers that cannot be reached
never hide what ZooKeeper has; nothing changes without ``--execute``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ottla
from ottla import TopicPartition
from ottla.cli.clients import connected_admin, connected_zookeeper, registered_brokers
from ottla.cli.offsets import Log, clamped_offsets, logs_of, stored_in_kafka
from ottla.cli.options import Format
from ottla.cli.output import CommandFailed, pluralize, print_json, print_line, print_rows, print_table, print_warning
from ottla.errors import OttlaError
from ottla.zookeeper_admin import ZooKeeperGroupDescription, ZooKeeperGroupListing, ZooKeeperPartition

MEMBER_COLUMNS = ("member_id", "host", "pattern", "subscription", "partitions")
PARTITION_COLUMNS = ("topic", "partition", "committed", "stored_in", "end_offset", "lag", "owner")
RESET_COLUMNS = ("topic", "partition", "committed", "new_offset")
MALFORMED_COLUMNS = ("malformed_node", "error")
DRY_RUN = "nothing was changed; add --execute to do it"


@dataclass(frozen=True)
class Servers:
    """Where a command looks for a group: ZooKeeper, and its brokers (``None``: those that are registered in ZooKeeper)."""

    zookeeper: str
    bootstrap_servers: str | None
    settings: Sequence[str] | None

    @contextmanager
    def connected(self) -> Iterator[ottla.ZooKeeperAdmin]:
        """Return a client for ZooKeeper."""
        with connected_zookeeper(self.zookeeper, self.settings) as zookeeper:
            yield zookeeper

    @contextmanager
    def brokers_of(self, zookeeper: ottla.ZooKeeperAdmin) -> Iterator[ottla.Admin]:
        """Return a client for the brokers. Raises ``CommandFailed`` if they are those of another cluster."""
        servers = self.bootstrap_servers or registered_brokers(zookeeper, self.settings)
        with connected_admin(servers, self.settings) as admin:
            if self.bootstrap_servers is not None:
                self._check_same_cluster(zookeeper, admin)
            yield admin

    def _check_same_cluster(self, zookeeper: ottla.ZooKeeperAdmin, admin: ottla.Admin) -> None:
        # The offsets of one cluster mean nothing in another one.
        registered, served = zookeeper.cluster_id(), admin.describe_cluster().cluster_id
        if registered is not None and served is not None and registered != served:
            raise CommandFailed(
                f"the brokers at {self.bootstrap_servers} belong to cluster {served}, ZooKeeper at {self.zookeeper} to cluster "
                f"{registered}; without -b, the brokers that are registered in ZooKeeper are used"
            )


# -- list and describe ----------------------------------------------------------------------------------------------------


def list_groups(servers: Servers, output: Format) -> None:
    """Print all groups in ZooKeeper."""
    with servers.connected() as zookeeper:
        groups = zookeeper.list_groups()
    rows = [{"group": each.group_id, "state": each.state, "protocol": _protocol(each)} for each in groups]
    print_rows(rows, ("group", "state", "protocol"), output)


def describe(servers: Servers, name: str, output: Format) -> None:
    """Print one group."""
    with servers.connected() as zookeeper:
        group = zookeeper.describe_group(name)
        in_kafka, logs = _from_brokers(servers, zookeeper, group)
    document = describe_group(group, in_kafka, logs)
    if output is Format.JSON:
        print_json(document)
        return
    print_line(f"group {name}: {group.state}, protocol {_protocol(group)}")
    if group.is_central and group.state != "Empty":
        print_warning(f"only the central coordinator knows the members: ottla group describe {name} -b BROKER")
    print()
    print_table([_member_cells(each) for each in document["members"]], MEMBER_COLUMNS)
    print()
    print_table([{**each, "stored_in": _stored_in_cell(each)} for each in document["partitions"]], PARTITION_COLUMNS)
    for each in group.members:
        if not each.is_live:
            node = f"/consumers/{name}/ids/{each.member_id}"
            print_warning(f"{node} is persistent: no process stands behind it, so nothing reads its partitions; delete it")
    if group.malformed:
        print()
        print_table([{"malformed_node": each.path, "error": each.error} for each in group.malformed], MALFORMED_COLUMNS)


def _protocol(group: ZooKeeperGroupListing | ZooKeeperGroupDescription) -> str:
    return "central" if group.is_central else "zookeeper"


def _from_brokers(
    servers: Servers, zookeeper: ottla.ZooKeeperAdmin, group: ZooKeeperGroupDescription
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Log]]:
    """Return the offsets that the group has in Kafka, and the logs of its partitions; nothing but a warning without brokers."""
    try:
        with servers.brokers_of(zookeeper) as admin:
            in_kafka = stored_in_kafka(admin, group.group_id)
            partitions = {TopicPartition(each.topic, each.partition) for each in group.partitions}
            return in_kafka, logs_of(admin, sorted(partitions | in_kafka.keys()))
    except (OttlaError, CommandFailed) as error:
        print_warning(f"ends of logs and offsets in Kafka are unknown: {error}")
        return {}, {}


def describe_group(
    group: ZooKeeperGroupDescription, in_kafka: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, Log]
) -> dict[str, Any]:
    """Return the description of a group, as for JSON."""
    known = {TopicPartition(each.topic, each.partition): each for each in group.partitions}
    rows = [_partition_row(each, known.get(each), in_kafka.get(each), logs.get(each)) for each in sorted({*known, *in_kafka})]
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol": _protocol(group),
        "members": [
            {
                "member_id": each.member_id,
                "host": each.host,
                "pattern": each.pattern or None,
                "subscription": dict(each.subscription),
                "is_live": each.is_live,
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in each.partitions],
            }
            for each in group.members
        ],
        "partitions": rows,
        "malformed": [{"path": each.path, "error": each.error} for each in group.malformed],
    }


def _partition_row(
    partition: TopicPartition, known: ZooKeeperPartition | None, in_kafka: int | None, log: Log | None
) -> dict[str, Any]:
    in_zookeeper = None if known is None else known.offset
    owner = None if known is None else known.owner
    # Which of the two a member uses depends on its settings. Kafka's consumer takes the larger one where it looks at both.
    committed = max((each for each in (in_zookeeper, in_kafka) if each is not None), default=None)
    stores = {"zookeeper": in_zookeeper, "kafka": in_kafka}
    end = None if log is None else log.end
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed": committed,
        "stored_in": [store for store, offset in stores.items() if offset is not None and offset == committed],
        "offsets": stores,
        "end_offset": end,
        "lag": end - committed if end is not None and committed is not None else None,
        "owner": None if owner is None else str(owner),
    }


def _member_cells(member: Mapping[str, Any]) -> dict[str, Any]:
    subscription = [f"{topic}={streams}" for topic, streams in member["subscription"].items()]
    partitions = [f"{each['topic']}-{each['partition']}" for each in member["partitions"]]
    pattern = member["pattern"] if member["is_live"] else "(persistent: no process stands behind it)"
    return {**member, "pattern": pattern, "subscription": subscription, "partitions": partitions}


def _stored_in_cell(row: Mapping[str, Any]) -> str | None:
    """Where the committed offset is stored, and what the other store has if that is another one."""
    others = {store: offset for store, offset in row["offsets"].items() if offset is not None and store not in row["stored_in"]}
    return " and ".join(row["stored_in"]) + "".join(f" ({store} has {offset})" for store, offset in others.items()) or None


# -- changes --------------------------------------------------------------------------------------------------------------


def reset_offsets(servers: Servers, name: str, offset: str, topics: Sequence[str] | None, *, execute: bool, output: Format) -> None:
    """Reset the committed offsets of a group without members."""
    with servers.connected() as zookeeper:
        check_no_members(zookeeper, name)
        committed = {each: at.offset for each, at in zookeeper.group_offsets(name).items()}
        with servers.brokers_of(zookeeper) as admin:
            if topics:
                found = admin.describe_topics(topics)
                partitions = [TopicPartition(topic, each.partition) for topic in found for each in found[topic].partitions]
            else:
                partitions = _existing(admin, sorted(committed))
            if not partitions and committed:
                raise CommandFailed(
                    f"there is nothing to reset: no topic that group {name} has committed offsets of exists any more"
                )
            if not partitions:
                raise CommandFailed(f"group {name} has no committed offsets in ZooKeeper; name the topics to reset with -t")
            offsets = clamped_offsets(admin, partitions, offset)
            elsewhere = stored_in_kafka(admin, name).keys() & offsets.keys()
        if execute:
            zookeeper.alter_group_offsets(name, offsets, expected=committed, progress=progress_of("wrote", "offset"))
    rows = [
        {"topic": each.topic, "partition": each.partition, "committed": committed.get(each), "new_offset": offsets[each]}
        for each in partitions
    ]
    print_rows(rows, RESET_COLUMNS, output)
    if elsewhere:
        print_warning(
            f"the group also has offsets in Kafka ({pluralize(len(elsewhere), 'partition')}), which members with "
            "offsets.storage=kafka read: reset them with the same command without --zookeeper"
        )
    if not execute:
        print(DRY_RUN, file=sys.stderr)


def delete(servers: Servers, name: str, topic: str | None, *, execute: bool) -> None:
    """Delete a group without members, or its offsets of one topic."""
    with servers.connected() as zookeeper:
        check_no_members(zookeeper, name)
        what = f"group {name}" if topic is None else f"topic {topic} of group {name}"
        progress = progress_of("deleted", "node")
        if topic is None:
            zookeeper.delete_group(name, validate_only=not execute, progress=progress)
        else:
            zookeeper.delete_group_topic(name, topic, validate_only=not execute, progress=progress)
        if execute:
            print_line(f"deleted {what}")
            return
        committed = [each for each in zookeeper.group_offsets(name) if topic in (None, each.topic)]
        print_line(f"would delete {what} with {pluralize(len(committed), 'committed offset')}; add --execute to do it")


def check_no_members(zookeeper: ottla.ZooKeeperAdmin, name: str) -> None:
    """Raise ``CommandFailed`` if the group has members in ZooKeeper."""
    if (state := zookeeper.group_state(name)) == "Active":
        raise CommandFailed(f"group {name} is {state} in ZooKeeper: its members must leave first")


def progress_of(done: str, noun: str) -> Callable[[int, int], None]:
    """Return what prints the progress of a change that has several parts to stderr."""

    def report(number: int, of: int) -> None:
        if number < of:
            print(f"{done} {number} of {pluralize(of, noun)}", file=sys.stderr, flush=True)

    return report


def _existing(admin: ottla.Admin, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Leave out partitions that have been deleted, with a line about each topic."""
    logs = logs_of(admin, partitions)
    gone = sorted({each.topic for each in partitions if each not in logs})
    for topic in gone:
        print_warning(f"partitions of topic {topic} do not exist any more: skipped")
    return [each for each in partitions if each in logs]
