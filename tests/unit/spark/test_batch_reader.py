"""The batch reader without Spark, on the embedded broker: its tasks read the topics whose offsets were planned, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from ottla import Admin, Broker, Producer, TopicPartition
from ottla.errors import ConfigError
from ottla.spark.batch import EXECUTION, OttlaBatchReader, UnboundPartition
from ottla.spark.data_loss import DataLossError
from ottla.spark.options import parse_options, planner_options
from ottla.spark.planning import OffsetRange
from ottla.spark.reading import read_ranges

RECREATED = "cannot be read: the topic was deleted, and created again under its name"

SIZE = 100_000
"""The bytes of a record that is fetched by itself."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The place of a planner process, which the first table starts, and which ends with it."""
    folder = tmp_path_factory.mktemp("spark") / "blockmgr-1"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        yield
    shutil.rmtree(folder)


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, which have the records 0 to 9 and 10 to 19."""
    name = str(request.node.name).replace("[", "-").replace("]", "")
    create(broker, name, range(20))
    return name


def create(broker: Broker, topic: str, values: Iterable[int], size: int = 0) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({topic: 2})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in values:
            producer.send(topic, str(number).ljust(size), partition=number // 10 % 2)


def recreate(broker: Broker, topic: str, values: Iterable[int], size: int = 0) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([topic])
    create(broker, topic, values, size)


def reader(broker: Broker, topic: str, **options: str) -> OttlaBatchReader:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "minPartitions": "2", **options}
    return OttlaBatchReader(parse_options(given).for_batch(), ("value",), planner_options(given))


def numbers(rows: pa.RecordBatch) -> list[int]:
    return [int(value) for value in rows.column("value").to_pylist()]


def read(batch: OttlaBatchReader, task: InputPartition, execution: int | None = None) -> list[int]:
    """Return the records of a task, in an execution of a query or, without one, in a job on an RDD."""
    if execution is not None:
        TaskContext._setTaskContext(TaskContext(localProperties={EXECUTION: str(execution)}))
    try:
        return [number for rows in batch.read(task) for number in numbers(rows)]
    finally:
        TaskContext._setTaskContext(None)


def offsets_of(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset, "1": offset}})


@pytest.mark.parametrize("later", [15, 20, 40], ids=["shorter", "as-long", "longer"])
@pytest.mark.parametrize("is_named", [False, True], ids=["planned-once", "named-offsets"])
def test_offsets_that_are_planned_once_are_those_of_the_topic_at_that_time(
    broker: Broker, topic: str, is_named: bool, later: int, caplog: pytest.LogCaptureFixture
) -> None:
    named = {"startingOffsets": offsets_of(topic, 2), "endingOffsets": offsets_of(topic, 10)}
    options = named if is_named else {"planOnce": "true"}
    batch, tolerant = reader(broker, topic, **options), reader(broker, topic, failOnDataLoss="false", **options)
    first, second = batch.partitions()
    begin = 2 if is_named else 0
    assert read(batch, first) == list(range(begin, 10))
    recreate(broker, topic, range(100, 100 + later))
    with pytest.raises(DataLossError, match=f"^{topic}-1: offsets {begin} to 9 {RECREATED}") as raised:
        read(batch, second)
    assert "call load() again" in str(raised.value.hint)
    assert read(tolerant, second) == []
    assert [message for message in caplog.messages if RECREATED in message and f"{topic}-1: offsets {begin} to 9 " in message]
    again = reader(broker, topic, planOnce="true")
    assert sum(len(read(again, task)) for task in again.partitions()) == later


def test_retention_beyond_a_fixed_end_is_a_loss(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 8})
    fixed = {"endingOffsets": offsets_of(topic, 5), "planOnce": "true"}
    lost = f"{topic}-0: offsets 0 to 4 cannot be read: the log now begins at offset 8"
    with pytest.raises(DataLossError, match=lost):
        reader(broker, topic, **fixed).partitions()
    batch = reader(broker, topic, failOnDataLoss="false", **fixed)
    assert [number for task in batch.partitions() for number in read(batch, task)] == list(range(10, 15))
    assert [message for message in caplog.messages if lost in message]
    with pytest.raises(ConfigError, match=f"startingOffsets for {topic}-0 is 9, beyond its endingOffsets, 5"):
        reader(broker, topic, startingOffsets=offsets_of(topic, 9), **fixed).partitions()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.alter_group_offsets("beyond", {TopicPartition(topic, 0): 9})
    with pytest.raises(ConfigError, match=f"startingOffsets for {topic}-0 is 9, beyond its endingOffsets, 5"):
        reader(broker, topic, startingOffsets="group:earliest", groupId="beyond", **fixed).partitions()


def test_a_timestamp_in_microseconds(broker: Broker, topic: str) -> None:
    with pytest.raises(ConfigError, match=r"no record at or after 1700000000000000 \(.*it should be in milliseconds\)"):
        reader(broker, topic, startingTimestamp="1700000000000000", planOnce="true").partitions()


@pytest.mark.usefixtures("planner")
def test_an_execution_reads_the_topic_of_which_it_has_the_offsets(broker: Broker, topic: str) -> None:
    batch, tolerant = reader(broker, topic), reader(broker, topic, failOnDataLoss="false")
    first, second = batch.partitions()
    assert read(batch, first, execution=1) == list(range(10))
    recreate(broker, topic, range(100, 140))
    for lost, partition in ((second, 1), (first, 0)):  # the other task, and a second attempt of the one that has succeeded
        with pytest.raises(DataLossError, match=f"^{topic}-{partition}: offsets 0 to 9 {RECREATED}"):
            read(batch, lost, execution=1)
        assert read(tolerant, lost, execution=1) == []


@pytest.mark.usefixtures("planner")
def test_the_next_execution_reads_a_topic_that_was_recreated(broker: Broker, topic: str) -> None:
    batch = reader(broker, topic)
    tasks = batch.partitions()
    assert sorted(number for task in tasks for number in read(batch, task, execution=1)) == list(range(20))
    recreate(broker, topic, range(100, 140))
    assert sorted(number for task in tasks for number in read(batch, task, execution=2)) == list(range(100, 140))


@pytest.mark.usefixtures("planner")
def test_an_rdd_reads_the_topic_of_its_first_use(broker: Broker, topic: str) -> None:
    batch, tolerant = reader(broker, topic), reader(broker, topic, failOnDataLoss="false")
    first, second = batch.partitions()
    assert read(batch, first) == list(range(10))
    recreate(broker, topic, range(100, 140))
    with pytest.raises(DataLossError, match=f"^{topic}-1: offsets 0 to 9 {RECREATED}"):
        read(batch, second)
    assert read(tolerant, second) == []


@pytest.mark.usefixtures("planner")
def test_a_task_has_the_ids_of_its_own_topics_only(broker: Broker, topic: str) -> None:
    create(broker, f"{topic}-other", range(20))
    partitions = reader(broker, topic, subscribe=f"{topic},{topic}-other", minPartitions="4").partitions()
    assert len(partitions) == 4
    for partition in partitions:
        unbound = partition.value
        assert isinstance(unbound, UnboundPartition)
        assert unbound.planned.topic_ids.keys() == {share.topic for share in unbound.task.shares}


def begun_task(broker: Broker, topic: str, *, has_ids: bool, **options: str) -> tuple[list[int], Iterator[pa.RecordBatch]]:
    """Begin a task of ``topic``, which gets ten large records, and of another one. Return what it has read, and the rest."""
    other = f"{topic}-other"
    recreate(broker, topic, range(10), SIZE)
    create(broker, other, range(200, 210), SIZE)
    small = {"kafka.max.partition.fetch.bytes": str(SIZE), "kafka.fetch.max.bytes": str(SIZE), "kafka.max.poll.records": "1"}
    one_task = {"planOnce": "true", "minPartitions": "1", "maxPartitions": "1", "subscribe": f"{topic},{other}"}
    batch = reader(broker, topic, **options, **one_task, **small)
    (task,) = batch.partitions()
    ranges = task.value if has_ids else [each._replace(topic_id=None) for each in task.value]
    rows = batch.read(InputPartition(tuple(ranges)))
    found = numbers(next(rows))
    while min(found) >= 200:
        found += numbers(next(rows))
    return found, rows


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_recreated_while_a_task_reads_it(broker: Broker, topic: str, fails: bool) -> None:
    found, rows = begun_task(broker, topic, has_ids=True, failOnDataLoss=str(fails))
    recreate(broker, topic, range(100, 140), SIZE)
    if fails:
        with pytest.raises(DataLossError, match=rf"^{topic}-0: offsets \d to 9 {RECREATED}"):
            found += [number for more in rows for number in numbers(more)]
    else:
        found += [number for more in rows for number in numbers(more)]
        assert [number for number in found if number >= 200] == list(range(200, 210))
    old = [number for number in found if number < 200]
    assert old == list(range(len(old)))
    assert len(old) < 10


@pytest.mark.parametrize("fails", [True, False])
def test_a_recreated_topic_of_a_plan_without_ids(broker: Broker, topic: str, fails: bool) -> None:
    """As that of a stream's first batch after a checkpoint of Spark's connector."""
    _, rows = begun_task(broker, topic, has_ids=False, failOnDataLoss=str(fails))
    recreate(broker, topic, range(100, 140), SIZE)
    if fails:
        with pytest.raises(DataLossError, match=rf"^{topic}-0: offsets \d to 9 cannot be read: .* the topic was recreated"):
            list(rows)
    else:
        found = [number for more in rows for number in numbers(more)]
        assert [number for number in found if number >= 200] == list(range(200, 210))
        assert not [number for number in found if 100 <= number < 200]


def test_a_plan_without_ids_is_compared_with_the_log_only(broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    options = reader(broker, topic, failOnDataLoss="false")._options
    assert [numbers(rows) for rows in read_ranges([OffsetRange(topic, 0, 0, 10)], ("value",), options)] == [list(range(4, 10))]


def test_a_task_whose_worker_knows_the_topic_asks_for_no_metadata(broker: Broker, topic: str) -> None:
    batch = reader(broker, topic, planOnce="true")
    first, second = batch.partitions()
    assert read(batch, first) == list(range(10))
    with broker.faults.fail("Metadata", "UNKNOWN_SERVER_ERROR", times=None) as asked:
        assert read(batch, second) == list(range(10, 20))
    assert not asked.struck
