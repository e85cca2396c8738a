"""The data of Kafka 0.8's nodes, written as Kafka 1.1.1 writes it, and read leniently.

Owns the JSON of members, brokers, topics, settings, leaders and generations, and the text of owners, offsets and the coordinator's
election. Must not know paths, except to name them in an error. Invariants: what is written has the bytes of Kafka 1.1.1, since
Java's members parse it strictly, but a topic with an id has the fields of Kafka 2.8; reading skips unknown fields, and raises
``ProtocolError`` with the path for everything else that it cannot understand.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import ProtocolError
from ottla.types import MOST_STREAMS, Node as BrokerAddress, parse_uuid, uuid_text

STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"
PATTERNS = (STATIC, WHITE_LIST, BLACK_LIST)
"""The kinds of subscriptions, as they are written."""

_MOST_STREAMS_OF_MEMBER = 1_000_000
"""The streams of all topics. Each member computes the assignment of all, so one node could exhaust the memory of the group."""
_LONGEST_HOST = 255
"""A name of DNS has no more characters. One with 32,768 could not be sent to clients."""
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
HIGHEST_FOUND_GENERATION = 2**30
"""A coordinator that goes on from here can count as many more, each an int32 in requests. No group has that many."""


@dataclass(frozen=True, slots=True)
class MemberRegistration:
    """The data of a member: ``/consumers/[group]/ids/[member]``.

    ``subscription`` maps each topic to its number of streams; for a white list or black list, the one regular expression.
    """

    subscription: Mapping[str, int]
    pattern: str = STATIC
    timestamp: int = 0

    def encode(self) -> bytes:
        """Return the JSON of Kafka 1.1.1, in its order of fields."""
        fields = {
            "version": 1,
            "subscription": dict(self.subscription),
            "pattern": self.pattern,
            "timestamp": str(self.timestamp),
        }
        return _json(fields)

    @classmethod
    def decode(cls, data: bytes, path: str) -> MemberRegistration:
        """Read the data of a member. Raises ``ProtocolError``."""
        fields = _object(data, path)
        # Members of 0.8.0 and other clients leave the pattern or the timestamp out: then the topics are named.
        pattern = fields.get("pattern", STATIC)
        if pattern not in PATTERNS:
            raise _malformed(path, f"the pattern is {pattern!r}, none of {', '.join(PATTERNS)}")
        subscription = fields.get("subscription")
        if not isinstance(subscription, dict):
            raise _malformed(path, "the subscription is missing or not an object")
        if pattern != STATIC and len(subscription) != 1:
            raise _malformed(path, f"a {pattern} has one regular expression, not {len(subscription)}")
        streams = {topic: _number(n, path, f"the streams of {topic!r}", 1, MOST_STREAMS) for topic, n in subscription.items()}
        if sum(streams.values()) > _MOST_STREAMS_OF_MEMBER:
            raise _malformed(path, f"it has {sum(streams.values()):,} streams, more than {_MOST_STREAMS_OF_MEMBER:,}")
        timestamp = fields.get("timestamp", 0)
        return cls(streams, pattern, _number(timestamp, path, "the timestamp", 0, _MAX_INT64))


def encode_broker(host: str, port: int, timestamp: int) -> bytes:
    """Return the data of a broker with one listener, without TLS. ``timestamp``: when it started (ms since 1970)."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    fields = {
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": [f"PLAINTEXT://{address}"],
        "jmx_port": -1,
        "host": host,
        "timestamp": str(timestamp),
        "port": port,
        "version": 4,
    }
    return _json(fields)


def decode_broker(broker_id: int, data: bytes, path: str, listener: str = "PLAINTEXT") -> BrokerAddress:
    """Read the address of a broker for one listener or security protocol. Raises ``ProtocolError``.

    0.8 wrote ``host`` and ``port`` alone. Later versions add ``endpoints``; their ``host`` is null without a plain-text listener.
    """
    fields = _object(data, path)
    endpoints = fields.get("endpoints")
    for endpoint in endpoints if isinstance(endpoints, list) else []:
        name, separator, address = str(endpoint).partition("://")
        host, colon, port = address.rpartition(":")
        names = fields.get("listener_security_protocol_map")
        protocol = names.get(name, name) if isinstance(names, dict) else name
        if separator and colon and listener in (name, protocol):
            return _address(broker_id, host.strip("[]"), port, path)
    if listener != "PLAINTEXT" or not isinstance(fields.get("host"), str):
        raise _malformed(path, f"broker {broker_id} has no address for {listener}")
    return _address(broker_id, fields["host"], fields.get("port"), path)


def _address(broker_id: int, host: str, port: object, path: str) -> BrokerAddress:
    if len(host) > _LONGEST_HOST:
        raise _malformed(path, f"the host has {len(host):,} characters, more than {_LONGEST_HOST}")
    return BrokerAddress(broker_id, host, _number(port, path, "the port", 1, 65535), None)


