"""Each execution of a query reads the current records, as with Spark's own connector: the same tests run on both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.functions import udf

from tests.spark.conftest import Kafka, Load, Message, Sink, connector_jars, numbered
from tests.spark.driver_process import driver, result_of

pytestmark = pytest.mark.slow

SECONDS = 60.0


@pytest.fixture(params=["ottla", "kafka"])
def source(request: pytest.FixtureRequest) -> str:
    """Ottla and Spark's own connector."""
    name: str = request.param
    if name == "kafka" and not connector_jars():
        if os.environ.get("OTTLA_NO_SKIPS") == "1":
            pytest.fail("Spark's own connector needs Maven", pytrace=False)
        pytest.skip("Spark's own connector needs Maven")
    return name


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_view_has_records_that_were_added_since(spark: SparkSession, load: Load, kafka: Kafka, source: str) -> None:
    topic = kafka.create(3)
    kafka.produce(topic, [each for partition in range(3) for each in numbered(5, 5 * partition, partition)])
    frame = load(source=source, subscribe=topic)
    frame.createOrReplaceTempView("growing")
    query = "SELECT count(*) FROM growing"
    assert (frame.count(), spark.sql(query).first()[0]) == (15, 15)
    kafka.produce(topic, numbered(5, 15, 1))
    assert (frame.count(), spark.sql(query).first()[0]) == (20, 20)
    assert values(spark.table("growing")) == list(range(20))


def test_a_view_of_sql_has_records_that_were_added_since(spark: SparkSession, kafka: Kafka, source: str) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(2))
    options = f"`kafka.bootstrap.servers` '{kafka.servers}', subscribe '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_sql USING {source} OPTIONS ({options})")
    assert values(spark.table("of_sql")) == [0, 1]
    kafka.produce(topic, numbered(1, 2))
    assert values(spark.table("of_sql")) == [0, 1, 2]


def test_a_view_has_the_records_left_after_delete_records(load: Load, kafka: Kafka, source: str) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(10))
    frame = load(source=source, subscribe=topic)
    assert frame.count() == 10
    kafka.delete_records(topic, 0, 7)
    assert frame.count() == 3
    assert values(frame.select("value")) == [7, 8, 9]


def test_a_view_of_a_topic_that_was_recreated_has_its_records(load: Load, kafka: Kafka, source: str) -> None:
    topic = kafka.create(2)
    kafka.produce(topic, [*numbered(5), *numbered(5, 5, 1)])
    frame = load(source=source, subscribe=topic)
    assert values(frame) == list(range(10))
    kafka.delete(topic)
    kafka.create(2, name=topic)
    kafka.produce(topic, [*numbered(15, 100), *numbered(15, 115, 1)])
    assert values(frame) == list(range(100, 130))


def test_a_topic_that_was_empty_and_partitions_that_are_new(load: Load, kafka: Kafka, source: str) -> None:
    topic = kafka.create()
    frame = load(source=source, subscribe=topic)
    assert frame.count() == 0
    kafka.grow(topic, 4)
    kafka.produce(topic, [Message(str(partition).encode(), partition=partition) for partition in range(4)])
    wait_for(lambda: frame.count() == 4)
    assert values(frame.select("value")) == [0, 1, 2, 3]


def test_a_topic_that_a_pattern_matches_and_is_new(load: Load, kafka: Kafka, source: str) -> None:
    prefix = f"spark-late-{uuid.uuid4().hex}"
    kafka.produce(kafka.create(name=f"{prefix}-a"), numbered(1))
    frame = load(source=source, subscribePattern=f"{prefix}-.*")
    assert frame.count() == 1
    kafka.produce(kafka.create(2, name=f"{prefix}-b"), [*numbered(1, 1, 0), *numbered(1, 2, 1)])
    wait_for(lambda: frame.count() == 3)


def test_a_stream_joined_with_a_table_sees_its_update(
    spark: SparkSession, load: Load, load_stream: Load, kafka: Kafka, sink: Sink, source: str
) -> None:
    orders, names = kafka.create(), kafka.create()
    kafka.produce(names, [Message(b"old", key=b"1")])
    latest = load(source=source, subscribe=names).groupBy("key").agg(functions.max("offset").alias("at"))
    stream = load_stream(subscribe=orders, startingOffsets="earliest").join(latest, "key")
    writer = stream.writeStream.format("parquet").option("path", str(sink.home / "rows"))
    query = writer.option("checkpointLocation", str(sink.home / "checkpoint")).trigger(processingTime="100 milliseconds").start()
    try:
        kafka.produce(orders, [Message(b"first", key=b"1")])
        wait_for(lambda: written(spark, sink) == [("first", 0)])
        kafka.produce(names, [Message(b"new", key=b"1")])
        kafka.produce(orders, [Message(b"second", key=b"1")])
        wait_for(lambda: written(spark, sink) == [("first", 0), ("second", 1)])
        kafka.delete(names)
        kafka.create(name=names)
        kafka.produce(names, [Message(b"recreated", key=b"1")])
        kafka.produce(orders, [Message(b"third", key=b"1")])
        wait_for(lambda: written(spark, sink) == [("first", 0), ("second", 1), ("third", 0)])
    finally:
        query.stop()


