"""A heartbeat without changes costs the same in a small group and in a large one. Work is counted, not timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.coordinator.harness import Harness, Topics
from tests.work_counter import work

pytestmark = pytest.mark.long

SMALL, LARGE = 4, 100


def classic(size: int) -> Callable[[], object]:
    """A classic group; the heartbeat of one of its members."""
    harness = Harness()
    *_, member_id = harness.stable(*(f"client-{number}" for number in range(size)))
    generation = harness.group().generation
    return lambda: harness.heartbeat(member_id, generation)


def commit(size: int) -> Callable[[], object]:
    """The same group, and an offset that one of its members commits again."""
    harness = Harness()
    *_, member_id = harness.stable(*(f"client-{number}" for number in range(size)))
    generation = harness.group().generation
    return lambda: harness.answer(harness.commit({("orders", 0): 1}, member_id, generation))


def consumer(harness: Harness, size: int) -> dict[str, list[int]]:
    """A consumer group in which each member owns one partition, and has acknowledged it."""
    members = [f"member-{number}" for number in range(size)]
    shares = {one: (harness.share_of(harness.cg_join(one)) or {}).get("orders", []) for one in members}
    epoch = size + 1
    for _ in range(3):
        for one in members:
            answer = harness.cg_heartbeat(one, harness.consumer_group().members[one].epoch, owned={"orders": shares[one]})
            given = harness.share_of(answer)
            shares[one] = shares[one] if given is None else given.get("orders", [])
    assert {member.epoch for member in harness.consumer_group().members.values()} == {epoch}
    assert [len(share) for share in shares.values()] == [1] * size
    return shares


def brief(size: int) -> Callable[[], object]:
    """A heartbeat without fields in a consumer group."""
    harness = Harness(Topics({"orders": size}))
    consumer(harness, size)
    return lambda: harness.cg_heartbeat("member-0", size + 1)


def owning(size: int) -> Callable[[], object]:
    """A heartbeat with the member's partitions."""
    harness = Harness(Topics({"orders": size}))
    owned = {"orders": consumer(harness, size)["member-0"]}
    return lambda: harness.cg_heartbeat("member-0", size + 1, owned=owned)


def full(size: int) -> Callable[[], object]:
    """A heartbeat with all fields."""
    harness = Harness(Topics({"orders": size}))
    owned = {"orders": consumer(harness, size)["member-0"]}
    return lambda: harness.cg_heartbeat("member-0", size + 1, owned=owned, topics=("orders",), rebalance=300_000)


@pytest.mark.parametrize("request_of", [classic, commit, brief, owning, full])
def test_the_cost_does_not_grow_with_the_group(request_of: Callable[[int], Callable[[], object]]) -> None:
    small, large = work(request_of(SMALL)), work(request_of(LARGE))
    assert 0 < large.lines == small.lines
    assert large.memory < small.memory + LARGE * 8, "a pointer for each member would be more"
