"""The one table of Kafka's APIs: key, name, the versions that Ottla speaks, and what a version means.

Owns every rule that is bound to a version number, as named facts. Must not know sockets or any core. Invariant: no other room
compares version numbers; it asks whether a ``Fact`` holds.

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
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    DELETE_GROUPS = 42
    DESCRIBE_CLUSTER = 60


class VersionRange(NamedTuple):
    """Versions of one API, both ends included."""

    minimum: int
    maximum: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.minimum <= version <= self.maximum

    def common(self, other: VersionRange) -> VersionRange | None:
        """What both ranges hold, or ``None``."""
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
    Api.API_VERSIONS: VersionRange(0, 4),
    Api.CREATE_TOPICS: VersionRange(2, 7),
    Api.DELETE_TOPICS: VersionRange(1, 6),
    Api.INIT_PRODUCER_ID: VersionRange(0, 5),
    Api.DESCRIBE_CONFIGS: VersionRange(1, 4),
    Api.DELETE_GROUPS: VersionRange(0, 2),
    Api.DESCRIBE_CLUSTER: VersionRange(0, 2),
}
"""The versions that both sides of Ottla can read and write."""

ADVERTISED_MINIMUM: Mapping[Api, int] = {Api.PRODUCE: 0}
"""Minima that are advertised lower than they are served. librdkafka takes a broker whose Produce starts above 0 for one without
message format 2; Apache Kafka 4.3 does the same, and closes the connection of a client that really sends Produce 0 to 2."""

MERGED: Mapping[str, int] = {"produce": 12, "fetch": 12, "offset_commit": 9, "offset_fetch": 9}
"""APIs whose newest version names topics by id alone, with the last version that named them by name. Their neutral message has
both fields (see ``messages``)."""


class Fact(enum.Enum):
    """What the version of a request implies, named so that the cores need not know the number."""

    NEEDS_MEMBER_ID = "JoinGroup: a new dynamic member is sent away once with an id (KIP-394)"
    SKIP_ASSIGNMENT = "JoinGroup: a returning static leader can be told not to assign (KIP-814)"
    GROUP_NOT_FOUND = "the API may answer GROUP_ID_NOT_FOUND"
    BY_TOPIC_ID = "topics are named by id, not by name"
    ZSTD = "the client can read zstd"
    GROUP_ERROR = "OffsetFetch: the reply can carry an error of a whole group"
    NAMES_PROTOCOL = "SyncGroup: the request must say which protocol type and protocol the member believes in"


_FACTS: Mapping[Fact, tuple[tuple[Api, int], ...]] = {
    Fact.NEEDS_MEMBER_ID: ((Api.JOIN_GROUP, 4),),
    Fact.SKIP_ASSIGNMENT: ((Api.JOIN_GROUP, 9),),
    Fact.GROUP_NOT_FOUND: ((Api.DESCRIBE_GROUPS, 6), (Api.OFFSET_COMMIT, 9)),
    Fact.BY_TOPIC_ID: ((Api.PRODUCE, 13), (Api.FETCH, 13), (Api.OFFSET_COMMIT, 10), (Api.OFFSET_FETCH, 10)),
    Fact.ZSTD: ((Api.PRODUCE, 7), (Api.FETCH, 10)),
    Fact.GROUP_ERROR: ((Api.OFFSET_FETCH, 2),),
    Fact.NAMES_PROTOCOL: ((Api.SYNC_GROUP, 5),),
}
"""Fact -> the version of each API from which on it holds."""


@cache
def facts_of(api: Api, version: int) -> frozenset[Fact]:
    """The facts that hold for one version of an API."""
    return frozenset(fact for fact, since in _FACTS.items() for one, first in since if one is api and version >= first)


def without(api: Api, fact: Fact) -> int:
    """The newest version of ``api`` for which ``fact`` does not hold yet."""
    return next(first for one, first in _FACTS[fact] if one is api) - 1
