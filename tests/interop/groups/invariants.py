"""The invariants of every group, for all clients: a pure comparison of the members' output with the log.

Owns the checks. Must not know clients, brokers or processes. Invariant: a check uses only recorded facts (the members' output,
records of ``__consumer_offsets``, acknowledgements), so the same checks apply to any broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
"""A line that a member printed, as VerifiableConsumer names things."""


@dataclass(frozen=True)
class Commit:
    """A commit in the log, which the coordinator accepted. ``note``: its metadata from the member."""

    partition: int
    offset: int
    note: str
    timestamp: int


@dataclass(frozen=True)
class MemberReport:
    """What one member said in one life. Partitions of the one topic; ``owned`` is what it has in the end."""

    member: str
    owned: frozenset[int] = frozenset()
    consumed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    committed: Sequence[tuple[int, int, str, int]] = ()
    """Partition, offset, ownership and time of each commit that has succeeded for it."""
    refused: int = 0
    """Commits that failed."""


def parse_report(member: str, events: Iterable[Event]) -> MemberReport:
    """Parse the output of a member."""
    owned: set[int] = set()
    given: dict[int, int] = {}
    consumed: dict[int, set[int]] = {}
    committed: list[tuple[int, int, str, int]] = []
    refused = 0
    for event in events:
        rows = event.get("partitions") or event.get("offsets") or ()
        match event["name"]:
            case "partitions_assigned":
                for row in rows:
                    owned.add(row["partition"])
                    given[row["partition"]] = given.get(row["partition"], 0) + 1
            case "partitions_revoked":
                owned -= {row["partition"] for row in rows}
            case "records_consumed":
                for row in rows:
                    consumed.setdefault(row["partition"], set()).update(offsets_read(row))
            case "offsets_committed" if event["success"]:
                for row in rows:
                    ownership = row.get("note") or f"{member}/{given.get(row['partition'], 0)}"
                    committed.append((row["partition"], row["offset"], ownership, event["timestamp"]))
            case "offsets_committed":
                refused += 1
    return MemberReport(member, frozenset(owned), {one: frozenset(found) for one, found in consumed.items()}, committed, refused)


def offsets_read(row: Mapping[str, int]) -> Iterable[int]:
    """The offsets that surely came with a row of ``records_consumed``: only the ends of a range that has holes."""
    low, high = row["minOffset"], row["maxOffset"]
    return range(low, high + 1) if row["count"] > high - low else (low, high)


def signed(commits: Iterable[Commit], members: Iterable[MemberReport]) -> list[Commit]:
    """The commits, each with a note. For a client that sends no notes it is that of the nearest successful commit."""
    claims: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for member in members:
        for partition, offset, ownership, when in member.committed:
            claims.setdefault((partition, offset), []).append((when, ownership))
    result = []
    for commit in commits:
        near = sorted(claims.get((commit.partition, commit.offset), ()), key=lambda claim: abs(claim[0] - commit.timestamp))
        note = commit.note or (near[0][1] if near else "")
        result.append(Commit(commit.partition, commit.offset, note, commit.timestamp))
    return result


def two_owners(commits: Sequence[Commit]) -> list[str]:
    """Partitions with two owners whose commits were both accepted: an ownership that went on after another one had begun.

    A commit without a note is of a member that was killed before the response arrived; it is ignored.
    """
    found = []
    over: dict[int, dict[str, None]] = {}
    for commit in commits:
        if not commit.note:
            continue
        ownerships = over.setdefault(commit.partition, {})
        if commit.note in ownerships and next(reversed(ownerships)) != commit.note:
            found.append(
                f"partition {commit.partition}: {commit.note} committed {commit.offset} after {next(reversed(ownerships))}"
            )
        ownerships.setdefault(commit.note)
    return found


def going_back(commits: Sequence[Commit]) -> list[str]:
    """Return the committed offsets that decreased without a reset."""
    found = []
    last: dict[int, Commit] = {}
    for commit in commits:
        before = last.get(commit.partition)
        if before is not None and commit.offset < before.offset:
            found.append(f"partition {commit.partition}: {before.offset} ({before.note}), then {commit.offset} ({commit.note})")
        last[commit.partition] = commit
    return found


def forgotten(commits: Sequence[Commit], members: Iterable[MemberReport]) -> list[str]:
    """Return commits that succeeded for a member, but are not in the log, or have another member's note there."""
    kept = {(commit.partition, commit.offset, commit.note) for commit in commits}
    return [
        f"partition {partition}: {ownership} got an acknowledgement of {offset}"
        for member in members
        for partition, offset, ownership, _ in member.committed
        if not {(partition, offset, ownership), (partition, offset, "")} & kept
    ]


