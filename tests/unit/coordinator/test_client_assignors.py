"""Client-side assignors: the choice of the member that computes, PrepareAssignment, InstallAssignment, errors and timeouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ottla.coordinator.consumer.client_side import ClientAssignment, common_assignor
from ottla.coordinator.consumer.group import ConsumerGroupState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consumer_group_heartbeat_request,
    consumer_group_install_assignment_request as install_request,
    consumer_group_prepare_assignment_request as prepare_request,
)
from tests.unit.coordinator.harness import Harness, failing

ALL = [0, 1, 2, 3]


def offer(name: str = "mine", low: int = 0, high: int = 0, **fields: Any) -> consumer_group_heartbeat_request.ClientAssignor:
    return consumer_group_heartbeat_request.ClientAssignor(name=name, minimum_version=low, maximum_version=high, **fields)


MINE = (offer(),)


@pytest.fixture
def harness() -> Harness:
    return Harness(group_consumer_client_assignors_enable=True)


def prepare(harness: Harness, member_id: str, epoch: int, group: str = "c") -> Any:
    request = prepare_request.ConsumerGroupPrepareAssignmentRequest(group_id=group, member_id=member_id, member_epoch=epoch)
    return harness.answer(harness.ask(Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, request))


def installation(
    harness: Harness,
    member_id: str,
    epoch: int,
    group_epoch: int,
    shares: dict[str, dict[str, list[int]]],
    error: int = 0,
    error_message: str | None = None,
) -> install_request.ConsumerGroupInstallAssignmentRequest:
    return install_request.ConsumerGroupInstallAssignmentRequest(
        group_id="c",
        member_id=member_id,
        member_epoch=epoch,
        group_epoch=group_epoch,
        error=error,
        error_message=error_message,
        members=tuple(
            install_request.Member(
                member_id=one,
                topic_partitions=tuple(
                    install_request.TopicPartitions(topic_id=harness.topics.topic_id(topic), partitions=tuple(numbers))
                    for topic, numbers in share.items()
                ),
                metadata_version=7,
                metadata=one.encode(),
            )
            for one, share in shares.items()
        ),
    )


def install(harness: Harness, *arguments: Any, **named: Any) -> ErrorCode:
    request = installation(harness, *arguments, **named)
    code = harness.answer(harness.ask(Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT, request)).error_code
    assert isinstance(code, ErrorCode)
    return code


def with_everything(harness: Harness) -> None:
    """A group with one member, m1, which has computed its own assignment and is in epoch 2."""
    assert harness.cg_join("m1", offers=MINE).should_compute_assignment
    assert prepare(harness, "m1", 1).group_epoch == 2
    assert install(harness, "m1", 1, 2, {"m1": {"orders": ALL}}) is ErrorCode.none
    assert harness.cg_heartbeat("m1", 1, owned={}).member_epoch == 2
    assert harness.consumer_group().state is ConsumerGroupState.STABLE


def test_a_member_prepares_and_installs_an_assignment(harness: Harness) -> None:
    joined = harness.cg_join("m1", rack="r", instance="i", offers=(offer(reason=3, metadata_version=2, metadata=b"weight=5"),))
    assert (joined.should_compute_assignment, joined.member_epoch, harness.share_of(joined)) == (True, 1, {})
    assert harness.consumer_group().state is ConsumerGroupState.ASSIGNING

    shown = prepare(harness, "m1", 1)
    assert (shown.error_code, shown.group_epoch, shown.assignor_name) == (ErrorCode.none, 2, "mine")
    (member,) = shown.members
    assert (member.member_id, member.member_epoch, member.instance_id, member.rack_id) == ("m1", 1, "i", "r")
    assert (member.reason, member.metadata_version, member.metadata) == (3, 2, b"weight=5")
    assert (member.subscribed_topic_ids, member.topic_partitions) == ((harness.topics.topic_id("orders"),), ())
    assert [(topic.topic_id, topic.topic_name, topic.num_partitions) for topic in shown.topics] == [
        (harness.topics.topic_id("orders"), "orders", 4)
    ]

    assert install(harness, "m1", 1, 2, {"m1": {"orders": [2, 0]}}) is ErrorCode.none
    told = harness.cg_heartbeat("m1", 1)
    assert (told.member_epoch, harness.share_of(told), told.should_compute_assignment) == (2, {"orders": [0, 2]}, False)
    assert (told.assignment_error, told.metadata_version, told.metadata, told.assignor_name) == (0, 7, b"m1", "mine")
    later = harness.cg_heartbeat("m1", 2)
    assert (later.assignment, later.metadata) == (None, b"")
    newcomer = harness.cg_join("m2", offers=MINE)
    assert (newcomer.assignor_name, newcomer.metadata) == ("", b""), "the assignment did not include it"
    assert harness.cg_describe("c")[0].assignor_name == "mine"


def test_the_same_member_computes_the_next_assignment_which_is_reconciled_as_usual(harness: Harness) -> None:
    with_everything(harness)
    joined = harness.cg_join("a", offers=MINE)
    assert (joined.should_compute_assignment, joined.member_epoch) == (False, 2)
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment
    shown = prepare(harness, "m1", 2)
    assert {member.member_id: len(member.topic_partitions) for member in shown.members} == {"m1": 1, "a": 0}
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment is False, "it has prepared already"
    assert install(harness, "m1", 2, 3, {"m1": {"orders": [0, 1]}, "a": {"orders": [2, 3]}}) is ErrorCode.none
    assert harness.share_of(harness.cg_heartbeat("m1", 2)) == {"orders": [0, 1]}
    assert harness.cg_heartbeat("m1", 2, owned={"orders": [0, 1]}).member_epoch == 3
    assert harness.share_of(harness.cg_heartbeat("a", 2)) == {"orders": [2, 3]}


def test_client_assignors_are_disabled_by_default() -> None:
    harness = Harness()
    joined = harness.cg_join("m1", offers=MINE)
    assert (joined.should_compute_assignment, harness.share_of(joined)) == (False, {"orders": ALL})
    assert harness.consumer_group().client == ClientAssignment()
    assert harness.cg_describe("c")[0].assignor_name == "uniform"


def test_a_member_without_the_assignor_makes_the_server_assign(harness: Harness) -> None:
    with_everything(harness)
    joined = harness.cg_join("m2")
    assert joined.member_epoch == 3
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment is False
    assert harness.consumer_group().assignment_epoch == 3
    assert harness.cg_heartbeat("m2", -1).error_code is ErrorCode.none
    assert harness.cg_heartbeat("m1", 2, owned={"orders": ALL}).should_compute_assignment, "all members can run the assignor again"


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([], None),
        ([[offer("a")], []], None),
        ([[offer("a")], [offer("b")]], None),
        ([[offer("a", 0, 1)], [offer("a", 2, 3)]], None),
        ([[offer("a", 0, 2)], [offer("a", 2, 3)]], "a"),
        ([[offer("b"), offer("a")], [offer("a"), offer("b")], [offer("b"), offer("a"), offer("c")]], "b"),
        ([[offer("b"), offer("a")], [offer("a"), offer("b")]], "a"),
        ([[offer("b"), offer("a")], [offer("a")], [offer("b"), offer("a")]], "a"),
    ],
)
def test_the_common_assignor_with_the_most_votes_is_used(
    offers: list[list[consumer_group_heartbeat_request.ClientAssignor]], chosen: str | None
) -> None:
    assert common_assignor([tuple(one) for one in offers]) == chosen


def test_requests_of_other_members_are_rejected(harness: Harness) -> None:
    with_everything(harness)
    assert prepare(harness, "m1", 2).error_code is ErrorCode.unknown_member_id, "there is no run"
    harness.cg_join("m2", offers=MINE)
    assert prepare(harness, "m2", 2).error_code is ErrorCode.unknown_member_id
    assert prepare(harness, "m1", 1).error_code is ErrorCode.stale_member_epoch
    assert prepare(harness, "unknown", 2).error_code is ErrorCode.unknown_member_id
    assert prepare(harness, "m1", 2, group="absent").error_code is ErrorCode.group_id_not_found
    assert install(harness, "m2", 2, 3, {}) is ErrorCode.unknown_member_id
    assert install(harness, "m1", 2, 3, {}) is ErrorCode.illegal_generation, "it has not prepared the assignment"


@pytest.mark.parametrize(
    "shares",
    [
        {"m1": {"orders": [0, 1]}, "m2": {"orders": [1]}},
        {"m1": {"orders": [4]}},
        {"m1": {"orders": [-1]}},
        {"m1": {"bills": [0]}},
        {"m1": {"nowhere": [0]}},
        {"stranger": {"orders": [0]}},
    ],
    ids=["twice", "too high", "negative", "not subscribed", "no such topic", "no member"],
)
def test_an_invalid_assignment_is_rejected_as_a_whole(harness: Harness, shares: dict[str, dict[str, list[int]]]) -> None:
    with_everything(harness)
    harness.cg_join("m2", offers=MINE)
    prepare(harness, "m1", 2)
    before = harness.consumer_group()
    assert install(harness, "m1", 2, 3, shares) is ErrorCode.invalid_request
    assert install(harness, "m1", 2, 2, {"m1": {}}) is ErrorCode.illegal_generation, "another group epoch"
    assert harness.consumer_group() is before
    assert install(harness, "m1", 2, 3, {"m1": {"orders": [0]}, "m2": {"orders": [1, 2, 3]}}) is ErrorCode.none


def test_an_assignment_with_a_duplicate_member_is_rejected(harness: Harness) -> None:
    harness.cg_join("m1", offers=MINE)
    prepare(harness, "m1", 1)
    request = installation(harness, "m1", 1, 2, {"m1": {"orders": [0]}})
    twice = install_request.ConsumerGroupInstallAssignmentRequest(
        group_id="c", member_id="m1", member_epoch=1, group_epoch=2, members=request.members * 2
    )
    answer = harness.answer(harness.ask(Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT, twice))
    assert (answer.error_code, "twice" in answer.error_message) == (ErrorCode.invalid_request, True)


def test_members_that_joined_or_left_during_the_run(harness: Harness) -> None:
    with_everything(harness)
    harness.cg_join("m2", offers=MINE)
    prepare(harness, "m1", 2)
    harness.cg_join("m3", offers=MINE)
    harness.cg_heartbeat("m2", -1)
    assert install(harness, "m1", 2, 3, {"m1": {"orders": [0, 1]}, "m2": {"orders": [2, 3]}}) is ErrorCode.none
    group = harness.consumer_group()
    assert (group.assignment_epoch, group.epoch, sorted(group.target)) == (3, 5, ["m1"])
    again = harness.cg_heartbeat("m1", 2)
    assert (again.should_compute_assignment, harness.share_of(again)) == (True, {"orders": [0, 1]})
    assert {member.member_id for member in prepare(harness, "m1", 2).members} == {"m1", "m3"}


def test_after_an_error_of_the_assignor_all_members_keep_their_partitions(harness: Harness) -> None:
    with_everything(harness)
    harness.cg_join("m2", offers=MINE)
    prepare(harness, "m1", 2)
    assert install(harness, "m1", 2, 3, {}, error=9, error_message="no weights") is ErrorCode.none
    for member_id in ("m1", "m2"):
        told = harness.cg_heartbeat(member_id, 2)
        assert (told.member_epoch, told.assignment_error, told.should_compute_assignment) == (3, 9, False)
        assert (told.assignment_error_message, told.assignor_name) == ("no weights", "mine")
    newcomer = harness.cg_join("m3", offers=MINE)
    assert (newcomer.member_epoch, newcomer.assignment_error, newcomer.assignor_name) == (3, 0, ""), "it was not a member then"
    assert [sum(map(len, target.values())) for target in harness.consumer_group().target.values()] == [4]


def test_after_a_timeout_the_next_member_computes(harness: Harness) -> None:
    with_everything(harness)
    harness.cg_join("m2", offers=MINE, rebalance=20_000)
    harness.sleep(40_000)
    harness.cg_heartbeat("m2", 2)
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment
    for _ in range(8):
        harness.sleep(40_000)
        late, other = harness.cg_heartbeat("m1", 2), harness.cg_heartbeat("m2", 2)
    assert prepare(harness, "m1", 2).error_code is ErrorCode.unknown_member_id
    assert (late.should_compute_assignment, other.should_compute_assignment) == (False, False)
    assert harness.consumer_group().assignment_epoch == 3, "m2 timed out after 20 s as well, and the server assigned"
    assert sorted(sum(map(len, one.values())) for one in harness.consumer_group().target.values()) == [2, 2]
    assert harness.consumer_group().client.timed_out == frozenset(), "all members are candidates for the next epoch"


@pytest.mark.parametrize("goes", ["leaves", "falls silent"])
def test_another_member_computes_when_the_first_has_left(harness: Harness, goes: str) -> None:
    with_everything(harness)
    harness.cg_join("m2", offers=MINE)
    prepare(harness, "m1", 2)
    if goes == "leaves":
        harness.cg_heartbeat("m1", -1)
    else:
        harness.sleep(30_000)
        harness.cg_heartbeat("m2", 2)
        harness.sleep(20_000)
    assert harness.cg_heartbeat("m2", 2).should_compute_assignment
    assert prepare(harness, "m2", 2).group_epoch == 4
    assert install(harness, "m2", 2, 4, {"m2": {"orders": ALL}}) is ErrorCode.none
    assert harness.share_of(harness.cg_heartbeat("m2", 2)) == {"orders": ALL}


def test_a_static_member_that_is_away_is_not_chosen(harness: Harness) -> None:
    harness.cg_join("m1", instance="i1", offers=MINE)
    prepare(harness, "m1", 1)
    install(harness, "m1", 1, 2, {"m1": {"orders": ALL}})
    harness.cg_heartbeat("m1", 1)
    harness.cg_heartbeat("m1", -2, instance="i1")
    assert harness.cg_join("m2", offers=MINE).should_compute_assignment


def test_a_changed_offer_of_a_member_begins_an_epoch(harness: Harness) -> None:
    with_everything(harness)
    assert harness.cg_heartbeat("m1", 2, offers=MINE).should_compute_assignment is False
    assert harness.consumer_group().epoch == 2
    assert harness.cg_heartbeat("m1", 2, offers=(offer(metadata=b"new"),)).should_compute_assignment
    assert harness.consumer_group().epoch == 3


def test_an_assignment_that_cannot_be_appended_can_be_sent_again(harness: Harness) -> None:
    harness.cg_join("m1", offers=MINE)
    prepare(harness, "m1", 1)
    before, works = harness.consumer_group(), harness.appends
    harness.appends = failing(ErrorCode.kafka_storage_error)
    assert install(harness, "m1", 1, 2, {"m1": {"orders": ALL}}) is ErrorCode.not_coordinator
    assert harness.consumer_group() is before
    harness.appends = works
    assert install(harness, "m1", 1, 2, {"m1": {"orders": ALL}}) is ErrorCode.none


def test_the_offers_of_members_survive_a_restart(harness: Harness) -> None:
    with_everything(harness)
    target = harness.consumer_group().target
    harness.restart()
    assert (harness.consumer_group().target, harness.consumer_group().client) == (target, ClientAssignment())
    harness.cg_heartbeat("m1", 2, offers=MINE)
    assert harness.consumer_group().epoch == 2, "nothing has changed"
    harness.cg_join("m2", offers=MINE)
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment


def test_after_a_restart_during_a_run_a_member_is_chosen_again(harness: Harness) -> None:
    with_everything(harness)
    harness.cg_join("m2", offers=MINE)
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment
    prepare(harness, "m1", 2)
    harness.restart()
    assert install(harness, "m1", 2, 3, {"m1": {"orders": ALL}}) is ErrorCode.unknown_member_id, "no member was chosen yet"
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment
    assert prepare(harness, "m1", 2).group_epoch == 3
    assert install(harness, "m1", 2, 3, {"m1": {"orders": [0, 1]}, "m2": {"orders": [2, 3]}}) is ErrorCode.none


def test_after_the_setting_is_disabled_the_server_makes_the_next_assignment(harness: Harness) -> None:
    with_everything(harness)
    harness.config = replace(harness.config, group_consumer_client_assignors_enable=False)
    harness.restart()
    harness.cg_join("m2", offers=MINE)
    assert harness.cg_heartbeat("m1", 2).should_compute_assignment is False
    assert harness.consumer_group().assignment_epoch == 3


def test_a_member_that_offers_its_assignor_later_begins_an_epoch(harness: Harness) -> None:
    harness.cg_join("m1")
    assert harness.consumer_group().epoch == 2
    assert harness.cg_heartbeat("m1", 2, offers=MINE).should_compute_assignment
    assert harness.consumer_group().epoch == 3


def test_no_timers_remain_at_the_end(harness: Harness) -> None:
    with_everything(harness)
    assert [key[2] for key in harness.deadlines] == ["session"]
    harness.cg_heartbeat("m1", -1)
    assert harness.deadlines == {}
    harness.cg_join("m2", offers=MINE)
    assert sorted(str(key[2]) for key in harness.deadlines) == ["run", "session"]
    harness.cg_heartbeat("m2", -1)
    assert harness.deadlines == {}
    assert harness.consumer_group().client.run is None
