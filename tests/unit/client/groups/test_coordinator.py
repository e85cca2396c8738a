"""The look-up of the coordinator: only when needed, one at a time, with back-off, and never given up."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager, FindCoordinator
from ottla.client.effects import AnyNode, ToCoordinator
from ottla.errors import DisconnectedError, OttlaError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import find_coordinator_response
from ottla.types import Node
from tests.unit.client.managers import NO_THROTTLE, Asked, backoff, config


class LookUp(Asked):
    def __init__(self) -> None:
        self.learned: list[Node] = []
        self.disconnected: list[ToCoordinator] = []
        self.fatal: list[OttlaError] = []
        question = FindCoordinator(CoordinatorKind.GROUP, "g", config().request_timeout_ms)
        manager = CoordinatorManager(
            question,
            question.name,
            backoff(),
            lambda node, now: self.learned.append(node),
            lambda target, reason, now: self.disconnected.append(target),
        )
        manager.on_fatal(lambda error, now: self.fatal.append(error))
        super().__init__(manager)

    def found(self, node_id: int = 4, error: int = 0, key: str = "g") -> Any:
        item = find_coordinator_response.Coordinator(
            key=key, node_id=node_id, host="four", port=9, error_code=ErrorCode(error), error_message=None
        )
        return find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(item,))


@pytest.fixture
def look_up() -> LookUp:
    return LookUp()


def test_there_is_no_lookup_before_it_is_needed(look_up: LookUp) -> None:
    assert look_up.poll() == []
    assert look_up.manager.target() is None
    send = look_up.one(Api.FIND_COORDINATOR)
    assert send.target == AnyNode()
    assert (send.message.key_type, send.message.coordinator_keys) == (0, ("g",))
    assert look_up.poll() == []


def test_the_node_of_a_lookup_is_learned_and_used(look_up: LookUp) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found())
    assert look_up.manager.target() == ToCoordinator(4)
    assert look_up.learned == [Node(4, "four", 9)]
    assert look_up.poll(10_000) == []


def test_responses_of_old_brokers_do_not_name_the_group(look_up: LookUp) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found(key=""))
    assert look_up.manager.target() == ToCoordinator(4)


@pytest.mark.parametrize("code", [ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress])
def test_a_retriable_failure_is_not_reported_and_backs_off(look_up: LookUp, code: int) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found(error=code))
    assert look_up.poll(99) == []
    assert look_up.wake_at == 100
    look_up.fail(look_up.one(Api.FIND_COORDINATOR, 100), DisconnectedError("gone"))
    assert look_up.poll(299) == []
    look_up.fail(look_up.one(Api.FIND_COORDINATOR, 300), OttlaTimeoutError("late"))
    assert look_up.fatal == []
    look_up.answer(look_up.one(Api.FIND_COORDINATOR, 700), look_up.found())
    assert look_up.manager.failure is None


@pytest.mark.parametrize("code", [ErrorCode.group_authorization_failed, ErrorCode.invalid_group_id])
def test_a_permanent_failure_is_reported_and_the_lookup_goes_on(look_up: LookUp, code: int) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found(error=code))
    assert [error.retriable for error in look_up.fatal] == [False]
    assert "'g'" in str(look_up.fatal[0])
    look_up.one(Api.FIND_COORDINATOR, 100)


def test_a_response_without_the_group_is_a_failure(look_up: LookUp) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found(key="another"))
    assert look_up.manager.target() is None
    assert "does not name group" in str(look_up.manager.failure)


def test_a_silent_coordinator_is_disconnected_and_looked_up_after_the_back_off(look_up: LookUp) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found())
    look_up.manager.mark_unknown("it said so", look_up.now)
    look_up.manager.mark_unknown("it said so again", look_up.now)
    assert look_up.disconnected == [ToCoordinator(4)]
    assert look_up.manager.target() is None
    assert look_up.poll(99) == []
    look_up.answer(look_up.one(Api.FIND_COORDINATOR, 100), look_up.found(5))
    assert look_up.manager.target() == ToCoordinator(5)
    assert look_up.manager.found == 2


@pytest.mark.parametrize(("found", "hung_up"), [(4, []), (5, [ToCoordinator(4)])])
def test_a_broker_that_answers_is_disconnected_only_for_another(look_up: LookUp, found: int, hung_up: list[ToCoordinator]) -> None:
    """What it was sent it may still act upon: sent again over another connection, that could overtake."""
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found(4))
    look_up.manager.mark_moved("it said so")
    assert look_up.manager.target() is None
    assert look_up.disconnected == []
    look_up.answer(look_up.one(Api.FIND_COORDINATOR, 100), look_up.found(found))
    assert look_up.disconnected == hung_up


def test_a_former_coordinator_that_becomes_silent_is_disconnected(look_up: LookUp) -> None:
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found(4))
    look_up.manager.mark_moved("it said so")
    look_up.manager.mark_unknown("no answer", look_up.now)
    assert look_up.disconnected == [ToCoordinator(4)]


def test_a_disconnect_starts_no_lookup(look_up: LookUp) -> None:
    look_up.manager.disconnect("connection refused", look_up.now)
    look_up.manager.target()
    look_up.answer(look_up.one(Api.FIND_COORDINATOR), look_up.found())
    look_up.manager.disconnect("a request is parked", look_up.now)
    assert look_up.disconnected == [ToCoordinator(4)]
    assert look_up.manager.target() == ToCoordinator(4)
