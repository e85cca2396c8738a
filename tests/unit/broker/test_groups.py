"""The coordinator inside the broker: what it appends is in ``__consumer_offsets``, and comes back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from ottla.broker.coordinator_log import MAX_BATCH
from ottla.broker.faults.rules import AddFault, FailAppends, Match, MoveCoordinator, RemoveFaults, Rule
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    create_topics_request,
    delete_topics_request,
    join_group_request,
    list_groups_request,
    offset_commit_request,
)
from ottla.records import NewRecord, encode_batch, iter_records
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.group_requests import code_of, commit, commit_message, committed, files, started


def test_a_commit_is_one_batch_as_kafka_writes_it(tmp_path: Path) -> None:
    broker = started(tmp_path)
    assert commit(broker, 41) is ErrorCode.none
    (file,) = files(tmp_path)
    (record,) = iter_records(file.read_bytes())
    header = record.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (-1, -1, 0, 0)
    assert record.timestamp == broker.now.wall
    assert (record.key or b"")[:2] == b"\x00\x01"
    broker.close()


def test_only_the_partitions_that_are_used_have_files_and_all_are_there(tmp_path: Path) -> None:
    broker = started(tmp_path)
    for number in range(4):
        commit(broker, number, f"group-{number}")
    assert len(files(tmp_path)) <= 4
    topic = broker.core.catalog.topics.get("__consumer_offsets")
    assert topic is not None
    assert topic.partition_count == 50
    broker.close()


def test_groups_are_served_at_once_when_their_topic_was_created_by_a_client(tmp_path: Path) -> None:
    broker = started(tmp_path)
    wanted = create_topics_request.CreatableTopic(
        name="__consumer_offsets", num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    broker.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=(wanted,)))
    groups = [f"group-{number}" for number in range(20)]
    assert {commit(broker, 41, group) for group in groups} == {ErrorCode.none}
    broker.close()
    again = started(tmp_path)
    assert {committed(again, group) for group in groups} == {(41, "note")}
    again.close()


@pytest.mark.parametrize("end", ["close", "kill"])
def test_offsets_come_back(tmp_path: Path, end: str) -> None:
    broker = started(tmp_path)
    for offset in (1, 2, 41):
        commit(broker, offset)
    getattr(broker, end)()
    again = started(tmp_path)
    assert committed(again) == (41, "note")
    listed = again.ask(Api.LIST_GROUPS, list_groups_request.ListGroupsRequest(states_filter=(), types_filter=()))
    assert [group.group_id for group in listed.groups] == ["g"]
    assert commit(again, 42) is ErrorCode.none
    again.close()


def test_requests_for_a_group_fail_with_load_in_progress_until_its_partition_is_read(tmp_path: Path) -> None:
    broker = started(tmp_path)
    commit(broker, 41)
    broker.kill()
    again = CoreUnderTest(tmp_path, loaded=False)
    assert commit(again, 42) is ErrorCode.coordinator_load_in_progress
    again.run_jobs()
    assert committed(again) == (41, "note")
    again.close()


def test_what_cannot_be_written_is_not_acknowledged_and_not_committed(tmp_path: Path) -> None:
    broker = started(tmp_path)
    assert commit(broker, 41) is ErrorCode.none
    (file,) = files(tmp_path)
    folder = file.parent
    broker.store._open.forget_folder(folder)
    folder.rename(tmp_path / "elsewhere")
    # What Kafka's coordinator makes of a failing disk: the client looks for another coordinator, and tries again.
    assert commit(broker, 42) is ErrorCode.not_coordinator
    assert committed(broker) == (41, "note")
    (tmp_path / "elsewhere").rename(folder)
    assert commit(broker, 43) is ErrorCode.none
    broker.kill()
    again = started(tmp_path)
    assert committed(again) == (43, "note")
    again.close()


def test_with_flush_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"log.flush.interval.messages": 1})
    ticket = broker.send(Api.OFFSET_COMMIT, commit_message(41), version=9)
    assert ticket not in broker.replies
    broker.run_jobs()
    assert code_of(broker.replies[ticket]) is ErrorCode.none
    broker.close()


# What is decided in one turn of the loop is written together.


def commits_of_a_turn(broker: CoreUnderTest, *groups: str) -> list[int]:
    """A commit of each group, the first of offset 1, the next of 2; the turn is not over yet."""
    return [
        broker.send(Api.OFFSET_COMMIT, commit_message(number, group), version=9, turn_ends=False)
        for number, group in enumerate(groups, start=1)
    ]


def test_the_commits_of_a_turn_are_one_batch_and_answered_when_it_is_written(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 1})
    tickets = commits_of_a_turn(broker, "a", "b", "c")
    assert not any(ticket in broker.replies for ticket in tickets)
    assert files(tmp_path) == []
    broker.take([])
    assert [code_of(broker.replies[ticket]) for ticket in tickets] == [ErrorCode.none] * 3
    (file,) = files(tmp_path)
    assert {(record.header.base_offset, record.header.record_count) for record in iter_records(file.read_bytes())} == {(0, 3)}
    broker.kill()
    again = started(tmp_path)
    assert [committed(again, group)[0] for group in "abc"] == [1, 2, 3]
    again.close()


def test_a_group_s_next_commit_is_decided_when_the_one_before_is_written(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 1})
    tickets = commits_of_a_turn(broker, "a", "b", "a", "a")
    broker.take([])
    assert [code_of(broker.replies[ticket]) for ticket in tickets] == [ErrorCode.none] * 4
    (file,) = files(tmp_path)
    assert [record.header.base_offset for record in iter_records(file.read_bytes())] == [0, 0, 2, 3]
    assert committed(broker, "a") == (4, "note")
    broker.close()


def test_a_failed_batch_fails_all_its_commits_and_no_others(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 1})
    commit(broker, 41, "a")
    fault = Rule(1, FailAppends("__consumer_offsets"), Match())
    broker.take(broker.core.on_command(AddFault(fault), broker.now)[1])
    tickets = commits_of_a_turn(broker, "a", "b", "a")
    broker.take([])
    told = [code_of(broker.replies[ticket]) for ticket in tickets]
    assert told == [ErrorCode.not_coordinator, ErrorCode.not_coordinator, ErrorCode.none]
    assert [committed(broker, group)[0] for group in "ab"] == [3, -1]
    broker.kill()
    again = started(tmp_path)
    assert [committed(again, group)[0] for group in "ab"] == [3, -1]
    again.close()


def test_what_is_written_together_is_no_larger_than_a_message_may_be(tmp_path: Path) -> None:
    half = MAX_BATCH // 2
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 1, "offset.metadata.max.bytes": half})
    part = offset_commit_request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * half)
    topics = (offset_commit_request.OffsetCommitRequestTopic(name="t", partitions=(part,)),)
    messages = [offset_commit_request.OffsetCommitRequest(group_id=group, member_id="", topics=topics) for group in "abcde"]
    tickets = [broker.send(Api.OFFSET_COMMIT, message, version=9, turn_ends=False) for message in messages]
    broker.take([])
    assert all(code_of(broker.replies[ticket]) is ErrorCode.none for ticket in tickets)
    (file,) = files(tmp_path)
    assert [record.header.base_offset for record in iter_records(file.read_bytes())] == [0, 0, 2, 2, 4]
    broker.close()


def test_a_coordinator_moves_only_after_what_it_has_decided_is_written(tmp_path: Path) -> None:
    broker = started(tmp_path)
    (ticket,) = commits_of_a_turn(broker, "g")
    broker.take(broker.core.on_command(AddFault(Rule(1, MoveCoordinator("g"), Match(), times=None)), broker.now)[1])
    assert code_of(broker.replies[ticket]) is ErrorCode.none
    broker.take(broker.core.on_command(RemoveFaults(1), broker.now)[1])
    broker.run_jobs()
    assert committed(broker) == (1, "note")
    broker.close()


def test_one_flush_is_enough_for_all_that_is_written_together(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"log.flush.interval.messages": 1, "offsets.topic.num.partitions": 1})
    broker.run_jobs()
    tickets = commits_of_a_turn(broker, "a", "b")
    broker.take([])
    assert not any(ticket in broker.replies for ticket in tickets)
    assert [job.tag[:2] for job in broker.jobs if job.tag[0] == "group"] == [("group", "flush")]
    broker.run_jobs()
    assert [code_of(broker.replies[ticket]) for ticket in tickets] == [ErrorCode.none] * 2
    broker.close()


def test_the_number_of_partitions_is_fixed_once_the_topic_exists(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 3})
    commit(broker, 41)
    broker.close()
    again = started(tmp_path)
    assert committed(again) == (41, "note")
    again.close()


def test_with_a_topic_its_offsets_go(tmp_path: Path) -> None:
    broker = started(tmp_path)
    commit(broker, 41)
    gone = delete_topics_request.DeleteTopicState(name="t", topic_id=None)
    broker.ask(Api.DELETE_TOPICS, delete_topics_request.DeleteTopicsRequest(topics=(gone,), timeout=timedelta(seconds=1)))
    assert committed(broker) == (-1, "")
    broker.kill()
    again = started(tmp_path)
    assert committed(again) == (-1, ""), "nor does a topic of the same name bring them back"
    again.close()


def test_offsets_are_kept_for_as_long_as_the_settings_say(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 10_000})
    commit(broker, 41)
    broker.pass_time(59_000)
    assert committed(broker) == (41, "note")
    broker.pass_time(11_000)
    assert committed(broker) == (-1, "")
    broker.close()


@pytest.mark.parametrize("how", ["not understood", "flipped"])
def test_groups_whose_log_is_damaged_are_served_with_what_is_left(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = started(tmp_path)
    commit(broker, 41)
    (file,) = files(tmp_path)
    other = next(name for name in map(str, range(99)) if commit(broker, 7, name) is ErrorCode.none and len(files(tmp_path)) == 2)
    if how == "flipped":
        commit(broker, 42)
        broker.close()  # a clean end: the log is believed
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        broker.kill()
        file.write_bytes(file.read_bytes() + encode_batch([NewRecord(b"\0\2\0", b"half a name")], base_offset=1))
    again = started(tmp_path)
    assert committed(again) == (41, "note")
    assert "is damaged: g may be in an older state" in caplog.text
    assert committed(again, other) == (7, "note")
    assert commit(again, 43) is ErrorCode.none
    again.close()
    again = started(tmp_path)
    assert committed(again) == (43, "note")
    again.close()


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("left", [0.0, 0.5])
def test_groups_are_named_whose_commits_may_be_lost_with_the_end_of_their_log(
    tmp_path: Path, end: str, left: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The start has cut off what is damaged, or it is missing: nothing that is read later shows it."""
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 1})
    names = [f"g{number:03d}" for number in range(120)]
    for offset in range(2):
        for name in names:
            assert commit(broker, offset, name) is ErrorCode.none
    broker.pass_time(120_000)
    broker.run_jobs()
    getattr(broker, end)()
    (file,) = files(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * left) + 10] if left else b"")
    again = started(tmp_path)
    known = [name for name in names if committed(again, name)[0] >= 0]
    assert len(known) == (120 if left else 0)
    start, end = "__consumer_offsets-0 is damaged: ", " may be in an older state"
    lines = [line for line in caplog.messages if line.startswith(start) and line.endswith(end)]
    named = [name for line in lines for name in line.removeprefix(start).removesuffix(end).split(", ")]
    assert named == (known or ["all that it had"])
    again.close()


def test_a_member_whose_connection_is_closed_while_it_joins_stays_in_the_group(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"group.initial.rebalance.delay.ms": 100})
    message = join_group_request.JoinGroupRequest(
        group_id="g",
        session_timeout=timedelta(seconds=30),
        rebalance_timeout=timedelta(seconds=30),
        member_id="",
        protocol_type="consumer",
        protocols=(join_group_request.JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    tickets = [broker.send(Api.JOIN_GROUP, message, version=3, connection=number) for number in (1, 2)]
    broker.take(broker.core.on_disconnect(1, broker.now))
    broker.pass_time(1_000)
    broker.run_jobs()
    leader, _ = (broker.replies[ticket] for ticket in tickets)
    assert len(leader.members) == 2
    broker.close()
