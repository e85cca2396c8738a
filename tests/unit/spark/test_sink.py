"""The writers of the sink, as Spark uses them: pickled for tasks, and told to abort."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from ottla import Admin, Broker, OffsetAndMetadata, Producer, TopicPartition
from ottla.errors import ConfigError, MessageTooLargeError, OttlaError
from ottla.spark import sink
from ottla.spark.exactly_once.replay import BatchRecord
from ottla.spark.sink import OttlaBatchWriter
from ottla.spark.sink_options import parse_sink_options
from ottla.spark.source import OttlaDataSource
from ottla.spark.stream_sink import OttlaStreamWriter

RUN = "4925c108-ddf5-4edb-bae8-447fe4a0356b"
VALUE = StructType([StructField("value", StringType())])


@contextmanager
def begun(broker: Broker, transactional_id: str) -> Iterator[None]:
    """A transaction is open."""
    producer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id)
    transaction = producer.transaction()
    transaction.begin()
    producer.send("t", "x").result(10)
    yield
    with suppress(OttlaError):
        transaction.abort()
    producer.close()


def ongoing(broker: Broker) -> list[str]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]


def writer(broker: Broker, **options: str) -> OttlaBatchWriter:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t", "exactlyOnce": "true", **options}
    return OttlaBatchWriter(parse_sink_options(given), ("value",))


def test_open_transactions_are_listed_once_and_not_to_commit_a_batch() -> None:
    with Broker() as broker, begun(broker, "ottla.query.sink.0"):
        made = writer(broker)
        assert made._earlier is None
        cloudpickle.dumps(made)
        assert made._earlier is not None
        assert [each.transactional_id for each in made._earlier] == ["ottla.query.sink.0"]
        with begun(broker, "ottla.query.sink.1"):
            copy = cloudpickle.loads(cloudpickle.dumps(made))
            assert copy._earlier == made._earlier


@pytest.mark.parametrize("content", ['{"id":"query"}', "{", "[]", None])
def test_a_stream_aborts_before_its_first_batch_what_its_checkpoint_tells(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metadata").write_text(content)
    known = content is not None and "query" in content
    given = {"topic": "t", "exactlyOnce": "true", "checkpointLocation": f"file://{tmp_path}"}
    with (
        Broker() as broker,
        begun(broker, "ottla.query.sink.0"),
        begun(broker, "ottla.query.other.0"),
        begun(broker, "ottla.query.sink.7"),
    ):
        options = parse_sink_options({"kafka.bootstrap.servers": broker.bootstrap_servers, **given})
        made = OttlaStreamWriter(options, ("value",))
        cloudpickle.dumps(made)
        left = ["ottla.query.other.0"] if known else ["ottla.query.other.0", "ottla.query.sink.0", "ottla.query.sink.7"]
        assert sorted(ongoing(broker)) == left
        assert made._earlier is not None
        assert sorted(each.transactional_id for each in made._earlier) == left


def test_a_failed_write_with_a_name_of_its_own_leaves_no_transaction_open() -> None:
    """No task has reported: the worker of the first one was killed. Those of another driver, which has taken over, stay."""
    with Broker() as broker, begun(broker, "ottla.daily.sink.0"):
        writer(broker).abort([None])
        assert ongoing(broker) == ["ottla.daily.sink.0"]
        mine = writer(broker, txnAppId="daily", txnVersion="7")
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            place = TopicPartition("t", 0)
            for run, left in (("of another driver", ["ottla.daily.sink.0"]), (mine._job, [])):
                record = BatchRecord(7, 2, run, 0)
                admin.alter_group_offsets("ottla.daily.sink", {place: OffsetAndMetadata(7, record.dumps())})
                mine.abort([None])
                assert ongoing(broker) == left


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"sinkId": "a"}, "sinkId"),
        ({"onReplayMismatch": "repeat"}, "onReplayMismatch"),
        ({"onReplayMismatch": "fail", "sinkId": "a"}, "sinkId and onReplayMismatch"),
    ],
)
def test_a_batch_job_has_no_options_of_a_query(monkeypatch: pytest.MonkeyPatch, options: dict[str, str], names: str) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    TaskContext(partitionId=0, localProperties={})
    made = OttlaDataSource({"kafka.bootstrap.servers": "one:9092", "topic": "t", "exactlyOnce": "true", **options})
    with pytest.raises(ConfigError, match=f"only a sink of a streaming query can have {names}, and Spark passes no query"):
        made.writer(VALUE, overwrite=False).write(iter(()))


def test_a_stream_has_no_name_of_its_own() -> None:
    options = {"kafka.bootstrap.servers": "one:9092", "topic": "t", "exactlyOnce": "true", "txnAppId": "daily", "txnVersion": "0"}
    with pytest.raises(ConfigError, match="txnAppId and txnVersion are for foreachBatch and for batch jobs, not for writeStream"):
        OttlaDataSource(options).streamWriter(VALUE, False)


@pytest.mark.parametrize(
    ("group", "is_run"), [(RUN, True), ("nightly", False), (None, False), ("", False), (RUN.replace("-", ""), False)]
)
def test_a_job_group_that_foreach_batch_has_set_is_not_the_run(group: str | None, is_run: bool) -> None:
    assert sink._run(group) == (group if is_run else None)


@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_columns_that_are_not_written_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch, exactly_once: str) -> None:
    """The columns of a batch that Spark passes are parts of one piece of memory."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    TaskContext(partitionId=0, localProperties={})
    batch = pa.RecordBatch.from_pydict({"value": ["v"] * 200, "other": [b"x" * 5000] * 200, "timestamp": [True] * 200})
    passed = io.BytesIO()
    with pa.ipc.new_stream(passed, batch.schema) as stream:
        for _ in range(40):
            stream.write_batch(batch)
    passed.seek(0)
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({"t": 1})
        made = writer(broker, exactlyOnce=exactly_once, **{"kafka.buffer.memory": "4194304"})
        tracemalloc.start()
        try:
            report = made.write(pa.ipc.open_stream(passed))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        sink.producers.close()
    assert getattr(report, "rows") == 8_000  # noqa: B009 - each kind of report has them
    assert peak < 18 * 2**20  # twice kafka.buffer.memory, and two groups of 5 MiB


def test_a_failed_task_does_not_say_that_its_rows_are_written() -> None:
    """It closes its producer without a wait. The hint names options."""
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1})
        broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=1)
        batch = pa.RecordBatch.from_pydict({"value": ["x" * 1000] * 6000 + ["x" * 2_000_000]})
        with pytest.raises(MessageTooLargeError, match=r"^row 6000: a record of 2000") as raised:
            writer(broker, exactlyOnce="false").write(iter([batch]))
    assert raised.value.__notes__ == ["rows before that may be written"]
    assert raised.value.hint == "see kafka.max.request.size and kafka.buffer.memory, and max.message.bytes of the topic"
