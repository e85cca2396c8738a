"""What a migration writes for each partition."""

from __future__ import annotations

import pytest

from ottla import TopicPartition
from ottla.cli.migration_plan import Action, Step, Store, plan, written
from ottla.cli.offsets import Log

T0 = TopicPartition("t", 0)
LOG = Log(5, 10)


def step(source: int, target: int | None, log: Log | None = LOG, *, backwards: bool = False) -> Step:
    targets = {} if target is None else {T0: target}
    [found] = plan({T0: source}, {}, targets, {} if log is None else {T0: log}, Store.KAFKA, backwards=backwards)
    return found


@pytest.mark.parametrize(
    ("source", "target", "backwards", "action", "note"),
    [
        (7, None, False, Action.WRITE, None),
        (7, 6, False, Action.WRITE, None),
        (7, 7, False, Action.UNCHANGED, None),
        (7, 8, False, Action.KEEP, "the offset in kafka is greater"),
        (7, 8, True, Action.WRITE, "backwards by 1"),
        (7, 7, True, Action.UNCHANGED, None),
    ],
)
def test_the_greater_offset_is_kept_unless_allowed(
    source: int, target: int | None, backwards: bool, action: Action, note: str | None
) -> None:
    found = step(source, target, backwards=backwards)
    assert (found.action, found.note, found.outside) == (action, note, False)
    assert found.new_offset == (source if action is Action.WRITE else None)


@pytest.mark.parametrize(
    ("source", "log", "note"),
    [
        (4, LOG, "before the beginning of the log, 5"),
        (5, LOG, None),
        (10, LOG, None),
        (11, LOG, "after the end of the log, 10"),
        (11, Log(None, None), None),
    ],
)
def test_an_offset_outside_the_log_is_pointed_out(source: int, log: Log, note: str | None) -> None:
    assert (step(source, None, log).note, step(source, None, log).outside) == (note, note is not None)
    assert step(source, source, log).note == note
    assert step(source, None, log).action is Action.WRITE


def test_both_notes_are_given() -> None:
    assert step(4, 8, backwards=True).note == "backwards by 4; before the beginning of the log, 5"


def test_a_partition_that_does_not_exist_is_skipped() -> None:
    found = step(7, None, None)
    assert (found.action, found.note, found.new_offset) == (Action.SKIP, "the partition does not exist any more", None)


def test_partitions_are_in_order_and_only_what_is_written_is_written() -> None:
    other = TopicPartition("a", 3)
    steps = plan({T0: 7, other: 1}, {}, {other: 2}, {T0: LOG, other: Log(0, 9)}, Store.ZOOKEEPER, backwards=False)
    assert [each.partition for each in steps] == [other, T0]
    assert steps[0].note == "the offset in zookeeper is greater"
    assert written(steps) == {T0: 7}


def test_a_malformed_offset_is_not_written_and_matters_only_while_its_partition_exists() -> None:
    gone = TopicPartition("t", 9)
    malformed = {T0: "the node is malformed", gone: "the node is malformed"}
    steps = plan({}, malformed, {T0: 3}, {T0: LOG}, Store.KAFKA, backwards=True)
    assert [(each.partition, each.source, each.target, each.action) for each in steps] == [
        (T0, None, 3, Action.MALFORMED),
        (gone, None, None, Action.SKIP),
    ]
    assert steps[0].note == "the node is malformed"
    assert written(steps) == {}
