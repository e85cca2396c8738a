"""The invariants of groups on a cluster whose nodes fail, in addition to those of all groups (``groups/invariants.py``).

Owns the checks. Must not know clients, nodes or processes. Invariant: a check uses only recorded facts. Partitions have names:
``topic.incarnation-partition`` if the incarnation of a topic matters, otherwise ``topic-partition``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.interop.groups.invariants import Commit, Event, MemberReport


class ReadPeriod(NamedTuple):
    """The records of a partition that a member has read between its assignment and its revocation, or the recreation of the
    topic."""

    member: str
    partition: str
    reads: tuple[tuple[int, int], ...]
    """First and last offset of each poll, in order."""


def read_periods(member: str, events: Iterable[Event]) -> Iterator[ReadPeriod]:
    """The read periods of one member, from the lines it printed."""
    reads: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        rows: Sequence[Mapping[str, Any]] = event.get("partitions") or ()
        if event["name"] == "records_consumed":
            for row in rows:
                reads.setdefault(row["partition"], []).append((row["minOffset"], row["maxOffset"]))
        elif event["name"] in ("partitions_assigned", "partitions_revoked"):
            named = {row["partition"] for row in rows}
            for key in [key for key in reads if plain(key) in named]:
                yield ReadPeriod(member, key, tuple(reads.pop(key)))
    for key, found in reads.items():
        yield ReadPeriod(member, key, tuple(found))


def plain(key: str) -> str:
    """``topic-partition`` of ``topic.incarnation-partition``."""
    topic, partition = key.rsplit("-", 1)
    return f"{topic.rsplit('.', 1)[0]}-{partition}"


def incarnation_of(key: str) -> int:
    """The incarnation in ``topic.incarnation-partition``."""
    return int(key.rsplit("-", 1)[0].rsplit(".", 1)[1])


def out_of_order(found: Iterable[ReadPeriod]) -> list[str]:
    """Return the periods that went back or skipped records: within a period each poll starts at the end of the previous one."""
    return [
        f"{one.partition}: {one.member} read {first} after {last}"
        for one in found
        for (_, last), (first, _) in zip(one.reads, one.reads[1:], strict=False)
        if first != last + 1
    ]


def begun_elsewhere(found: Iterable[ReadPeriod], commits: Iterable[Commit]) -> list[str]:
    """Return the periods that began neither at a committed offset nor at the first record."""
    committed = {(str(one.partition), one.offset) for one in commits}
    return [
        f"{one.partition}: {one.member} began at {one.reads[0][0]}, which no member has committed"
        for one in found
        if one.reads[0][0] and (one.partition, one.reads[0][0]) not in committed
    ]


def late_for_its_topic(keys_in_order: Iterable[str]) -> list[str]:
    """Return commits for a deleted topic that were accepted after the first one for its successor: members would start there."""
    latest: dict[str, int] = {}
    found = []
    for key in keys_in_order:
        incarnation = incarnation_of(key)
        if incarnation < latest.setdefault(plain(key), incarnation):
            found.append(f"{key} was committed after {plain(key)} of incarnation {latest[plain(key)]}")
        latest[plain(key)] = max(latest[plain(key)], incarnation)
    return found


def shared_badly(live: Sequence[MemberReport], partitions: Iterable[str]) -> list[str]:
    """Return the partitions without an owner, or with several, among the live members."""
    owners: dict[str, list[str]] = {key: [] for key in partitions}
    for member in live:
        for key in member.owned:
            owners.setdefault(str(key), []).append(member.member)
    return [f"{key}: owned by {names}" for key, names in owners.items() if len(names) != 1]
