"""``ottla produce``: Arrow data, and how the command ends. It runs in this process where no signal is needed."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from ottla import Admin, Broker, Consumer, TopicPartition
from ottla.cli.app import run
from tests.end_to_end.programs import OTTLA, environment

WRITERS: dict[str, Callable[[pyarrow.Table, Any], None]] = {
    "parquet": lambda table, to: parquet.write_table(table, to, row_group_size=1_000),
    "file": lambda table, to: _write(ipc.new_file(to, table.schema), table),
    "stream": lambda table, to: _write(ipc.new_stream(to, table.schema), table),
}


def _write(writer: Any, table: pyarrow.Table) -> None:
    with writer:
        writer.write_table(table, max_chunksize=1_000)


def table_of(count: int, **columns: Any) -> pyarrow.Table:
    return pyarrow.table({"key": [f"k{number}" for number in range(count)], "value": [b"v"] * count, **columns})


def saved(table: pyarrow.Table, kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    WRITERS[kind](table, str(path))
    return path


@contextmanager
def stdin_of(file: int) -> Iterator[None]:
    """Let descriptor 0 be a copy of another one."""
    before = os.dup(0)
    os.dup2(file, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@contextmanager
def piped(data: bytes) -> Iterator[None]:
    """Let stdin be a pipe with this data."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)

    with os.fdopen(reader, "rb"), stdin_of(reader):
        thread = threading.Thread(target=write)
        thread.start()
        yield
        thread.join()


def produced(broker: Broker, *arguments: str) -> int:
    return run(["produce", "-b", broker.bootstrap_servers, *arguments])


