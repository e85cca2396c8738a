"""The table in docs/backup.md: each fault is staged, and each message of its row is what the broker logs, word by word."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.protocol import ErrorCode
from ottla.records import read_header
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.damage import filled, flipped
from tests.unit.broker.group_requests import commit, files as files_of_groups, started as with_groups
from tests.unit.broker.transactional import Producer, make_topic

PAGE = Path(__file__).parents[3] / "docs" / "backup.md"
PLACEHOLDERS = {
    "NAME": r"[0-9]{20}",
    "TOPIC-N": r"[a-z_]+-[0-9]+",
    "PATH": r"/\S+",
    "FILE": r".+",
    "REASON": r".+",
    "GROUPS": r"g, g2",
    "IDS": r"tx",
    "NAMES": r"'.+'",
    "...": r"[^()]+",
    **dict.fromkeys("ABEMNPTU", r"-?[0-9]+"),
}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}

Lines = list[str]


def rows() -> dict[str, list[str]]:
    """The messages of each fault."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "fault":
            found[cells[0]] = re.findall(r"`([^`]+)`", cells[2])
    return found


def pattern(message: str) -> re.Pattern[str]:
    """What a message looks like in the log."""
    words = re.split(r"(\bTOPIC-N\b|\b[A-Z]+\b|\.\.\.)", message)
    return re.compile("".join(PLACEHOLDERS.get(word, re.escape(word)) for word in words))


def full(message: str) -> str:
    """A message with the partition that it is about."""
    return (
        message if message.startswith(("TOPIC-N ", "__", "PATH ", "NAMES in PATH", "line ", "recovery-")) else f"TOPIC-N: {message}"
    )


def restarted(path: Path) -> Lines:
    """What a start on the directory says."""
    broker = CoreUnderTest(path)
    broker.close()
    return broker.warnings


def segments(path: Path, *, clean: bool = True, **configs: str) -> list[Path]:
    """The segments of a filled topic, whose broker has ended."""
    broker = filled(path, "t", **configs)
    broker.close() if clean else broker.kill()
    return sorted((path / "t-0").glob("*.log"))


def a_batch(path: Path) -> Lines:
    flipped(segments(path, clean=False)[1], 16)
    return restarted(path)


def records_of_a_batch(path: Path) -> Lines:
    broker = filled(path, "t", **COMPACT)
    flipped(sorted((path / "t-0").glob("*.log"))[1], 80)
    for _ in range(2):
        broker.pass_time(5 * 60_000)
        broker.run_jobs()
    broker.close()
    return []


