"""What members say they held, settled; and what a sticky member says of itself."""

from __future__ import annotations

from ottla.assignors import Cluster, MemberAssignment, MemberSubscription
from ottla.assignors.owned_partitions import resolve_claims
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.protocol.sticky_user_data import StickyUserData, decode_generation, decode_sticky, encode_sticky
from ottla.types import ConsumerGroupMetadata, TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def said(generation: int, *partitions: TopicPartition) -> StickyUserData:
    return StickyUserData(partitions, generation)


def test_who_says_the_same_twice_disputes_nothing_with_itself() -> None:
    owned = resolve_claims({"a": said(3, T0, T0)}, {T0})
    assert (owned.by_member, owned.disputed) == ({"a": [T0]}, frozenset())


def test_of_earlier_generations_the_latest_counts_and_the_present_one_is_not_earlier() -> None:
    owned = resolve_claims({"a": said(1, T0, T1), "b": said(2, T0), "c": said(3, T2), "d": said(3, T2)}, {T0, T1, T2})
    assert owned.by_member == {"a": [T1], "b": [T0], "c": [], "d": []}
    assert owned.earlier == {T0: "b", T1: "a"}
    assert owned.disputed == {T2}


def test_a_sticky_member_says_what_it_has_and_since_which_generation() -> None:
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


def test_who_has_too_much_gives_up_the_last() -> None:
    assert shared(Cluster({"t": 3}), a=member(T2, T0, T1), b=member()) == {"a": [T0, T1], "b": [T2]}


def test_what_is_far_is_not_kept_and_goes_to_who_is_near() -> None:
    cluster = Cluster({"t": 2}, {"t": [frozenset({"r1"}), frozenset({"r2"})]})
    assert shared(cluster, a=member(T0, rack="r2"), b=member(T1, rack="r1")) == {"a": [T1], "b": [T0]}
