"""Assignors that members of a consumer group run, with failures of the assignor, the broker and the connection."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ottla.assignors import Cluster, ConsumerPartitionAssignor, MemberAssignment
from ottla.broker.faults.rules import Action, Delay, Drop, Fail, LoseReply, Moment
from ottla.client.groups.consumer.client_assignors import RUN_REACTIONS, RunReaction, RunState
from ottla.errors import AssignmentError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program
from ottla.types import TopicPartition
from tests.scenarios.client_assignors import (
    INSTALL,
    PREPARE,
    SETTINGS,
    Members,
    Slow,
    Weighted,
    assignor_of,
    installs,
    member_id,
    run_state,
    start,
)
from tests.scenarios.groups import ALL, check_listeners, filled, join, new, sent, settle
from tests.simulation.world import QUICK_GROUPS, World

APIS = pytest.mark.parametrize("api", [PREPARE, INSTALL], ids=["prepare", "install"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = filled(tmp_path, records=10, **SETTINGS)
    world.protocol = "consumer"
    return world


def the_error(app: App) -> AssignmentError:
    (error,) = app.errors
    assert isinstance(error, AssignmentError)
    return error


# -- the user's code ----------------------------------------------------------------------------------------------------------


class Moody(Weighted):
    """It fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = 0

    def assign(self, cluster: Cluster, members: Members) -> Any:
        if self.fails:
            self.fails -= 1
            raise ZeroDivisionError("no weights")
        return super().assign(cluster, members)


def test_every_member_raises_the_error_of_an_assignor_and_the_group_assigns_again(world: World) -> None:
    moody = Moody()
    first, second = start(world, "a", moody), start(world, "b", Weighted)
    settle(world, first, second)
    owned = {app: app.calls.owned for app in (first, second)}
    moody.fails = 1
    third = start(world, "c", Weighted)
    world.run_until(lambda: all(app.errors for app in (first, second, third)))
    text = "the assignor 'weighted' failed in assign(): ZeroDivisionError('no weights')"
    mine = the_error(first)
    assert str(mine) == text
    assert isinstance(mine.cause, ZeroDivisionError)
    for app in (second, third):
        assert str(the_error(app)).startswith(text + " (another member ran it: every member keeps its partitions")
    assert {app: app.calls.owned for app in (first, second)} == owned
    assert (installs(world)[-1].error, installs(world)[-1].error_message) == (1, text)
    settle(world, first, second, third)
    world.run(10_000)
    assert [len(app.errors) for app in (first, second, third)] == [1, 1, 1]


def test_a_failing_assignor_runs_with_growing_back_off(world: World) -> None:
    moody = Moody()
    moody.fails = 1_000
    app = start(world, "a", moody)
    world.run(120_000)
    times = [at for at, _ in sent(world, INSTALL)]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 5 <= len(times) <= 9
    assert pauses == sorted(pauses)
    assert len(app.errors) == len(times)
    assert not app.calls.owned
    moody.fails = 0
    settle(world, app, limit=80_000)


TWICE = "the assignor 'mine' gave member .* partitions \\[0\\] of t, which it gave to another member as well"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda members: {"stranger": ALL}, "the assignor 'mine' named members that are not in the group: stranger"),
        (lambda members: {one: [ALL[0]] for one in members}, TWICE),
        (lambda members: dict.fromkeys(members, (TopicPartition("t", 4),)), r"partitions \[4\] of t, which has partitions 0 to 3"),
        (
            lambda members: dict.fromkeys(members, (TopicPartition("t", -1),)),
            "gave member .* partition -1 of t: partitions are numb",
        ),
        (lambda members: dict.fromkeys(members, (TopicPartition("x", 0),)), "partitions of x: no member subscribes to that"),
        (lambda members: dict.fromkeys(members, 3), "the assignor 'mine' gave member .* 3, not a collection of TopicPartitions"),
        (
            lambda members: dict.fromkeys(members, ("t-0",)),
            "the assignor 'mine' gave member .* 't-0', which is not a TopicPartition",
        ),
        (lambda members: dict.fromkeys(members, (("t", "0"),)), r"gave member .* \('t', '0'\), which is not a TopicPartition"),
        (lambda members: {1: ALL}, "the assignor 'mine' named the member 1: a member id is a string"),
        (
            lambda members: dict.fromkeys(members, MemberAssignment((), "x")),  # type: ignore[arg-type]
            "gave member .* user data that is not bytes: 'x'",
        ),
        (lambda members: None, r"the assignor 'mine' returned None from assign\(\), not a mapping"),
    ],
    ids=[
        "stranger",
        "twice",
        "absent",
        "negative",
        "unknown topic",
        "no list",
        "no partition",
        "no number",
        "no id",
        "no bytes",
        "no mapping",
    ],
)
def test_an_invalid_assignment_is_an_error_of_every_member(world: World, answer: Any, message: str) -> None:
    class Mine(ConsumerPartitionAssignor):
        name = "mine"

        def assign(self, cluster: Cluster, members: Members) -> Any:
            return answer(members)

    apps = [start(world, "a", Mine), start(world, "b", Mine)]
    world.run_until(lambda: all(app.errors for app in apps))
    for app in apps:
        with pytest.raises(AssignmentError, match=message):
            raise app.errors[-1]
        assert not app.calls.owned


