"""A world has the same history on files in memory and on a disk, with retention, compaction, and a broker that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.apis import Api
from ottla.records import NewRecord, encode_batch, iter_records
from ottla.simulation import world as in_memory
from ottla.simulation.application import member
from ottla.simulation.requests import creating, produce_message
from ottla.types import TopicPartition
from tests.simulation import world as on_disk

pytestmark = pytest.mark.long

SETTINGS: dict[str, Any] = {
    "log.roll.ms": 1,
    "log.retention.bytes": 1_000,
    "log.retention.check.interval.ms": 5_000,
    "log.cleaner.backoff.ms": 1_000,
    "log.cleaner.min.cleanable.ratio": 0,
}


def play(world: in_memory.World) -> None:
    """Two members read and commit; the broker is killed twice, and a topic is deleted and created again."""
    for topic in ("t", "u"):
        world.create_topic(topic, 2)
    for name in ("a", "b"):
        app = world.app(name, group_id="g")
        app.start(member(app, topics=["t", "u"], commits=True))
    for topic, policy in (("compacted", "compact"), ("short", "delete")):
        answer = world.broker.ask(Api.CREATE_TOPICS, creating(topic, cleanup_policy=policy))
        assert not answer.topics[0].error_code, answer
    for round_number in range(6):
        write_keys(world, "compacted", round_number)
        write_keys(world, "short", round_number)
        for topic in ("t", "u"):
            for partition in range(2):
                world.produce(topic, partition, 50)
        world.run(5_000)
        if round_number in (1, 3):
            world.broker.kill()
            world.run(500)
            world.broker.start()
            world.run(5_000)
        if round_number == 3:
            world.delete_topic("u")
            world.create_topic("u", 2)
    world.run(35_000)
    for app in world.apps.values():
        app.stop = True
    world.run_until(lambda: not any(app.running for app in world.apps.values()))


def write_keys(world: in_memory.World, topic: str, round_number: int) -> None:
    """Write each of ten keys again."""
    topic_id = world.broker.core.catalog.topic(topic).topic_id
    for key in range(10):
        batch = encode_batch([NewRecord(b"%d" % key, b"%d" % round_number, timestamp=world.now.wall)])
        answer = world.broker.ask(Api.PRODUCE, produce_message(batch, topic, topic_id=topic_id))
        assert not answer.responses[0].partition_responses[0].error_code, answer


def contents(world: in_memory.World) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """The segments of each partition: base offset and content."""
    catalog = world.broker.core.catalog
    found = {}
    for topic in catalog.topics:
        for number in topic.partitions:
            segments = catalog.log(topic.name, number).segments
            found[topic.name, number] = [(one.base_offset, one.file.read(0, one.size)) for one in segments]
    return found


@pytest.mark.slow
def test_a_world_has_the_same_history_on_files_in_memory_and_on_a_disk(tmp_path: Path) -> None:
    memory, disk = in_memory.World(**SETTINGS), on_disk.World(tmp_path, **SETTINGS)
    for world in (memory, disk):
        play(world)
    assert memory.broker.seen == disk.broker.seen
    assert [app.handled for app in memory.apps.values()] == [app.handled for app in disk.apps.values()]
    found = contents(memory)
    assert found == contents(disk)
    kept = [record.value for _, data in found["compacted", 0] for record in iter_records(data)]
    assert len(kept) < 30, "compaction has removed most of the 60 records"
    assert found["short", 0][0][0] > 0, "retention has deleted records"
    committed = memory.committed("g", "t", 2)
    assert committed == {number: memory.produced[TopicPartition("t", number)] for number in range(2)}
    assert len([api for _, api, _ in memory.broker.seen if api is Api.OFFSET_COMMIT]) > 100
