"""The bound on what is fetched and not consumed: whatever brokers and application do, it holds, and no one starves."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from ottla.client.fetch.manager import ANSWERS, FetchMemory
from tests.example_counts import examples


def test_one_broker_gets_half_for_each_of_its_two_answers() -> None:
    memory = FetchMemory(1_000, 50_000)
    assert memory.room(1, 1) == 500
    memory.ask(1, 500)
    assert memory.room(1, 1) == 500
    memory.forget(1)
    memory.hold(1, 1, 500)
    memory.ask(1, 500)
    memory.forget(1)
    memory.hold(2, 1, 500)
    assert (memory.held, memory.room(1, 1)) == (1_000, 0)
    memory.release([1])
    assert (memory.held, memory.room(1, 1)) == (500, 500)


def test_a_request_is_never_larger_than_fetch_max_bytes() -> None:
    assert FetchMemory(1_000, 100).room(1, 1) == 100


def test_a_batch_beyond_the_limit_is_consumed_before_anybody_is_asked() -> None:
    memory = FetchMemory(1_000, 50_000)
    memory.hold(1, 1, 90_000)
    assert (memory.room(1, 2), memory.room(2, 2)) == (0, 0)
    memory.release([1])
    assert memory.room(2, 2) == 250


def test_small_rests_are_waited_for() -> None:
    memory = FetchMemory(1_000, 50_000)
    memory.hold(1, 2, 800)
    assert memory.room(1, 1) == 0
    memory.release([1])
    memory.hold(2, 2, 600)
    assert memory.room(1, 1) == 400


def test_of_a_broker_no_more_than_two_answers_are_held() -> None:
    memory = FetchMemory(1_000, 50_000)
    for number in range(ANSWERS):
        memory.hold(number, 1, 1)
    assert (memory.room(1, 2), memory.room(2, 2)) == (0, 250)


def test_what_is_released_twice_or_was_never_held_is_no_matter() -> None:
    memory = FetchMemory(1_000, 50_000)
    memory.hold(1, 1, 10)
    memory.release([1, 1, 7])
    memory.forget(3)
    assert (memory.held, memory.asked) == (0, 0)


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
                    room = memory.room(node_id, nodes) if node_id not in in_flight else 0
                    if room:
                        memory.ask(node_id, room)
                        in_flight[node_id] = room
            case "answer" if in_flight:
                node_id = data.draw(st.sampled_from(sorted(in_flight)))
                size = data.draw(st.integers(0, in_flight.pop(node_id)))
                memory.forget(node_id)
                if size:
                    number += 1
                    memory.hold(number, node_id, size)
                    held.append(number)
            case "consume" if held:
                memory.release([held.pop(0)])
        assert memory.held + memory.asked <= limit
    memory.release(held)
    for node_id in list(in_flight):
        memory.forget(node_id)
    assert (memory.held, memory.asked) == (0, 0)
    assert memory.room(0, nodes) >= 1
