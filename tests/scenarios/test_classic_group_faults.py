"""Classic members and a broker with scripted faults: no record is lost, no commit runs ahead or back, and the group recovers.

Each fault is injected into a group of two members, while the group forms or later. Time is virtual.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.faults.rules import Action, Fail
from ottla.errors import error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import offsets
from ottla.types import TopicPartition
from tests.scenarios.group_under_faults import COORDINATOR, NO_ANSWER, Group, each_of, play, supplied, working

FORMING = (Api.METADATA, Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.OFFSET_FETCH, Api.LIST_OFFSETS)
WORKING = (Api.FETCH, Api.HEARTBEAT, Api.OFFSET_COMMIT)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return supplied(tmp_path, "classic")


@pytest.mark.parametrize("api", [*FORMING, *WORKING], ids=lambda api: api.name)
@pytest.mark.parametrize("action", NO_ANSWER.values(), ids=NO_ANSWER)
def test_responses_that_do_not_arrive(group: Group, action: Action, api: Api) -> None:
    play(group, action, api, times=3, forming=api in FORMING)


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


@each_of(ERRORS)
def test_responses_with_an_error(group: Group, api: Api, error: str) -> None:
    play(group, Fail(ErrorCode[error]), api, times=None, forming=api in FORMING)


def test_a_scripted_offset_out_of_range_resets_to_the_beginning(group: Group) -> None:
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
def test_a_permanent_error_reaches_the_application(group: Group, api: Api, error: str) -> None:
    group.world.broker.set_fault(Fail(ErrorCode[error]), api)
    group.join("a")
    group.run(5_000)
    assert {type(one) for one in group.apps[0].errors} == {error_class(ErrorCode[error])}
    group.heal()
