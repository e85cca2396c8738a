"""The bound on what is fetched and not consumed: whatever brokers and application do, it holds, and no one starves."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from ottla.client.fetch.manager import RESPONSES, FetchMemory
from tests.example_counts import examples


def test_one_broker_gets_half_for_each_of_its_two_answers() -> None:
    memory = FetchMemory(1_000, 50_000)
    assert memory.available(1, 1) == 500
    memory.reserve(1, 500)
    assert memory.available(1, 1) == 500
    memory.unreserve(1)
    memory.hold(1, 1, 500)
    memory.reserve(1, 500)
    memory.unreserve(1)
    memory.hold(2, 1, 500)
    assert (memory.held, memory.available(1, 1)) == (1_000, 0)
    memory.release([1])
    assert (memory.held, memory.available(1, 1)) == (500, 500)


def test_a_request_is_never_larger_than_fetch_max_bytes() -> None:
    assert FetchMemory(1_000, 100).available(1, 1) == 100


def test_a_batch_beyond_the_limit_is_consumed_before_any_further_fetch() -> None:
    memory = FetchMemory(1_000, 50_000)
    memory.hold(1, 1, 90_000)
    assert (memory.available(1, 2), memory.available(2, 2)) == (0, 0)
    memory.release([1])
    assert memory.available(2, 2) == 250


def test_small_rests_are_waited_for() -> None:
    memory = FetchMemory(1_000, 50_000)
    memory.hold(1, 2, 800)
    assert memory.available(1, 1) == 0
    memory.release([1])
    memory.hold(2, 2, 600)
    assert memory.available(1, 1) == 400


def test_of_a_broker_no_more_than_two_answers_are_held() -> None:
    memory = FetchMemory(1_000, 50_000)
    for number in range(RESPONSES):
        memory.hold(number, 1, 1)
    assert (memory.available(1, 2), memory.available(2, 2)) == (0, 250)


def test_what_is_released_twice_or_was_never_held_is_no_matter() -> None:
    memory = FetchMemory(1_000, 50_000)
    memory.hold(1, 1, 10)
    memory.release([1, 1, 7])
    memory.unreserve(3)
    assert (memory.held, memory.reserved) == (0, 0)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 5_000), st.integers(1, 6_000), st.integers(1, 4), st.data())
def test_the_bound_holds(limit: int, largest: int, nodes: int, data: st.DataObject) -> None:
    memory = FetchMemory(limit, largest)
    in_flight: dict[int, int] = {}
    held: list[int] = []
    number = 0
    for _ in range(20):
        match data.draw(st.sampled_from(["ask", "answer", "consume"])):
            case "ask":
                for node_id in range(nodes):
                    room = memory.available(node_id, nodes) if node_id not in in_flight else 0
                    if room:
                        memory.reserve(node_id, room)
                        in_flight[node_id] = room
            case "answer" if in_flight:
                node_id = data.draw(st.sampled_from(sorted(in_flight)))
                size = data.draw(st.integers(0, in_flight.pop(node_id)))
                memory.unreserve(node_id)
                if size:
                    number += 1
                    memory.hold(number, node_id, size)
                    held.append(number)
            case "consume" if held:
                memory.release([held.pop(0)])
        assert memory.held + memory.reserved <= limit
    memory.release(held)
    for node_id in list(in_flight):
        memory.unreserve(node_id)
    assert (memory.held, memory.reserved) == (0, 0)
    assert memory.available(0, nodes) >= 1
