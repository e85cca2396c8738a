"""Ottla's server-side assignors and those of Apache Kafka's group coordinator, on the same random groups."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from ottla.assignors import SERVER_ASSIGNORS, Assignment, GroupSpec, MemberSpec, TopicSpec
from tests.interop.kafka_assignors import ask
from tests.interop.real_kafka import KafkaTool

pytestmark = pytest.mark.timeout(120)
GROUPS = 250
Targets = dict[str, Assignment]
Compared = dict[tuple[str, bool], list[tuple[GroupSpec, Targets, Targets]]]


def a_group(dice: random.Random, homogeneous: bool) -> GroupSpec:
    """Members that came, left and changed their minds, and topics that grew, in any mixture."""
    ids = [UUID(int=dice.getrandbits(63) << 64 | dice.getrandbits(63)) for _ in range(dice.randint(1, 6))]
    topics = {topic_id: TopicSpec("t", dice.randint(0, 12)) for topic_id in ids}
    alike = frozenset(dice.sample(ids, dice.randint(0, len(ids))))
    members = {
        f"m{dice.getrandbits(40):x}": MemberSpec(
            alike if homogeneous else frozenset(dice.sample(ids, dice.randint(0, len(ids)))), dice.choice([None, f"i{place}"])
        )
        for place in range(dice.randint(1, 8))
    }
    before: dict[str, dict[UUID, tuple[int, ...]]] = {}
    owners = dice.sample([*members, "gone"], dice.randint(1, len(members) + 1))
    for topic_id in [*ids, UUID(int=5)]:
        for number in range(topics[topic_id].partitions if topic_id in topics else 3):
            owner = dice.choice(owners)
            if dice.random() < 0.8 and (dice.random() < 0.1 or owner == "gone" or topic_id in members[owner].topics):
                share = before.setdefault(owner, {})
                share[topic_id] = (*share.get(topic_id, ()), number)
    return GroupSpec(members, before, topics)


@pytest.fixture(scope="module")
def compared(kafka_tool: KafkaTool) -> Compared:
    """By kind of group: each group, what ours gives it, what Kafka's gives it, all asked at once."""
    dice = random.Random(1)
    kinds = [(name, homogeneous) for name in SERVER_ASSIGNORS for homogeneous in (True, False)]
    asked = [
        (kind, group) for kind in kinds for group in (a_group(dice, kind[1]) for _ in range(GROUPS)) if group.homogeneous is kind[1]
    ]
    answers = ask(kafka_tool, [(name, group) for (name, _), group in asked])
    assert len(answers) == len(asked)
    result: Compared = {kind: [] for kind in kinds}
    for ((name, homogeneous), group), answer in zip(asked, answers, strict=True):
        assert not isinstance(answer, str), answer
        theirs = {member: answer.get(member, {}) for member in group.members}
        result[name, homogeneous].append((group, SERVER_ASSIGNORS[name](group), theirs))
    assert min(map(len, result.values())) > GROUPS / 2
    return result


def lost(group: GroupSpec, targets: Targets) -> int:
    """How many partitions of topics that they still want the members would have to give away."""
    return sum(
        len(set(numbers) - set(targets[member].get(topic_id, ())))
        for member, before in group.assignments.items()
        for topic_id, numbers in before.items()
        if member in targets and topic_id in group.members[member].topics
    )


def sizes(targets: Targets) -> list[int]:
    return sorted(sum(map(len, target.values())) for target in targets.values())


@pytest.mark.parametrize("kind", [("range", True), ("range", False), ("uniform", False)], ids=str)
def test_the_same_answer(compared: Compared, kind: tuple[str, bool]) -> None:
    for group, ours, theirs in compared[kind]:
        assert ours == theirs, group


def test_uniform_is_as_even_and_moves_no_more_where_all_want_the_same(compared: Compared) -> None:
    """The answers themselves differ: Kafka's depends on the order of a hash table."""
    for group, ours, theirs in compared["uniform", True]:
        assert sizes(ours) == sizes(theirs), group
        assert lost(group, ours) <= lost(group, theirs), group
