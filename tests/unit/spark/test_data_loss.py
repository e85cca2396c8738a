"""The detection of lost records, the ranges that remain, and the error texts."""

import logging

import pytest
from hypothesis import given, strategies as st

from ottla.spark.data_loss import DataLossError, Loss, LossKind, losses_between, losses_in_range, losses_of_new_partitions, report
from ottla.spark.planning import OffsetRange
from ottla.types import TopicPartition

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
WANTED = OffsetRange("a", 0, 10, 20)


def test_a_log_that_still_holds_the_range_has_lost_nothing() -> None:
    assert losses_in_range(WANTED, 0, 20) == ([], WANTED)
    assert losses_in_range(WANTED, 10, 25) == ([], WANTED)


def test_a_log_that_begins_later() -> None:
    assert losses_in_range(WANTED, 13, 30) == ([Loss(LossKind.LOG_BEGINS_LATER, "a", 0, 10, 13, 13)], OffsetRange("a", 0, 13, 20))
    assert losses_in_range(WANTED, 25, 30) == ([Loss(LossKind.LOG_BEGINS_LATER, "a", 0, 10, 20, 25)], None)


def test_a_log_that_ends_earlier() -> None:
    assert losses_in_range(WANTED, 0, 15) == ([Loss(LossKind.LOG_ENDS_EARLIER, "a", 0, 15, 20, 15)], OffsetRange("a", 0, 10, 15))
    assert losses_in_range(WANTED, 0, 5) == ([Loss(LossKind.LOG_ENDS_EARLIER, "a", 0, 10, 20, 5)], None)
    assert losses_in_range(WANTED, 0, 0) == ([Loss(LossKind.LOG_ENDS_EARLIER, "a", 0, 10, 20, 0)], None)


def test_a_log_cut_at_both_ends_has_lost_both() -> None:
    both = [Loss(LossKind.LOG_BEGINS_LATER, "a", 0, 10, 13, 13), Loss(LossKind.LOG_ENDS_EARLIER, "a", 0, 16, 20, 16)]
    assert losses_in_range(WANTED, 13, 16) == (both, OffsetRange("a", 0, 13, 16))
    with pytest.raises(
        DataLossError, match=r"offsets 10 to 12 .* begins at offset 13.*; a-0: offsets 16 to 19 .* ends at offset 16"
    ):
        report(losses_in_range(WANTED, 13, 16)[0], fail=True)
    empty, nothing = losses_in_range(WANTED, 15, 15)
    assert [(loss.start, loss.end) for loss in empty] == [(10, 15), (15, 20)]
    assert nothing is None


@given(begin=st.integers(0, 30), size=st.integers(0, 30))
def test_each_wanted_offset_is_lost_or_left_and_never_both(begin: int, size: int) -> None:
    losses, left = losses_in_range(WANTED, begin, begin + size)
    lost = [offset for loss in losses for offset in range(loss.start, loss.end or 0)]
    read = [] if left is None else list(range(left.start, left.end))
    assert sorted(lost + read) == list(range(WANTED.start, WANTED.end))
    assert read == [offset for offset in range(10, 20) if begin <= offset < begin + size]


def test_a_partition_that_is_gone() -> None:
    assert losses_in_range(WANTED, None, None) == ([Loss(LossKind.PARTITION_GONE, "a", 0, 10, 20)], None)


def test_a_plan_tells_of_partitions_gone_or_cut_off() -> None:
    losses = losses_between({A: 10, B: 10, C: 10}, {A: 12, B: 4}, lambda tp: True)
    assert losses == [Loss(LossKind.LOG_ENDS_EARLIER, "b", 0, 4, 10, 4), Loss(LossKind.PARTITION_GONE, "c", 0, 10, None)]


def test_a_partition_that_is_not_subscribed_to_any_more_is_not_called_gone() -> None:
    losses = losses_between({A: 10, B: 10}, {A: 12}, lambda tp: tp != B)
    assert losses == [Loss(LossKind.NOT_SUBSCRIBED, "b", 0, 10, None)]
    with pytest.raises(DataLossError, match=r"b-0: offsets from 10 on are not read: .* no longer among") as raised:
        report(losses, fail=True)
    assert "subscribePattern" in str(raised.value)
    assert "retention" not in str(raised.value)


def test_only_losses_by_retention_have_a_hint_about_retention() -> None:
    for kind in LossKind:
        text = str(DataLossError([Loss(kind, "a", 0, 10, 20, 5)]))
        assert "failOnDataLoss to false" in text
        assert ("retention.ms" in text) is (kind in (LossKind.LOG_BEGINS_LATER, LossKind.FOUND_LATE))


def test_a_new_partition_that_begins_at_zero_has_lost_nothing() -> None:
    assert losses_of_new_partitions({A: 0, B: 7}) == [Loss(LossKind.FOUND_LATE, "b", 0, 0, 7, 7)]


def test_the_error_has_topic_partition_range_and_advice() -> None:
    with pytest.raises(DataLossError) as raised:
        report([Loss(LossKind.LOG_BEGINS_LATER, "a", 0, 10, 13, 13)], fail=True)
    text = str(raised.value)
    for word in ("a-0", "offsets 10 to 12", "begins at offset 13", "failOnDataLoss to false", "retention"):
        assert word in text


def test_each_lost_range_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report(losses_between({A: 10, B: 10}, {}, lambda tp: True), fail=False)
        report([], fail=True)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split("offsets")[0].split()[-1] for line in lines] == ["a-0:", "b-0:"]
    assert all("offsets from 10 on" in line and "\n" not in line for line in lines)
