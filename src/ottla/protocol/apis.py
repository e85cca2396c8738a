"""The table of Kafka's APIs: key, name, the versions that Ottla speaks, and the rules of a version.

Owns each rule that depends on a version number, under a name. Must not know sockets or any core. Invariant: no other package
compares version numbers; it checks whether a ``VersionRule`` holds.

Source: the protocol guide (https://kafka.apache.org/protocol) and what Apache Kafka 4.3.1 advertises.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple


class Api(enum.IntEnum):
    """The API keys that Ottla knows."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    CONSUMER_GROUP_PREPARE_ASSIGNMENT = 20_001
    """This API and the next are Ottla's: KIP-848 planned them, and Kafka does not have them."""
    CONSUMER_GROUP_INSTALL_ASSIGNMENT = 20_002
    CONSULT = 20_003
    """This API and the next are those of the central coordinator, which Kafka drafted for 0.9 and never shipped."""
    REGISTER = 20_004
    LEAVE = 20_005
    PING = 20_006
    STOP = 20_007
    START = 20_008


PUSHED = frozenset({Api.PING, Api.STOP, Api.START})
"""APIs whose requests the coordinator sends and a member answers, on the channel of the member."""


class VersionRange(NamedTuple):
    """Versions of one API, both ends included."""

    minimum: int
    maximum: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.minimum <= version <= self.maximum

    def common(self, other: VersionRange) -> VersionRange | None:
        """The versions in both ranges, or ``None``."""
        low, high = max(self.minimum, other.minimum), min(self.maximum, other.maximum)
        return VersionRange(low, high) if low <= high else None