def unread(commits: Sequence[Commit], members: Iterable[MemberReport]) -> list[str]:
    """Return commits beyond the records that any member had consumed."""
    read: dict[int, set[int]] = {}
    for member in members:
        for partition, offsets in member.consumed.items():
            read.setdefault(partition, set()).update(offsets)
    return [
        f"partition {commit.partition}: {commit.note or '?'} committed {commit.offset}, no member consumed {commit.offset - 1}"
        for commit in commits
        if commit.offset and commit.offset - 1 not in read.get(commit.partition, ())
    ]


def missed(acknowledged: Mapping[int, Iterable[int]], members: Sequence[MemberReport]) -> list[str]:
    """Return acknowledged records that no member has consumed."""
    found = []
    for partition, offsets in acknowledged.items():
        read = frozenset().union(*(member.consumed.get(partition, frozenset()) for member in members))
        absent = sorted(set(offsets) - read)
        if absent:
            found.append(f"partition {partition}: {len(absent)} records were not consumed, the first at {absent[0]}")
    return found


def lost(acknowledged: Mapping[int, Iterable[int]]) -> list[str]:
    """Return offsets that were acknowledged for two records: the log has lost the first one."""
    return [
        f"partition {partition}: {offset} was acknowledged {times} times"
        for partition, offsets in acknowledged.items()
        for offset, times in Counter(offsets).items()
        if times > 1
    ]


def answered_otherwise(commits: Sequence[Commit], answered: Mapping[int, int]) -> list[str]:
    """Return partitions whose committed offset from the coordinator differs from the last one in its log."""
    last = {commit.partition: commit.offset for commit in commits}
    return [
        f"partition {partition}: committed {last.get(partition)}, the answer is {answered.get(partition)}"
        for partition in sorted(last.keys() | answered.keys())
        if last.get(partition) != answered.get(partition)
    ]


def wrong_ends(commits: Sequence[Commit], ends: Mapping[int, int]) -> list[str]:
    """Return partitions whose last committed offset is not the end offset, after all records were consumed."""
    last = {commit.partition: commit.offset for commit in commits}
    return [
        f"partition {partition}: committed {last.get(partition)}, the log ends at {end}"
        for partition, end in ends.items()
        if end and last.get(partition) != end
    ]


def shared_badly(live: Sequence[MemberReport], partitions: int) -> list[str]:
    """Return partitions without an owner or with several among the live members, and members without partitions."""
    owners: dict[int, list[str]] = {number: [] for number in range(partitions)}
    for member in live:
        for number in member.owned:
            owners[number].append(member.member)
    idle = [f"{member.member} owns nothing" for member in live if not member.owned]
    return [*(f"partition {number}: owned by {names}" for number, names in owners.items() if len(names) != 1), *idle]


def gave_up(client: str, said: str, away: float, session: float) -> bool:
    """Whether a member of Kafka's has ended because its session was over, the broker having been away for longer than one.

    It ends so on a real Kafka too, and the test starts it again. The Java consumer of a consumer group keeps the processors
    busy while no broker is there, so that a broker on two of them comes back late, and its members come back to it late.
    """
    return client == "java" and "UnknownMemberIdException" in said and away > session


def twice(members: Iterable[MemberReport]) -> int:
    """Return the number of repeated records, which at-least-once permits."""
    seen: dict[int, set[int]] = {}
    again = 0
    for member in members:
        for partition, offsets in member.consumed.items():
            before = seen.setdefault(partition, set())
            again += len(before & offsets)
            before |= offsets
    return again


def violations(
    commits: Sequence[Commit],
    lives: Sequence[MemberReport],
    live: Sequence[MemberReport],
    acknowledged: Mapping[int, Iterable[int]],
    ends: Mapping[int, int],
    answered: Mapping[int, int],
) -> list[str]:
    """Everything that does not hold; empty where all is well.

    ``lives``: all members ever, ``live``: those at the end; ``ends``: where the logs end; ``answered``: the committed offsets, as
    the coordinator answers them.
    """
    whose = signed(commits, lives)
    return [
        *(f"two owners: {one}" for one in two_owners(whose)),
        *(f"went back: {one}" for one in going_back(whose)),
        *(f"forgotten: {one}" for one in forgotten(commits, lives)),
        *(f"not read: {one}" for one in unread(whose, lives)),
        *(f"missed: {one}" for one in missed(acknowledged, lives)),
        *(f"lost: {one}" for one in lost(acknowledged)),
        *(f"answered otherwise: {one}" for one in answered_otherwise(commits, answered)),
        *(f"wrong end: {one}" for one in wrong_ends(commits, ends)),
        *(f"shared badly: {one}" for one in shared_badly(live, len(ends))),
    ]
