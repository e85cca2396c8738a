"""Members of a classic group with JoinGroup versions 0 and 1, from before KIP-394 (member ids) and KIP-62 (two timeouts)."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import Harness, share

OLD = (0, 1)
SESSION = 10_000


def joined(harness: Harness, version: int, client: str = "A", **fields: Any) -> Any:
    """Return the response to the first JoinGroup of a member, after the join phase."""
    ticket = harness.join(version=version, client=client, session=SESSION, **fields)
    harness.wait_for(ticket)
    return harness.answer(ticket)


@pytest.mark.parametrize("version", OLD)
def test_an_old_member_joins_at_once_as_the_leader(version: int) -> None:
    harness = Harness()
    answer = joined(harness, version)
    assert (answer.error_code, answer.generation_id, answer.leader) == (ErrorCode.none, 1, answer.member_id)
    assert [one.member_id for one in answer.members] == [answer.member_id]
    assert harness.group().pending == set()
    ticket = harness.sync(answer.member_id, 1, {answer.member_id: share(answer.member_id)})
    assert harness.answer(ticket).assignment == share(answer.member_id)
    assert harness.heartbeat(answer.member_id, 1) is ErrorCode.none


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("other", [0, 1, 9])
def test_old_and_new_members_share_a_group(version: int, other: int) -> None:
    harness = Harness()
    first = joined(harness, version).member_id
    harness.sync(first, 1, {first: share(first)})
    ticket = harness.join(version=other, client="B", session=SESSION)
    if other >= 4:
        assert harness.answer(ticket).error_code is ErrorCode.member_id_required
        ticket = harness.join(harness.answer(ticket).member_id, version=other, client="B", session=SESSION)
    assert harness.heartbeat(first, 1) is ErrorCode.rebalance_in_progress
    again = harness.join(first, version=version, client="A", session=SESSION)
    second = harness.answer(ticket).member_id
    assert [harness.answer(one).generation_id for one in (again, ticket)] == [2, 2]
    assert {one.member_id for one in harness.answer(again).members} == {first, second}
    harness.sync(second, 2)
    harness.sync(first, 2, {one: share(one) for one in (first, second)})
    assert harness.state() is ClassicGroupState.STABLE


@pytest.mark.parametrize("version", OLD)
def test_an_old_member_without_heartbeats_is_removed_after_its_session_timeout(version: int) -> None:
    harness = Harness()
    first = joined(harness, version).member_id
    harness.sync(first, 1, {first: share(first)})
    harness.sleep(SESSION - 1)
    assert harness.state() is ClassicGroupState.STABLE
    harness.sleep(1)
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.heartbeat(first, 1) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", OLD)
def test_an_old_member_that_rejoins_without_its_id_is_a_new_member(version: int) -> None:
    harness = Harness()
    first = joined(harness, version).member_id
    harness.sync(first, 1, {first: share(first)})
    ticket = harness.join(version=version, client="A", session=SESSION)
    assert harness.waits(ticket), "the group waits for the first"
    harness.sleep(SESSION)
    answer = harness.answer(ticket)
    assert (answer.generation_id, answer.leader) == (2, answer.member_id)
    assert answer.member_id != first
    assert set(harness.group().members) == {answer.member_id}


@pytest.mark.parametrize("version", OLD)
def test_an_old_member_whose_client_died_in_its_first_join_is_removed(version: int) -> None:
    # The client never got its member id and cannot rejoin with it; only the timeout of new members removes the member.
    harness = Harness()
    joined(harness, version)
    harness.sleep(harness.config.new_member_join_timeout_ms)
    assert harness.state() is ClassicGroupState.EMPTY