def written(spark: SparkSession, sink: Sink) -> list[tuple[str, int]]:
    if not (sink.home / "rows" / "_spark_metadata").exists():
        return []
    rows = spark.read.schema("value binary, at bigint").parquet(str(sink.home / "rows")).collect()
    return sorted((bytes(row.value).decode(), row.at) for row in rows)


def test_fixed_offsets_are_read_each_time(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(4))
    named = {"startingOffsets": f'{{"{topic}": {{"0": 1}}}}', "endingOffsets": f'{{"{topic}": {{"0": 3}}}}'}
    frame = load(subscribe=topic, **named)
    assert values(frame) == [1, 2]
    kafka.produce(topic, numbered(1, 4))
    assert frame.count() == 2


def test_an_offset_beyond_the_log_is_compared_with_it_by_each_execution(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(4))
    named = {"startingOffsets": f'{{"{topic}": {{"0": 1}}}}', "endingOffsets": f'{{"{topic}": {{"0": 6}}}}'}
    frame = load(subscribe=topic, failOnDataLoss=False, **named)
    assert values(frame) == [1, 2, 3]
    kafka.produce(topic, numbered(4, 4))
    assert values(frame) == [1, 2, 3, 4, 5]


def test_plan_once_reads_the_same_each_time(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(3))
    frame = load(subscribe=topic, planOnce=True)
    assert frame.count() == 3
    kafka.produce(topic, numbered(2, 3))
    assert frame.count() == 3
    assert load(subscribe=topic).count() == 5


def test_all_of_one_execution_reads_the_same(load: Load, kafka: Kafka, tmp_path: Path) -> None:
    """A sort and a self-join read the table several times, in several stages, while records are produced."""
    topic = kafka.create(2)
    kafka.produce(topic, [*numbered(50), *numbered(50, 50, 1)])
    frame = load(subscribe=topic)
    grow = growing_by(kafka.servers, topic)
    left = frame.selectExpr("partition", "offset").where(grow("offset")).orderBy("offset")
    right = frame.selectExpr("partition AS p", "offset AS o")
    both = left.join(right, (left["partition"] == right["p"]) & (left["offset"] == right["o"]), "full").hint("merge").collect()
    assert len(both) == 100
    assert all(row["offset"] == row.o for row in both)
    assert frame.count() > 100


def growing_by(servers: str, topic: str) -> Any:
    """Return a predicate for queries that is always true, and first produces a record to each partition."""

    @udf("boolean")
    def grow(offset: int) -> bool:
        import confluent_kafka

        if offset % 10 == 0:
            producer = confluent_kafka.Producer({"bootstrap.servers": servers})
            for partition in (0, 1):
                producer.produce(topic, b"later", partition=partition)
            assert producer.flush(60) == 0
        return True

    return grow


@pytest.mark.timeout(300)  # a JVM of its own
def test_a_second_attempt_reads_the_same_records(kafka: Kafka, tmp_path: Path) -> None:
    """A task fails after it has read everything and produced a record: its next attempt must not read that record."""
    topic = kafka.create()
    kafka.produce(topic, numbered(5))
    process = driver(
        tmp_path,
        """
        def fail_once(batches):
            import confluent_kafka
            from pyspark import TaskContext
            count = sum(batch.num_rows for batch in batches)
            attempt = TaskContext.get().attemptNumber()
            if attempt == 0:
                producer = confluent_kafka.Producer({"bootstrap.servers": servers})
                producer.produce(topic, b"later")
                assert producer.flush(60) == 0
                raise RuntimeError("the first attempt fails")
            import pyarrow
            yield pyarrow.RecordBatch.from_pydict({"attempt": [attempt], "count": [count]})

        frame = load()
        [row] = frame.mapInArrow(fail_once, "attempt bigint, count bigint").collect()
        print(json.dumps([row.attempt, row["count"], frame.count()]))
        """,
        kafka.servers,
        topic,
        master="local[2,3]",
    )
    assert json.loads(result_of(process)) == [1, 5, 6]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_of_their_own_and_one_that_is_lost(kafka: Kafka, tmp_path: Path) -> None:
    """An executor dies after it has written its shuffle files: the repeated stage reads the same records."""
    topic = kafka.create(2)
    kafka.produce(topic, [*numbered(500), *numbered(500, 500, 1)])
    process = driver(
        tmp_path,
        """
        def kill_once(batches):
            import confluent_kafka, os, pathlib, signal
            from pyspark import TaskContext
            rows = [value.as_py() for batch in batches for value in batch.column("value")]
            marker = pathlib.Path(home, "killed")
            if TaskContext.get().partitionId() == 0 and not marker.exists():
                marker.touch()
                producer = confluent_kafka.Producer({"bootstrap.servers": servers})
                for number in range(300):
                    producer.produce(topic, b"later", partition=number % 2)
                assert producer.flush(60) == 0
                executor = int(pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(executor, signal.SIGKILL)
            import pyarrow
            yield pyarrow.RecordBatch.from_pydict({"value": pyarrow.array(rows, pyarrow.binary())})

        frame = load()
        assert frame.count() == 1000
        spread = frame.select("value").repartition(7).mapInArrow(kill_once, "value binary")
        found = sorted(bytes(row.value) for row in spread.collect())
        same = found == sorted(str(number).encode() for number in range(1000))
        print(json.dumps([pathlib.Path(home, "killed").exists(), same, len(found), frame.count()]))
        """,
        kafka.servers,
        topic,
        master="local-cluster[2,1,1024]",
    )
    assert json.loads(result_of(process)) == [True, True, 1000, 1300]


