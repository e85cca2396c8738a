"""Idempotent producers: what repeats, what is out of order, what is fenced."""

from __future__ import annotations

import pytest

from ottla.broker.markers import marker_batch
from ottla.broker.producer_state import CompletedTransaction, ProducerStateManager
from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader
from tests.unit.broker.harness import batch, header_of

MAX = 2**31 - 1


def _header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 1) -> BatchHeader:
    return header_of(batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def _producers(*headers: BatchHeader) -> ProducerStateManager:
    producers = ProducerStateManager()
    offset = 0
    for header in headers:
        assert producers.check(header) is None
        producers.append(header, offset, now=100)
        offset += header.last_offset_delta + 1
    return producers


def _refused(producers: ProducerStateManager, header: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as api_error:
        producers.check(header)
    return api_error.value.code


def test_what_follows_is_accepted_and_a_gap_is_not() -> None:
    producers = _producers(_header(0, 3), _header(3, 2))
    assert producers.check(_header(5)) is None
    assert _refused(producers, _header(6)) is ErrorCode.out_of_order_sequence_number
    assert _refused(producers, _header(4)) is ErrorCode.out_of_order_sequence_number


def test_a_repetition_of_any_of_the_last_five_is_answered_with_its_first_offset() -> None:
    headers = [_header(2 * number, 2) for number in range(6)]
    producers = _producers(*headers)
    stamps = [producers.check(header) for header in headers[1:]]
    assert [stamp.base_offset for stamp in stamps if stamp] == [2, 4, 6, 8, 10]
    assert _refused(producers, headers[0]) is ErrorCode.out_of_order_sequence_number


def test_a_new_epoch_begins_with_sequence_zero() -> None:
    producers = _producers(_header(0, 3))
    assert _refused(producers, _header(3, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert producers.check(_header(0, epoch=1)) is None
    producers.append(_header(0, epoch=1), 3, now=100)
    assert _refused(producers, _header(3)) is ErrorCode.invalid_producer_epoch


def test_sequences_go_on_at_zero_after_the_largest() -> None:
    producers = _producers(_header(MAX - 1, 2))
    assert producers.check(_header(0, 3)) is None
    crossing = _producers(_header(MAX, 3))
    assert crossing.check(_header(2)) is None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert _producers().check(_header(1234)) is None


def test_a_silent_producer_is_forgotten() -> None:
    producers = _producers(_header(0))
    producers.remove_expired(100)
    assert len(producers) == 1
    producers.remove_expired(101)
    assert producers.check(_header(77)) is None


def test_a_snapshot_is_kafka_s_46_bytes_a_producer() -> None:
    producers = _producers(_header(0, 3), _header(3, 2), _header(MAX, 2, producer_id=5))
    content = producers.snapshot()
    assert len(content) == 2 + 4 + 4 + 2 * 46
    assert content[:2] == b"\x00\x01"
    again = ProducerStateManager.from_snapshot(content)
    assert again is not None
    assert again.snapshot() == content
    assert again.check(_header(5)) is None
    stamp = again.check(_header(3, 2))
    assert stamp is not None
    assert stamp.base_offset == 3
    assert again.check(_header(1, producer_id=5)) is None


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:20] + b"!" + data[21:], lambda data: b"\x00\x02" + data[2:], lambda data: b""],
)
def test_a_damaged_snapshot_is_refused(damage) -> None:  # type: ignore[no-untyped-def]
    assert ProducerStateManager.from_snapshot(damage(_producers(_header(0)).snapshot())) is None


# Transactions


def _in_transaction(sequence: int, *, epoch: int = 0, producer_id: int = 1) -> BatchHeader:
    fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return header_of(batch(1, transactional=True, **fields))


def _marker(*, epoch: int = 0, producer_id: int = 1) -> BatchHeader:
    fields = {"commit": True, "coordinator_epoch": 0, "timestamp": 0}
    return header_of(marker_batch(producer_id=producer_id, producer_epoch=epoch, **fields))


def test_the_first_open_offset_is_that_of_the_oldest_open_transaction() -> None:
    producers = _producers(_in_transaction(0), _in_transaction(0, producer_id=2), _in_transaction(1))
    assert producers.first_unstable_offset == 0
    ended = producers.complete_transaction(_marker(), 3, 0, now=100)
    assert ended == CompletedTransaction(1, 0, 3)
    assert producers.first_unstable_offset == 1
    assert producers.complete_transaction(_marker(), 4, 0, now=100) is None


def test_a_marker_with_a_new_epoch_fences_the_old_one_and_restarts_the_sequence() -> None:
    producers = _producers(_in_transaction(0))
    producers.complete_transaction(_marker(epoch=1), 1, 0, now=100)
    assert _refused(producers, _in_transaction(1)) is ErrorCode.invalid_producer_epoch
    assert _refused(producers, _in_transaction(1, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert producers.check(_in_transaction(0, epoch=1)) is None


def test_sequences_go_on_after_a_marker_of_the_same_epoch() -> None:
    producers = _producers(_in_transaction(0))
    producers.complete_transaction(_marker(), 1, 0, now=100)
    assert producers.check(_in_transaction(1)) is None
    assert _refused(producers, _in_transaction(2)) is ErrorCode.out_of_order_sequence_number


def test_what_is_not_of_an_open_transaction_is_refused() -> None:
    producers = _producers(_in_transaction(0))
    assert _refused(producers, _header(1)) is ErrorCode.invalid_txn_state


def test_a_marker_of_an_older_coordinator_or_an_older_producer_is_refused() -> None:
    producers = _producers(_in_transaction(0, epoch=3))
    producers.complete_transaction(_marker(epoch=3), 1, 7, now=100)
    producers.check_marker(1, 3, 7)
    for epoch, coordinator, code in (
        (2, 7, ErrorCode.invalid_producer_epoch),
        (3, 6, ErrorCode.transaction_coordinator_fenced),
    ):
        with pytest.raises(ApiError) as api_error:
            producers.check_marker(1, epoch, coordinator)
        assert api_error.value.code is code


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    producers = _producers(_in_transaction(0), _header(0, producer_id=2))
    producers.remove_expired(1000)
    assert list(producers.entries) == [1]


def test_a_snapshot_keeps_open_transactions_in_the_order_of_their_offsets() -> None:
    producers = _producers(*(_in_transaction(0, producer_id=one) for one in (3, 1, 2)))
    producers.complete_transaction(_marker(producer_id=3), 3, 5, now=100)
    again = ProducerStateManager.from_snapshot(producers.snapshot())
    assert again is not None
    assert (again.transaction_start(3), again.transaction_start(1), again.transaction_start(2)) == (None, 1, 2)
    assert again.first_unstable_offset == 1
    assert again.entries[3].coordinator_epoch == 5
    assert again.snapshot() == producers.snapshot()
