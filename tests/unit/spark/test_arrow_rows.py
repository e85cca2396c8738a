"""The rows of a task are sent, and an error names the row that it is about."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from ottla import Admin, Broker, Producer
from ottla.errors import MessageTooLargeError, OttlaError
from ottla.spark.arrow_rows import GROUP_BYTES, GROUP_ROWS, in_groups, send_rows

STUCK = ("Produce", "NOT_ENOUGH_REPLICAS")
"""The fault of a partition whose rows have no outcome while it lasts."""


def strings(*cells: bytes, kind: pa.DataType) -> pa.Array:
    """A column of strings as Spark has them: any bytes."""
    return pa.array(cells, pa.large_binary() if kind == pa.large_string() else pa.binary()).view(kind)


def test_a_record_that_the_broker_refuses_is_named() -> None:
    """The broker's answer has no number of a record. A batch with others is divided first."""
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b", None], "value": ["x", "x" * 5000, None]})
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1}, configs={"max.message.bytes": "1000"})
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            with pytest.raises(MessageTooLargeError, match=r"^row 2: writing 1 record to t-0: .* \(topic 't', key 'b'\)"):
                send_rows(producer, [rows.slice(0, 1), rows], "t")
            without_key = rows.set_column(0, "key", pa.nulls(3))
            with pytest.raises(MessageTooLargeError, match=r"^row 1: .* \(topic 't', key None\)"):
                send_rows(producer, [without_key], "t")
            assert send_rows(producer, [rows.slice(2), rows.slice(0, 1)], "t") == 2
            rows = rows.append_column("partition", pa.array([0, 0, -5], pa.int32()))
            with pytest.raises(ValueError, match=r"^row 3: .*partition.* \(topic 't', key None\)$"):
                send_rows(producer, [rows.slice(0, 1), rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)], "t")


def test_batches_are_sent_in_groups() -> None:
    """Each row is in one group, in its order; a batch that is larger than a group is not divided."""
    small = [pa.RecordBatch.from_pydict({"value": [f"{number:04}" * 250]}) for number in range(5_000)]
    large = pa.RecordBatch.from_pydict({"value": ["x" * 2 * GROUP_BYTES]})
    groups = list(in_groups([*small, large, small[0]]))
    assert pa.concat_tables(groups) == pa.Table.from_batches([*small, large, small[0]])
    assert [group.nbytes // 2**20 for group in groups] == [4, 8, 0]
    assert list(in_groups([])) == []


def test_rows_without_bytes_are_not_all_in_one_group() -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.nulls(GROUP_ROWS // 2)})
    assert batch.nbytes == 0
    assert [group.num_rows for group in in_groups([batch] * 5)] == [GROUP_ROWS, GROUP_ROWS, GROUP_ROWS // 2]


@pytest.mark.parametrize("all_stuck", [False, True])
def test_rows_are_kept_only_within_a_bound_while_others_have_no_outcome(all_stuck: bool) -> None:
    """Either only the first rows have no outcome, or all groups have a row without one."""
    peak, before = 0, pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for number in range(40):
            to_stuck = number == 0 or all_stuck
            topics = ["stuck" if to_stuck else "t", *["t"] * 999]
            yield pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 1000] * 1000), "topic": topics})
            peak = max(peak, pa.total_allocated_bytes() - before)
        fault.clear()

    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1, "stuck": 1})
        fault = broker.faults.fail(*STUCK, times=None, topic="stuck")
        if all_stuck:
            threading.Timer(2, fault.clear).start()
        with Producer(bootstrap_servers=broker.bootstrap_servers, buffer_memory=4 * 2**20) as producer:
            assert send_rows(producer, batches(), None) == 40_000
    assert peak < 8 * 2**20


def test_a_failure_ends_the_task_while_earlier_rows_have_no_outcome() -> None:
    batches = [pa.RecordBatch.from_pydict({"value": ["x" * 5000], "topic": [topic]}) for topic in ("stuck", "small")]
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"stuck": 1})
            admin.create_topics({"small": 1}, configs={"max.message.bytes": "1000"})
        producer = Producer(bootstrap_servers=broker.bootstrap_servers, delivery_timeout=10, request_timeout=5)
        with producer, broker.faults.fail(*STUCK, times=None, topic="stuck"):  # noqa: SIM117 - the fault ends before the producer
            with pytest.raises(MessageTooLargeError, match=r"^row 1: writing 1 record to small-0: .* \(topic 'small'\)"):
                send_rows(producer, batches, None)