@pytest.mark.parametrize("method", ["subscription_user_data", "on_assignment"])
def test_poll_raises_errors_of_the_other_assignor_methods_and_the_rebalance_goes_on(world: World, method: str) -> None:
    class Broken(Weighted):
        pass

    def fail(self: object, *args: object) -> None:
        raise KeyError("oh")

    setattr(Broken, method, fail)
    first, second = start(world, "a", Broken), start(world, "b", Weighted)
    settle(world, first, second)
    world.run(1_000)
    assert first.errors
    assert not second.errors
    assert all(f"'weighted' failed in {method}(): KeyError('oh')" in str(error) for error in first.errors)


def test_an_error_text_that_cannot_be_encoded_is_sent_with_replacements(world: World) -> None:
    class Odd(Weighted):
        def assign(self, cluster: Cluster, members: Members) -> Any:
            raise ValueError("\udc80" + "x" * 100_000)

    first, second = start(world, "a", Odd), start(world, "b", Odd)
    world.run_until(lambda: bool(first.errors and second.errors))
    assert len(installs(world)[-1].error_message) == 4_096


# -- the broker's refusals ------------------------------------------------------------------------------------------------------


def codes(*reactions: RunReaction) -> list[int]:
    return sorted(code for code, one in RUN_REACTIONS.items() if one in reactions)


@APIS
@pytest.mark.parametrize("code", codes(RunReaction.LATER, RunReaction.LOOK_UP))
def test_a_retriable_error_is_retried(world: World, api: Api, code: int) -> None:
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.set_fault(Fail(ErrorCode(code)), api, times=2)
    began = world.now.mono
    second = start(world, "b", Weighted)
    settle(world, first, second)
    assert world.broker.struck == 2
    assert world.now.mono - began < 6_000
    assert not first.errors + second.errors


@APIS
@pytest.mark.parametrize("code", codes(RunReaction.VOID))
def test_a_member_that_is_no_longer_awaited_gives_up(world: World, api: Api, code: int) -> None:
    """After a failed prepare, the next heartbeat asks the same member again; after a failed install, another member computes when
    the timeout is over."""
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.set_fault(Fail(ErrorCode(code)), api, times=1)
    began = world.now.mono
    second = start(world, "b", Weighted)
    settle(world, first, second)
    took = world.now.mono - began
    assert took < 5_000 if api is PREPARE else 20_000 <= took <= 25_000
    assert installs(world)[-1].member_id == member_id(first if api is PREPARE else second)
    assert not first.errors + second.errors


@APIS
@pytest.mark.parametrize("code", ["group_authorization_failed", "unknown_server_error", "invalid_group_id"])
def test_any_other_error_is_raised_by_the_member_and_another_computes(world: World, api: Api, code: str) -> None:
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.set_fault(Fail(ErrorCode[code]), api, times=1)
    second = start(world, "b", Weighted)
    settle(world, first, second)
    (error,) = first.errors
    assert isinstance(error, error_class(ErrorCode[code]))
    assert not second.errors


def test_an_assignment_that_the_coordinator_calls_invalid_is_an_error_of_every_member(world: World) -> None:
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.set_fault(Fail(ErrorCode.invalid_request), INSTALL, times=1)
    second = start(world, "b", Weighted)
    world.run_until(lambda: bool(first.errors and second.errors))
    for app in (first, second):
        assert str(the_error(app)).startswith("the coordinator refused the assignment: ")
    settle(world, first, second)


def test_an_error_report_that_the_coordinator_calls_invalid_is_given_up(world: World) -> None:
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.set_fault(Fail(ErrorCode.invalid_request), INSTALL, times=2)
    second = start(world, "b", Weighted)
    settle(world, first, second)
    assert [type(error) for error in first.errors] == [AssignmentError, error_class(ErrorCode.invalid_request)]
    assert not second.errors, "it computed after the timeout of the first"


