"""Scripted faults in the broker's core: which request one strikes, what is done and what is answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker import slices
from ottla.broker.api import HANDLERS
from ottla.broker.effects import CloseConnection, NodeEndpoint, TruncatedReply
from ottla.broker.faults import rules, table
from ottla.broker.faults.messages import error_response
from ottla.broker.faults.rules import Moment, RemoveFaults
from ottla.broker.transaction_coordinator_service import TransactionCoordinatorService
from ottla.coordinator.coordinator import GroupCoordinator
from ottla.protocol import ErrorCode, duration
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import decode_request, decode_response, encode_response
from ottla.protocol.messages import (
    create_topics_request,
    end_txn_request,
    fetch_request,
    find_coordinator_request,
    heartbeat_request,
    init_producer_id_request,
    join_group_request,
    metadata_request,
    offset_commit_request,
    produce_request,
)
from tests.malformed_frames import some_request
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.unit.broker.group_requests import code_of, commit_message, committed, started
from tests.unit.broker.harness import batch
from tests.unit.broker.injected import add, remove, struck

ERROR = ErrorCode.not_leader_or_follower
SERVED = sorted({*HANDLERS, *GroupCoordinator.APIS, *TransactionCoordinatorService.served})
EVERY = [(api, version) for api in SERVED for version in range(SPOKEN[api].minimum, SPOKEN[api].maximum + 1)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = started(tmp_path)
    yield core
    core.kill()


def closed(broker: CoreUnderTest) -> list[int]:
    return [effect.ticket for effect in broker.others if isinstance(effect, CloseConnection)]


def commit(offset: int = 7) -> offset_commit_request.OffsetCommitRequest:
    return commit_message(offset)


def send_commit(broker: CoreUnderTest, offset: int = 7, connection: int = 1) -> int:
    return broker.send(Api.OFFSET_COMMIT, commit(offset), version=9, connection=connection)


def produce(broker: CoreUnderTest, *topics: str, acks: int = 1) -> int:
    data = produce_request.PartitionProduceData(index=0, records=batch())
    return broker.send(
        Api.PRODUCE,
        produce_request.ProduceRequest(
            acks=acks,
            timeout=duration(0),
            topic_data=tuple(produce_request.TopicProduceData(name=topic, partition_data=(data,)) for topic in topics),
        ),
        version=12,
    )


def end_offset(broker: CoreUnderTest, topic: str = "t") -> int:
    return broker.core.catalog.log(topic, 0).end_offset


# The answers


def codes(message: Any) -> list[ErrorCode]:
    """All error codes in a message."""
    if isinstance(message, tuple):
        return [code for item in message for code in codes(item)]
    if dataclasses.is_dataclass(message):
        return [code for field in dataclasses.fields(message) for code in codes(getattr(message, field.name))]
    return [message] if isinstance(message, ErrorCode) else []


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda value: getattr(value, "name", str(value)))
def test_every_version_of_every_api_can_be_answered_with_an_error(api: Api, version: int) -> None:
    header, request = decode_request(some_request(api, version)[4:])
    pieces = encode_response(header, error_response(api, request, ERROR))
    _, answer = decode_response(api, version, b"".join(map(content, pieces))[4:])
    found = codes(answer)
    assert ERROR in found
    assert set(found) <= {ERROR, ErrorCode.none}


def test_an_error_is_where_clients_look_for_it() -> None:
    part = fetch_request.FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)
    topics = (fetch_request.FetchTopic(topic="t", partitions=(part,)),)
    request = fetch_request.FetchRequest(
        max_wait=duration(0), min_bytes=1, max_bytes=1, topics=topics, forgotten_topics_data=(), session_id=5
    )
    answer = error_response(Api.FETCH, request, ErrorCode.offset_out_of_range)
    (topic,) = answer.responses
    assert (answer.error_code, answer.session_id, topic.topic) == (ErrorCode.none, 5, "t")
    assert (topic.partitions[0].partition_index, topic.partitions[0].error_code) == (3, ErrorCode.offset_out_of_range)
    answer = error_response(Api.FETCH, request, ErrorCode.fetch_session_id_not_found)
    assert (answer.error_code, answer.responses) == (ErrorCode.fetch_session_id_not_found, ())


# Requests


def test_a_failed_commit_changes_nothing_and_the_next_succeeds(broker: CoreUnderTest) -> None:
    add(broker, rules.Fail(ErrorCode.not_coordinator), apis=[Api.OFFSET_COMMIT])
    ticket = send_commit(broker)
    assert code_of(broker.replies[ticket]) is ErrorCode.not_coordinator
    assert (committed(broker), struck(broker)) == ((-1, ""), [1])
    assert code_of(broker.replies[send_commit(broker)]) is ErrorCode.none
    assert not broker.core.catalog.faults.active


def test_faults_set_one_after_the_other_are_a_sequence(broker: CoreUnderTest) -> None:
    first, second = ErrorCode.not_coordinator, ErrorCode.request_timed_out
    add(broker, rules.Fail(first), 1, apis=[Api.OFFSET_COMMIT], times=2)
    add(broker, rules.Fail(second), 2, apis=[Api.OFFSET_COMMIT], after=1)
    answers = [code_of(broker.replies[send_commit(broker)]) for _ in range(5)]
    assert answers == [first, first, ErrorCode.none, second, ErrorCode.none]
    assert struck(broker) == [1, 1, 2]


@pytest.mark.parametrize(
    ("match", "strikes"),
    [
        ({}, True),
        ({"client_id": "test"}, True),
        ({"client_id": "other"}, False),
        ({"group": "g"}, True),
        ({"group": "other"}, False),
        ({"topic": "t"}, True),
        ({"topic": "other"}, False),
        ({"apis": [Api.HEARTBEAT]}, False),
        ({"apis": [Api.HEARTBEAT, Api.OFFSET_COMMIT], "group": "g", "topic": "t", "client_id": "test"}, True),
    ],
)
def test_what_a_fault_is_for(broker: CoreUnderTest, match: dict[str, Any], strikes: bool) -> None:
    add(broker, rules.Fail(ErrorCode.not_coordinator), **match)
    assert (code_of(broker.replies[send_commit(broker)]) is ErrorCode.not_coordinator) is strikes


@pytest.mark.parametrize(
    ("api", "message"),
    [
        (
            Api.END_TXN,
            lambda name: end_txn_request.EndTxnRequest(transactional_id=name, producer_id=1, producer_epoch=0, committed=True),
        ),
        (
            Api.INIT_PRODUCER_ID,
            lambda name: init_producer_id_request.InitProducerIdRequest(transactional_id=name, transaction_timeout=duration(1)),
        ),
        (Api.FIND_COORDINATOR, lambda name: find_coordinator_request.FindCoordinatorRequest(key_type=1, coordinator_keys=(name,))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_transactional_id_is_named_in_many_ways(broker: CoreUnderTest, api: Api, message: Any) -> None:
    add(broker, rules.Fail(ErrorCode.concurrent_transactions), transactional_id="mine", times=None)
    assert ErrorCode.concurrent_transactions in codes(broker.ask(api, message("mine")))
    assert ErrorCode.concurrent_transactions not in codes(broker.ask(api, message("other")))


def test_only_the_topic_that_is_meant_fails(broker: CoreUnderTest) -> None:
    broker.core.catalog.create_topic("u", 1, {})
    add(broker, rules.Fail(ERROR), apis=[Api.PRODUCE], topic="u")
    answer = broker.replies[produce(broker, "t", "u")]
    results = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert results == {"t": ErrorCode.none, "u": ERROR}
    assert (end_offset(broker, "t"), end_offset(broker, "u")) == (1, 0)


def test_a_topic_is_known_by_its_id_as_well(broker: CoreUnderTest) -> None:
    add(broker, rules.Fail(ERROR), apis=[Api.FETCH], topic="t")
    part = fetch_request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = (fetch_request.FetchTopic(topic_id=broker.core.catalog.topic("t").topic_id, partitions=(part,)),)
    request = fetch_request.FetchRequest(max_wait=duration(0), min_bytes=1, max_bytes=1, topics=topics, forgotten_topics_data=())
    assert broker.ask(Api.FETCH, request).responses[0].partitions[0].error_code is ERROR


def test_metadata_with_an_error_still_names_the_brokers(broker: CoreUnderTest) -> None:
    broker.core.catalog.create_topic("u", 1, {})
    add(broker, rules.Fail(ErrorCode.leader_not_available), apis=[Api.METADATA], times=2)
    answer = broker.ask(Api.METADATA, metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False))
    assert {topic.name: topic.error_code for topic in answer.topics} == dict.fromkeys("tu", ErrorCode.leader_not_available)
    assert len(answer.brokers) == 1
    new = metadata_request.MetadataRequestTopic(topic_id=None, name="new")
    broker.ask(Api.METADATA, metadata_request.MetadataRequest(topics=(new,), include_topic_authorized_operations=False))
    assert broker.core.catalog.topics.get("new") is None


def test_a_produce_request_that_wants_no_answer_costs_the_connection(broker: CoreUnderTest) -> None:
    add(broker, rules.Fail(ERROR), apis=[Api.PRODUCE])
    ticket = produce(broker, "t", acks=0)
    assert (closed(broker), end_offset(broker)) == ([ticket], 0)


# Answers


def test_a_delayed_answer_comes_later_and_what_it_says_has_happened_at_once(broker: CoreUnderTest) -> None:
    add(broker, rules.Delay(500), apis=[Api.OFFSET_COMMIT])
    ticket = send_commit(broker)
    assert committed(broker) == (7, "note")
    broker.pass_time(499)
    assert ticket not in broker.replies
    broker.pass_time(1)
    assert code_of(broker.replies[ticket]) is ErrorCode.none


def test_an_error_can_come_late(broker: CoreUnderTest) -> None:
    add(broker, rules.Delay(500), 1)
    add(broker, rules.Fail(ErrorCode.not_coordinator), 2)
    ticket = send_commit(broker)
    assert (struck(broker), broker.replies.get(ticket)) == ([1, 2], None)
    broker.pass_time(500)
    assert code_of(broker.replies[ticket]) is ErrorCode.not_coordinator


def test_a_late_answer_leaves_when_its_fault_is_cleared(broker: CoreUnderTest) -> None:
    add(broker, rules.Delay(10_000))
    ticket = send_commit(broker)
    remove(broker, 1)
    assert ticket in broker.replies
    broker.pass_time(10_000)
    assert not broker.core.catalog.faults.active


@pytest.mark.parametrize(("moment", "kept"), [(Moment.REQUEST, -1), (Moment.REPLY, 7)])
def test_a_connection_is_dropped_before_or_after_the_work(broker: CoreUnderTest, moment: Moment, kept: int) -> None:
    add(broker, rules.Drop(moment))
    ticket = send_commit(broker)
    assert (closed(broker), ticket in broker.replies) == ([ticket], False)
    assert committed(broker)[0] == kept


def test_half_an_answer(broker: CoreUnderTest) -> None:
    add(broker, rules.Drop(Moment.HALFWAY))
    ticket = send_commit(broker)
    assert [effect.ticket for effect in broker.others if isinstance(effect, TruncatedReply)] == [ticket]
    assert committed(broker)[0] == 7


def test_a_lost_answer_never_comes_and_its_connection_goes_with_the_fault(broker: CoreUnderTest) -> None:
    add(broker, rules.LoseReply(), apis=[Api.OFFSET_COMMIT])
    lost, gone = send_commit(broker, connection=1), send_commit(broker, 8, connection=2)
    assert (lost in broker.replies, gone in broker.replies, closed(broker)) == (False, True, [])
    remove(broker)
    assert (closed(broker), broker.core.catalog.faults.active) == ([lost], False)
    assert committed(broker)[0] == 8


def test_a_client_that_goes_away_leaves_nothing_behind(broker: CoreUnderTest) -> None:
    add(broker, rules.LoseReply(), 1)
    add(broker, rules.Delay(1000), 2)
    send_commit(broker)
    send_commit(broker)
    broker.take(broker.core.on_disconnect(1, broker.now))
    assert not broker.core.catalog.faults.active


# The broker


def test_a_frozen_broker_does_nothing_and_then_everything_in_its_order(broker: CoreUnderTest) -> None:
    add(broker, rules.Freeze(), times=None)
    tickets = [send_commit(broker, 1), send_commit(broker, 2)]
    broker.pass_time(100_000)
    assert ([ticket for ticket in tickets if ticket in broker.replies], struck(broker)) == ([], [1, 1])
    remove(broker, 1)
    assert [code_of(broker.replies[ticket]) for ticket in tickets] == [ErrorCode.none] * 2
    assert committed(broker)[0] == 2


def creating(count: int) -> create_topics_request.CreateTopicsRequest:
    topics = tuple(
        create_topics_request.CreatableTopic(name=f"n{number}", num_partitions=1, replication_factor=1, assignments=(), configs=())
        for number in range(count)
    )
    return create_topics_request.CreateTopicsRequest(topics=topics)


def test_a_request_that_is_served_in_slices_stands_still_while_the_broker_is_frozen(broker: CoreUnderTest) -> None:
    ticket = broker.send(Api.CREATE_TOPICS, creating(4 * slices.SIZE))
    broker.pass_time(1)
    made = len(broker.core.catalog.topics)
    add(broker, rules.Freeze(), times=None)
    broker.pass_time(100_000)
    assert (ticket in broker.replies, len(broker.core.catalog.topics)) == (False, made)
    remove(broker, 1)
    assert len(broker.core.catalog.topics) == made, "the event loop has its turn between two slices as before"
    broker.pass_time(3)
    assert len(broker.replies[ticket].topics) == 4 * slices.SIZE


@pytest.mark.parametrize("first", [slices.SIZE, 3 * slices.SIZE], ids=["one slice", "several"])
def test_what_waited_behind_a_request_in_slices_is_served_after_it(broker: CoreUnderTest, first: int) -> None:
    """A client that does not wait for answers sends CreateTopics and Produce, and the broker is frozen meanwhile."""
    add(broker, rules.Freeze(), times=None)
    long = broker.send(Api.CREATE_TOPICS, creating(first))
    behind = [produce(broker, f"n{first - 1}"), broker.send(Api.CREATE_TOPICS, creating(first)), produce(broker, "n0")]
    other = send_commit(broker, connection=2)
    remove(broker, 1)
    assert other in broker.replies, "other connections do not wait"
    if first > slices.SIZE:
        assert not broker.replies.keys() & {long, *behind}
        broker.pass_time(100)
    for ticket in (behind[0], behind[2]):
        (row,) = broker.replies[ticket].responses[0].partition_responses
        assert row.error_code is ErrorCode.none
    assert {row.error_code for row in broker.replies[long].topics} == {ErrorCode.none}
    assert {row.error_code for row in broker.replies[behind[1]].topics} == {ErrorCode.topic_already_exists}
    assert [ticket for ticket in broker.replies if ticket != other][-4:] == [long, *behind]


def test_what_waited_behind_a_request_in_slices_that_fails_goes_with_its_connection(
    broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(broker, rules.Freeze(), times=None)
    long = broker.send(Api.CREATE_TOPICS, creating(3 * slices.SIZE))
    behind = produce(broker, "t")
    remove(broker, 1)
    monkeypatch.setattr(broker.core.catalog, "create_topic", None)
    broker.pass_time(100)
    assert closed(broker) == [long]
    assert behind not in broker.replies
    assert end_offset(broker) == 0


def test_an_answer_that_cannot_be_changed_takes_no_other_effect_with_it(
    broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.core.catalog.create_topic("u", 1, {"flush.ms": "1"})
    monkeypatch.setattr(table, "joined", lambda answer: answer)  # which takes two
    add(broker, rules.Fail(ERROR), topic="t")
    ticket = produce(broker, "t", "u")
    assert broker.others[-1] == CloseConnection(ticket, "the broker failed to serve it")
    assert broker.timers.next_at() == broker.now.mono + 1, "the timer of flush.ms is set"


def test_what_fails_when_a_frozen_broker_goes_on_takes_nothing_else_with_it(
    broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(broker, rules.Freeze(), times=None)
    bad = produce(broker, "t")
    later = send_commit(broker)
    broker.pass_time(300_000)
    with monkeypatch.context() as patch:
        patch.setattr(broker.core.catalog, "append", None)
        patch.setattr(broker.core.catalog.logs, "clean", None)
        remove(broker, 1)
        with pytest.raises(TypeError):
            broker.pass_time(0)
    assert CloseConnection(bad, "the broker failed to serve it") in broker.others
    assert later not in broker.replies, "it came over the connection that is closed"
    broker.pass_time(0)
    assert {("retention",), ("checkpoint",), ("clean",)} <= set(broker.timers._live)


def test_a_fault_may_end_by_itself(broker: CoreUnderTest) -> None:
    add(broker, rules.Freeze(), times=None, lasts=1_000)
    ticket = send_commit(broker)
    broker.pass_time(999)
    assert ticket not in broker.replies
    broker.pass_time(1)
    assert ticket in broker.replies
    assert not broker.core.catalog.faults.active


def test_a_full_disk_fails_what_is_written_to_it_and_nothing_else(broker: CoreUnderTest) -> None:
    broker.core.catalog.create_topic("u", 1, {})
    add(broker, rules.FailAppends("t", 0), times=None)
    answer = broker.replies[produce(broker, "t", "u")]
    results = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert results == [ErrorCode.kafka_storage_error, ErrorCode.none]
    assert (struck(broker), end_offset(broker, "t"), end_offset(broker, "u")) == ([1], 0, 1)
    remove(broker, 1)
    produce(broker, "t")
    assert end_offset(broker) == 1


def test_a_full_disk_under_the_groups_leaves_them_as_they_were(broker: CoreUnderTest) -> None:
    add(broker, rules.FailAppends("__consumer_offsets"))
    assert code_of(broker.replies[send_commit(broker)]) is ErrorCode.not_coordinator
    assert committed(broker)[0] == -1
    assert code_of(broker.replies[send_commit(broker)]) is ErrorCode.none


# Groups


def join(broker: CoreUnderTest, member_id: str = "") -> int:
    protocols = (join_group_request.JoinGroupRequestProtocol(name="range", metadata=b"x"),)
    message = join_group_request.JoinGroupRequest(
        group_id="g",
        session_timeout=duration(10_000),
        rebalance_timeout=duration(20_000),
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols,
    )
    return broker.send(Api.JOIN_GROUP, message, version=3)


def find(broker: CoreUnderTest) -> tuple[ErrorCode, int, int]:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))
    (place,) = broker.ask(Api.FIND_COORDINATOR, message).coordinators
    return place.error_code, place.node_id, place.port


def heartbeat(broker: CoreUnderTest, member_id: str) -> ErrorCode:
    message = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    code = broker.ask(Api.HEARTBEAT, message).error_code
    assert isinstance(code, ErrorCode)
    return code


def test_a_coordinator_that_moves_is_somewhere_else_and_comes_back_with_what_is_in_the_log(broker: CoreUnderTest) -> None:
    send_commit(broker)
    assert find(broker) == (ErrorCode.none, 1, 9092)
    add(broker, rules.MoveCoordinator("g"), times=None)
    assert find(broker) == (ErrorCode.coordinator_not_available, -1, -1)
    assert code_of(broker.replies[send_commit(broker, 9)]) is ErrorCode.not_coordinator
    assert struck(broker) == [1, 1]
    remove(broker, 1)
    assert (find(broker)[0], committed(broker)[0]) == (ErrorCode.none, 7)


def test_a_coordinator_may_move_again_before_the_log_is_read(broker: CoreUnderTest) -> None:
    send_commit(broker)
    for number in (1, 2):
        add(broker, rules.MoveCoordinator("g"), number, times=None)
        broker.take(broker.core.on_command(RemoveFaults(number), broker.now)[1])
    add(broker, rules.MoveCoordinator("g"), 3, times=None)
    broker.run_jobs()
    assert code_of(broker.replies[send_commit(broker)]) is ErrorCode.not_coordinator
    remove(broker)
    assert committed(broker)[0] == 7


def test_another_broker_can_be_named(broker: CoreUnderTest) -> None:
    add(broker, rules.MoveCoordinator(None, NodeEndpoint(1000, "elsewhere", 1)), times=None)
    assert find(broker) == (ErrorCode.none, 1000, 1)


def test_parked_requests_of_a_group_fail_when_its_coordinator_moves(broker: CoreUnderTest) -> None:
    member = broker.replies[join(broker)].member_id
    waiting = join(broker)
    assert waiting not in broker.replies
    add(broker, rules.MoveCoordinator("g"), times=None)
    assert broker.replies[waiting].error_code is ErrorCode.not_coordinator
    assert heartbeat(broker, member) is ErrorCode.not_coordinator


def test_a_member_expires_on_command(broker: CoreUnderTest) -> None:
    member = broker.replies[join(broker)].member_id
    assert heartbeat(broker, member) is ErrorCode.none
    count, effects = broker.core.on_command(rules.ExpireMember("g", client_id="test"), broker.now)
    broker.take(effects)
    assert (count, heartbeat(broker, member)) == (1, ErrorCode.unknown_member_id)
    assert broker.core.on_command(rules.ExpireMember("g", member_id=member), broker.now) == (0, [])
