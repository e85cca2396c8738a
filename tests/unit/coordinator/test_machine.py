"""The table of states, and the queries of a group."""

from __future__ import annotations

import pytest

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState, Protocols
from ottla.coordinator.classic.machine import TRANSITIONS, ClassicGroupInput, MemberJoined, MemberRemoved, RebalanceStarted, apply
from ottla.coordinator.events import GroupMetadataDeleted

LEGAL_SOURCES = {
    ClassicGroupState.EMPTY: {ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.PREPARING_REBALANCE: {
        ClassicGroupState.EMPTY,
        ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupState.STABLE,
    },
    ClassicGroupState.COMPLETING_REBALANCE: {ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.STABLE: {ClassicGroupState.COMPLETING_REBALANCE},
    ClassicGroupState.DEAD: set(ClassicGroupState) - {ClassicGroupState.DEAD},
}
"""Kafka's table of legal previous states."""
FROM_THE_LOG = {(ClassicGroupState.EMPTY, ClassicGroupState.STABLE), (ClassicGroupState.STABLE, ClassicGroupState.EMPTY)}
"""A log has no join phases, so a replay goes from record to record."""


def test_the_table_is_kafkas() -> None:
    moves = {(source, target) for source, row in TRANSITIONS.items() for target in row.values() if source is not target}
    assert moves - FROM_THE_LOG == {(source, target) for target, sources in LEGAL_SOURCES.items() for source in sources}
    assert set(TRANSITIONS) == set(ClassicGroupState)


@pytest.mark.parametrize("state", [ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.DEAD])
def test_an_illegal_transition_is_refused(state: ClassicGroupState) -> None:
    with pytest.raises(KeyError):
        apply(ClassicGroup("g", state), RebalanceStarted("g", 0))


def test_no_transition_leaves_dead() -> None:
    assert apply(ClassicGroup("g"), GroupMetadataDeleted("g")).state is ClassicGroupState.DEAD
    assert TRANSITIONS[ClassicGroupState.DEAD] == {}
    assert {row.get(ClassicGroupInput.DELETED) for state, row in TRANSITIONS.items() if state is not ClassicGroupState.DEAD} == {
        ClassicGroupState.DEAD
    }


def member(member_id: str, *protocols: str, instance: str | None = None) -> ClassicGroupMember:
    known: Protocols = tuple((name, name.encode()) for name in protocols)
    return ClassicGroupMember(member_id, instance, "A", "/127.0.0.1", 300_000, 6_000, known)


def group(*members: ClassicGroupMember) -> ClassicGroup:
    made = ClassicGroup("g")
    for one in members:
        made = apply(made, MemberJoined("g", one, "consumer"))
    return made


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [
        ([("range",)], "range"),
        ([("range", "sticky"), ("sticky", "range")], "range"),  # one vote each: the leader decides
        ([("sticky", "range"), ("range", "sticky")], "sticky"),
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("range", "sticky"), ("sticky",)], "sticky"),  # the only one that all support
        ([("x", "range", "sticky"), ("y", "sticky", "range"), ("z", "range", "sticky")], "range"),
    ],
)
def test_members_vote_for_a_protocol_that_all_support(protocols: list[tuple[str, ...]], chosen: str) -> None:
    assert group(*(member(str(place), *known) for place, known in enumerate(protocols))).elect_protocol() == chosen


def test_the_protocols_that_a_group_supports() -> None:
    assert not ClassicGroup("g").supports("", (("range", b""),))
    assert not ClassicGroup("g").supports("consumer", ())
    assert ClassicGroup("g").supports("anything", (("at all", b""),))
    made = apply(group(member("a", "range", "sticky"), member("b", "range")), RebalanceStarted("g", 0))
    assert made.supports("consumer", (("range", b""),))
    assert not made.supports("consumer", (("sticky", b""),))
    assert not made.supports("connect", (("range", b""),))


def test_an_emptied_group_in_a_rebalance_keeps_its_protocol_type() -> None:
    made = apply(group(member("a", "range")), RebalanceStarted("g", 0))
    deserted = apply(made, MemberRemoved("g", "a"))
    assert deserted.supports("consumer", (("sticky", b""),))
    assert not deserted.supports("connect", (("range", b""),))


def test_the_first_member_is_the_leader_and_the_next_one_its_successor() -> None:
    made = group(member("a", "range"), member("b", "range"), member("c", "range"))
    assert made.leader == "a"
    made = apply(made, MemberRemoved("g", "a"))
    assert made.leader == "b"
    assert apply(apply(made, MemberRemoved("g", "b")), MemberRemoved("g", "c")).leader is None


def test_the_rebalance_timeout_is_the_longest_of_all_members() -> None:
    assert ClassicGroup("g").rebalance_timeout == 0
    slow = ClassicGroupMember("b", None, "B", "/", 900_000, 6_000, (("range", b""),))
    assert group(member("a", "range"), slow).rebalance_timeout == 900_000
