"""The table of states, and what a group answers about itself."""

from __future__ import annotations

import pytest

from ottla.coordinator.classic.events import MemberJoined, MemberRemoved, RebalanceStarted
from ottla.coordinator.classic.group import ClassicGroup, GroupState, Member, Protocols
from ottla.coordinator.classic.machine import TRANSITIONS, GroupInput, evolve
from ottla.coordinator.events import GroupDeleted

LEGAL_SOURCES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState) - {GroupState.DEAD},
}
"""Kafka's table of legal previous states."""
FROM_THE_LOG = {(GroupState.EMPTY, GroupState.STABLE), (GroupState.STABLE, GroupState.EMPTY)}
"""A log holds no join phases, so a replay goes from record to record."""


def test_the_table_is_kafkas() -> None:
    moves = {(source, target) for source, row in TRANSITIONS.items() for target in row.values() if source is not target}
    assert moves - FROM_THE_LOG == {(source, target) for target, sources in LEGAL_SOURCES.items() for source in sources}
    assert set(TRANSITIONS) == set(GroupState)


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.DEAD])
def test_an_illegal_transition_is_refused(state: GroupState) -> None:
    with pytest.raises(KeyError):
        evolve(ClassicGroup("g", state), RebalanceStarted("g", 0))


def test_nothing_leaves_dead() -> None:
    assert evolve(ClassicGroup("g"), GroupDeleted("g")).state is GroupState.DEAD
    assert TRANSITIONS[GroupState.DEAD] == {}
    assert {row.get(GroupInput.DELETED) for state, row in TRANSITIONS.items() if state is not GroupState.DEAD} == {GroupState.DEAD}


def member(member_id: str, *protocols: str, instance: str | None = None) -> Member:
    known: Protocols = tuple((name, name.encode()) for name in protocols)
    return Member(member_id, instance, "A", "/127.0.0.1", 300_000, 6_000, known)


def group(*members: Member) -> ClassicGroup:
    made = ClassicGroup("g")
    for one in members:
        made = evolve(made, MemberJoined("g", one, "consumer"))
    return made


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [
        ([("range",)], "range"),
        ([("range", "sticky"), ("sticky", "range")], "range"),  # one vote each: the leader decides
        ([("sticky", "range"), ("range", "sticky")], "sticky"),
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("range", "sticky"), ("sticky",)], "sticky"),  # the only one that all know
        ([("x", "range", "sticky"), ("y", "sticky", "range"), ("z", "range", "sticky")], "range"),
    ],
)
def test_members_vote_for_a_protocol_that_all_know(protocols: list[tuple[str, ...]], chosen: str) -> None:
    assert group(*(member(str(place), *known) for place, known in enumerate(protocols))).elect_protocol() == chosen


def test_whom_a_group_could_take() -> None:
    assert not ClassicGroup("g").supports("", (("range", b""),))
    assert not ClassicGroup("g").supports("consumer", ())
    assert ClassicGroup("g").supports("anything", (("at all", b""),))
    made = evolve(group(member("a", "range", "sticky"), member("b", "range")), RebalanceStarted("g", 0))
    assert made.supports("consumer", (("range", b""),))
    assert not made.supports("consumer", (("sticky", b""),))
    assert not made.supports("connect", (("range", b""),))


def test_a_round_keeps_its_type_when_all_have_gone() -> None:
    made = evolve(group(member("a", "range")), RebalanceStarted("g", 0))
    deserted = evolve(made, MemberRemoved("g", "a"))
    assert deserted.supports("consumer", (("sticky", b""),))
    assert not deserted.supports("connect", (("range", b""),))


def test_the_first_member_leads_and_the_next_one_follows_it() -> None:
    made = group(member("a", "range"), member("b", "range"), member("c", "range"))
    assert made.leader == "a"
    made = evolve(made, MemberRemoved("g", "a"))
    assert made.leader == "b"
    assert evolve(evolve(made, MemberRemoved("g", "b")), MemberRemoved("g", "c")).leader is None


def test_the_slowest_member_says_how_long_a_join_phase_may_take() -> None:
    assert ClassicGroup("g").rebalance_timeout == 0
    slow = Member("b", None, "B", "/", 900_000, 6_000, (("range", b""),))
    assert group(member("a", "range"), slow).rebalance_timeout == 900_000