def decode_start(data: bytes, path: str) -> int:
    """Read when a broker has started (ms since 1970). Raises ``ProtocolError``."""
    return _number(_object(data, path).get("timestamp"), path, "the timestamp", 0, _MAX_INT64)


def encode_topic(replicas: Sequence[int], topic_id: uuid.UUID | None = None) -> bytes:
    """Return the data of a topic: for each partition, in order, the broker with its only replica.

    With a ``topic_id`` in the form of Kafka 2.8 and later, otherwise in that of Kafka 1.1.1.
    """
    partitions = {str(partition): [broker] for partition, broker in enumerate(replicas)}
    if topic_id is None:
        return _json({"version": 1, "partitions": partitions})
    fields = {"version": 3, "topic_id": uuid_text(topic_id), "partitions": partitions, "adding_replicas": {}}
    return _json({**fields, "removing_replicas": {}})


def encode_partition_state(leader: int, leader_epoch: int = 0) -> bytes:
    """Return the data of a partition's state: its leader, the only replica; -1: it has none."""
    return _json({"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": leader_epoch, "isr": [leader]})


class PartitionState(NamedTuple):
    """The data of a partition's state."""

    leader: int
    """The broker that has written it; -1: there is none."""
    leader_epoch: int


def decode_partition_state(data: bytes, path: str) -> PartitionState:
    """Read the state of a partition. Raises ``ProtocolError``."""
    fields = _object(data, path)
    leader = _number(fields.get("leader"), path, "the leader", -1, _MAX_INT32)
    return PartitionState(leader, _number(fields.get("leader_epoch"), path, "the leader epoch", 0, _MAX_INT32))


class TopicNode(NamedTuple):
    """The data of a topic: its id, ``None`` if a tool older than Kafka 2.8 has created it, and the first replica of each
    partition."""

    topic_id: uuid.UUID | None
    replicas: tuple[int, ...]
    has_more_replicas: bool = False
    """Whether a partition has more replicas than the first."""


def decode_topic_node(data: bytes, path: str) -> TopicNode:
    """Read a topic with the brokers of its partitions. Raises ``ProtocolError``, also if a number is missing among them."""
    fields = _object(data, path)
    partitions = decode_topic(data, path)
    if partitions != tuple(range(len(partitions))) or not partitions:
        raise _malformed(path, "its partitions are not numbered from 0 without gaps")
    replicas = []
    has_more = False
    for partition in partitions:
        brokers = fields["partitions"].get(str(partition))
        if not isinstance(brokers, list) or not brokers:
            raise _malformed(path, f"partition {partition} has no replica")
        has_more = has_more or len(brokers) > 1
        replicas.append(_number(brokers[0], path, f"the first replica of partition {partition}", 0, _MAX_INT32))
    text = fields.get("topic_id")
    if text is None:
        return TopicNode(None, tuple(replicas), has_more)
    topic_id = parse_uuid(text) if isinstance(text, str) else None
    if topic_id is None:
        raise _malformed(path, f"its topic id is {text!r:.60}")
    return TopicNode(topic_id, tuple(replicas), has_more)


def copied_topic(path: str, name: str) -> ProtocolError:
    """Return the error for the node of a topic that has the id of the topic ``name``: someone has copied it."""
    return _malformed(path, f"its topic id is that of topic {name}")


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """Return the data of the settings of a topic."""
    return _json({"version": 1, "config": dict(configs)})


def decode_configs(data: bytes, path: str) -> dict[str, str]:
    """Read the settings of a topic. Raises ``ProtocolError``."""
    configs = _object(data, path).get("config")
    if not isinstance(configs, dict) or not all(isinstance(value, str) for value in configs.values()):
        raise _malformed(path, "the settings are missing, or not all of them are strings")
    return configs


def decode_topic(data: bytes, path: str) -> tuple[int, ...]:
    """Read the partitions of a topic, in order. Raises ``ProtocolError``."""
    partitions = _object(data, path).get("partitions")
    if not isinstance(partitions, dict):
        raise _malformed(path, "the partitions are missing or not an object")
    return tuple(sorted(_number(partition, path, "a partition", 0, _MAX_INT32) for partition in partitions))


def encode_cluster_id(cluster_id: str) -> bytes:
    """Return the data of the node with the cluster's id."""
    return _json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes, path: str) -> str:
    """Read the id of the cluster. Raises ``ProtocolError``."""
    cluster_id = _object(data, path).get("id")
    if not isinstance(cluster_id, str):
        raise _malformed(path, "the id is missing or not a string")
    return cluster_id


class ConsumerThread(NamedTuple):
    """One thread of one member: the owner of partitions."""

    member_id: str
    thread: int

    def __str__(self) -> str:
        return f"{self.member_id}-{self.thread}"


def encode_owner(owner: ConsumerThread) -> bytes:
    """Return the data of an owner's node."""
    return str(owner).encode()