def test_an_assignment_for_another_epoch_is_computed_again(world: World) -> None:
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.set_fault(Fail(ErrorCode.illegal_generation), INSTALL, times=1)
    began = world.now.mono
    second = start(world, "b", Weighted)
    settle(world, first, second)
    assert len(sent(world, PREPARE, began)) == 2
    assert not first.errors + second.errors


# -- lost connections, other coordinators, brokers that start again ---------------------------------------------------------------


NO_ANSWER: dict[str, Action] = {
    "lost": LoseReply(),
    "dropped request": Drop(Moment.REQUEST),
    "dropped reply": Drop(Moment.REPLY),
    "half a reply": Drop(Moment.HALFWAY),
    "late": Delay(1_500),
    "too late": Delay(5_000),
}


@APIS
@pytest.mark.parametrize("fault", NO_ANSWER)
def test_a_response_that_does_not_arrive(world: World, api: Api, fault: str) -> None:
    first = start(world, "a", Weighted, request_timeout_ms=3_000)
    settle(world, first)
    world.broker.set_fault(NO_ANSWER[fault], api, times=1)
    began = world.now.mono
    second = start(world, "b", Weighted, request_timeout_ms=3_000)
    settle(world, first, second)
    assert world.broker.struck == 1
    assert world.now.mono - began < 19_000
    assert not first.errors + second.errors
    assert assignor_of(first) == assignor_of(second) == "weighted"
    check_listeners(first)
    check_listeners(second)


@pytest.mark.parametrize("when", [RunState.PREPARING, RunState.COMPUTING, RunState.INSTALLING], ids=lambda state: state.name)
def test_a_broker_that_restarts_during_the_computation(world: World, when: RunState) -> None:
    """It has lost the open computation and starts another: the members' assignors are in its log."""
    slow = Slow(world, "a")
    first, second = start(world, "a", slow), start(world, "b", Weighted)
    settle(world, first, second)
    if when is RunState.COMPUTING:
        slow.takes = 2_000
    else:
        world.broker.set_fault(LoseReply(), PREPARE if when is RunState.PREPARING else INSTALL)
    third = start(world, "c", Weighted)
    world.run_until(lambda: run_state(first) is when)
    world.broker.kill()
    world.run(1_000)
    world.broker.start()
    settle(world, first, second, third)
    assert not first.errors + second.errors + third.errors
    installed = installs(world)[-1]
    assert (installed.error, len(installed.members)) == (0, 3)
    for app in (first, second, third):
        assert assignor_of(app) == "weighted"
        check_listeners(app)


def test_a_broker_restarted_without_the_setting_assigns_by_itself(world: World) -> None:
    first = start(world, "a", Weighted)
    settle(world, first)
    world.broker.kill()
    world.broker.settings["group.consumer.client.assignors.enable"] = False
    world.broker.start()
    second = start(world, "b", Weighted)
    settle(world, first, second)
    assert assignor_of(first) == assignor_of(second) == ""
    assert not first.errors + second.errors


# -- groups that cannot, and brokers that do not ----------------------------------------------------------------------------------


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelno == logging.WARNING and "group.client.assignors" in one.message]


@pytest.mark.parametrize("protocol", ["consumer", "auto"])
def test_a_broker_without_client_assignors_is_logged_once_and_assigns_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    world = filled(tmp_path, records=10, **QUICK_GROUPS)
    world.protocol = protocol
    first, second = start(world, "a", Weighted), start(world, "b", Weighted)
    world.run_until(lambda: bool(first.calls.owned and second.calls.owned))
    world.broker.kill()
    world.broker.start()
    world.run(10_000)
    assert sorted(first.calls.owned | second.calls.owned) == ALL
    assert (
        warnings_in(caplog)
        == [
            "group 'g': the coordinator does not serve CONSUMER_GROUP_INSTALL_ASSIGNMENT and CONSUMER_GROUP_PREPARE_ASSIGNMENT:"
            " group.client.assignors is ignored, and an assignor of the broker assigns the partitions"
        ]
        * 2
    ), "once for each consumer"
    assert {one.client_assignors for _, one in sent(world, Api.CONSUMER_GROUP_HEARTBEAT)} == {None}
    assert assignor_of(first) == assignor_of(second) == ""
    assert not first.errors + second.errors


class Other(Weighted):
    name = "other"


