"""What must hold of a group whose cluster is in trouble, beside the rules for all groups (``groups/invariants.py``).

Owns the rules. Must not know clients, nodes or processes. Invariant: a rule looks at facts alone. Partitions go by name: where the
incarnation of a topic matters by ``topic.incarnation-partition``, else by ``topic-partition``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.interop.groups.invariants import Commit, Event, Told


class Tenure(NamedTuple):
    """What a member has read of a partition from when it was given it until it was taken, or until the topic was recreated."""

    member: str
    partition: str
    reads: tuple[tuple[int, int], ...]
    """First and last offset of each poll, in order."""


def tenures(member: str, events: Iterable[Event]) -> Iterator[Tenure]:
    """The tenures of one member, from the lines it printed."""
    reads: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        rows: Sequence[Mapping[str, Any]] = event.get("partitions") or ()
        if event["name"] == "records_consumed":
            for row in rows:
                reads.setdefault(row["partition"], []).append((row["minOffset"], row["maxOffset"]))
        elif event["name"] in ("partitions_assigned", "partitions_revoked"):
            named = {row["partition"] for row in rows}
            for key in [key for key in reads if plain(key) in named]:
                yield Tenure(member, key, tuple(reads.pop(key)))
    for key, found in reads.items():
        yield Tenure(member, key, tuple(found))


def plain(key: str) -> str:
    """``topic-partition`` of ``topic.incarnation-partition``."""
    topic, partition = key.rsplit("-", 1)
    return f"{topic.rsplit('.', 1)[0]}-{partition}"


def incarnation_of(key: str) -> int:
    """The incarnation in ``topic.incarnation-partition``."""
    return int(key.rsplit("-", 1)[0].rsplit(".", 1)[1])


def out_of_order(found: Iterable[Tenure]) -> list[str]:
    """Tenures that went back, or left records out: in one tenure each poll goes on where the one before it ended."""
    return [
        f"{one.partition}: {one.member} read {first} after {last}"
        for one in found
        for (_, last), (first, _) in zip(one.reads, one.reads[1:], strict=False)
        if first != last + 1
    ]


def begun_elsewhere(found: Iterable[Tenure], commits: Iterable[Commit]) -> list[str]:
    """Tenures that did not begin where a commit stands, or with the first record."""
    committed = {(str(one.partition), one.offset) for one in commits}
    return [
        f"{one.partition}: {one.member} began at {one.reads[0][0]}, which nobody has committed"
        for one in found
        if one.reads[0][0] and (one.partition, one.reads[0][0]) not in committed
    ]


def late_for_its_topic(keys_in_order: Iterable[str]) -> list[str]:
    """Commits of a topic that is gone, accepted after the first one of its successor: a member of today would begin there."""
    latest: dict[str, int] = {}
    found = []
    for key in keys_in_order:
        incarnation = incarnation_of(key)
        if incarnation < latest.setdefault(plain(key), incarnation):
            found.append(f"{key} was committed after {plain(key)} of incarnation {latest[plain(key)]}")
        latest[plain(key)] = max(latest[plain(key)], incarnation)
    return found


def shared_badly(live: Sequence[Told], partitions: Iterable[str]) -> list[str]:
    """Partitions without an owner, or with several, among the members that live."""
    owners: dict[str, list[str]] = {key: [] for key in partitions}
    for member in live:
        for key in member.owned:
            owners.setdefault(str(key), []).append(member.member)
    return [f"{key}: owned by {names}" for key, names in owners.items() if len(names) != 1]
