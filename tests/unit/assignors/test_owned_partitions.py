"""Resolving the claims of members, and the user data of the sticky assignors."""

from __future__ import annotations

from ottla.assignors import Cluster, MemberAssignment, MemberSubscription
from ottla.assignors.owned_partitions import StickyUserData, decode_generation, decode_sticky, encode_sticky, resolve_claims
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.types import ConsumerGroupMetadata, TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def claim(generation: int, *partitions: TopicPartition) -> StickyUserData:
    return StickyUserData(partitions, generation)


def test_a_member_that_claims_a_partition_twice_owns_it() -> None:
    owned = resolve_claims({"a": claim(3, T0, T0)}, {T0})
    assert (owned.by_member, owned.disputed) == ({"a": [T0]}, frozenset())


def test_the_previous_owner_is_that_of_the_latest_earlier_generation() -> None:
    owned = resolve_claims({"a": claim(1, T0, T1), "b": claim(2, T0), "c": claim(3, T2), "d": claim(3, T2)}, {T0, T1, T2})
    assert owned.by_member == {"a": [T1], "b": [T0], "c": [], "d": []}
    assert owned.earlier == {T0: "b", T1: "a"}
    assert owned.disputed == {T2}


def test_sticky_user_data_has_the_partitions_and_their_generation() -> None:
    assignor = StickyAssignor()
    assert assignor.subscription_user_data(frozenset({"t"})) is None
    assignor.on_assignment(MemberAssignment((T0, T1)), ConsumerGroupMetadata("g", 7, "m-1", None))
    told = decode_sticky(assignor.subscription_user_data(frozenset({"t"})))
    assert (list(told.partitions), told.generation) == ([T0, T1], 7)


def test_a_cooperative_member_says_since_which_generation() -> None:
    assignor = CooperativeStickyAssignor()
    assignor.on_assignment(MemberAssignment((T0,)), ConsumerGroupMetadata("g", 7, "m-1", None))
    assert decode_generation(assignor.subscription_user_data(frozenset({"t"}))) == 7


def shared(cluster: Cluster, **members: MemberSubscription) -> dict[str, list[TopicPartition]]:
    return {one: list(share.partitions) for one, share in StickyAssignor().assign(cluster, members).items()}


def member(*held: TopicPartition, rack: str | None = None) -> MemberSubscription:
    return MemberSubscription(("t",), rack=rack, user_data=encode_sticky(held, 3))


def test_a_member_above_its_quota_loses_its_last_partitions() -> None:
    assert shared(Cluster({"t": 3}), a=member(T2, T0, T1), b=member()) == {"a": [T0, T1], "b": [T2]}


def test_partitions_in_other_racks_move_to_members_in_their_racks() -> None:
    cluster = Cluster({"t": 2}, {"t": [frozenset({"r1"}), frozenset({"r2"})]})
    assert shared(cluster, a=member(T0, rack="r2"), b=member(T1, rack="r1")) == {"a": [T1], "b": [T0]}
