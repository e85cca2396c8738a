"""The calls of the application, as in Kafka's own tests: wakeups, callbacks, background errors, and close."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Delay, Fail
from ottla.client.calls.listeners import Listeners
from ottla.client.events import ErrorNotification
from ottla.errors import (
    BrokerError,
    FencedInstanceIdError,
    IllegalStateError,
    InvalidTopicError,
    OttlaError,
    OttlaTimeoutError,
    TopicAuthorizationFailedError,
    WakeupError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, member
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.simulation.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    world.protocol = request.param
    world.create_topic("t", 2)
    world.produce("t", 0, 5)
    world.produce("t", 1, 5)
    return world


def app_of(world: World, name: str = "a", **settings: Any) -> App:
    return world.app(name, group_id="g", group_protocol=world.protocol, **settings)


def joined(world: World, app: App, listeners: Listeners | None = None) -> App:
    """A member that has its partitions and has read the records."""

    def program() -> Program:
        yield from app.calls.subscribe(["t"], listeners or app.listeners(), app.now)
        while len(app.handled) < 10:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    return app


def by_hand(world: World, **settings: Any) -> App:
    app = app_of(world, enable_auto_commit=False, **settings)
    world.call(app, app.calls.assign([T0, T1], app.now))
    return app


# -- wake-ups -------------------------------------------------------------------------------------------------------------


def test_a_wakeup_does_not_end_the_last_commit(world: World) -> None:
    app = joined(world, app_of(world))
    app.wakeup()
    app.start(app.calls.close(5_000, app.now))
    app.wakeup()
    world.run_until(lambda: not app.running)
    assert app.error is None
    assert world.committed("g", "t", 2) == {0: 5, 1: 5}


def test_a_wakeup_after_a_finished_commit_ends_the_next_call(world: World) -> None:
    app = by_hand(world)
    app.start(app.calls.commits.commit({T0: OffsetAndMetadata(1)}, 5_000, app.now))
    world.run_until(lambda: world.committed("g", "t", 2) == {0: 1})
    while app.running:
        world.run(1)
    assert app.error is None
    app.wakeup()
    with pytest.raises(WakeupError):
        world.call(app, app.calls.poll(5_000, app.now))
    world.call(app, app.calls.poll(0, app.now))


# -- liveness -------------------------------------------------------------------------------------------------------------


def test_a_long_poll_counts_as_polling_throughout(world: World) -> None:
    app = joined(world, app_of(world))
    empty = world.call(app, app.calls.poll(60_000, app.now))
    assert len(empty) == 0
    assert [what for what, _ in app.listener_calls] == ["assign"]


def test_an_offset_fetch_lasts_as_long_as_its_request_timeout(world: World) -> None:
    """``default.api.timeout.ms`` may be shorter: it applies to calls that wait, and no call waits for this request."""
    world.broker.set_fault(Delay(150_000), Api.OFFSET_FETCH)
    app = by_hand(world, request_timeout_ms=200_000)
    began = world.now.mono
    while len(app.handled) < 10:
        app.handled.extend(world.call(app, app.calls.poll(1_000, app.now)))
    assert 150_000 <= world.now.mono - began < 151_000


# -- commits --------------------------------------------------------------------------------------------------------------


def refused(world: World) -> str:
    """Let the broker refuse all commits; returns the text of the error."""
    world.broker.set_fault(Fail(ErrorCode.offset_metadata_too_large), Api.OFFSET_COMMIT, times=None)
    return "OFFSET_METADATA_TOO_LARGE"


@pytest.mark.parametrize("ended", ["wakeup", "cancelled"])
def test_the_failure_of_a_commit_whose_call_has_ended_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture, ended: str
) -> None:
    app, words = by_hand(world), refused(world)

    def program() -> Program:
        committing = app.calls.commits.commit({T0: OffsetAndMetadata(1)}, 5_000, app.now)
        if ended == "cancelled":
            next(committing)
            committing.close()
        else:
            app.wakeup()
            with pytest.raises(WakeupError):
                yield from committing
        for _ in range(3):
            yield from app.calls.poll(100, app.now)

    world.call(app, program())
    (line,) = [line for line in caplog.messages if words in line]
    assert line.startswith("an interrupted commit() of group 'g' failed: committing t-0")


def test_a_commit_whose_failure_was_raised_is_not_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app, words = by_hand(world), refused(world)
    with pytest.raises(BrokerError, match=words):
        world.call(app, app.calls.commits.commit({T0: OffsetAndMetadata(1)}, 5_000, app.now))
    world.call(app, app.calls.close(5_000, app.now))
    assert words not in caplog.text


@pytest.mark.parametrize("raised", [ValueError("from the callback"), IllegalStateError("from the callback")])
def test_a_commit_that_the_callback_of_an_earlier_one_ends_is_logged_if_it_fails(
    world: World, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    app, words = by_hand(world), refused(world)

    def callback(offsets: object, error: Exception | None) -> None:
        raise raised

    world.call(app, app.calls.commits.commit_async({T0: OffsetAndMetadata(1)}, callback, app.now))
    with pytest.raises(type(raised), match="from the callback"):
        world.call(app, app.calls.commits.commit({T0: OffsetAndMetadata(2)}, 5_000, app.now))
    world.call(app, app.calls.close(5_000, app.now))
    assert [words in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("nothing", [True, False])
def test_a_commit_waits_for_the_asynchronous_ones_before_it(world: World, nothing: bool) -> None:
    app = by_hand(world)
    world.broker.set_fault(Delay(1_000), Api.OFFSET_COMMIT)
    heard: list[object] = []
    world.call(app, app.calls.commits.commit_async({T0: OffsetAndMetadata(1)}, lambda offsets, error: heard.append(error), app.now))
    began = world.now.mono
    world.call(app, app.calls.commits.commit({} if nothing else {T0: OffsetAndMetadata(2)}, 5_000, app.now))
    assert heard == [None]
    assert world.now.mono - began >= 1_000


def test_an_asynchronous_commit_that_fails_does_not_fail_the_one_after_it(world: World) -> None:
    app = by_hand(world)
    world.call(app, app.calls.commits.committed([T0], 5_000, app.now))
    world.broker.set_fault(Fail(ErrorCode.topic_authorization_failed), Api.OFFSET_COMMIT)
    heard: list[object] = []
    world.call(
        app, app.calls.commits.commit_async({T0: OffsetAndMetadata(1)}, lambda offsets, error: heard.append(type(error)), app.now)
    )
    world.call(app, app.calls.commits.commit({T0: OffsetAndMetadata(2)}, 5_000, app.now))
    assert heard == [TopicAuthorizationFailedError]
    assert world.committed("g", "t", 2) == {0: 2}


@pytest.mark.parametrize("world", ["classic"], indirect=True)
def test_every_call_of_a_fenced_member_raises(world: World) -> None:
    older = joined(world, app_of(world, "a", group_instance_id="one"))
    newer = app_of(world, "b", group_instance_id="one")
    newer.start(member(newer))
    world.run_until(lambda: bool(newer.calls.owned))
    heard: list[object] = []
    world.call(older, older.calls.commits.commit_async(None, lambda offsets, error: heard.append(type(error)), older.now))
    world.run(500)
    for call in (older.calls.poll(0, older.now), older.calls.commits.commit(None, 1_000, older.now)):
        with pytest.raises(FencedInstanceIdError):
            world.call(older, call)
    assert heard == [FencedInstanceIdError]


@pytest.mark.parametrize("epoch", [1_000, 2**31 - 1, -7])
def test_a_foreign_leader_epoch_in_a_commit_does_not_block(world: World, epoch: int) -> None:
    app = by_hand(world)
    world.call(app, app.calls.poll(5_000, app.now))
    world.call(app, app.calls.commits.commit({T0: OffsetAndMetadata(1, leader_epoch=epoch)}, 5_000, app.now))
    assert world.committed("g", "t", 2) == {0: 1}
    began = app.now.mono
    for _ in range(3):
        world.produce("t", 0, 1)
        assert len(world.call(app, app.calls.poll(5_000, app.now))) == 1
    assert app.now.mono - began < 100


# -- errors from behind ---------------------------------------------------------------------------------------------------


def test_the_first_of_several_background_errors_is_raised_and_the_rest_are_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    app = by_hand(world)
    app._notifications += [ErrorNotification(OttlaError("the first")), ErrorNotification(OttlaError("the second"))]
    with pytest.raises(OttlaError, match="the first"):
        world.call(app, app.calls.poll(0, app.now))
    assert any("the second" in record.getMessage() for record in caplog.records)
    world.call(app, app.calls.poll(0, app.now))


def test_unsubscribe_discards_errors_of_the_old_subscription(world: World) -> None:
    app = joined(world, app_of(world))
    app._notifications.append(ErrorNotification(InvalidTopicError("invalid topic")))
    world.call(app, app.calls.unsubscribe(app.now))
    world.call(app, app.calls.close(5_000, app.now))


# -- subscriptions --------------------------------------------------------------------------------------------------------


def test_subscribing_to_no_topics_unsubscribes(world: World) -> None:
    app = joined(world, app_of(world))
    world.call(app, app.calls.subscribe([], Listeners(), app.now))
    assert app.calls.owned == frozenset()
    assert [what for what, _ in app.listener_calls] == ["assign", "revoke"]
    with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
        world.call(app, app.calls.poll(0, app.now))


def test_after_unsubscribe_the_consumer_is_not_a_member(world: World) -> None:
    app = joined(world, app_of(world))
    assert app.calls.group_metadata().generation_id > 0
    world.call(app, app.calls.unsubscribe(app.now))
    nobody = app.calls.group_metadata()
    assert nobody.generation_id == ConsumerGroupMetadata("g").generation_id == -1


# -- the end --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_close_commits_returned_records_only_with_auto_commit(world: World, enabled: bool) -> None:
    app = joined(world, app_of(world, enable_auto_commit=enabled, auto_commit_interval_ms=3_600_000))
    world.call(app, app.calls.close(5_000, app.now))
    assert world.committed("g", "t", 2) == ({0: 5, 1: 5} if enabled else {})


def test_close_raises_for_an_unanswered_asynchronous_commit_within_its_timeout(world: World) -> None:
    app = by_hand(world)
    world.call(app, app.calls.commits.committed([T0], 5_000, app.now))
    world.broker.set_fault(Delay(60_000), Api.OFFSET_COMMIT)
    world.call(app, app.calls.commits.commit_async({T0: OffsetAndMetadata(1)}, None, app.now))
    began = world.now.mono
    with pytest.raises(OttlaTimeoutError, match="1 asynchronous commits"):
        world.call(app, app.calls.close(3_000, app.now))
    assert world.now.mono - began <= 3_000


def test_close_raises_the_error_of_a_listener_and_the_member_still_leaves(world: World) -> None:
    def fail(partitions: list[TopicPartition]) -> None:
        raise ValueError("cannot let go")

    app = joined(world, app_of(world), Listeners(on_revoke=fail))
    with pytest.raises(ValueError, match="cannot let go"):
        world.call(app, app.calls.close(5_000, app.now))
    other = app_of(world, "b")
    other.start(member(other))
    world.run_until(lambda: len(other.calls.owned) == 2, 3_000)


@pytest.mark.parametrize("failures", [1, 2])
def test_close_raises_the_error_of_a_commit_callback_and_the_member_still_leaves(
    world: World, failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(offsets: object, error: object) -> None:
        raise ValueError("cannot note that")

    called: list[object] = []
    app = app_of(world)
    joined(world, app, app.listeners())
    for _ in range(failures):
        world.call(app, app.calls.commits.commit_async({T0: OffsetAndMetadata(1)}, fail, app.now))
    world.call(app, app.calls.commits.commit_async({T0: OffsetAndMetadata(2)}, lambda *answer: called.append(answer), app.now))
    with pytest.raises(ValueError, match="cannot note that"):
        world.call(app, app.calls.close(5_000, app.now))
    assert app.listener_calls[-1][0] == "revoke"
    assert len(called) == 1, "the callbacks behind it are called"
    assert caplog.text.count("another error besides the one raised: cannot note that") == failures - 1
    other = app_of(world, "b")
    other.start(member(other))
    world.run_until(lambda: len(other.calls.owned) == 2, 3_000)


def test_a_lookup_with_timeout_zero_raises_at_once(world: World) -> None:
    """``None`` means that there is no such offset, so it cannot stand for a lookup that was not made."""
    app = by_hand(world)
    world.call(app, app.calls.poll(5_000, app.now))
    began = world.now.mono
    with pytest.raises(OttlaTimeoutError):
        world.call(app, app.calls.positions.list_offsets({T0: 1}, 0, app.now))
    assert world.now.mono - began <= 1_000
