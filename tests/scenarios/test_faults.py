"""Our consumer and a broker that does scripted things wrong: nothing is lost, no commit runs ahead or back, all is well again.

Each fault strikes a group of two at work, some while the group forms and some later. Time is virtual.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.faults.rules import (
    Action,
    Delay,
    Drop,
    ExpireMember,
    Fail,
    FailAppends,
    Freeze,
    LoseReply,
    Moment,
    MoveCoordinator,
)
from ottla.errors import error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import TopicPartition
from tests.scenarios.faults import PARTITIONS, Group, play
from tests.scenarios.world import World, offsets

FORMING = (Api.METADATA, Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.OFFSET_FETCH, Api.LIST_OFFSETS)
WORKING = (Api.FETCH, Api.HEARTBEAT, Api.OFFSET_COMMIT)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    world = World(tmp_path)
    world.create_topic("t", PARTITIONS)
    group = Group(world)
    group.produce(50)
    return group


@pytest.mark.parametrize("api", [*FORMING, *WORKING], ids=lambda api: api.name)
@pytest.mark.parametrize(
    "action",
    [LoseReply(), Drop(Moment.REQUEST), Drop(Moment.REPLY), Drop(Moment.HALFWAY), Delay(1_500), Delay(5_000)],
    ids=["lost", "dropped-request", "dropped-reply", "half-reply", "late", "too-late"],
)
def test_answers_that_do_not_come(group: Group, action: Action, api: Api) -> None:
    play(group, action, api, times=3, forming=api in FORMING)


COORDINATOR = ("not_coordinator", "coordinator_not_available", "coordinator_load_in_progress")
ERRORS = {
    Api.METADATA: ("leader_not_available", "unknown_topic_or_partition", "unknown_server_error"),
    Api.FIND_COORDINATOR: ("coordinator_not_available", "coordinator_load_in_progress", "unknown_server_error"),
    Api.JOIN_GROUP: (*COORDINATOR, "unknown_member_id", "rebalance_in_progress", "unknown_server_error"),
    Api.SYNC_GROUP: (*COORDINATOR, "unknown_member_id", "illegal_generation", "rebalance_in_progress", "unknown_server_error"),
    Api.HEARTBEAT: (*COORDINATOR, "unknown_member_id", "illegal_generation", "rebalance_in_progress", "unknown_server_error"),
    Api.OFFSET_FETCH: (*COORDINATOR, "unstable_offset_commit", "unknown_server_error"),
    Api.OFFSET_COMMIT: (
        *COORDINATOR,
        "request_timed_out",
        "unknown_topic_or_partition",
        "unknown_member_id",
        "illegal_generation",
        "rebalance_in_progress",
        "unknown_server_error",
    ),
    Api.LIST_OFFSETS: (
        "not_leader_or_follower",
        "leader_not_available",
        "unknown_topic_or_partition",
        "offset_not_available",
        "fenced_leader_epoch",
        "unknown_leader_epoch",
        "kafka_storage_error",
        "unknown_server_error",
    ),
    Api.FETCH: (
        "not_leader_or_follower",
        "replica_not_available",
        "kafka_storage_error",
        "fenced_leader_epoch",
        "unknown_leader_epoch",
        "offset_not_available",
        "unknown_topic_or_partition",
        "unknown_topic_id",
        "inconsistent_topic_id",
        "fetch_session_id_not_found",
        "invalid_fetch_session_epoch",
        "topic_authorization_failed",
        "corrupt_message",
        "unknown_server_error",
    ),
}


@pytest.mark.parametrize(
    ("api", "error"),
    [(api, error) for api, errors in ERRORS.items() for error in errors],
    ids=lambda value: getattr(value, "name", value),
)
def test_answers_with_an_error(group: Group, api: Api, error: str) -> None:
    play(group, Fail(ErrorCode[error]), api, times=None, forming=api in FORMING)


def working(group: Group) -> Group:
    """A group of two that has read all there is."""
    group.join("a")
    group.join("b")
    group.heal()
    return group


@pytest.mark.parametrize("lasts", [500, 5_000, 15_000])
def test_a_coordinator_that_moves_away_and_comes_back(group: Group, lasts: int) -> None:
    working(group).world.broker.set_fault(MoveCoordinator("g"), times=None)
    group.produce(50)
    group.run(lasts)
    assert group.world.broker.struck >= 1
    group.heal()
    # The group was kept in the log with its members: they need not join anew.
    assert all(len([what for what, _ in app.told if what == "lost"]) == 0 for app in group.apps)


@pytest.mark.parametrize("lasts", [500, 5_000, 15_000])
def test_a_broker_that_stands_still(group: Group, lasts: int) -> None:
    working(group).world.broker.set_fault(Freeze(), times=None)
    group.run(lasts)
    group.heal()


def test_a_member_that_is_thrown_out_comes_back(group: Group) -> None:
    first, second = working(group).apps
    assert group.world.broker.expire(ExpireMember("g", client_id="a")) == 1
    group.heal()
    assert [what for what, _ in first.told].count("lost") == 1
    assert "lost" not in [what for what, _ in second.told]


def test_a_full_disk_under_the_groups(group: Group) -> None:
    working(group).world.broker.set_fault(FailAppends("__consumer_offsets"), times=None)
    group.produce(50)
    group.run(10_000)
    assert group.world.broker.struck >= 1
    group.heal()


def test_an_offset_that_is_said_to_be_out_of_range_is_read_again_from_the_start(group: Group) -> None:
    working(group).world.broker.set_fault(Fail(ErrorCode.offset_out_of_range), Api.FETCH, client_id="a")
    group.run(3_000)
    first, second = group.apps
    (partition, *_) = {record.partition for record in first.handled}
    count = group.world.produced[TopicPartition("t", partition)]
    assert offsets(first.handled, partition)[-count:] == list(range(count))
    assert len(second.handled) == len({(record.partition, record.offset) for record in second.handled})


@pytest.mark.parametrize(
    ("api", "error"),
    [
        (Api.FETCH, "topic_authorization_failed"),
        (Api.OFFSET_COMMIT, "group_authorization_failed"),
        (Api.OFFSET_COMMIT, "unknown_server_error"),
        (Api.JOIN_GROUP, "group_authorization_failed"),
    ],
)
def test_an_error_that_no_retry_mends_reaches_the_application(group: Group, api: Api, error: str) -> None:
    group.world.broker.set_fault(Fail(ErrorCode[error]), api)
    group.join("a")
    group.run(5_000)
    assert {type(one) for one in group.apps[0].errors} == {error_class(ErrorCode[error])}
    group.heal()
