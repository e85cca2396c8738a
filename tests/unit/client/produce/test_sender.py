"""The sender: every row of the table of reactions, the order within a partition, time-outs and what their messages say."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.effects import ToNode
from ottla.client.produce import sender as sender_module
from ottla.client.produce.sender import NOT_WRITTEN, REACTIONS, ProduceReaction
from ottla.errors import (
    BrokerError,
    ConnectionFailedError,
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    ProtocolError,
    UnsupportedApiError,
    broker_error,
    error_class,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import produce_request, produce_response
from ottla.records.batch_states import BatchState
from ottla.types import TopicPartition
from tests.unit.client.managers import T0, T1, T2, TOPIC_ID, unmade
from tests.unit.client.producing import Batch, Writes, batches, error, is_done, response, result

LOST = DisconnectedError("the connection broke")
RETRIES = sorted(code for code, reaction in REACTIONS.items() if reaction is ProduceReaction.RETRY)
NEW_LEADERS = sorted(code for code, reaction in REACTIONS.items() if reaction is ProduceReaction.NEW_LEADER)
SPLITS = sorted(code for code, reaction in REACTIONS.items() if reaction is ProduceReaction.SPLIT)
FATAL = sorted(code for code in ErrorCode if code and code not in REACTIONS)


def test_a_batch_is_sent_to_the_leader_of_its_partition() -> None:
    writes = Writes()
    first, second = writes.write("a"), writes.write("b", to=T1)
    sends = writes.poll()
    assert [(send.target, batches(send)) for send in sends] == [
        (ToNode(1), {T0: Batch(0, 0, ["a"])}),
        (ToNode(2), {T1: Batch(0, 0, ["b"])}),
    ]
    assert {send.message.acks for send in sends} == {-1}
    assert {send.message.topic_data[0].topic_id for send in sends} == {TOPIC_ID}
    for send in sends:
        writes.reply(send, offset=40)
    assert [result(delivery).offset for delivery in (*first, *second)] == [40, 40]
    assert [batch.state for batch in writes.settled] == [BatchState.ACKNOWLEDGED] * 2
    assert writes.accumulator.used == 0


def test_partitions_of_one_broker_share_a_request() -> None:
    writes = Writes()
    writes.write("a"), writes.write("c", to=T2)
    assert set(batches(writes.one(Api.PRODUCE))) == {T0, T2}


def test_a_request_has_at_most_max_request_size_and_each_partition_has_its_turn_as_the_first() -> None:
    writes = Writes(max_request_size=1_000, batch_size=1_000)
    writes.write("a" * 600), writes.write("c" * 600, to=T2)
    first, second = writes.poll()
    assert [list(batches(send)) for send in (first, second)] in ([[T0], [T2]], [[T2], [T0]])


def test_it_is_saturated_while_no_broker_can_get_another_request() -> None:
    writes = Writes(max_in_flight_requests_per_connection=1)
    send, _ = writes.request("a")
    assert not writes.manager.is_saturated, "the leader of the second partition can get one"
    writes.request("b", to=T1)
    assert writes.manager.is_saturated
    writes.reply(send)
    assert not writes.manager.is_saturated


def test_the_log_append_time_of_the_broker_is_the_timestamp() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.reply(send, log_append_time_ms=5)
    assert result(delivery).timestamp == 5


# -- reactions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*RETRIES, *NEW_LEADERS], ids=lambda code: ErrorCode(code).name)
def test_a_batch_is_sent_again_after_the_back_off(code: int) -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    assert not writes.cluster.asked
    writes.reply(send, code)
    assert writes.cluster.asked is (code in NEW_LEADERS)
    assert writes.poll() == []
    assert writes.wake_at == 100
    again = writes.one(Api.PRODUCE, 100)
    assert batches(again) == batches(send)
    writes.reply(again, offset=3)
    assert result(delivery).offset == 3


@pytest.mark.parametrize("code", FATAL, ids=lambda code: ErrorCode(code).name)
def test_any_other_code_fails_the_batch_and_the_next_one_starts_again_in_a_new_epoch(code: int) -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.reply(send, code, error_message="because")
    assert type(error(delivery)) is error_class(code)
    assert "writing 1 record to t-0: because" in str(error(delivery))
    assert writes.accumulator.used == 0
    again, _ = writes.request("b")
    assert batches(again) == {T0: Batch(1, 0, ["b"])}


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_the_error_of_a_fenced_producer_says_why(code: ErrorCode) -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.reply(send, code)
    assert "a producer that was initialized later" in str(error(delivery))


def test_a_refused_batch_names_the_record_that_the_broker_complains_about() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    of_record = produce_response.BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="no key")
    writes.reply(send, ErrorCode.invalid_record, record_errors=(of_record,))
    assert "record 0 of them: no key" in str(error(delivery))


def test_a_complaint_that_is_in_the_message_of_the_batch_is_not_repeated() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    of_record = produce_response.BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="no key")
    writes.reply(send, ErrorCode.invalid_record, record_errors=(of_record,), error_message="rejected. record 0: no key")
    assert str(error(delivery)) == "writing 1 record to t-0: rejected. record 0: no key [INVALID_RECORD]"


@pytest.mark.parametrize("code", FATAL, ids=lambda code: ErrorCode(code).name)
def test_only_some_codes_say_that_a_batch_was_not_written(code: int) -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.reply(send, code)
    assert ("they may have been written all the same" in str(error(delivery))) is (code not in NOT_WRITTEN)


@pytest.mark.parametrize("enable_idempotence", [False, True])
def test_no_code_says_that_after_a_lost_response(enable_idempotence: bool) -> None:
    writes = Writes(enable_idempotence=enable_idempotence)
    send, (delivery,) = writes.request("a")
    writes.fail(send, LOST)
    writes.reply(writes.one(Api.PRODUCE, 100), ErrorCode.invalid_record)
    assert "an earlier request may have written them" in str(error(delivery))


def test_a_duplicate_was_written() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.fail(send, LOST)
    writes.reply(writes.one(Api.PRODUCE, 100), ErrorCode.duplicate_sequence_number)
    assert result(delivery).offset == -1


def test_the_tables_agree() -> None:
    again = {ProduceReaction.RETRY, ProduceReaction.NEW_LEADER}
    assert {code for code in NOT_WRITTEN if REACTIONS.get(code) in again} == {
        ErrorCode.corrupt_message,
        ErrorCode.not_enough_replicas,
        ErrorCode.concurrent_transactions,
        ErrorCode.throttling_quota_exceeded,
    }
    assert {
        code for code, reaction in REACTIONS.items() if reaction in (ProduceReaction.SPLIT, ProduceReaction.SEQUENCE)
    } <= NOT_WRITTEN


@pytest.mark.parametrize("code", [ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id])
def test_a_producer_that_is_not_idempotent_has_no_sequence_numbers_to_correct(code: int) -> None:
    writes = Writes(enable_idempotence=False)
    send, (delivery,) = writes.request("a")
    assert batches(send) == {T0: Batch(-1, -1, ["a"])}
    writes.reply(send, code)
    assert type(error(delivery)) is error_class(code)


def test_a_response_without_the_partition_is_no_outcome() -> None:
    writes = Writes(retries=1)
    send, (delivery,) = writes.request("a")
    writes.answer(send, response([T1]))
    writes.answer(writes.one(Api.PRODUCE, 100), response([T1]))
    assert isinstance(error(delivery), ProtocolError)
    assert "lacks t-0" in str(error(delivery))


def test_a_response_may_name_topics_by_their_ids() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    part = produce_response.PartitionProduceResponse(index=0, error_code=ErrorCode.none, base_offset=9, record_errors=())
    topic = produce_response.TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=(part,))
    writes.answer(send, produce_response.ProduceResponse(responses=(topic,)))
    assert result(delivery).offset == 9


def test_a_lost_connection_asks_for_metadata_and_sends_the_same_bytes_again() -> None:
    writes = Writes()
    send, _ = writes.request("a")
    writes.fail(send, LOST)
    assert writes.cluster.asked
    again = writes.one(Api.PRODUCE, 100)
    (before,), (after,) = (
        [part.records for topic in one.message.topic_data for part in topic.partition_data] for one in (send, again)
    )
    assert bytes(before) == bytes(after)
    assert after.obj is not before.obj if isinstance(after, memoryview) else True, "the first request may not have left yet"


def test_a_broker_too_old_for_the_request_fails_the_batch() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.fail(send, UnsupportedApiError("no common version of Produce"))
    assert isinstance(error(delivery), UnsupportedApiError)


def test_the_retries_are_used_up() -> None:
    writes = Writes(retries=2)
    send, (delivery,) = writes.request("a")
    for at in (100, 300):
        writes.reply(send, ErrorCode.not_enough_replicas)
        send = writes.one(Api.PRODUCE, at)
    assert not is_done(delivery)
    writes.reply(send, ErrorCode.not_enough_replicas)
    assert type(error(delivery)) is error_class(ErrorCode.not_enough_replicas)


# -- leaders --------------------------------------------------------------------------------------------------------------


def test_a_new_leader_in_the_response_gets_the_batch_at_once() -> None:
    writes = Writes()
    send, _ = writes.request("a")
    leader = produce_response.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
    writes.reply(send, ErrorCode.not_leader_or_follower, current_leader=leader)
    assert writes.one(Api.PRODUCE).target == ToNode(2)


def test_a_new_leader_in_the_metadata_ends_the_back_off() -> None:
    writes = Writes()
    send, _ = writes.request("a")
    writes.reply(send, ErrorCode.not_leader_or_follower)
    assert writes.poll() == []
    writes.cluster.tell(leaders={T0: 2}, epoch=4)
    assert writes.one(Api.PRODUCE).target == ToNode(2)


def test_without_a_leader_a_batch_waits_and_metadata_is_requested() -> None:
    writes = Writes(leaders={T0: -1, T1: 2, T2: 1})
    writes.cluster.manager.poll(writes.now)
    writes.write("a")
    assert writes.poll() == []
    assert writes.cluster.asked
    writes.cluster.tell()
    assert writes.one(Api.PRODUCE).target == ToNode(1)


def test_only_one_request_is_made_for_a_broker_that_is_not_connected() -> None:
    writes = Writes()
    writes.connected.clear()
    send, _ = writes.request("a")
    writes.write("c", to=T2)
    assert writes.poll() == []
    writes.connected.add(1)
    assert list(batches(writes.one(Api.PRODUCE))) == [T2]
    writes.reply(send)


# -- order ----------------------------------------------------------------------------------------------------------------


def test_up_to_five_requests_are_in_flight() -> None:
    writes = Writes()
    writes.confirmed()
    sends = [writes.request(str(number))[0] for number in range(5)]
    assert [batches(send)[T0].sequence for send in sends] == [1, 2, 3, 4, 5]
    writes.write("x")
    assert writes.poll() == []
    writes.reply(sends[0])
    assert batches(writes.one(Api.PRODUCE)) == {T0: Batch(0, 6, ["x"])}


def test_no_more_than_five_batches_of_a_partition_are_without_a_response_also_after_its_leader_has_moved() -> None:
    """A broker that has written more would not recognize the first of them."""
    writes = Writes()
    writes.confirmed()
    for number in range(5):
        writes.request(str(number))
    writes.cluster.tell(leaders={T0: 2}, epoch=4)
    writes.write("x")
    assert writes.poll() == []


def test_while_the_requests_are_used_up_records_are_added_to_the_open_batch() -> None:
    writes = Writes(max_in_flight_requests_per_connection=1, linger_ms=5)
    writes.write("a")
    send = writes.one(Api.PRODUCE, 5)
    writes.write("b")
    assert writes.poll(20) == []
    writes.write("c")
    writes.reply(send)
    assert batches(writes.one(Api.PRODUCE))[T0].values == ["b", "c"]


def test_the_first_batch_of_a_partition_is_alone_in_flight() -> None:
    """A broker without state of the producer would accept the second one, with any number, also if it refuses the first."""
    writes = Writes()
    send, _ = writes.request("a")
    writes.write("b")
    assert writes.poll() == []
    writes.reply(send)
    assert batches(writes.one(Api.PRODUCE)) == {T0: Batch(0, 1, ["b"])}


def test_with_one_in_flight_a_partition_is_muted_until_the_response() -> None:
    writes = Writes(max_in_flight_requests_per_connection=1, enable_idempotence=False)
    send, _ = writes.request("a")
    writes.write("b")
    writes.cluster.tell(leaders={T0: 2}, epoch=4)
    assert writes.poll() == []
    writes.reply(send, ErrorCode.request_timed_out)
    again = writes.one(Api.PRODUCE)
    assert batches(again)[T0].values == ["a"]
    writes.reply(again)
    assert batches(writes.one(Api.PRODUCE))[T0].values == ["b"]


def test_batches_are_sent_again_one_by_one_in_order() -> None:
    writes = Writes()
    writes.confirmed()
    sends = [writes.request(value)[0] for value in "abc"]
    writes.fail(sends[2], LOST)
    writes.fail(sends[1], LOST)
    writes.fail(sends[0], LOST)
    writes.write("d")
    seen = []
    for at in (100, 200, 300, 400):
        send = writes.one(Api.PRODUCE, at)
        assert writes.poll() == []
        seen.append(batches(send)[T0])
        writes.reply(send)
    assert seen == [Batch(0, 1, ["a"]), Batch(0, 2, ["b"]), Batch(0, 3, ["c"]), Batch(0, 4, ["d"])]


def test_a_batch_that_is_sent_again_is_alone_in_flight() -> None:
    """If the topic has been recreated, its leader accepts any number as the first one."""
    writes = Writes()
    writes.confirmed()
    send, _ = writes.request("a")
    writes.reply(send, ErrorCode.unknown_topic_or_partition)
    again = writes.one(Api.PRODUCE, 100)
    writes.write("b")
    assert writes.poll() == []
    writes.reply(again)
    assert batches(writes.one(Api.PRODUCE))[T0].values == ["b"]


# -- linger ---------------------------------------------------------------------------------------------------------------


def test_a_batch_lingers_unless_it_is_full_or_memory_is_short_or_the_producer_closes() -> None:
    writes = Writes(linger_ms=50, batch_size=200)
    writes.write("a")
    assert writes.poll() == []
    assert writes.wake_at == 50
    writes.write("b" * 150)
    assert batches(writes.one(Api.PRODUCE))[T0].values == ["a"]
    writes.manager.urgent = True
    assert writes.poll() == [], "the first batch is alone in flight"
    writes.reply(writes.sent[0])
    assert writes.wake_at == 50
    writes.accumulator.waiters.append(lambda: None)
    assert batches(writes.one(Api.PRODUCE))[T0].values == ["b" * 150]


def test_to_be_urgent_is_over_after_one_poll() -> None:
    writes = Writes(linger_ms=50)
    writes.manager.urgent = True
    writes.request("a")
    writes.write("c", to=T2)
    assert writes.poll() == []
    writes.accumulator.accepts = False
    assert list(batches(writes.one(Api.PRODUCE))) == [T2]


def test_the_linger_time_of_the_open_batch_counts_also_behind_a_full_one() -> None:
    writes = Writes(linger_ms=50, batch_size=200)
    writes.write("a" * 150)
    writes.write("b")
    first = writes.one(Api.PRODUCE)
    assert batches(first)[T0].values == ["a" * 150]
    assert writes.wake_at == 50
    writes.reply(first)
    assert writes.poll() == []
    assert batches(writes.one(Api.PRODUCE, 50))[T0].values == ["b"]


# -- delivery.timeout -----------------------------------------------------------------------------------------------------


def late(writes: Writes, delivery: Any) -> str:
    writes.poll(120_000)
    problem = error(delivery)
    assert isinstance(problem, OttlaTimeoutError)
    assert str(problem).startswith("1 record for t-0 not acknowledged within 120 s")
    assert problem.hint, "what to do about it"
    assert writes.accumulator.used == 0
    return str(problem)


def test_expired_open_without_a_leader() -> None:
    writes = Writes(leaders={T0: -1, T1: 2, T2: 1})
    (delivery,) = writes.write("a")
    writes.poll()
    assert writes.wake_at == 120_000
    assert "no leader of the partition is known (are the brokers" in late(writes, delivery)


def test_expired_without_a_topic() -> None:
    writes = Writes()
    (delivery,) = writes.write("a")
    writes.cluster.tell(leaders={}, errors={"t": ErrorCode.unknown_topic_or_partition})
    assert "t-0: the topic does not exist" in late(writes, delivery)


def test_expired_without_a_partition() -> None:
    writes = Writes()
    (delivery,) = writes.write("a")
    writes.cluster.tell(leaders={T1: 2, T2: 1})
    assert "t-0: the topic has 2 partitions" in late(writes, delivery)


def test_expired_for_a_broker_out_of_reach() -> None:
    writes = Writes()
    writes.reason = ConnectionFailedError("the broker could not be reached", {"one:9092": "refused"})
    _, (delivery,) = writes.request("a")
    assert "the broker could not be reached: one:9092: refused" in late(writes, delivery)


def test_expired_in_flight_without_a_response() -> None:
    writes = Writes()
    _, (delivery,) = writes.request("a")
    assert writes.poll(119_999) == []
    assert writes.wake_at == 120_000
    assert "has not answered" in late(writes, delivery)


def test_expired_closed_behind_others() -> None:
    writes = Writes(linger_ms=0)
    writes.request("a")
    (delivery,) = writes.write("b")
    assert "others were in flight" in late(writes, delivery)


def test_expired_while_it_is_sent_again_and_again() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.reply(send, ErrorCode.not_enough_replicas, at=119_950)
    text = late(writes, delivery)
    assert "NOT_ENOUGH_REPLICAS" in text
    assert isinstance(error(delivery).cause, BrokerError)


def test_a_late_acknowledgement_does_not_change_the_outcome() -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    late(writes, delivery)
    writes.reply(send)
    assert isinstance(error(delivery), OttlaTimeoutError)
    assert len(writes.settled) == 1
    assert batches(writes.request("b")[0]) == {T0: Batch(1, 0, ["b"])}


@pytest.mark.parametrize(
    "code", [*RETRIES, *NEW_LEADERS, *SPLITS, ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_record]
)
def test_a_late_refusal_does_not_change_the_outcome(code: int) -> None:
    writes = Writes()
    send, deliveries = writes.request("a", "b")
    writes.poll(120_000)
    writes.reply(send, code)
    assert [type(error(delivery)) for delivery in deliveries] == [OttlaTimeoutError] * 2
    assert writes.poll() == []


# -- a batch that is too large --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", SPLITS)
def test_the_halves_of_a_batch_too_large_keep_order_numbers_deliveries_and_callbacks(code: int) -> None:
    called: list[tuple[str, int]] = []
    writes = Writes()
    writes.confirmed()
    deliveries = [
        writes.write(value, on_delivery=lambda delivery, value=value: called.append((value, result(delivery).offset)))[0]
        for value in "abcde"
    ]
    send = writes.one(Api.PRODUCE)
    behind, (last,) = writes.request("z")
    writes.reply(send, code)
    writes.reply(behind, ErrorCode.out_of_order_sequence_number)
    seen, offset, at = [], 10, 0
    while not is_done(last):
        at += 100
        send = writes.one(Api.PRODUCE, at)
        batch = batches(send)[T0]
        if len(batch.values) > 1:
            writes.reply(send, code)
        else:
            seen.append(batch)
            writes.reply(send, offset=offset)
            offset += 1
    assert seen == [Batch(0, number, [value]) for number, value in enumerate("abcdez", 1)]
    assert [result(delivery).offset for delivery in deliveries] == [10, 11, 12, 13, 14]
    for batch_ in writes.settled:
        for callback, delivery in batch_.take_callbacks():
            callback(delivery)
    assert called == [("a", 10), ("b", 11), ("c", 12), ("d", 13), ("e", 14)]
    assert writes.accumulator.used == 0
    assert not writes.accumulator.incomplete


@pytest.mark.parametrize("code", SPLITS)
def test_one_record_too_large_fails(code: int) -> None:
    writes = Writes()
    send, (delivery,) = writes.request("a")
    writes.reply(send, code)
    assert type(error(delivery)) is error_class(code)


def test_the_parts_of_a_batch_that_may_have_been_written_whole_are_not_doubled() -> None:
    writes = Writes()
    writes.confirmed()
    send, deliveries = writes.request("a", "b")
    writes.fail(send, LOST)  # it was written; then the topic's max.message.bytes is lowered
    writes.reply(writes.one(Api.PRODUCE, 100), ErrorCode.message_too_large)
    for _ in deliveries:
        writes.reply(writes.one(Api.PRODUCE, writes.mono + 100), ErrorCode.out_of_order_sequence_number)
    for delivery in deliveries:
        assert "an earlier request may have written them" in str(error(delivery))


def test_a_batch_that_cannot_be_divided_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Writes()
    send, deliveries = writes.request("a", "b")

    def broken(_batch: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sender_module, "divide", broken)
    writes.reply(send, ErrorCode.message_too_large)
    assert "cannot be divided: MemoryError()" in str(error(deliveries[1]))


# -- what raises ----------------------------------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_encoded_fails_and_the_next_one_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Writes()
    writes.confirmed()
    (delivery,) = writes.write("a")

    def broken(*_arguments: object) -> None:
        raise ImportError("no zstd")

    with monkeypatch.context() as patch:
        patch.setattr(sender_module, "encode_producer_batch", broken)
        assert writes.poll() == []
    assert "cannot be encoded: ImportError('no zstd')" in str(error(delivery))
    assert batches(writes.request("b")[0]) == {T0: Batch(1, 0, ["b"])}


def test_a_poll_that_raises_midway_loses_nothing() -> None:
    writes = Writes()
    (first,), (second,) = writes.write("a"), writes.write("b", to=T1)
    with unmade(produce_request, "ProduceRequest", 2), pytest.raises(OSError, match="Too many open files"):
        writes.poll()
    sends = writes.poll()
    assert sorted(tp for send in sends for tp in batches(send)) == [T0, T1]
    for send in sends:
        writes.reply(send)
    assert is_done(first)
    assert is_done(second)


def test_what_has_expired_meanwhile_is_not_sent() -> None:
    writes = Writes()
    (delivery,) = writes.write("a")
    with unmade(produce_request, "ProduceRequest", 1), pytest.raises(OSError, match="Too many open files"):
        writes.poll()
    assert writes.poll(120_000) == []
    assert isinstance(error(delivery), OttlaTimeoutError)


def test_all_batches_are_aborted_once() -> None:
    writes = Writes(batch_size=200)
    send, in_flight = writes.request("a")
    retried_send, retried = writes.request("b", to=T1)
    writes.fail(retried_send, LOST)
    closed = writes.write("c" * 150, "d" * 150)
    problem = OttlaError("closed")
    writes.manager.abort_all(problem, writes.now)
    assert {error(delivery) for delivery in (*in_flight, *retried, *closed)} == {problem}
    writes.reply(send)
    assert writes.poll(10_000) == []
    assert len(writes.settled) == 4
    assert writes.accumulator.used == 0


def test_unsent_batches_are_aborted_once_and_those_in_flight_are_not() -> None:
    writes = Writes(batch_size=200)
    send, (in_flight,) = writes.request("a")
    retried_send, retried = writes.request("b", to=T1)
    writes.fail(retried_send, LOST)
    closed_and_open = writes.write("c" * 150, "d" * 150)
    problem = OttlaError("aborted")
    writes.manager.abort_unsent(problem, writes.now)
    assert {error(delivery) for delivery in (*retried, *closed_and_open)} == {problem}
    assert len(writes.settled) == 3
    assert not is_done(in_flight)
    assert len(writes.accumulator.incomplete) == 1
    writes.reply(send)
    assert result(in_flight).offset == 100
    assert writes.poll(10_000) == []
    assert len(writes.settled) == 4
    assert writes.accumulator.used == 0


def test_without_a_producer_id_batches_fail_that_were_surely_not_written() -> None:
    writes = Writes()
    writes.confirmed()
    a, (lost,) = writes.request("a")
    _, (in_flight,) = writes.request("b")
    writes.fail(a, LOST)
    refused_send, (refused,) = writes.request("x", to=T1)
    writes.reply(refused_send, ErrorCode.not_enough_replicas)
    (unsent,) = writes.write("c")
    problem = broker_error(ErrorCode.cluster_authorization_failed, "no id")
    writes.manager.abort_without_id(problem, writes.now)
    assert [error(one) for one in (unsent, refused)] == [problem] * 2
    assert not is_done(lost)
    assert not is_done(in_flight)


def test_a_partition_of_another_topic_does_not_wait() -> None:
    writes = Writes()
    writes.accumulator.set_partitions("u", 1)
    other = TopicPartition("u", 0)
    writes.cluster.tell(leaders={T0: 1, other: 1})
    send, _ = writes.request("a")
    writes.write("b", to=other)
    assert list(batches(writes.one(Api.PRODUCE))) == [other]
    writes.reply(send, ErrorCode.invalid_record)
    assert writes.manager.in_flight == 1
