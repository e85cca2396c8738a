"""The cost of a large central group: a rebalance costs what its members and partitions cost. Work is counted, not timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ottla.coordinator.central.decision import ping_timer
from ottla.coordinator.central.group import CommittedOffset
from ottla.coordinator.central.shard import CentralShard
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.effects import Push, RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_fetch_request, ping_response
from ottla.types import TopicPartition
from tests.unit.coordinator.central.harness import DELAYED, Central, Topics
from tests.work_counter import Work, work

SMALL, FACTOR = 12, 4
PARTITIONS_OF_MEMBER = 5


def follow(central: Central) -> None:
    """Let each member do what it was asked, in turn, until no request is left."""
    while waiting := [member for member in central.members.values() if member.inbox]:
        for member in waiting:
            central.obey_next(member)


def group_of(size: int, assignor: str = "range") -> Central:
    """A stable group."""
    central = Central(Topics({"orders": size * PARTITIONS_OF_MEMBER}))
    for number in range(size):
        central.register(f"member-{number}", assignor=assignor)
    follow(central)
    assert central.state() is CentralGroupState.STABLE
    assert {len(member.held) for member in central.members.values()} == {PARTITIONS_OF_MEMBER}
    return central


def lines_of_a_rebalance(size: int, assignor: str) -> int:
    central = group_of(size, assignor)

    def rebalance() -> None:
        central.register("one more", assignor=assignor)
        follow(central)
        central.leave("one more")
        del central.members["one more"]
        follow(central)

    return work(rebalance).lines


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_a_rebalance_costs_the_same_for_each_member(assignor: str) -> None:
    small, large = (lines_of_a_rebalance(size, assignor) for size in (SMALL, FACTOR * SMALL))
    assert 0 < large < FACTOR * small, "only a fixed part is the same"


def work_of_a_ping(size: int) -> Work:
    """What the coordinator alone does: the harness looks at all that was asked before."""
    central = group_of(size)
    coordinator = central.coordinator

    def ping() -> None:
        central.clock.move_to(central.mono + 1_500)
        pushes = [one for one in coordinator.on_timer(ping_timer("g", "member-0"), central.now) if isinstance(one, Push)]
        context = RequestContext(0, Api.PING, pushes[0].connection, "", "", correlation_id=pushes[0].correlation_id)
        answer = ping_response.PingResponse(
            error_code=ErrorCode.none,
            group_id="g",
            member_id="member-0",
            coordinator_epoch=1,
            generation=central.group().generation,
        )
        coordinator.handle(context, answer, central.now)

    return work(ping)


def test_a_ping_and_its_answer_cost_the_same_however_many_members_there_are() -> None:
    small, large = work_of_a_ping(SMALL), work_of_a_ping(FACTOR * SMALL)
    assert 0 < large.lines == small.lines
    assert large.memory < small.memory + 36 * 8, "the members are not copied"


def lines_of_appends_for_which_answers_wait(groups: int) -> int:
    central = Central()
    for number in range(groups):
        central.register(f"m{number}", group=f"g{number}")
        central.obey(f"m{number}")
    central.appends = DELAYED

    def commit_and_answer() -> None:
        central.sleep(1_500)
        for number in range(groups):
            central.commit(f"m{number}", 1, group=f"g{number}")
        for number in range(groups):
            central.answer(central.take(f"m{number}"))
        assert len(central.open) == groups
        central.settle()

    return work(commit_and_answer).lines


def test_an_append_and_an_answer_cost_the_same_however_many_groups_have_some() -> None:
    small, large = (lines_of_appends_for_which_answers_wait(size) for size in (SMALL, FACTOR * SMALL))
    assert 0 < large <= FACTOR * small


def test_the_end_of_a_connection_costs_the_same_however_many_groups_have_an_open_append() -> None:
    def lines(groups: int) -> int:
        central = Central()
        central.appends = DELAYED
        for number in range(groups):
            central.register(f"m{number}", group=f"g{number}")
        assert len(central.open) == groups
        lines = work(lambda: central.tell("on_disconnect", 7)).lines
        served = central.coordinator._runtime.served(0)
        assert served is not None
        assert not any(served.waiting(group) for group in served.open_keys())
        return lines

    assert 0 < lines(SMALL) == lines(FACTOR * SMALL)


def lines_of_an_election(size: int) -> int:
    central = group_of(size)

    def election() -> None:
        central.fail_over()
        for member in list(central.members.values()):
            central.register(member.member_id, again=member)
        follow(central)

    lines = work(election).lines
    assert central.group().generation == 1, "no member was disturbed"
    return lines


def test_an_election_costs_the_same_for_each_member() -> None:
    small, large = lines_of_an_election(SMALL), lines_of_an_election(FACTOR * SMALL)
    assert 0 < large < FACTOR * small * 1.1, "a Register looks at the assignors of the other members"


def most_events(size: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most events of one step of a rebalance."""
    most = 0

    def replay(shard: CentralShard, events: Iterable[Any]) -> None:
        nonlocal most
        some = tuple(events)
        most = max(most, len(some))
        shard.state.replay(some)

    central = group_of(size)
    with monkeypatch.context() as patch:
        patch.setattr(CentralShard, "replay", replay)
        central.register("one more")
        follow(central)
    return most


def test_a_step_for_all_members_is_one_event_since_each_copies_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < most_events(FACTOR * SMALL, monkeypatch) == most_events(SMALL, monkeypatch)


def test_a_description_costs_the_same_for_each_member() -> None:
    small, large = (work(group_of(size).describe).lines for size in (SMALL, FACTOR * SMALL))
    assert 0 < large < FACTOR * small


def test_a_fetch_of_few_offsets_does_not_depend_on_how_many_are_committed() -> None:
    def fetching(committed: int) -> Any:
        central = group_of(SMALL)
        central.coordinator.adopt("g", {TopicPartition("orders", number): CommittedOffset(5) for number in range(committed)})
        topic = offset_fetch_request.OffsetFetchRequestTopics(name="orders", topic_id=None, partition_indexes=(0, 1))
        group = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
        return lambda: central.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(group,)))

    small, large = work(fetching(2)), work(fetching(60))
    assert 0 < large.lines == small.lines
    assert large.memory < small.memory + 58 * 8
