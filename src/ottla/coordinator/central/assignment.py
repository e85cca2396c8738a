"""Who should own which partition, and the draft's five rules for whether a rebalance is necessary.

Owns the computation and the rules. Must not know how a rebalance is done. Invariant: both depend only on their arguments, so that a
new coordinator with the same members comes to the same result, and disturbs no member.
"""

from __future__ import annotations

from ottla.assignors.threads import THREAD_ASSIGNORS
from ottla.coordinator.central.group import CentralGroup, Owners
from ottla.coordinator.decision import TopicImage
from ottla.zookeeper.nodes import ConsumerThread


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
    """Return why a rebalance is necessary; ``None`` if it is not."""
    if computed and not group.owners:
        return "no partition has an owner"
    unowned = computed.keys() - group.owners.keys()
    if unowned:
        return f"{min(unowned)} has no owner"
    vanished = group.owners.keys() - computed.keys()
    if vanished:
        return f"{min(vanished)} has an owner, but does not exist any longer, or is not read"
    moved = [partition for partition, owner in computed.items() if group.owners[partition] != owner]
    if moved:
        return f"{moved[0]} should have another owner"
    differing = next((member.member_id for member in group.members.values() if member.differs), None)
    if differing is not None:
        return f"member {differing!r} holds something else than the owners say"
    return None
