"""Ottla's assignors for classic groups and those of Kafka's Java consumer, on the same random groups."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from ottla.assignors import ASSIGNORS, Cluster, MemberSubscription
from ottla.assignors.owned_partitions import decode_sticky, encode_generation, encode_sticky
from ottla.types import TopicPartition
from tests.interop.kafka_client_assignors import Shares, ask, ask_user_data
from tests.interop.real_kafka import KafkaTool

pytestmark = pytest.mark.timeout(120)
GROUPS = 150
RACKS = ("r1", "r2", "r3")
Members = dict[str, MemberSubscription]
Group = tuple[Cluster, Members]


def a_group(dice: random.Random, name: str, alike: bool, *, racks: bool) -> Group:
    """Members that came, left and changed their minds, and topics that grew; claims of several generations, some of them twice."""
    topics = {f"t{place}": dice.randint(0, 9) for place in range(dice.randint(1, 5))}
    where = {
        topic: [frozenset(dice.sample(RACKS, dice.randint(1, 3))) for _ in range(count)] for topic, count in topics.items() if racks
    }
    wanted = tuple(dice.sample(sorted(topics), dice.randint(1, len(topics))))
    ids = [f"m{dice.getrandbits(24):x}" for _ in range(dice.randint(1, 7))]
    owned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in ids}
    former = dice.sample(ids, dice.randint(1, len(ids)))
    for topic, count in topics.items():
        for number in range(count + 1):
            if dice.random() < 0.7:
                owned[dice.choice(former)].append(TopicPartition(topic, number))
    members = {}
    for place, member_id in enumerate(ids):
        held = tuple(tp for tp in owned[member_id] if tp.partition < topics[tp.topic])
        generation = 5 if held else -1
        subscribed = wanted if alike else tuple(dice.sample(sorted(topics), dice.randint(1, len(topics))))
        data = encode_sticky(held, generation) if name == "sticky" and held else None
        members[member_id] = MemberSubscription(
            subscribed,
            dice.choice([None, f"i{9 - place}"]),
            dice.choice([None, *RACKS]) if racks else None,
            held if name == "cooperative-sticky" else (),
            generation,
            data,
        )
    return Cluster(topics, where), members


@pytest.fixture(scope="module")
def answered(kafka_tool: KafkaTool) -> list[tuple[str, str, Group, Shares]]:
    """By kind of question: each group and what Java gives it, all asked at once, as a virtual machine is slow to start."""
    dice = random.Random(7)
    asked = [
        (kind, name, a_group(dice, name, place % 2 == 0, racks=kind == "racks"))
        for name in ASSIGNORS
        for kind in ("plain", "racks")
        for place in range(GROUPS)
    ]
    for name in ("sticky", "cooperative-sticky"):
        for place in range(GROUPS):
            cluster, members = a_group(dice, "range", place % 2 == 0, racks=place % 3 == 0)
            fresh = {member_id: MemberSubscription(one.topics, rack=one.rack) for member_id, one in members.items()}
            asked.append(("fresh", name, (cluster, fresh)))
    answers = ask(kafka_tool, [(name, *group) for _, name, group in asked])
    return [(kind, name, group, theirs) for (kind, name, group), theirs in zip(asked, answers, strict=True)]


@pytest.fixture
def compared(answered: list[tuple[str, str, Group, Shares]], name: str, kind: str) -> list[tuple[Group, Shares, Shares]]:
    """The groups of one kind: what ours gives them, and what Java's does."""
    found = []
    for of_kind, of_name, group, theirs in answered:
        if (of_kind, of_name) == (kind, name):
            ours = {member_id: set(share.partitions) for member_id, share in ASSIGNORS[name]().assign(*group).items()}
            found.append((group, ours, theirs))
    assert len(found) == GROUPS
    return found


def sizes(shares: Mapping[str, set[TopicPartition]]) -> list[int]:
    return sorted(map(len, shares.values()))


def had(member: MemberSubscription) -> set[TopicPartition]:
    return set(member.owned or decode_sticky(member.user_data).partitions)


def kept(group: Group, shares: Shares) -> int:
    """How many partitions stay where they are."""
    return sum(len(had(member) & shares[member_id]) for member_id, member in group[1].items())


def far(group: Group, shares: Shares) -> int:
    """How many partitions are read from another rack."""
    cluster, members = group
    return sum(
        member.rack is not None and member.rack not in cluster.racks_of(tp)
        for member_id, member in members.items()
        for tp in shares[member_id]
    )


def alike(group: Group) -> bool:
    return len({frozenset(member.topics) for member in group[1].values()}) == 1


SAME = [(name, kind) for name in ("range", "roundrobin") for kind in ("plain", "racks")]
SAME += [("sticky", "fresh"), ("cooperative-sticky", "fresh")]


@pytest.mark.parametrize(("name", "kind"), SAME)
def test_the_same_answer(compared: list[tuple[Group, Shares, Shares]]) -> None:
    """Where the answer is determined: of sticky ones, where no one had anything."""
    for group, ours, theirs in compared:
        assert ours == theirs, group


@pytest.mark.parametrize("kind", ["plain", "racks"])
@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_as_even_and_as_sticky(compared: list[tuple[Group, Shares, Shares]], name: str, kind: str) -> None:
    """The answers themselves may differ: Java's depends on the order of a hash table."""
    same = Counter[bool]()
    far_away = Counter[str]()
    for group, ours, theirs in compared:
        same[ours == theirs] += 1
        far_away.update(ours=far(group, ours), theirs=far(group, theirs))
        if name == "sticky":
            assert sizes(ours) == sizes(theirs), group
        if alike(group) and kind == "plain":
            assert kept(group, ours) == kept(group, theirs), group
            assert sum(sizes(ours)) == sum(sizes(theirs)), group
    assert same[True] > GROUPS / 2, same
    assert far_away["ours"] <= far_away["theirs"] * 1.02, far_away


def test_user_data_is_the_same_bytes(kafka_tool: KafkaTool) -> None:
    held = [TopicPartition("a", 2), TopicPartition("a", 0), TopicPartition("\u00fcber", 7)]
    sticky, empty, cooperative = ask_user_data(
        kafka_tool, [("sticky", held, 12), ("sticky", [], 3), ("cooperative-sticky", held, 12)]
    )
    assert set(decode_sticky(sticky).partitions) == set(held)
    assert decode_sticky(sticky).generation == 12
    assert encode_sticky(decode_sticky(sticky).partitions, 12) == sticky
    assert encode_sticky((), 3) == empty
    assert encode_generation(12) == cooperative
