"""The paths of Kafka 0.8 in ZooKeeper.

Owns the layout below ``/consumers``, ``/brokers``, ``/config``, ``/cluster`` and ``/admin``, and the nodes of the central
coordinator. Must not know the data of the nodes. Invariant: a path is only made of names that ZooKeeper accepts, so a group's name
never leads to another group's nodes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from ottla.errors import ConfigError

CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
CONTROLLER_EPOCH = "/controller_epoch"
"""A node that each cluster of Kafka has, and Ottla's have not."""
BROKER_SEQUENCE = "/brokers/seqid"
"""The node whose version is the last generated broker id, less ``RESERVED_BROKER_IDS``."""
RESERVED_BROKER_IDS = 1000
"""Kafka's ``reserved.broker.max.id``: ids up to this are chosen by operators."""
PRODUCER_IDS = "/latest_producer_id_block"
"""The node with the last block of producer ids that a broker has taken."""
TOPIC_CONFIGS = "/config/topics"
DELETED_TOPICS = "/admin/delete_topics"
"""The parent of a node for each topic that is to be deleted."""

COORDINATOR = f"{CONSUMERS}/coordinator"
"""The ephemeral node of the broker that is elected as the central coordinator."""
COORDINATOR_EPOCH = "/coordinator_epoch"
"""The number of elections so far. It is no child of ``COORDINATOR``, since ephemeral nodes have none."""
NO_GROUPS = frozenset({"coordinator", "groups"})
"""Children of ``CONSUMERS`` that are no groups of the central coordinator."""

CLUSTER_ROOTS = (BROKER_IDS, TOPICS, BROKER_SEQUENCE, CLUSTER_ID.rpartition("/")[0], TOPIC_CONFIGS, DELETED_TOPICS, CONSUMERS)
"""The nodes that every broker creates at its start, unless they exist."""

_REFUSED = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""Characters that ZooKeeper allows in no name, and the separator."""
_MAX_INT32 = 2**31 - 1
_BROKER_ID = re.compile("0|[1-9][0-9]{0,9}")
"""The name of a broker's node. Another client's node may have more digits than Python converts."""


def missing_root(connect: str) -> ConfigError:
    """Return the error for a chroot that does not exist; ``connect`` is ``zookeeper.connect``."""
    text = f"{connect!r}: ZooKeeper has no node {'/' + connect.partition('/')[2]!r}"
    return ConfigError(text, hint="what follows the servers must be as in zookeeper.connect of the brokers")


def is_name(name: str) -> bool:
    """Whether ``name`` can be part of a path."""
    return bool(name) and name not in (".", "..") and _REFUSED.search(name) is None


def may_be_central(group_id: str) -> bool:
    """Whether the central coordinator can coordinate a group with this id."""
    return is_name(group_id) and group_id not in NO_GROUPS


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be part of a path. Raises ``ConfigError``; ``what`` says what it names."""
    refused = _REFUSED.search(name)
    if not name or name in (".", "..") or refused is not None:
        why = f"it contains {refused.group()!r}" if refused is not None else "it is empty, '.' or '..'"
        raise ConfigError(f"{what} {name!r} cannot be a node of ZooKeeper: {why}", hint="choose another name")
    return name


def group(group_id: str) -> str:
    """The node of a group."""
    return f"{CONSUMERS}/{check_name(group_id, 'the group id')}"


def ids(group_id: str) -> str:
    """The parent of a group's members."""
    return f"{group(group_id)}/ids"


def member(group_id: str, member_id: str) -> str:
    """The ephemeral node of a member."""
    return f"{ids(group_id)}/{check_name(member_id, 'the member id')}"


def owners(group_id: str) -> str:
    """The parent of the topics with owners."""
    return f"{group(group_id)}/owners"


def topic_owners(group_id: str, topic: str) -> str:
    """The parent of the owners of one topic's partitions."""
    return f"{owners(group_id)}/{check_name(topic, 'the topic')}"


def owner(group_id: str, topic: str, partition: int) -> str:
    """The node whose data is the consumer thread that owns a partition: ephemeral, but persistent in a central group."""
    return f"{topic_owners(group_id, topic)}/{partition}"


def offsets(group_id: str) -> str:
    """The parent of the topics with committed offsets."""
    return f"{group(group_id)}/offsets"


@functools.lru_cache(1024)  # Checking the names took a tenth of the time of a commit of 100 partitions.
def topic_offsets(group_id: str, topic: str) -> str:
    """The parent of the committed offsets of one topic."""
    return f"{offsets(group_id)}/{check_name(topic, 'the topic')}"


def offset(group_id: str, topic: str, partition: int) -> str:
    """The node whose data is the committed offset of a partition."""
    return f"{topic_offsets(group_id, topic)}/{partition}"


def generation(group_id: str) -> str:
    """The node that a group has if the central coordinator coordinates it."""
    return f"{group(group_id)}/generation"


def broker(broker_id: int) -> str:
    """The ephemeral node of a broker."""
    return f"{BROKER_IDS}/{broker_id}"


def broker_ids(names: Iterable[str]) -> list[int]:
    """The ids that the names of the children of ``BROKER_IDS`` are, in order; what is none, or no int32, is left out."""
    return sorted(int(name) for name in names if _BROKER_ID.fullmatch(name) and int(name) <= _MAX_INT32)


def partition_number(name: str) -> int | None:
    """Return the partition whose node has this name; ``None`` if it is no number, or written in another way than Kafka does."""
    number = int(name) if name.isascii() and name.isdecimal() and len(name) <= 10 else None
    return number if number is not None and str(number) == name and number <= _MAX_INT32 else None


def topic(name: str) -> str:
    """The node with the partitions of a topic."""
    return f"{TOPICS}/{check_name(name, 'the topic')}"


def topic_config(name: str) -> str:
    """The node with the settings of a topic."""
    return f"{TOPIC_CONFIGS}/{check_name(name, 'the topic')}"


def deleted_topic(name: str) -> str:
    """The node that asks for the deletion of a topic."""
    return f"{DELETED_TOPICS}/{check_name(name, 'the topic')}"


def partitions(name: str) -> str:
    """The parent of a topic's partitions."""
    return f"{topic(name)}/partitions"


def partition_state(name: str, partition: int) -> str:
    """The node with the leader of a partition."""
    return f"{partitions(name)}/{partition}/state"


def parents(path: str) -> tuple[str, ...]:
    """The nodes above ``path``, without the root, from the top."""
    parts = path.split("/")[1:-1]
    return tuple("/" + "/".join(parts[: end + 1]) for end in range(len(parts)))