def the_end(path: Path) -> Lines:
    newest = segments(path, clean=False)[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    return restarted(path)


def middle_segments(path: Path) -> Lines:
    _, second, third, _ = segments(path)
    second.unlink()
    content = third.read_bytes()
    third.write_bytes(content[: read_header(content).size])
    return restarted(path)


def the_newest_segment(path: Path) -> Lines:
    segments(path)[-1].unlink()
    return restarted(path)


def the_folder(path: Path) -> Lines:
    segments(path)
    shutil.rmtree(path / "t-0")
    return restarted(path)


def an_unreadable_segment(path: Path) -> Lines:
    first = segments(path)[0]
    first.unlink()
    first.mkdir()
    return restarted(path)


def indexes(path: Path) -> Lines:
    first = segments(path)[0]
    first.with_suffix(".index").unlink()
    lines = restarted(path)
    shutil.rmtree(path)
    filled(path, "t", segment_bytes=2000).close()
    flipped(path / "t-0" / f"{0:020d}.index", 16 + 7, 3)
    broker = CoreUnderTest(path)
    log = broker.core.catalog.log("t", 0)
    for offset in range(log.end_offset):
        log.read(offset, 300, at_least_one=True)
    broker.close()
    return lines


def a_time_index(path: Path) -> Lines:
    filled(path, "t", **{"retention.ms": "3600000"}).close()
    for one in sorted((path / "t-0").glob("*.timeindex"))[:2]:
        one.write_bytes(struct.pack(">q", 1) + one.read_bytes()[8:12])
    broker = CoreUnderTest(path)
    for segment in broker.core.catalog.log("t", 0).segments[:2]:  # as if the start had believed the files
        segment.max_timestamp, segment.is_max_timestamp_from_file = 1, True
    broker.pass_time(10 * 60_000)
    broker.run_jobs()
    broker.close()
    return broker.warnings


def leader_epochs(path: Path) -> Lines:
    segments(path)
    file = path / "t-0" / "leader-epoch-checkpoint"
    file.write_bytes(b"x")
    lines = restarted(path)
    file.unlink()
    return lines + restarted(path)


def a_snapshot(path: Path) -> Lines:
    segments(path)
    flipped(next((path / "t-0").glob("*.snapshot")), 9)
    return restarted(path)


def aborted_transactions(path: Path) -> Lines:
    broker = CoreUnderTest(path)
    make_topic(broker, partitions=1)
    producer = Producer(broker)
    producer.init()
    producer.write()
    producer.end(commit=False)
    broker.close()
    flipped(path / "t-0" / f"{0:020d}.txnindex", 9)
    return restarted(path)


def groups(path: Path) -> Lines:
    broker = with_groups(path, **{"offsets.topic.num.partitions": 1})
    for number in range(3):
        for group in ("g", "g2"):
            assert commit(broker, number, group) is ErrorCode.none
    broker.close()
    (file,) = files_of_groups(path)
    content = file.read_bytes()
    flipped(file, len(content) - 1)
    return restarted(path)


def transactional_ids(path: Path) -> Lines:
    broker = CoreUnderTest(path)
    make_topic(broker, partitions=1)
    producer = Producer(broker)
    producer.init()
    for _ in range(2):
        producer.write()
        producer.end(commit=True)
    broker.close()
    (file,) = path.glob("__transaction_state-*/*.log")
    flipped(file, file.stat().st_size - 1)
    return restarted(path)


def a_swap(path: Path) -> Lines:
    first, *_ = segments(path, **COMPACT)
    swap = first.with_name(first.name + ".swap")
    swap.write_bytes(first.read_bytes())
    flipped(swap, 80)
    return restarted(path)


def foreign_files(path: Path) -> Lines:
    first, *_ = segments(path)
    first.with_name("5.log").write_bytes(b"mine")
    return restarted(path)


def foreign_folders(path: Path) -> Lines:
    (path / "photos-delete").mkdir()
    return restarted(path)


def a_checkpoint(path: Path) -> Lines:
    segments(path)
    file = path / "recovery-point-offset-checkpoint"
    file.write_bytes(b"")
    lines = restarted(path)
    file.unlink()
    return lines + restarted(path)


def a_checkpoint_with_its_copy(path: Path) -> Lines:
    segments(path)
    for file in path.glob("recovery-point-offset-checkpoint*"):
        file.write_bytes(b"")
    return restarted(path)


def the_catalog(path: Path) -> Lines:
    segments(path)
    flipped(path / "topics.json", 40)
    lines = restarted(path)
    (path / "topics.json.copy").unlink()
    return lines + restarted(path)


def metadata(path: Path) -> Lines:
    segments(path)
    (path / "t-0" / "partition.metadata").unlink()
    return restarted(path)


def a_stray(path: Path) -> Lines:
    segments(path)
    shutil.copytree(path / "t-0", path / "gone-0")
    return restarted(path)


STAGED: dict[str, Callable[[Path], Lines]] = {
    "a flipped bit in a batch, zeros, foreign bytes": a_batch,
    "the same in the records of a batch, after a clean end": records_of_a_batch,
    "a damaged or incomplete end of the newest segment": the_end,
    "a segment is missing, empty or truncated": middle_segments,
    "the newest segment is missing or shorter": the_newest_segment,
    "the folder of a partition is missing": the_folder,
    "a segment cannot be read (I/O error, permissions, a folder of its name)": an_unreadable_segment,
    "an offset or time index is missing or wrong": indexes,
    "a time index that says that records are old": a_time_index,
    "`leader-epoch-checkpoint` is missing or damaged": leader_epochs,
    "a producer snapshot is damaged": a_snapshot,
    "a list of aborted transactions is missing or damaged": aborted_transactions,
    "damage in `__consumer_offsets`": groups,
    "damage in `__transaction_state`": transactional_ids,
    "an interrupted compaction whose draft is damaged": a_swap,
    "a foreign file in a partition's folder": foreign_files,
    "the same in the data directory": foreign_folders,
    "a checkpoint is missing or damaged": a_checkpoint,
    "the same with its copy": a_checkpoint_with_its_copy,
    "`topics.json` or its copy is missing or damaged": the_catalog,
    "`partition.metadata` is missing or damaged": metadata,
    "the folder of a partition that no topic has": a_stray,
}


def test_each_fault_of_the_table_is_staged() -> None:
    assert list(STAGED) == list(rows())


@pytest.mark.parametrize("fault", STAGED)
def test_each_message_of_the_table_is_what_the_broker_logs(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = [*STAGED[fault](tmp_path), *caplog.messages]
    missing = [message for message in rows()[fault] if not any(pattern(full(message)).fullmatch(line) for line in lines)]
    assert not missing, lines
