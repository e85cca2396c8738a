"""``Walk``: iteration that calls back before the next record, since the application may take long for each."""

from __future__ import annotations

from ottla.records import NewRecord, PartitionReader, Walk, encode_batch


def slices(*counts: int) -> list[object]:
    """The slices of batches with these numbers of records."""
    found: list[object] = []
    at = 0
    for count in counts:
        data = encode_batch([NewRecord(None, b"%d" % number) for number in range(at, at + count)], base_offset=at)
        read = PartitionReader(data, topic="t", partition=0, fetch_offset=at).read(count)
        assert read is not None
        found += read.segments
        at += count
    return found


class Asked:
    """A callback that sets slices in turn, and records its calls."""

    def __init__(self, *turns: list[object]) -> None:
        self.turns = list(turns)
        self.asked: list[int | None] = []

    def go_on(self, walk: Walk) -> bool:
        self.asked.append(None if walk.current is None else walk.current.offset)
        if walk.has_more:
            return True
        if not self.turns:
            return False
        walk.take(self.turns.pop(0))  # type: ignore[arg-type]
        return True


def test_all_records_of_all_slices_and_a_question_at_the_end_of_each_turn() -> None:
    asked = Asked(slices(3, 1), [], slices(2))
    walk = Walk(asked.go_on)
    records = list(walk)
    assert [record.offset for record in records] == [0, 1, 2, 3, 0, 1]
    assert asked.asked == [None, 3, None, 1]
    assert not walk.has_more


def test_an_interrupted_walk_calls_back_before_the_next_record() -> None:
    asked = Asked(slices(4))
    walk = Walk(asked.go_on)
    seen = []
    for record in walk:
        seen.append(record.offset)
        assert walk.current is record
        if record.offset == 1:
            walk.interrupt()
    assert seen == [0, 1, 2, 3]
    assert asked.asked == [None, 1, 3]


def test_replaced_slices_create_no_records() -> None:
    walk = Walk(Asked(slices(4)).go_on)
    assert next(walk).offset == 0
    walk.take(())
    assert list(walk) == []


def test_a_walk_calls_back_at_the_set_time() -> None:
    now = [0.0]

    def go_on(walk: Walk) -> bool:
        asked.append(now[0])
        if walk.ask_at == 0.0:
            walk.take(slices(10))  # type: ignore[arg-type]
        walk.ask_at = now[0] + 2.5
        return walk.has_more

    asked: list[float] = []
    for record in Walk(go_on, lambda: now[0]):
        now[0] = record.offset + 1.0
    assert asked == [0.0, 3.0, 6.0, 9.0, 10.0]


def test_an_exception_of_the_callback_does_not_end_the_walk() -> None:
    asked = Asked(slices(2))
    walk = Walk(asked.go_on)
    assert next(walk).offset == 0

    def refuse(_: Walk) -> bool:
        raise ZeroDivisionError

    broken = Walk(refuse)
    for _ in range(2):
        try:
            next(broken)
        except ZeroDivisionError:
            continue
        raise AssertionError
    assert next(walk).offset == 1
