"""Members of consumer groups (KIP-848) and a broker with scripted faults, as in ``test_classic_group_faults``. Time is
virtual."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.faults.rules import Action, Fail
from ottla.errors import error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.scenarios.group_under_faults import COORDINATOR, NO_ANSWER, Group, each_of, play, supplied, working


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return supplied(tmp_path, "consumer")


@pytest.mark.parametrize("action", NO_ANSWER.values(), ids=NO_ANSWER)
@pytest.mark.parametrize(
    ("api", "forming"),
    [
        (Api.CONSUMER_GROUP_HEARTBEAT, True),
        (Api.CONSUMER_GROUP_HEARTBEAT, False),
        (Api.OFFSET_FETCH, True),
        (Api.OFFSET_COMMIT, False),
    ],
    ids=["first-heartbeats", "heartbeats", "look-ups", "commits"],
)
def test_responses_that_do_not_arrive(group: Group, action: Action, api: Api, forming: bool) -> None:
    play(group, action, api, times=3, forming=forming)


ERRORS = {
    Api.CONSUMER_GROUP_HEARTBEAT: (
        *COORDINATOR,
        "unknown_member_id",
        "fenced_member_epoch",
        "topic_authorization_failed",
    ),
    Api.OFFSET_FETCH: (*COORDINATOR, "unstable_offset_commit", "stale_member_epoch", "unknown_member_id"),
    Api.OFFSET_COMMIT: (
        *COORDINATOR,
        "stale_member_epoch",
        "unknown_member_id",
        "unknown_topic_or_partition",
        "unknown_server_error",
    ),
}


@each_of(ERRORS)
def test_responses_with_an_error(group: Group, api: Api, error: str) -> None:
    joins_at_once = api is Api.CONSUMER_GROUP_HEARTBEAT and error in ("unknown_member_id", "fenced_member_epoch")
    # Such a member joins with the next heartbeat, without back-off: seven virtual seconds would be 7,000 of them, all alike.
    play(group, Fail(ErrorCode[error]), api, times=500 if joins_at_once else None, forming=api is Api.OFFSET_FETCH)


def test_a_deleted_group_is_joined_again(group: Group) -> None:
    """The group was deleted, or became a classic group while this member was away."""
    working(group).world.broker.set_fault(Fail(ErrorCode.group_id_not_found), Api.CONSUMER_GROUP_HEARTBEAT, client_id="a")
    group.run(3_000)
    assert group.world.broker.struck == 1
    group.heal()
    assert [[what for what, _ in app.listener_calls].count("lost") for app in group.apps] == [1, 0]


FATAL = (
    "group_authorization_failed",
    "invalid_request",
    "unsupported_version",
    "group_max_size_reached",
    "unsupported_assignor",
    "invalid_regular_expression",
    "unreleased_instance_id",
    "fenced_instance_id",
    "unknown_server_error",
)


@pytest.mark.parametrize("error", FATAL)
def test_a_fatal_error_has_a_hint(group: Group, error: str) -> None:
    app = group.join("a")
    group.run(3_000)
    group.world.broker.set_fault(Fail(ErrorCode[error]), Api.CONSUMER_GROUP_HEARTBEAT)
    group.run(5_000)
    assert {type(one) for one in app.errors} == {error_class(ErrorCode[error])}
    assert all(one.fatal and one.hint for one in app.errors)  # type: ignore[attr-defined]
    assert len(app.errors) > 3, "each poll raises"
    assert [what for what, _ in app.listener_calls] == ["assign", "lost"]
    beats = [at for at, api, _ in group.world.broker.seen if api is Api.CONSUMER_GROUP_HEARTBEAT]
    group.run(5_000)
    assert [at for at, api, _ in group.world.broker.seen if api is Api.CONSUMER_GROUP_HEARTBEAT] == beats
    app.stop = True
    group.world.run_until(lambda: not app.running)
    assert app.error is None