def test_a_topic_that_does_not_exist_is_named() -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["x"]})
    with Broker(settings={"auto.create.topics.enable": "false"}) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap_servers, max_block=1, request_timeout=1, delivery_timeout=2)
        with producer, pytest.raises(OttlaError, match="missing"):
            send_rows(producer, [rows], "missing")


def test_of_several_topics_the_row_to_the_one_that_refused_is_named() -> None:
    rows = {"key": ["a", "b", "c"], "value": ["x" * 5000, "x" * 2000, "x" * 3000], "topic": ["large", "small-b", "small"]}
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"large": 1, "small": 1})
            admin.create_topics({"small-b": 1}, configs={"max.message.bytes": "1000"})
        refused = pytest.raises(
            MessageTooLargeError, match=r"^row 1: writing 1 record to small-b-0: .* \(topic 'small-b', key 'b'\)"
        )
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, refused:
            send_rows(producer, [pa.RecordBatch.from_pydict(rows)], None)


def test_a_record_with_large_headers() -> None:
    headers = pa.array([None, [{"key": "h", "value": b"x" * 5000}, {"key": "i", "value": None}], []])
    values = pa.array(["x" * 500, None, "x" * 600], pa.string())
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b", "c"], "value": values, "headers": headers})
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1}, configs={"max.message.bytes": "1000"})
        refused = pytest.raises(MessageTooLargeError, match=r"^row 1: writing 1 record to t-0: .* \(topic 't', key 'b'\)")
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, refused:
            send_rows(producer, [rows], "t")


def test_many_small_headers_count() -> None:
    headers = pa.array([[{"key": "", "value": None}] * 2000, None, [{"key": "h", "value": b"x" * 2000}]])
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b", "c"], "value": pa.nulls(3, pa.string()), "headers": headers})
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1}, configs={"max.message.bytes": "3000"})
        with (
            Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
            pytest.raises(MessageTooLargeError, match=r"^row 0:"),
        ):
            send_rows(producer, [rows], "t")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_an_error_names_a_row_whose_strings_are_not_utf_8(kind: pa.DataType) -> None:
    """Such rows are sent as they are."""
    values = strings(b"\xff", b"x" * 5000, b"x" * 2_000_000, kind=kind)
    rows = pa.RecordBatch.from_pydict({"key": strings(b"\xffa", b"b\xfe", b"c\xfd", kind=kind), "value": values})
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1}, configs={"max.message.bytes": "1000"})
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            assert send_rows(producer, [rows.slice(0, 1)], "t") == 1
            with pytest.raises(MessageTooLargeError, match=r"^row 1: writing 1 record to t-0: .* \(topic 't', key 'b\ufffd'\)"):
                send_rows(producer, [rows.slice(0, 2)], "t")
            with pytest.raises(MessageTooLargeError, match=r"^row 2: a record of 2000.* \(topic 't', key 'c\ufffd'\)"):
                send_rows(producer, [rows], "t")
            to_none = rows.append_column("topic", pa.array(["t", None, "t"], kind))
            with pytest.raises(ValueError, match=r"^row 1: the topic is null \(topic None, key 'b\ufffd'\)$"):
                send_rows(producer, [to_none], None)


def test_a_compressed_row_is_named_as_the_refused_one_only_if_no_other_can_be() -> None:
    """The first row has most bytes, but is the smallest one that is sent."""
    noise = random.Random(1).randbytes(5000)
    columns = {"key": [b"a", b"b", b"c"], "value": [b"x" * 9000, noise, b"y"]}
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 3}, configs={"max.message.bytes": "1000"})
        settings = {"bootstrap_servers": broker.bootstrap_servers, "compression_type": "gzip"}
        with Producer(settings) as producer:
            for partitions, refused in (
                ([1, 1, 1], r"^probably row 0, which has most bytes before compression: writing 1 record to t-1: .* key b'a'\)"),
                ([0, 1, None], r"^probably row 1, .* key b'b'\)"),
                ([0, 1, 2], r"^row 1: writing 1 record to t-1: .* key b'b'\)"),
            ):
                rows = pa.RecordBatch.from_pydict({**columns, "partition": pa.array(partitions, pa.int32())})
                with pytest.raises(MessageTooLargeError, match=refused):
                    send_rows(producer, [rows], "t")


def test_a_long_key_is_not_in_an_error_as_a_whole() -> None:
    rows = pa.RecordBatch.from_pydict({"key": ["k" * 2_000_000], "value": ["x"]})
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1})
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, pytest.raises(MessageTooLargeError) as raised:
            send_rows(producer, [rows], "t")
    assert "(topic 't', key 'kkk" in str(raised.value)
    assert len(str(raised.value)) < 1000
