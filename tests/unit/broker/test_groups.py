"""The coordinator inside the broker: what it appends is in ``__consumer_offsets``, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import create_topics_request, list_groups_request, offset_commit_request, offset_fetch_request
from ottla.records import iter_records
from tests.unit.broker.harness import CoreUnderTest


def commit_message(offset: int, group: str = "g") -> offset_commit_request.OffsetCommitRequest:
    part = offset_commit_request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="note")
    return offset_commit_request.OffsetCommitRequest(
        group_id=group, member_id="", topics=(offset_commit_request.OffsetCommitRequestTopic(name="t", partitions=(part,)),)
    )


def code_of(response: Any) -> ErrorCode:
    code = response.topics[0].partitions[0].error_code
    assert isinstance(code, ErrorCode)
    return code


def commit(broker: CoreUnderTest, offset: int, group: str = "g") -> ErrorCode:
    return code_of(broker.ask(Api.OFFSET_COMMIT, commit_message(offset, group), version=9))


def committed(broker: CoreUnderTest, group: str = "g") -> tuple[int, str]:
    topic = offset_fetch_request.OffsetFetchRequestTopics(name="t", partition_indexes=(0,))
    asked = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=(topic,))
    message = offset_fetch_request.OffsetFetchRequest(groups=(asked,), require_stable=False)
    part = broker.ask(Api.OFFSET_FETCH, message, version=9).groups[0].topics[0].partitions[0]
    return part.committed_offset, part.metadata


def started(path: Path, **settings: object) -> CoreUnderTest:
    broker = CoreUnderTest(path, **settings)
    if broker.core.topics.get("t") is None:
        topic = create_topics_request.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
        broker.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=(topic,)))
    return broker


def files(path: Path) -> list[Path]:
    return sorted(path.glob("__consumer_offsets-*/*.log"))


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
    topic = broker.core.topics.get("__consumer_offsets")
    assert topic is not None
    assert topic.partition_count == 50
    broker.close()


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


def test_until_a_partition_is_read_its_groups_are_told_to_wait(tmp_path: Path) -> None:
    broker = started(tmp_path)
    commit(broker, 41)
    broker.kill()
    again = CoreUnderTest(tmp_path, loaded=False)
    assert commit(again, 42) is ErrorCode.coordinator_load_in_progress
    again.run_jobs()
    assert committed(again) == (41, "note")
    again.close()


def test_what_can_not_be_written_is_not_acknowledged_and_not_committed(tmp_path: Path) -> None:
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


def test_the_number_of_partitions_is_fixed_once_the_topic_exists(tmp_path: Path) -> None:
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 3})
    commit(broker, 41)
    broker.close()
    again = started(tmp_path)
    assert committed(again) == (41, "note")
    again.close()