SPOKEN: Mapping[Api, VersionRange] = {
    Api.PRODUCE: VersionRange(3, 13),
    Api.FETCH: VersionRange(4, 18),
    Api.LIST_OFFSETS: VersionRange(1, 11),
    Api.METADATA: VersionRange(0, 13),
    Api.OFFSET_COMMIT: VersionRange(2, 10),
    Api.OFFSET_FETCH: VersionRange(1, 10),
    Api.FIND_COORDINATOR: VersionRange(0, 6),
    Api.JOIN_GROUP: VersionRange(0, 9),
    Api.HEARTBEAT: VersionRange(0, 4),
    Api.LEAVE_GROUP: VersionRange(0, 5),
    Api.SYNC_GROUP: VersionRange(0, 5),
    Api.DESCRIBE_GROUPS: VersionRange(0, 6),
    Api.LIST_GROUPS: VersionRange(0, 5),
    Api.SASL_HANDSHAKE: VersionRange(1, 1),
    Api.API_VERSIONS: VersionRange(0, 4),
    Api.CREATE_TOPICS: VersionRange(2, 7),
    Api.DELETE_TOPICS: VersionRange(1, 6),
    Api.DELETE_RECORDS: VersionRange(0, 2),
    Api.INIT_PRODUCER_ID: VersionRange(0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    Api.ADD_PARTITIONS_TO_TXN: VersionRange(0, 5),
    Api.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
    Api.END_TXN: VersionRange(0, 5),
    Api.WRITE_TXN_MARKERS: VersionRange(1, 2),
    Api.TXN_OFFSET_COMMIT: VersionRange(0, 5),
    Api.DESCRIBE_CONFIGS: VersionRange(1, 4),
    Api.ALTER_CONFIGS: VersionRange(0, 2),
    Api.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
    Api.DESCRIBE_LOG_DIRS: VersionRange(1, 5),
    Api.SASL_AUTHENTICATE: VersionRange(0, 2),
    Api.CREATE_PARTITIONS: VersionRange(0, 3),
    Api.DELETE_GROUPS: VersionRange(0, 2),
    Api.ELECT_LEADERS: VersionRange(0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
    Api.OFFSET_DELETE: VersionRange(0, 0),
    Api.DESCRIBE_QUORUM: VersionRange(0, 2),
    Api.DESCRIBE_CLUSTER: VersionRange(0, 2),
    Api.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    Api.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    Api.LIST_TRANSACTIONS: VersionRange(0, 2),
    Api.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
    Api.LIST_CONFIG_RESOURCES: VersionRange(0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
    Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT: VersionRange(0, 0),
    Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT: VersionRange(0, 0),
    Api.CONSULT: VersionRange(0, 0),
    Api.REGISTER: VersionRange(0, 0),
    Api.LEAVE: VersionRange(0, 0),
    Api.PING: VersionRange(0, 0),
    Api.STOP: VersionRange(0, 0),
    Api.START: VersionRange(0, 0),
}
"""The versions that both sides of Ottla can read and write."""

ADVERTISED_MINIMUM: Mapping[Api, int] = {Api.PRODUCE: 0}
"""APIs -> a minimum to advertise below the one that is served. librdkafka assumes that a broker whose Produce starts above 0 lacks
message format 2. Apache Kafka 4.3 does the same, and closes the connection of a client that sends Produce 0 to 2."""

MERGED: Mapping[str, tuple[int, ...]] = {
    "produce": (12,),
    "fetch": (12,),
    "offset_commit": (9, 4),
    "offset_fetch": (9,),
    "metadata": (10,),
}
"""APIs whose newest version lacks fields that are still used, and the last versions that have them: topic names where newer
versions have only ids, the retention time of commits, the authorized operations of the cluster. The neutral message has them
all."""


class VersionRule(enum.Enum):
    """A rule that follows from the version of a request, by a name, so that the cores need not know the number."""

    NEEDS_MEMBER_ID = "JoinGroup: a new dynamic member gets an id with an error, and joins again with the id (KIP-394)"
    SKIP_ASSIGNMENT = "JoinGroup: the response can tell a returning static leader to skip the assignment (KIP-814)"
    GROUP_NOT_FOUND = "the response may have GROUP_ID_NOT_FOUND"
    BY_TOPIC_ID = "topics are named by id, not by name"
    ZSTD = "batches may be compressed with zstd (KIP-110)"
    GROUP_ERROR = "OffsetFetch: the response has an error code of the group"
    BROKERS_RETENTION = "OffsetCommit: the request has no retention time of its own (KIP-211)"
    STABLE_OFFSETS = "OffsetFetch: the request can wait for transactions that are ending (KIP-447)"
    ANY_RESOURCE = "ListConfigResources: the request names the resource types; older versions list only client metrics"
    MAKES_MEMBER_ID = "ConsumerGroupHeartbeat: the client generates its member id (KIP-1082)"
    MATCHES_PATTERNS = "ConsumerGroupHeartbeat: a member can subscribe to a pattern"
    KNOWS_EPOCHS = "OffsetCommit: the request can come from a member of a consumer group, with its epoch"
    ZERO_FEATURES = "ApiVersions: the client reads features whose lowest level is 0"
    PRODUCER_FENCED = "the client knows PRODUCER_FENCED; older clients get INVALID_PRODUCER_EPOCH"
    TRANSACTION_ABORTABLE = "the client knows TRANSACTION_ABORTABLE (KIP-890)"
    TRANSACTION_V2 = "transactions of version 2 (KIP-890): writing adds a partition, and each transaction increases the epoch"
    KEEPS_PRODUCER_ID = "InitProducerId: the request can have the present id and epoch, which becomes the next one (KIP-360)"
    NAMES_MEMBER = "TxnOffsetCommit: the request has the member of the group and its generation (KIP-447)"
    FROM_BROKER = "AddPartitionsToTxn: the request comes from a broker (KIP-890)"
    NAMES_TOPIC_ID = "Metadata: the request can name a topic by its id"
    STATIC_MEMBERS = "a member can be static (KIP-345)"
    CHOOSES_COUNTS = "CreateTopics: the broker can choose the number of partitions and replicas (KIP-464)"
    MANY_KEYS = "FindCoordinator: the request can have several keys (KIP-699)"
    FILTERS_DURATION = "ListTransactions: the request can have a duration (KIP-994)"
    FILTERS_IDS = "ListTransactions: the request can have a pattern of transactional ids (KIP-1152)"
    NAMES_PROTOCOL = "SyncGroup: the request must name the protocol type and the protocol"


_RULES: Mapping[VersionRule, tuple[tuple[Api, int], ...]] = {
    VersionRule.NEEDS_MEMBER_ID: ((Api.JOIN_GROUP, 4),),
    VersionRule.SKIP_ASSIGNMENT: ((Api.JOIN_GROUP, 9),),
    VersionRule.GROUP_NOT_FOUND: ((Api.DESCRIBE_GROUPS, 6), (Api.OFFSET_COMMIT, 9)),
    VersionRule.BY_TOPIC_ID: ((Api.PRODUCE, 13), (Api.FETCH, 13), (Api.OFFSET_COMMIT, 10), (Api.OFFSET_FETCH, 10)),
    VersionRule.ZSTD: ((Api.PRODUCE, 7), (Api.FETCH, 10)),
    VersionRule.GROUP_ERROR: ((Api.OFFSET_FETCH, 2),),
    VersionRule.BROKERS_RETENTION: ((Api.OFFSET_COMMIT, 5),),
    VersionRule.STABLE_OFFSETS: ((Api.OFFSET_FETCH, 7),),
    VersionRule.ANY_RESOURCE: ((Api.LIST_CONFIG_RESOURCES, 1),),
    VersionRule.MAKES_MEMBER_ID: ((Api.CONSUMER_GROUP_HEARTBEAT, 1),),
    VersionRule.MATCHES_PATTERNS: ((Api.CONSUMER_GROUP_HEARTBEAT, 1),),
    VersionRule.KNOWS_EPOCHS: ((Api.OFFSET_COMMIT, 9),),
    VersionRule.ZERO_FEATURES: ((Api.API_VERSIONS, 4),),
    VersionRule.PRODUCER_FENCED: (
        (Api.INIT_PRODUCER_ID, 4),
        (Api.ADD_PARTITIONS_TO_TXN, 2),
        (Api.ADD_OFFSETS_TO_TXN, 2),
        (Api.END_TXN, 2),
    ),
    VersionRule.TRANSACTION_ABORTABLE: ((Api.PRODUCE, 11), (Api.TXN_OFFSET_COMMIT, 4)),
    VersionRule.TRANSACTION_V2: ((Api.ADD_PARTITIONS_TO_TXN, 4), (Api.PRODUCE, 12), (Api.TXN_OFFSET_COMMIT, 5), (Api.END_TXN, 5)),
    VersionRule.KEEPS_PRODUCER_ID: ((Api.INIT_PRODUCER_ID, 3),),
    VersionRule.NAMES_MEMBER: ((Api.TXN_OFFSET_COMMIT, 3),),
    VersionRule.FROM_BROKER: ((Api.ADD_PARTITIONS_TO_TXN, 4),),
    VersionRule.NAMES_TOPIC_ID: ((Api.METADATA, 12),),
    VersionRule.STATIC_MEMBERS: ((Api.JOIN_GROUP, 5), (Api.SYNC_GROUP, 3), (Api.HEARTBEAT, 3), (Api.OFFSET_COMMIT, 7)),
    VersionRule.CHOOSES_COUNTS: ((Api.CREATE_TOPICS, 4),),
    VersionRule.MANY_KEYS: ((Api.FIND_COORDINATOR, 4),),
    VersionRule.FILTERS_DURATION: ((Api.LIST_TRANSACTIONS, 1),),
    VersionRule.FILTERS_IDS: ((Api.LIST_TRANSACTIONS, 2),),
    VersionRule.NAMES_PROTOCOL: ((Api.SYNC_GROUP, 5),),
}
"""Rule -> the first version of each API for which it holds."""


@cache
def version_rules_of(api: Api, version: int) -> frozenset[VersionRule]:
    """The rules that hold for one version of an API."""
    return frozenset(rule for rule, apis in _RULES.items() for which, first in apis if which is api and version >= first)


def without(api: Api, rule: VersionRule) -> int:
    """The newest version of ``api`` for which ``rule`` does not hold."""
    return next(first for which, first in _RULES[rule] if which is api) - 1