def decode_owner(data: bytes, path: str) -> ConsumerThread:
    """Read the owner of a partition. Raises ``ProtocolError``."""
    member_id, dash, thread = _text(data, path).rpartition("-")
    if not dash or not member_id:
        raise _malformed(path, "an owner is a member id, '-' and the number of a thread")
    return ConsumerThread(member_id, _number(thread, path, "the thread", 0, _MAX_INT32))


def encode_offset(offset: int) -> bytes:
    """Return the data of a committed offset."""
    return str(offset).encode()


def decode_offset(data: bytes, path: str) -> int:
    """Read a committed offset. Raises ``ProtocolError``."""
    return _number(_text(data, path), path, "the offset", 0, _MAX_INT64)


class GenerationNode(NamedTuple):
    """What the central coordinator remembers of a group, beside its owners and offsets."""

    generation: int
    """The number of its rebalances."""
    members: int
    """How many members this generation has; 0: the group is empty."""
    session_timeout_ms: int
    """The longest session time-out of a member."""
    epoch: int
    """The epoch of the coordinator that has written the owners, or this if there are none."""
    processes: frozenset[str] = frozenset()
    """The processes that were members when it began: of each, a digest of its member id and its incarnation (``process_digest``).
    Without them, as in the first versions, no process is known as an owner, so all wait for a session after an election."""

    def encode(self) -> bytes:
        """Return the JSON."""
        fields = {"version": 1, "generation": self.generation, "members": self.members}
        processes = sorted(self.processes)
        return _json({**fields, "session_timeout": self.session_timeout_ms, "epoch": self.epoch, "processes": processes})

    @classmethod
    def decode(cls, data: bytes, path: str) -> GenerationNode:
        """Read the generation of a group. Raises ``ProtocolError``."""
        fields = _object(data, path)
        return cls(
            _number(fields.get("generation"), path, "the generation", 0, _MAX_INT32),
            _number(fields.get("members"), path, "the number of members", 0, _MAX_INT32),
            _number(fields.get("session_timeout"), path, "the session time-out", 0, _MAX_INT32),
            _number(fields.get("epoch"), path, "the epoch", 0, _MAX_INT32),
            _digests(fields.get("processes", []), path),
        )


def process_digest(member_id: str, incarnation: str) -> str:
    """Return what stands for a process in a ``GenerationNode``: twelve characters, since a group may have thousands of
    members, and each election reads the nodes of all groups."""
    text = f"{len(member_id)} {member_id}{incarnation}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def decode_found_generation(data: bytes, path: str) -> GenerationNode:
    """Read the generation of a group to go on from it. Raises ``ProtocolError``, also for one that leaves too few numbers."""
    node = GenerationNode.decode(data, path)
    _number(node.generation, path, "the generation", 0, HIGHEST_FOUND_GENERATION)
    return node


def encode_producer_ids(broker_id: int, start: int, end: int) -> bytes:
    """Return the data of the node with the last block of producer ids. ``end`` is the last id of the block."""
    return _json({"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)})


def decode_last_producer_id(data: bytes, path: str, highest: int) -> int:
    """Read the last producer id of the last block. Raises ``ProtocolError``, also if it is above ``highest``."""
    return _number(_object(data, path).get("block_end"), path, "the end of the block", 0, highest)


def encode_number(number: int) -> bytes:
    """Return the data of the coordinator's node, a broker id, or of its epoch."""
    return str(number).encode()


def decode_coordinator(data: bytes, path: str) -> int:
    """Read the id of the broker that is elected. Raises ``ProtocolError``."""
    return _number(_text(data, path), path, "the broker id", 0, _MAX_INT32)


def decode_coordinator_epoch(data: bytes, path: str) -> int:
    """Read the epoch of the last election. Raises ``ProtocolError``, also for the highest number, which no election can raise."""
    return _number(_text(data, path), path, "the epoch", 0, _MAX_INT32 - 1)


def _digests(value: object, path: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _malformed(path, "the processes are a list of strings")
    return frozenset(value)


def _json(fields: Mapping[str, object]) -> bytes:
    """Return JSON as Kafka writes it, in the order of the fields."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _object(data: bytes, path: str) -> dict[str, Any]:
    """Read a JSON object whose strings can be sent to clients.

    1. A node has the escape of half a surrogate pair. 2. It becomes part of a response. 3. That cannot be encoded, and the
    connection of each client that asks is closed.
    """
    text = _text(data, path)
    try:
        fields = json.loads(text)
        if "\\u" in text:
            json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _malformed(path, f"a string in it is not Unicode: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _malformed(path, "not a JSON object")
    return fields


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _malformed(path, f"not UTF-8: {error}") from error


def _number(value: object, path: str, what: str, low: int, high: int) -> int:
    """Read a whole number, or the digits of one: Java writes some numbers as strings."""
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _malformed(path, f"{what} is {value!r:.60}, not a whole number from {low} to {high}")
    return value


def _malformed(path: str, why: str) -> ProtocolError:
    return ProtocolError(f"the node {path} of ZooKeeper is malformed: {why}")