def records_in(broker: Broker, topic: str) -> int:
    """The number of records in a topic."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        partitions = [TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic)]
        return sum(consumer.end_offsets(partitions).values())


@pytest.mark.parametrize("kind", WRITERS)
def test_all_rows_are_written(kafka_broker: Broker, kafka_topic: str, tmp_path: Path, kind: str) -> None:
    path = saved(table_of(2_500, topic=[kafka_topic] * 2_500), kind, tmp_path)
    assert produced(kafka_broker, "--arrow", str(path), "-z", "zstd", "--acks", "1") == 0
    with Consumer(bootstrap_servers=kafka_broker.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition(kafka_topic, each.partition) for each in consumer.partitions_for(kafka_topic)])
        consumer.seek_to_beginning()
        found: list[tuple[Any, Any]] = []
        while len(found) < 2_500:
            found += [(record.key, record.value) for record in consumer.poll(10)]
    assert sorted(found) == sorted((f"k{number}".encode(), b"v") for number in range(2_500))


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_rows_come_from_a_pipe(kafka_broker: Broker, kafka_topic: str, kind: str) -> None:
    data = io.BytesIO()
    WRITERS[kind](table_of(10), data)
    with piped(data.getvalue()):
        assert produced(kafka_broker, "-t", kafka_topic, "--arrow", "-") == 0
    assert records_in(kafka_broker, kafka_topic) == 10


def test_parquet_does_not_come_from_a_pipe(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = saved(table_of(1), "parquet", tmp_path)
    with piped(path.read_bytes()):
        assert produced(kafka_broker, "-t", kafka_topic, "--arrow", "-") == 1
    assert "name the file, or send an Arrow IPC stream" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello\nworld\n", "is neither Parquet nor Arrow: it begins with b'hello\\nwo'"),
        (b"", "is neither Parquet nor Arrow: it is empty"),
        (b"PAR1 and more", "is truncated, or still being written: it does not end with b'PAR1'"),
        (b"ARROW1\0\0 and more", "is truncated, or still being written: it does not end with b'ARROW1'"),
        (b"PAR1 no footer PAR1", "cannot read"),
        (b"\xff\xff\xff\xff no stream", "cannot read"),
    ],
)
def test_a_wrong_file(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    assert produced(kafka_broker, "-t", kafka_topic, "--arrow", str(path)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
    assert str(path) in line


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("step", [6, -5, 900_000])
def test_damaged_offsets_are_an_error(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, step: int
) -> None:
    """They point behind the data, or before it."""
    path = saved(pyarrow.table({"value": [f"{number:05}" for number in range(300)]}), kind, tmp_path)
    offsets, damaged = (struct.pack("<301i", *(number * each for number in range(301))) for each in (5, step))
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, damaged))
    assert produced(kafka_broker, "-t", kafka_topic, "--arrow", str(path)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"cannot read {path}" in line
    assert records_in(kafka_broker, kafka_topic) == 0


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"price": pyarrow.int64()}, "unknown column 'price'"),
        ({"partition": pyarrow.string()}, "column 'partition' has the Arrow type"),
    ],
)
def test_a_wrong_column(
    kafka_broker: Broker,
    kafka_topic: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    columns: dict[str, Any],
    said: str,
    count: int,
) -> None:
    more = {name: pyarrow.nulls(count, kind) for name, kind in columns.items()}
    path = saved(table_of(count, **more), "parquet", tmp_path)
    assert produced(kafka_broker, "-t", kafka_topic, "--arrow", str(path)) == 1
    assert f"{path}: {said}" in capsys.readouterr().err
    assert records_in(kafka_broker, kafka_topic) == 0


def test_of_a_stream_that_ends_too_early_the_error_says_what_is_written(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = io.BytesIO()
    WRITERS["stream"](table_of(5_000), data)
    with piped(data.getvalue()[:-10_000]):
        assert produced(kafka_broker, "-t", kafka_topic, "--arrow", "-") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: cannot read stdin: ")
    assert error.endswith("; 4,000 records were written\n")
    assert records_in(kafka_broker, kafka_topic) == 4_000


def test_a_row_that_cannot_be_a_record_is_counted_from_the_beginning(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    partitions: list[int | None] = [None] * 20_000
    partitions[17_000] = -1
    table = table_of(20_000, partition=pyarrow.array(partitions, pyarrow.int32()))
    path = tmp_path / "rows"
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=12_000)
    arguments = ("-t", kafka_topic, "--arrow", str(path), "-X", "max.request.size=5000", "-X", "batch.size=5000")
    assert produced(kafka_broker, *arguments) == 1
    error = capsys.readouterr().err
    written = records_in(kafka_broker, kafka_topic)
    assert 12_000 < written <= 17_000
    assert error == (
        f"error: {path}: row 17000: the partition is -1; it must be 0 or more, or null; {written:,} records were written\n"
    )


@pytest.mark.kafka_topic(partitions=1, configs={"max.message.bytes": "1000"})
def test_rows_that_the_broker_refuses_end_it(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values = [b"v"] * 3_000
    values[1_500] = bytes(2_000)
    path = saved(pyarrow.table({"value": values}), "stream", tmp_path)
    assert produced(kafka_broker, "-t", kafka_topic, "--arrow", str(path)) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: 1 record not produced to {kafka_topic}: ")
    assert error.endswith(f"; {records_in(kafka_broker, kafka_topic):,} records were written\n")


def test_a_line_without_an_end_is_not_read_as_a_whole(
    kafka_broker: Broker, kafka_topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/zero", "rb") as endless, stdin_of(endless.fileno()):
        assert produced(kafka_broker, "-t", kafka_topic) == 1
    assert "line 1: it has more than the 1048576 bytes of max.request.size" in capsys.readouterr().err


def test_a_broker_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin, os.fdopen(reader), stdin_of(reader):
        admin.create_topics({"t": 1})

        def type_lines() -> None:
            with os.fdopen(writer, "wb", buffering=0) as pipe:
                pipe.write(b"one\n")
                while not records_in(broker, "t"):
                    pass
                broker.close()
                pipe.write(b"two\n")

        thread = threading.Thread(target=type_lines)
        thread.start()
        timeouts = [word for name in ("request", "delivery") for word in ("-X", f"{name}.timeout.ms=1500")]
        ended_with = produced(broker, "-t", "t", *timeouts, "-X", "linger.ms=0")
        thread.join()
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended_with == 1
    assert last.startswith("error: 1 record not produced to t: 1 record for t-0 not acknowledged within 1.5 s: ")
    assert last.endswith("; 1 record was written")


@pytest.mark.parametrize("setting", ["max.block.ms=300", "max_block=0.3", "request.timeout.ms=300"])
def test_the_settings_say_how_long_a_broker_is_awaited(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "-b", "localhost:1", "-t", "t", "-X", setting]) == 1
    assert "no broker could be reached within 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal(kafka_broker: Broker, kafka_topic: str, number: signal.Signals, code: int) -> None:
    command = [OTTLA, "produce", "-t", kafka_topic]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(kafka_broker.bootstrap_servers)
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        while records_in(kafka_broker, kafka_topic) < 2:
            pass
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.stderr.read() == f"interrupted by {number.name}: 2 records were written\n".encode()
