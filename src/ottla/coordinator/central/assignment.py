"""Who should own which partition, and the draft's rules for whether a rebalance is necessary, with two more.

Owns the computation and the rules. Must not know how a rebalance is done. Invariant: both depend only on their arguments, so that a
new coordinator with the same members comes to the same result, and disturbs no member.
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.assignors.threads import THREAD_ASSIGNORS
from ottla.coordinator.central.group import CentralGroup, Owners
from ottla.coordinator.decision import TopicImage
from ottla.types import short_list, short_repr, short_text
from ottla.zookeeper.nodes import ConsumerThread

_NAMED = 3
"""The members that a reason names; it only counts the others."""


def computed_owners(group: CentralGroup, topics: TopicImage) -> Owners:
    """Return the owner of each partition that exists and that a member reads."""
    threads: dict[str, list[ConsumerThread]] = {}
    for member in group.members.values():
        read = {topic: streams for topic, streams in group.topics_of(member).items() if topics.partition_count(topic)}
        own = [ConsumerThread(member.member_id, number) for number in range(max(read.values(), default=0))]
        for topic, streams in read.items():
            threads.setdefault(topic, []).extend(own[:streams])
    assignor = next((member.assignor for member in group.members.values()), None)
    if assignor is None:
        return {}
    partitions = {topic: range(topics.partition_count(topic) or 0) for topic in threads}
    return THREAD_ASSIGNORS[assignor](threads, partitions)


def why_necessary(group: CentralGroup, computed: Owners) -> str | None:
    """Return why a rebalance is necessary, for the log and the members: who came or left, and the rule; ``None`` if it is not."""
    rule = _rule_that_applies(group, computed)
    return None if rule is None else "; ".join([*_who_has_changed(group), rule])


def _rule_that_applies(group: CentralGroup, computed: Owners) -> str | None:
    if group.may_be_later:
        return "the node of its generation was malformed"
    if computed and not group.owners:
        return "no partition has an owner"
    # A topic that only has owners may have any name.
    unowned = computed.keys() - group.owners.keys()
    if unowned:
        return f"{short_text(str(min(unowned)))} has no owner"
    vanished = group.owners.keys() - computed.keys()
    if vanished:
        return f"{short_text(str(min(vanished)))} has an owner, but does not exist any longer, or is not read"
    moved = [partition for partition, owner in computed.items() if group.owners[partition] != owner]
    if moved:
        return f"{short_text(str(moved[0]))} should have another owner"
    differing = next((member.member_id for member in group.members.values() if member.differs), None)
    if differing is not None:
        return f"member {short_repr(differing)} holds something else than the owners say"
    return None


def _who_has_changed(group: CentralGroup) -> list[str]:
    """Return who has gone and who has come since the owners were computed, as far as the group shows it.

    A member that was not started has joined, unless it owns partitions: then it has lost them, and has come back.
    """
    gone = group.shares.keys() - group.members.keys()
    joined = [one.member_id for one in group.members.values() if one.generation < 0 and one.member_id not in group.shares]
    return [*_sentence(gone, "is gone", "are gone"), *_sentence(joined, "has joined", "have joined")]


def _sentence(member_ids: Collection[str], one: str, many: str) -> list[str]:
    names = short_list([short_repr(name) for name in sorted(member_ids)], _NAMED)
    if not names:
        return []
    return [f"member {names} {one}" if len(member_ids) == 1 else f"members {names} {many}"]