def test_a_cached_frame_has_each_record_once(load: Load, kafka: Kafka) -> None:
    """``limit`` computes and caches one block; the others follow in a later execution."""
    topic = kafka.create(3)
    kafka.produce(topic, [each for partition in range(3) for each in numbered(30, 30 * partition, partition)])
    frame = load(subscribe=topic, minPartitions=6).cache()
    try:
        assert frame.limit(1).count() == 1
        kafka.produce(topic, [each for partition in range(3) for each in numbered(10, 1000 * (partition + 1), partition)])
        rows = frame.select("partition", "offset").collect()
    finally:
        frame.unpersist()
    assert len({*rows}) == len(rows)
    for partition in range(3):
        offsets = sorted(row.offset for row in rows if row.partition == partition)
        assert offsets == list(range(len(offsets)))


def test_an_rdd_reads_the_same_each_time(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(3))
    frame = load(subscribe=topic)
    rows = frame.rdd
    assert rows.count() == 3
    kafka.produce(topic, numbered(2, 3))
    assert rows.count() == 3
    assert frame.count() == 5


def test_an_error_of_planning_reaches_the_user(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(1))
    frame = load(subscribe=topic)
    assert frame.count() == 1
    kafka.delete(topic)
    with pytest.raises(PySparkException, match=f"topic {topic} does not exist"):
        frame.count()


def planners(folder: str) -> list[int]:
    """Return the planner processes of the driver with this temporary directory."""
    listed = subprocess.run(["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 1) for line in listed.splitlines()]
    return [int(pid) for pid, words in rows if "-m ottla.spark.planner" in words and folder in words]


def test_two_sessions_and_a_hundred_tables_have_one_planner(spark: SparkSession, load: Load, kafka: Kafka) -> None:
    topics = [kafka.create() for _ in range(10)]
    for topic in topics:
        kafka.produce(topic, numbered(1))
    other = spark.newSession().read.format("ottla").option("kafka.bootstrap.servers", kafka.servers)
    for number in range(100):
        chosen = [topics[at] for at in range(10) if at == number // 10 or at == number % 10]
        reader = load(subscribe=chosen[0]) if len(chosen) == 1 else other.option("subscribe", ",".join(chosen)).load()
        if number % 7 == 0:
            assert reader.count() == len(chosen)
        else:
            assert reader.rdd.getNumPartitions() == len(chosen)  # planned, not read
    assert len(planners(spark.conf.get("spark.local.dir"))) == 1


def test_a_planner_that_was_killed_is_started_again_by_the_next_load(spark: SparkSession, load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(2))
    frame = load(subscribe=topic)
    assert frame.count() == 2
    [planner] = planners(spark.conf.get("spark.local.dir"))
    os.kill(planner, signal.SIGKILL)
    with pytest.raises(PySparkException, match=r"cannot reach the planner process .*call load\(\) again"):
        frame.count()
    assert load(subscribe=topic).count() == 2
    kafka.produce(topic, numbered(1, 2))
    assert frame.count() == 3


@pytest.mark.timeout(300)  # a JVM of its own
@pytest.mark.parametrize("how", ["kill", *(pytest.param(how, marks=pytest.mark.slow) for how in ("stop", "exit"))])
def test_the_planner_ends_with_its_driver(kafka: Kafka, tmp_path: Path, how: str) -> None:
    topic = kafka.create()
    script = """
    load().count()
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    print(jvm, flush=True)
    if sys.stdin.readline().strip() == "stop":
        spark.stop()
        sys.stdin.readline()
    """
    with driver(tmp_path, script, kafka.servers, topic) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        assert len(planners(str(tmp_path))) == 1
        if how == "kill":
            process.kill()
            os.kill(jvm, signal.SIGKILL)
        else:
            process.stdin.write(how + "\n")
            process.stdin.flush()
        wait_for(lambda: not planners(str(tmp_path)))
        process.stdin.close()
