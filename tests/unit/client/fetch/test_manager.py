"""Fetching: who is asked for what, how much is held, and every row of the error table."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ottla.client.effects import AnySend, ToNode
from ottla.client.events import Fetched, FetchedResponse
from ottla.client.fetch.manager import FetchManager, partition_limit
from ottla.client.subscription import EARLIEST, Phase, SubscriptionState
from ottla.errors import DisconnectedError, OffsetOutOfRangeError, UnsupportedApiError, error_class
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import Api
from ottla.protocol.messages import fetch_request, fetch_response
from ottla.records import NewRecord, encode_batch
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import NO_THROTTLE, T0, T1, T2, TOPIC_ID, Asked, Cluster, backoff, config, unmade


class Fetches(Asked):
    def __init__(self, *partitions: TopicPartition, reset_to: int | None = EARLIEST, **settings: Any) -> None:
        self.subscription = SubscriptionState(reset_to)
        self.cluster = Cluster()
        self.told: list[Any] = []
        manager = FetchManager(config(**settings), self.subscription, self.cluster.manager, self.told.append, backoff())
        super().__init__(manager)
        self.manager: FetchManager
        self.subscription.assign(partitions)
        self.subscription.seek({tp: OffsetAndMetadata(10) for tp in partitions})

    def fetched(self) -> list[FetchedResponse]:
        responses = [item.response for item in self.told if isinstance(item, Fetched)]
        self.told.clear()
        return responses

    def state(self, tp: TopicPartition) -> Any:
        return self.subscription.partitions[tp]


def asked(send: AnySend) -> dict[TopicPartition, int]:
    """The offsets that a request asks from."""
    assert send.api is Api.FETCH
    return {
        TopicPartition(topic.topic, part.partition): part.fetch_offset for topic in send.message.topics for part in topic.partitions
    }


def data(tp: TopicPartition, records: bytes = b"", code: int = 0, leader: tuple[int, int] | None = None, replica: int = -1) -> Any:
    extra = {"current_leader": fetch_response.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])} if leader else {}
    extra = {**extra, "preferred_read_replica": replica}  # type: ignore[dict-item]
    return fetch_response.PartitionData(
        partition_index=tp.partition,
        error_code=ErrorCode(code),
        high_watermark=100,
        last_stable_offset=90,
        aborted_transactions=(fetch_response.AbortedTransaction(producer_id=8, first_offset=2),),
        records=records,
        **extra,  # type: ignore[arg-type]
    )


def fetched(*parts: Any, error: int = 0, by_id: bool = True, endpoints: tuple[Any, ...] = (), session: int = 0) -> Any:
    name = {"topic_id": TOPIC_ID} if by_id else {"topic": "t"}
    return fetch_response.FetchResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error),
        session_id=session,
        responses=(fetch_response.FetchableTopicResponse(**name, partitions=parts),),
        node_endpoints=endpoints,
    )


def batch(base_offset: int, count: int = 5, size: int = 10) -> bytes:
    return bytes(encode_batch([NewRecord(None, b"v" * size) for _ in range(count)], base_offset=base_offset))


def test_nothing_is_fetched_behind_the_end_of_a_partition() -> None:
    fetches = Fetches(T0, T1)
    fetches.subscription.seek({tp: OffsetAndMetadata(10) for tp in (T0, T1)}, {T0: 22, T1: 10})
    limits = []
    for offset in (10, 15, 20):
        send = fetches.one(Api.FETCH)
        assert asked(send) == {T0: offset}
        limits += [part.partition_max_bytes for topic in send.message.topics for part in topic.partitions]
        fetches.answer(send, fetched(data(T0, batch(offset, size=8_000))))
        fetches.manager.drained([response.number for response in fetches.fetched()])
    assert limits[0] == 16 << 10
    assert limits[1] == limits[2] == len(batch(10, size=8_000))
    assert fetches.poll() == []
    assert fetches.state(T0).fetch == 25
    fetches.subscription.seek({T0: OffsetAndMetadata(25)})
    assert asked(fetches.one(Api.FETCH)) == {T0: 25}


def test_each_broker_is_asked_for_what_it_leads_with_the_configured_limits() -> None:
    fetches = Fetches(
        T0, T1, T2, fetch_max_bytes=1_000_000, max_partition_fetch_bytes=5_000, fetch_min_bytes=3, fetch_max_wait_ms=70
    )
    sends = {send.target: send for send in fetches.poll()}
    assert {target: asked(send) for target, send in sends.items()} == {ToNode(1): {T0: 10, T2: 10}, ToNode(2): {T1: 10}}
    message = sends[ToNode(1)].message
    assert (message.max_bytes, message.min_bytes, milliseconds(message.max_wait)) == (1_000_000, 3, 70)
    assert (message.session_id, message.session_epoch, message.isolation_level, message.rack_id) == (0, 0, 0, "")
    assert message.topics[0].topic_id == TOPIC_ID
    assert {part.current_leader_epoch for part in message.topics[0].partitions} == {3}
    assert {part.partition_max_bytes for part in message.topics[0].partitions} == {5_000}


def test_few_partitions_share_an_answer_of_eight_megabytes_and_many_have_one_each() -> None:
    def limits(send: Any) -> dict[int, int]:
        return {part.partition: part.partition_max_bytes for part in send.message.topics[0].partitions}

    fetches = Fetches(T0, T2)
    send = fetches.one(Api.FETCH)
    assert limits(send) == {0: 4 << 20, 2: 4 << 20}
    fetches.subscription.pause([T2], {})
    fetches.answer(send, fetched(data(T0, b""), data(T2, b""), session=7))
    assert limits(fetches.one(Api.FETCH)) == {0: 8 << 20}, "the session sends the new limit"
    assert partition_limit(None, 1_000) == 1 << 20


def test_an_error_in_one_partition_skips_no_records_of_the_others() -> None:
    fetches = Fetches(T0, T2)
    broken = data(T2, batch(10))
    object.__setattr__(broken, "aborted_transactions", (None,))
    with pytest.raises(AttributeError, match="producer_id"):
        fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10)), broken, session=7))
    assert [part.tp for response in fetches.fetched() for part in response.partitions] == [T0]
    assert (fetches.state(T0).fetch, fetches.state(T2).fetch) == (15, 10)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T2, batch(10)), session=7))
    assert [part.tp for response in fetches.fetched() for part in response.partitions] == [T2]


def test_records_of_another_topic_of_the_same_name_are_not_those_that_the_position_is_of() -> None:
    fetches = Fetches(T0)
    fetches.state(T0).topic_id = uuid.UUID(int=6)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10))))
    assert (fetches.fetched(), fetches.state(T0).fetch) == ([], 10)
    fetches.state(T0).topic_id = TOPIC_ID
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10))))
    assert fetches.state(T0).fetch == 15


def test_an_answer_to_who_read_nothing_any_more_is_dropped_and_reading_goes_on() -> None:
    fetches = Fetches(T0)
    late = fetches.one(Api.FETCH)
    fetches.subscription.assign([])
    fetches.poll()
    fetches.subscription.assign([T0])
    fetches.subscription.seek({T0: OffsetAndMetadata(10)})
    fetches.poll()
    fetches.answer(late, fetched(data(T0, batch(10))))
    assert fetches.fetched() == []
    send = fetches.one(Api.FETCH)
    assert asked(send) == {T0: 10}
    fetches.answer(send, fetched(data(T0, batch(10))))
    assert asked(fetches.one(Api.FETCH)) == {T0: 15}


def test_the_epoch_of_the_last_batch_goes_with_the_position() -> None:
    fetches = Fetches(T0)
    records = bytes(encode_batch([NewRecord(None, b"v")], base_offset=10, leader_epoch=7))
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, records)))
    assert (fetches.state(T0).fetch, fetches.state(T0).leader_epoch) == (11, 7)


def test_one_fetch_a_broker_is_in_flight() -> None:
    fetches = Fetches(T0, T2)
    fetches.poll()
    assert fetches.poll(100) == []


def test_the_next_fetch_leaves_before_the_records_of_the_last_are_consumed_but_not_the_one_after() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10))))
    send = fetches.one(Api.FETCH)
    assert asked(send) == {T0: 15}
    fetches.answer(send, fetched(data(T0, batch(15))))
    assert fetches.poll() == []
    first, second = fetches.fetched()
    assert [(part.offset, part.end, part.aborted) for part in first.partitions] == [(10, 100, ((8, 2),))]
    fetches.manager.drained([first.number])
    assert asked(fetches.one(Api.FETCH)) == {T0: 20}
    assert fetches.manager.memory.held == second.size


def test_what_is_held_counts_against_the_limit_of_bytes() -> None:
    fetches = Fetches(T0, fetch_buffer_bytes=3_000)
    send = fetches.one(Api.FETCH)
    assert send.message.max_bytes == 1_500
    fetches.answer(send, fetched(data(T0, batch(10, size=400))))
    (first,) = fetches.fetched()
    send = fetches.one(Api.FETCH)
    assert send.message.max_bytes == 3_000 - first.size
    fetches.answer(send, fetched(data(T0)))
    fetches.manager.drained([first.number])
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(15, size=500))))
    _, large = fetches.fetched()
    assert large.size > 2_500
    assert fetches.poll() == []
    fetches.manager.drained([large.number])
    fetches.one(Api.FETCH)


def test_what_other_brokers_hold_counts_too() -> None:
    fetches = Fetches(T0, T1, fetch_buffer_bytes=4_000)
    first, second = fetches.poll()
    assert first.message.max_bytes + second.message.max_bytes == 2_000
    fetches.answer(first, fetched(data(T0, batch(10, size=700))))
    (large,) = fetches.fetched()
    assert large.size > 3_000
    assert fetches.poll() == []
    fetches.answer(second, fetched(data(T1)))
    assert fetches.poll() == []
    fetches.manager.drained([large.number])
    assert len(fetches.poll()) == 2


def test_an_empty_response_takes_no_memory() -> None:
    fetches = Fetches(T0)
    for _ in range(4):
        fetches.answer(fetches.one(Api.FETCH), fetched(data(T0)))
    assert (fetches.manager.memory.held, fetches.manager.memory.reserved) == (0, 0)


def test_with_read_committed_the_end_is_the_last_stable_offset() -> None:
    fetches = Fetches(T0, isolation_level="read_committed")
    send = fetches.one(Api.FETCH)
    assert send.message.isolation_level == 1
    fetches.answer(send, fetched(data(T0, batch(10))))
    assert fetches.fetched()[0].partitions[0].end == 90


def test_topics_go_by_name_where_the_id_is_not_known() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10)), by_id=False))
    assert fetches.state(T0).fetch == 15


@pytest.mark.parametrize(("by_id", "topic_id"), [(True, TOPIC_ID), (False, None)])
def test_what_arrives_has_the_topic_id_that_the_broker_has_compared(by_id: bool, topic_id: uuid.UUID | None) -> None:
    fetches = Fetches(T0)
    send = fetches.one(Api.FETCH)
    assert [topic.topic_id for topic in send.message.topics] == [TOPIC_ID]  # not encoded before Fetch 13
    fetches.answer(send, fetched(data(T0, batch(10)), by_id=by_id))
    assert fetches.fetched()[0].partitions[0].topic_id == topic_id


def test_memory_is_waited_for_only_where_some_broker_would_be_asked() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10))))
    assert not fetches.manager.awaits_memory
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(15))))
    assert not fetches.poll()
    assert fetches.manager.awaits_memory, "two answers are held"
    fetches.manager.drained([fetches.fetched()[0].number])
    assert fetches.one(Api.FETCH)
    assert not fetches.manager.awaits_memory


def test_partitions_that_were_served_go_behind_the_others() -> None:
    fetches = Fetches(T0, T2)
    send = fetches.one(Api.FETCH)
    assert list(asked(send)) == [T0, T2]
    fetches.answer(send, fetched(data(T0, batch(10)), data(T2)))
    assert list(asked(fetches.one(Api.FETCH))) == [T2, T0]


@pytest.mark.parametrize("what", ["seek", "pause", "revoke", "unassign"])
def test_an_answer_that_is_not_wanted_any_more_is_dropped(what: str) -> None:
    fetches = Fetches(T0)
    send = fetches.one(Api.FETCH)
    match what:
        case "seek":
            fetches.subscription.seek({T0: OffsetAndMetadata(50)})
        case "pause":
            fetches.subscription.pause([T0], {})
        case "revoke":
            fetches.subscription.suspend()
        case "unassign":
            fetches.subscription.unsubscribe()
    fetches.answer(send, fetched(data(T0, batch(10))))
    assert fetches.fetched() == []
    if what == "seek":
        assert asked(fetches.one(Api.FETCH)) == {T0: 50}
    else:
        assert fetches.poll() == []


def test_nothing_is_fetched_before_on_assign_has_run() -> None:
    fetches = Fetches()
    fetches.subscription.set_partitions([T0], await_acceptance=True)
    fetches.subscription.seek({T0: OffsetAndMetadata(1)})
    assert fetches.poll() == []
    fetches.subscription.accept()
    assert asked(fetches.one(Api.FETCH)) == {T0: 1}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    ],
)
def test_errors_of_leadership_ask_for_metadata_and_try_again(code: int) -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=code)))
    assert fetches.cluster.asked
    assert fetches.poll(99) == []
    assert fetches.wake_at == 100
    assert asked(fetches.one(Api.FETCH, 100)) == {T0: 10}
    assert fetches.state(T0).problem is None


def test_an_error_that_passes_is_tried_again() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=ErrorCode.unknown_server_error)))
    assert not fetches.cluster.asked
    assert asked(fetches.one(Api.FETCH, 100)) == {T0: 10}


def epoch_asked(send: AnySend) -> int:
    return int(send.message.topics[0].partitions[0].current_leader_epoch)


def test_a_leader_epoch_that_the_leader_never_learns_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    fetches = Fetches(T0)
    times = range(0, 2_600, 100)
    epochs = []
    for at in times:
        send = fetches.one(Api.FETCH, at)
        epochs.append(epoch_asked(send))
        assert asked(send) == {T0: 10}
        fetches.answer(send, fetched(data(T0, code=ErrorCode.unknown_leader_epoch)))
        fetches.cluster.tell(at)
    assert epochs == [3] * 21 + [-1] * 5, "after more than three refreshes, and two seconds"
    assert len([line for line in caplog.messages if "does not know leader epoch 3" in line]) == 1
    fetches.answer(fetches.one(Api.FETCH, 2_600), fetched(data(T0, batch(10))))
    fetches.cluster.tell(2_600, epoch=4)
    assert epoch_asked(fetches.one(Api.FETCH, 2_600)) == 4, "the next epoch of the cluster counts again"


def test_a_leader_that_learns_its_epoch_in_time_is_asked_with_it_on() -> None:
    fetches = Fetches(T0)
    for at in range(0, 1_900, 100):
        fetches.answer(fetches.one(Api.FETCH, at), fetched(data(T0, code=ErrorCode.unknown_leader_epoch)))
        fetches.cluster.tell(at)
    fetches.answer(fetches.one(Api.FETCH, 1_900), fetched(data(T0, batch(10))))
    # A refusal that comes much later begins a count of its own.
    fetches.answer(fetches.one(Api.FETCH, 9_000), fetched(data(T0, code=ErrorCode.unknown_leader_epoch)))
    assert epoch_asked(fetches.one(Api.FETCH, 9_100)) == 3


def test_without_a_refresh_of_the_metadata_no_epoch_is_dropped() -> None:
    fetches = Fetches(T0)
    for at in range(0, 5_000, 100):
        send = fetches.one(Api.FETCH, at)
        assert epoch_asked(send) == 3
        fetches.answer(send, fetched(data(T0, code=ErrorCode.unknown_leader_epoch)))
    assert fetches.cluster.asked


@pytest.mark.parametrize("code", [ErrorCode.topic_authorization_failed, ErrorCode.corrupt_message, ErrorCode.invalid_record])
def test_other_errors_are_problems_until_a_fetch_succeeds(code: int) -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=code)))
    assert type(fetches.state(T0).problem) is error_class(code)
    assert "t-0 from offset 10" in str(fetches.state(T0).problem)
    fetches.answer(fetches.one(Api.FETCH, 100), fetched(data(T0, batch(10))))
    assert fetches.state(T0).problem is None


def test_what_fails_of_one_partition_takes_nothing_from_the_others() -> None:
    fetches = Fetches(T0, T2)
    fetches.answer(
        fetches.one(Api.FETCH), fetched(data(T0, code=ErrorCode.topic_authorization_failed), data(T2, batch(10)), session=7)
    )
    (response,) = fetches.fetched()
    assert [part.tp for part in response.partitions] == [T2]
    send = fetches.one(Api.FETCH)
    assert asked(send) == {T2: 15}
    assert [gone.partitions for gone in send.message.forgotten_topics_data] == [(0,)]
    fetches.answer(send, fetched(data(T2), session=7))
    assert asked(fetches.one(Api.FETCH, 100)) == {T0: 10, T2: 15}, "whose share is less again"


def test_out_of_range_resets_only_when_all_that_was_fetched_is_consumed() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10))))
    (held,) = fetches.fetched()
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=ErrorCode.offset_out_of_range)))
    assert fetches.poll(5_000) == []
    assert fetches.state(T0).phase is Phase.FETCHING
    fetches.manager.drained([held.number])
    assert fetches.poll() == []
    assert fetches.wake_at == fetches.mono
    assert (fetches.state(T0).phase, fetches.state(T0).reset_to) == (Phase.RESETTING, EARLIEST)


def test_out_of_range_without_a_policy_is_a_problem() -> None:
    fetches = Fetches(T0, reset_to=None)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=ErrorCode.offset_out_of_range)))
    assert type(fetches.state(T0).problem) is OffsetOutOfRangeError
    assert fetches.state(T0).fetch == 10


def test_a_late_out_of_range_after_a_seek_is_ignored() -> None:
    fetches = Fetches(T0)
    send = fetches.one(Api.FETCH)
    fetches.subscription.seek({T0: OffsetAndMetadata(3)})
    fetches.answer(send, fetched(data(T0, code=ErrorCode.offset_out_of_range)))
    assert fetches.state(T0).phase is Phase.FETCHING
    assert asked(fetches.one(Api.FETCH)) == {T0: 3}


def test_a_leader_named_by_an_error_is_believed_at_once() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=ErrorCode.not_leader_or_follower, leader=(2, 9))))
    (send,) = fetches.poll(100)
    assert send.target == ToNode(2)
    assert send.message.topics[0].partitions[0].current_leader_epoch == 9


def test_without_a_leader_the_metadata_is_asked() -> None:
    fetches = Fetches(T0)
    fetches.cluster.tell(leaders={T0: -1})
    assert fetches.poll() == []
    assert fetches.cluster.asked


def test_a_broker_that_fails_is_asked_again_after_growing_pauses() -> None:
    fetches = Fetches(T0)
    for pause in (100, 200, 400):
        fetches.fail(fetches.one(Api.FETCH), DisconnectedError("broke"))
        assert fetches.cluster.asked
        assert fetches.poll(fetches.mono + pause - 1) == []
        fetches.mono += 1
    fetches.answer(fetches.one(Api.FETCH), fetched(error=ErrorCode.kafka_storage_error))
    assert fetches.poll() == []
    fetches.one(Api.FETCH, fetches.mono + 800)


@pytest.mark.parametrize("records", [b"\0" * 100, batch(10)[:-1], b"x" * 7])
def test_after_bytes_that_are_no_batch_only_a_seek_helps(records: bytes) -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, records)))
    (response,) = fetches.fetched()
    assert response.partitions[0].data == records
    fetches.manager.drained([response.number])
    assert fetches.poll(10_000) == []
    fetches.subscription.seek({T0: OffsetAndMetadata(11)})
    assert asked(fetches.one(Api.FETCH)) == {T0: 11}


def test_a_permanent_error_is_reported_and_the_fetch_is_retried() -> None:
    fetches = Fetches(T0)
    fetches.fail(fetches.one(Api.FETCH), UnsupportedApiError("too old"))
    assert isinstance(fetches.state(T0).problem, UnsupportedApiError)
    assert fetches.poll(99) == []
    fetches.answer(fetches.one(Api.FETCH, 100), fetched(data(T0, batch(10))))
    assert fetches.state(T0).problem is None


# -- sessions ---------------------------------------------------------------------------------------------------------------


def test_in_a_session_only_what_changed_is_asked_for() -> None:
    fetches = Fetches(T0, T2)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10)), data(T2), session=77))
    send = fetches.one(Api.FETCH)
    assert (send.message.session_id, send.message.session_epoch, asked(send)) == (77, 1, {T0: 15})
    fetches.answer(send, fetched(session=77))
    send = fetches.one(Api.FETCH)
    assert (send.message.session_epoch, asked(send), send.message.forgotten_topics_data) == (2, {}, ())


def test_what_is_paused_is_forgotten_by_the_session() -> None:
    fetches = Fetches(T0, T2)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0), data(T2), session=77))
    fetches.subscription.pause([T0], {})
    (gone,) = fetches.one(Api.FETCH).message.forgotten_topics_data
    assert (gone.topic, gone.topic_id, gone.partitions) == ("t", TOPIC_ID, (0,))


def test_what_has_records_waiting_stays_in_the_session() -> None:
    fetches = Fetches(T0, T2)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10)), data(T2), session=77))
    send = fetches.one(Api.FETCH)
    assert send.message.forgotten_topics_data == ()
    fetches.answer(send, fetched(data(T0, batch(15)), session=77))
    fetches.manager.drained([1])
    assert asked(fetches.one(Api.FETCH)) == {T0: 20}


@pytest.mark.parametrize(("code", "session"), [(70, 0), (71, 77), (106, 77)])
def test_after_a_session_error_another_session_begins_at_once(code: int, session: int) -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0), session=77))
    fetches.answer(fetches.one(Api.FETCH), fetched(error=code))
    send = fetches.one(Api.FETCH)
    assert (send.message.session_id, send.message.session_epoch, asked(send)) == (session, 0, {T0: 10})
    fetches.answer(send, fetched(error=code))
    assert fetches.poll() == []  # but not for ever without a pause


def test_an_answer_that_does_not_fit_the_session_is_dropped() -> None:
    fetches = Fetches(T0, T2)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10)), session=77))
    assert fetches.fetched() == []
    assert asked(fetches.one(Api.FETCH)) == {T0: 10, T2: 10}


def test_after_a_broken_connection_the_session_restarts() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, batch(10)), session=77))
    fetches.fail(fetches.one(Api.FETCH), DisconnectedError("broke"))
    send = fetches.one(Api.FETCH, 100)
    assert (send.message.session_id, send.message.session_epoch, asked(send)) == (77, 0, {T0: 15})


def test_sessions_end_when_nothing_is_read_any_more() -> None:
    fetches = Fetches(T0, T1)
    for send, tp in zip(fetches.poll(), (T0, T1), strict=True):
        fetches.answer(send, fetched(data(tp), session=70 + tp.partition))
    waiting, _ = fetches.poll()
    fetches.subscription.unsubscribe()
    sends = fetches.poll()
    assert [(send.target, send.message.session_id, send.message.session_epoch) for send in sends] == [
        (ToNode(1), 70, -1),
        (ToNode(2), 71, -1),
    ]
    assert fetches.poll() == []
    for send in sends:
        fetches.answer(send, fetched())
    fetches.subscription.assign([T0])
    fetches.subscription.seek({T0: OffsetAndMetadata(3)})
    assert fetches.poll() == []  # the last Fetch to that broker is still under way
    fetches.answer(waiting, fetched(data(T0, batch(10)), session=70))
    send = fetches.one(Api.FETCH)
    assert (send.message.session_id, send.message.session_epoch, asked(send)) == (0, 0, {T0: 3})


def test_a_plan_is_made_only_when_something_changed() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0), session=77))
    looked: list[TopicPartition] = []
    choose = fetches.manager.replicas.choose

    def watched(tp: TopicPartition, now: Any) -> int | None:
        looked.append(tp)
        return choose(tp, now)

    fetches.manager.replicas.choose = watched  # type: ignore[method-assign]
    for _ in range(5):
        fetches.answer(fetches.one(Api.FETCH), fetched(session=77))
    assert looked == []
    fetches.subscription.seek({T0: OffsetAndMetadata(1)})
    assert asked(fetches.one(Api.FETCH)) == {T0: 1}
    assert looked == [T0]


# -- the closest replica ----------------------------------------------------------------------------------------------------


def test_the_replica_that_the_leader_names_is_asked_until_the_lease_is_over() -> None:
    fetches = Fetches(T0, client_rack="here", metadata_max_age_ms=5_000)
    send = fetches.one(Api.FETCH)
    assert (send.target, send.message.rack_id) == (ToNode(1), "here")
    fetches.answer(send, fetched(data(T0, replica=2)))
    send = fetches.one(Api.FETCH)
    assert (send.target, asked(send)) == (ToNode(2), {T0: 10})
    fetches.answer(send, fetched(data(T0, batch(10)), session=5))
    fetches.mono = 5_000
    fetches.answer(fetches.one(Api.FETCH), fetched(session=5))
    assert fetches.one(Api.FETCH, 5_001).target == ToNode(1)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.offset_not_available,
    ],
)
def test_an_error_of_a_replica_leads_back_to_the_leader(code: int) -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, replica=2)))
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=code)))
    assert fetches.one(Api.FETCH, 100).target == ToNode(1)


def test_out_of_range_at_a_replica_is_asked_of_the_leader_and_resets_nothing() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, replica=2)))
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, code=ErrorCode.offset_out_of_range)))
    send = fetches.one(Api.FETCH)
    assert (send.target, asked(send)) == (ToNode(1), {T0: 10})
    assert fetches.state(T0).phase is Phase.FETCHING


def test_a_replica_that_cannot_be_reached_leads_back_to_the_leader() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, replica=2)))
    fetches.fail(fetches.one(Api.FETCH), DisconnectedError("broke"))
    assert fetches.one(Api.FETCH).target == ToNode(1)


def test_a_new_leader_chooses_the_closest_replica_again() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, replica=2)))
    fetches.cluster.tell(leaders={T0: 1}, epoch=4)
    assert fetches.one(Api.FETCH).target == ToNode(1)


def test_a_replica_that_is_not_known_is_looked_up_and_not_asked_for_at_once() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0, replica=9)))
    assert fetches.cluster.asked
    assert fetches.poll() == []
    assert fetches.one(Api.FETCH, 100).target == ToNode(1)


def test_a_transient_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    fetches = Fetches(T0)
    for number in range(3):
        fetches.answer(fetches.one(Api.FETCH, 100 * number), fetched(data(T0, code=ErrorCode.unknown_server_error)))
    assert len([line for line in caplog.messages if "t-0" in line]) == 1


def test_a_fetch_that_was_noted_as_sent_leaves_though_the_next_one_cannot_be_made() -> None:
    fetches = Fetches(T0, T1)
    with unmade(fetch_request, "FetchRequest", 2), pytest.raises(OSError, match="Too many open files"):
        fetches.poll()
    assert {send.target for send in fetches.poll()} == {ToNode(1), ToNode(2)}


def test_a_session_that_could_not_be_ended_is_ended_later() -> None:
    fetches = Fetches(T0)
    fetches.answer(fetches.one(Api.FETCH), fetched(data(T0), session=7))
    fetches.subscription.unsubscribe()
    with unmade(fetch_request, "FetchRequest", 1), pytest.raises(OSError, match="Too many open files"):
        fetches.poll()
    assert fetches.one(Api.FETCH).message.session_epoch == -1