class Newer(Weighted):
    def version(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([[Weighted], [Other, Weighted], [Weighted, Other]], "weighted"),
        ([[Weighted, Other], [Other, Weighted], [Other]], "other"),
        ([[Weighted], [Other], [Weighted]], ""),
        ([[Weighted], [Newer], [Weighted]], ""),
        ([[Newer], [Newer], [Newer]], "weighted"),
        ([["range", Weighted], ["range"], [Other, "range"]], "range"),
        ([[Weighted], None, [Weighted]], ""),
    ],
    ids=["common", "another in common", "none in common", "versions", "one version", "ottla's own", "a member without"],
)
def test_which_assignor_a_mixed_group_uses(world: World, offers: list[list[Any] | None], chosen: str) -> None:
    apps = []
    for number, one in enumerate(offers):
        apps.append(join(world, f"m{number}", **({} if one is None else {"group_client_assignors": one})))
        world.run(2_000)
    settle(world, *apps)
    assert {assignor_of(app) for app in apps} == {chosen}
    assert not any(app.errors for app in apps)
    without = [app for app, one in zip(apps, offers, strict=True) if one is None]
    for app in without:
        app.stop = True
    if without:
        settle(world, *(app for app in apps if app not in without))
        assert assignor_of(apps[0]) == "weighted", "all members have the assignor again"


def test_the_server_assigns_when_no_member_delivers(world: World) -> None:
    world.broker.set_fault(Fail(ErrorCode.unknown_member_id), PREPARE, times=None)
    first, second = start(world, "a", Weighted), start(world, "b", Weighted)
    settle(world, first, second, limit=100_000)
    assert assignor_of(first) == assignor_of(second) == ""
    assert not first.errors + second.errors


@pytest.mark.parametrize(
    "more", [{}, {"partition_assignment_strategy": ["range"]}], ids=["alone", "beside those of classic groups"]
)
def test_auto_detects_support_and_offers_the_assignors(world: World, more: dict[str, Any]) -> None:
    world.protocol = "auto"
    more["max_poll_interval_ms"] = 60_000
    apps = [start(world, name, Weighted, **more) for name in ("a", "b")]
    world.run_until(lambda: all(app.calls.owned for app in apps))
    assert {assignor_of(app) for app in apps} == {"weighted"}
    for app in apps:
        app.stop = True
    world.run_until(lambda: not any(app.running for app in apps))
    world.protocol = "classic"
    old = join(world, "old")
    settle(world, old)
    world.protocol = "auto"
    new = start(world, "c", Weighted, **more)
    world.run_until(lambda: bool(new.calls.owned))
    assert assignor_of(new) == "range", "a classic group stays one"


def test_changed_user_data_starts_another_assignment(world: World) -> None:
    heavy = Weighted(1)
    first = new(world, "a", group_client_assignors=[heavy])
    subscribe: list[bool] = [True]

    def program() -> Program:
        while not first.stop:
            if subscribe:
                subscribe.clear()
                yield from first.calls.subscribe(["t"], first.listeners(), first.now)
            yield from first.calls.poll(500, first.now)

    first.start(program())
    second = start(world, "b", Weighted)
    settle(world, first, second)
    assert len(first.calls.owned) == 2
    before = len(installs(world))
    subscribe.append(True)
    world.run(5_000)
    assert len(installs(world)) == before, "the user data did not change"
    heavy.weight = 3
    world.run(5_000)
    assert len(installs(world)) == before, "only subscribe() calls subscription_user_data()"
    subscribe.append(True)
    world.run_until(lambda: len(first.calls.owned) == 3)
    settle(world, first, second)
    assert len(installs(world)) == before + 1


def test_a_pattern_matches_a_topic_created_later(world: World) -> None:
    class Everything(ConsumerPartitionAssignor):
        name = "everything"

        def assign(self, cluster: Cluster, members: Members) -> Any:
            one = min(members)
            assert set(members[one].topics) == set(cluster.partitions)
            return {one: [TopicPartition(topic, n) for topic, count in cluster.partitions.items() for n in range(count)]}

    app = start(world, "a", Everything, pattern="[tu]", topics=())
    world.run_until(lambda: app.calls.owned == set(ALL))
    world.create_topic("u", 2)
    world.run_until(lambda: len(app.calls.owned) == 6)
    assert not app.errors


def test_the_assignor_sees_racks(world: World) -> None:
    near = Weighted()
    app = start(world, "a", near, client_rack="r1")
    settle(world, app)
    (_, members) = near.asked[-1]
    assert [one.rack for one in members.values()] == ["r1"]


def test_a_returning_static_member_triggers_no_new_assignment(world: World) -> None:
    first = start(world, "a", Weighted, group_instance_id="i1")
    second = start(world, "b", Weighted, group_instance_id="i2")
    settle(world, first, second)
    count = len(installs(world))
    second.stop = True
    world.run_until(lambda: not second.running)
    back = start(world, "c", Weighted, group_instance_id="i2")
    settle(world, first, back)
    assert len(installs(world)) == count
    assert not first.errors + back.errors
