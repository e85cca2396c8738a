"""LeaveGroup: members leave, or an administrator removes them."""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.message_conversion import downgrade
from tests.unit.coordinator.harness import Harness


def test_a_member_leaves_and_the_others_rebalance() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    response = harness.answer(harness.leave(leader))
    assert (response.error_code, [one.error_code for one in response.members]) == (ErrorCode.none, [ErrorCode.none])
    assert harness.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress
    response = harness.answer(harness.join(follower))
    assert (response.generation_id, response.leader) == (2, follower)


def test_each_unknown_member_gets_its_own_error() -> None:
    harness = Harness()
    assert harness.answer(harness.leave("a", group="")).error_code is ErrorCode.invalid_group_id
    for _ in range(2):
        response = harness.answer(harness.leave("a", "b"))
        assert response.error_code is ErrorCode.none
        assert [(one.member_id, one.error_code) for one in response.members] == [
            ("a", ErrorCode.unknown_member_id),
            ("b", ErrorCode.unknown_member_id),
        ]
        harness.stable("A")


def test_an_old_client_gets_the_error_of_its_only_member() -> None:
    harness = Harness()
    harness.stable("A")
    response = harness.answer(harness.leave("a", version=2))
    assert downgrade(Api.LEAVE_GROUP, 2, "response", response).error_code is ErrorCode.unknown_member_id


def test_a_leave_without_members_succeeds() -> None:
    harness = Harness()
    harness.stable("A")
    response = harness.answer(harness.leave())
    assert (response.error_code, response.members) == (ErrorCode.none, ())
    assert harness.state() is ClassicGroupState.STABLE


def test_several_leave_and_the_group_rebalances_once() -> None:
    harness = Harness()
    ids = harness.stable("A", "B", "C")
    response = harness.answer(harness.leave(ids[0], "unknown", ids[2]))
    assert [one.error_code for one in response.members] == [ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.none]
    assert harness.answer(harness.join(ids[1])).generation_id == 2
    assert list(harness.group().members) == [ids[1]]


def test_all_leave() -> None:
    harness = Harness()
    ids = harness.stable("A", "B")
    assert [one.error_code for one in harness.answer(harness.leave(*ids)).members] == [ErrorCode.none] * 2
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.deadlines == {}


def test_a_member_that_leaves_twice_in_one_request_has_left_once() -> None:
    harness = Harness()
    ids = harness.stable("A", "B")
    errors = [one.error_code for one in harness.answer(harness.leave(ids[0], ids[0])).members]
    assert errors == [ErrorCode.none, ErrorCode.unknown_member_id]


def test_a_parked_join_is_answered_when_its_member_is_removed() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    ticket = harness.join(leader)
    harness.answer(harness.leave(leader))
    assert harness.answer(ticket).error_code is ErrorCode.unknown_member_id
    assert harness.answer(harness.join(follower)).generation_id == 2


def test_a_parked_sync_is_answered_when_its_member_is_removed() -> None:
    harness = Harness()
    _, follower = harness.joined("A", "B")
    ticket = harness.sync(follower, 1)
    harness.answer(harness.leave(follower))
    assert harness.answer(ticket).error_code is ErrorCode.unknown_member_id


def test_a_leave_can_complete_the_join_phase() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    ticket = harness.join(leader)
    harness.answer(harness.leave(follower))
    assert harness.answer(ticket).generation_id == 2


def test_a_client_with_an_id_can_leave() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    pending = harness.member_id("B")
    ticket = harness.join(leader)
    assert harness.waits(ticket)
    assert harness.answer(harness.leave(pending)).members[0].error_code is ErrorCode.none
    assert harness.answer(ticket).generation_id == 2
    assert harness.group().pending == frozenset()


def test_a_client_that_leaves_before_it_joined_causes_a_rebalance_as_in_kafka() -> None:
    harness = Harness()
    harness.stable("A")
    harness.answer(harness.leave(harness.member_id("B")))
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE


def test_a_client_that_leaves_a_group_without_members_leaves_it_empty() -> None:
    harness = Harness()
    harness.answer(harness.leave(harness.member_id("A")))
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.timers == {}


def test_members_and_clients_with_an_id_leave_together() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    pending = harness.member_id("C")
    errors = [one.error_code for one in harness.answer(harness.leave(leader, pending)).members]
    assert errors == [ErrorCode.none] * 2
    assert harness.answer(harness.join(follower)).generation_id == 2


# Static members.


def test_static_members_leave_by_instance() -> None:
    harness = Harness()
    tickets = [harness.join(instance=instance) for instance in ("i1", "i2")]
    harness.wait_for(*tickets)
    one, two = (harness.answer(ticket).member_id for ticket in tickets)
    identities = [(one, "i1"), ("", "i2"), ("", "i3"), (two, "i1"), ("", None)]
    errors = [answer.error_code for answer in harness.answer(harness.leave(*identities)).members]
    assert errors == [ErrorCode.none, ErrorCode.none] + [ErrorCode.unknown_member_id] * 3
    assert harness.state() is ClassicGroupState.EMPTY


def test_a_static_member_with_anothers_id_is_fenced() -> None:
    harness = Harness()
    tickets = [harness.join(instance=instance) for instance in ("i1", "i2")]
    harness.wait_for(*tickets)
    one, _ = (harness.answer(ticket).member_id for ticket in tickets)
    errors = [answer.error_code for answer in harness.answer(harness.leave((one, "i2"), ("old", "i1"))).members]
    assert errors == [ErrorCode.fenced_instance_id] * 2
    assert len(harness.group().members) == 2
