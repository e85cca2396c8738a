"""One step of one member towards its target, as a table: the member before, the inputs, the member after."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from ottla.coordinator.consumer.group import ConsumerGroupMember, MemberState
from ottla.coordinator.consumer.reconcile import TRANSITIONS, ReconciliationContext, UnknownStateError, reconcile

A, B = uuid.uuid5(uuid.NAMESPACE_OID, "a"), uuid.uuid5(uuid.NAMESPACE_OID, "b")
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS
Numbers = set[int]


class Row(NamedTuple):
    """A step on topic ``a``: the member in epoch 4, its target of epoch 5, and the result."""

    name: str
    state: MemberState
    assigned: Numbers
    revoking: Numbers
    target: Numbers
    owned: Numbers | None
    held: Numbers
    """The partitions that other members own."""
    then: MemberState
    epoch: int
    assigned_then: Numbers
    revoking_then: Numbers


TABLE = [
    Row("nothing changes but the epoch", STABLE, {0, 1}, set(), {0, 1}, None, set(), STABLE, 5, {0, 1}, set()),
    Row("free partitions are given at once", STABLE, {0}, set(), {0, 1}, None, set(), STABLE, 5, {0, 1}, set()),
    Row("partitions of other members are waited for", STABLE, {0}, set(), {0, 1, 2}, None, {2}, UNRELEASED, 5, {0, 1}, set()),
    Row("all new partitions have other owners", STABLE, {0}, set(), {0, 1}, None, {1}, UNRELEASED, 5, {0}, set()),
    Row("a partition outside the target is revoked", STABLE, {0, 1}, set(), {0}, None, set(), UNREVOKED, 4, {0}, {1}),
    Row("nothing is added before a revocation", STABLE, {0, 1}, set(), {0, 2}, None, set(), UNREVOKED, 4, {0}, {1}),
    Row("the client does not own the partition to revoke", STABLE, {0, 1}, set(), {0}, {0}, set(), STABLE, 5, {0}, set()),
    Row("still revoking, no list in the heartbeat", UNREVOKED, {0}, {1}, {0}, None, set(), UNREVOKED, 4, {0}, {1}),
    Row("still revoking, still in the list", UNREVOKED, {0}, {1}, {0}, {0, 1}, set(), UNREVOKED, 4, {0}, {1}),
    Row("revoked", UNREVOKED, {0}, {1}, {0}, {0}, set(), STABLE, 5, {0}, set()),
    Row("revoked, and others are added", UNREVOKED, {0}, {1}, {0, 2, 3}, {0}, {3}, UNRELEASED, 5, {0, 2}, set()),
    Row("revoked, and the newest target revokes more", UNREVOKED, {0, 2}, {1}, {0}, {0, 2}, set(), UNREVOKED, 4, {0}, {2}),
    Row("a revoked partition is assigned again", UNREVOKED, {0}, {1}, {0, 1}, {0}, set(), STABLE, 5, {0, 1}, set()),
    Row("other members have released", UNRELEASED, {0}, set(), {0, 1}, None, set(), STABLE, 5, {0, 1}, set()),
    Row("other members have not released", UNRELEASED, {0}, set(), {0, 1}, None, {1}, UNRELEASED, 5, {0}, set()),
    Row("waited, and the newest target revokes", UNRELEASED, {0, 1}, set(), {0}, {0, 1}, set(), UNREVOKED, 4, {0}, {1}),
]


def holding(numbers: Numbers, epoch: int = 3) -> dict[uuid.UUID, dict[int, int]]:
    return {A: dict.fromkeys(sorted(numbers), epoch)} if numbers else {}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_one_step(row: Row) -> None:
    member = ConsumerGroupMember(
        "m", epoch=4, previous_epoch=3, state=row.state, assigned=holding(row.assigned), revoking=holding(row.revoking)
    )
    context = ReconciliationContext(
        target_epoch=5,
        target={A: tuple(sorted(row.target))} if row.target else {},
        subscribed={A},
        owners={A: dict.fromkeys(row.held, 4) | dict.fromkeys(row.assigned | row.revoking, 4)},
        owned=None if row.owned is None else {A: row.owned},
    )
    after = reconcile(member, context)
    assert (after.state, after.epoch) == (row.then, row.epoch)
    assert set(after.assigned.get(A, {})) == row.assigned_then
    assert set(after.revoking.get(A, {})) == row.revoking_then
    assert after is member or after.previous_epoch == 4
    for number, since in after.assigned.get(A, {}).items():
        assert since == (3 if number in row.assigned else 5), "kept ones keep their epoch, new ones get the target's (KIP-1251)"


def test_a_member_that_has_reached_the_target_does_not_change() -> None:
    member = ConsumerGroupMember("m", epoch=5, assigned=holding({0, 1}))
    context = ReconciliationContext(target_epoch=5, target={A: (0, 1)}, subscribed={A}, owners={})
    assert reconcile(member, context) is member


@pytest.mark.parametrize("state", [STABLE, UNREVOKED])
def test_an_unsubscribed_topic_is_revoked_before_there_is_a_new_target(state: MemberState) -> None:
    revoking = {} if state is STABLE else {B: {7: 3}}
    member = ConsumerGroupMember("m", epoch=5, state=state, assigned={A: {0: 5}, B: {1: 5}}, revoking=revoking)
    context = ReconciliationContext(target_epoch=5, target={A: (0,), B: (1,)}, subscribed={A}, owners={}, resubscribed=True)
    after = reconcile(member, context)
    assert (after.state, after.epoch) == (UNREVOKED, 5)
    assert after.assigned == {A: {0: 5}}
    assert after.revoking == {B: {1: 5, **revoking.get(B, {})}}


def test_an_older_target_assigns_no_unsubscribed_topics() -> None:
    member = ConsumerGroupMember("m", epoch=4)
    context = ReconciliationContext(target_epoch=5, target={A: (0,), B: (1,)}, subscribed={A}, owners={}, resubscribed=True)
    assert reconcile(member, context).assigned == {A: {0: 5}}


@pytest.mark.parametrize("owned", [None, {A: {0}}])
def test_a_state_of_a_newer_broker_fences_a_member_with_partitions(owned: dict[uuid.UUID, set[int]] | None) -> None:
    member = ConsumerGroupMember("m", epoch=4, state=MemberState.UNKNOWN, assigned=holding({0}))
    context = ReconciliationContext(target_epoch=5, target={A: (0, 1)}, subscribed={A}, owners={}, owned=owned)
    with pytest.raises(UnknownStateError):
        reconcile(member, context)
    assert reconcile(member, replace(context, owned={})).state is STABLE


numbers = st.sets(st.integers(0, 5))


@given(
    state=st.sampled_from([STABLE, UNREVOKED, UNRELEASED]),
    assigned=numbers,
    revoking=numbers,
    target=numbers,
    held=numbers,
    owned=st.none() | numbers,
    resubscribed=st.booleans(),
    subscribed=st.booleans(),
)
def test_a_step_takes_no_owned_partitions_and_the_epoch_waits_for_revocations(
    state: MemberState,
    assigned: Numbers,
    revoking: Numbers,
    target: Numbers,
    held: Numbers,
    owned: Numbers | None,
    resubscribed: bool,
    subscribed: bool,
) -> None:
    revoking = revoking - assigned if state is UNREVOKED else set()
    held = held - assigned - revoking
    member = ConsumerGroupMember("m", epoch=4, state=state, assigned=holding(assigned), revoking=holding(revoking))
    context = ReconciliationContext(
        target_epoch=5,
        target={A: tuple(sorted(target))} if target else {},
        subscribed={A} if subscribed else set(),
        owners={A: dict.fromkeys(held | assigned | revoking, 4)},
        owned=None if owned is None else {A: owned},
        resubscribed=resubscribed,
    )
    after = reconcile(member, context)
    has, gives_back = set(after.assigned.get(A, {})), set(after.revoking.get(A, {}))
    assert after.state in TRANSITIONS[state]
    assert not (has | gives_back) & held
    assert not has & gives_back
    assert (after.state is UNREVOKED) == bool(gives_back)
    wanted = target if subscribed else set()
    if after.epoch == 5:
        assert has <= wanted
        assert (after.state is STABLE) == (has == wanted)
    else:
        assert has <= assigned, "nothing is added before a revocation"
    if owned is None or (owned & revoking):
        assert revoking <= gives_back
