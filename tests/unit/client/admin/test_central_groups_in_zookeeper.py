"""Central groups as an operator sees them in ZooKeeper, and what may be changed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.admin.zookeeper import reading, writing
from ottla.client.admin.zookeeper.results import ZooKeeperGroupListing
from ottla.errors import IllegalStateError, NonEmptyGroupError, OttlaError
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.calls import Call
from ottla.zookeeper.nodes import GenerationNode
from ottla.zookeeper.operations import Multi, Operation
from tests.simulation.old_groups import OldGroups

T0 = TopicPartition("t", 0)


def put_generation(groups: OldGroups, members: int, generation: int = 5, group: str = "g") -> None:
    groups.put(paths.generation(group), GenerationNode(generation, members, 6000, 1).encode())


@pytest.fixture
def groups() -> OldGroups:
    """A central group with two members, and an empty one."""
    groups = OldGroups()
    put_generation(groups, 2)
    groups.put(paths.owner("g", "t", 0), b"a-0")
    groups.commit("g", "t", {0: 7})
    put_generation(groups, 0, group="empty")
    groups.commit("empty", "t", {0: 8})
    return groups


CHANGES: list[Callable[[], Call[Any]]] = [
    lambda: writing.delete_group("g", lambda done, of: None),
    lambda: writing.delete_group_topic("g", "t", lambda done, of: None),
    lambda: writing.alter_group_offsets("g", {T0: 1}, None, lambda done, of: None),
]


def test_central_groups_are_listed_with_their_kind(groups: OldGroups) -> None:
    groups.put("/consumers/old/ids")
    assert groups.run(reading.list_groups()) == (
        ZooKeeperGroupListing("empty", "Empty", is_central=True),
        ZooKeeperGroupListing("g", "Active", is_central=True),
        ZooKeeperGroupListing("old", "Empty"),
    )
    assert [groups.run(reading.group_state(name)) for name in ("g", "empty")] == ["Active", "Empty"]


def test_a_central_group_is_described_and_nothing_is_malformed(groups: OldGroups) -> None:
    found = groups.run(reading.describe_group("g"))
    assert (found.state, found.is_central, found.members, found.malformed) == ("Active", True, (), ())
    (partition,) = found.partitions
    assert (partition.offset, str(partition.owner)) == (7, "a-0")


def test_a_malformed_generation_is_reported_and_counts_as_a_group_with_members(groups: OldGroups) -> None:
    groups.put(paths.generation("g"), b"{")
    found = groups.run(reading.describe_group("g"))
    assert (found.state, found.is_central) == ("Active", True)
    assert [one.path for one in found.malformed] == [paths.generation("g")]
    for change in CHANGES:
        with pytest.raises(OttlaError, match="generation of ZooKeeper is malformed"):
            groups.run(change())


@pytest.mark.parametrize("change", CHANGES)
def test_a_central_group_with_members_is_not_changed(groups: OldGroups, change: Callable[[], Call[Any]]) -> None:
    with pytest.raises(NonEmptyGroupError, match="group 'g' has 2 members at the central coordinator"):
        groups.run(change())
    assert groups.writes == []


@pytest.mark.parametrize("change", CHANGES)
def test_an_empty_central_group_is_not_changed_behind_the_back_of_its_coordinator(
    groups: OldGroups, change: Callable[[], Call[Any]]
) -> None:
    put_generation(groups, 0)
    groups.put(paths.COORDINATOR, b"3", groups.operator)
    with pytest.raises(IllegalStateError, match="the central coordinator, broker 3, coordinates group 'g'"):
        groups.run(change())
    assert groups.writes == []
    groups.remove(paths.COORDINATOR)
    groups.run(change())
    assert groups.writes


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("was_central", [True, False])
def test_a_member_that_registers_at_the_coordinator_meanwhile_is_noticed(
    groups: OldGroups, change: Callable[[], Call[Any]], was_central: bool
) -> None:
    put_generation(groups, 0)
    if not was_central:
        groups.remove(paths.generation("g"))
    left = [lambda: put_generation(groups, 1, generation=6)]

    def between(operation: Operation[Any]) -> None:
        if left and isinstance(operation, Multi):
            left.pop()()

    with pytest.raises(NonEmptyGroupError, match="has 1 member at the central coordinator"):
        groups.run(change(), between)
    assert groups.offsets("g", "t") == {0: b"7"}
    assert groups.exists(paths.owner("g", "t", 0))


def test_an_empty_central_group_is_deleted_as_a_whole(groups: OldGroups) -> None:
    groups.run(writing.delete_group("empty", lambda done, of: None))
    assert not groups.exists(paths.group("empty"))
    assert groups.exists(paths.group("g"))
