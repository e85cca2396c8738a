"""A data directory in which one file is missing, damaged or newer: the cells of the table in docs/data-directory.md."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.resources import AlterConfigOp, ResourceType, alter, describe
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.errors import ConfigError, StorageError
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request, offset_fetch_request
from ottla.records import NewRecord, encode_batch, read_header
from ottla.runtime import catalog_lines
from ottla.simulation.clock import START
from ottla.types import Now
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import stored

pytestmark = pytest.mark.slow

DAY = 86_400_000
TOPICS = {
    "compacted": {"cleanup.policy": "compact", "segment.ms": "60000"},
    "kept": {"retention.ms": "-1", "segment.ms": "60000"},
}
LATER = Now(START.mono, START.wall + DAY)
COUNT = 8
"""Batches of two records in each topic, each batch a segment, older than the default retention."""

BASES = [2 * number for number in range(COUNT)]
COMMITTED = 7

Fault = Callable[[Path], object]


def fill(broker: CoreUnderTest) -> None:
    for name, configs in TOPICS.items():
        broker.core.catalog.create_topic(name, 1, configs)
        log = broker.core.catalog.log(name, 0)
        for number in range(COUNT):
            stamp = START.wall - 30 * DAY + number * DAY // 24
            records = [NewRecord(b"%d-%d" % (number, row), b"v", timestamp=stamp) for row in range(2)]
            data = encode_batch(records, producer_id=5, producer_epoch=0, base_sequence=2 * number)
            broker.core.catalog.append(log, data, read_header(data), broker.now)
    part = offset_commit_request.OffsetCommitRequestPartition(partition_index=0, committed_offset=COMMITTED, committed_metadata="")
    topic = offset_commit_request.OffsetCommitRequestTopic(name="kept", partitions=(part,))
    message = offset_commit_request.OffsetCommitRequest(group_id="g", member_id="", topics=(topic,))
    broker.ask(Api.OFFSET_COMMIT, message, version=9)
    broker.core.catalog.delete_records(broker.core.catalog.log("kept", 0), 1)
    broker.core.catalog.logs.checkpoint_starts()()
    broker.run_jobs()


def committed(broker: CoreUnderTest) -> int:
    topic = offset_fetch_request.OffsetFetchRequestTopics(name="kept", partition_indexes=(0,))
    group = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
    message = offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=False)
    return int(broker.ask(Api.OFFSET_FETCH, message, version=9).groups[0].topics[0].partitions[0].committed_offset)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that was left well."""
    path = tmp_path_factory.mktemp("whole") / "data"
    broker = CoreUnderTest(path)
    fill(broker)
    broker.close()
    return path


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def clean(broker: CoreUnderTest) -> None:
    """Let retention, compaction and checkpoints have their turns."""
    for _ in range(30):
        broker.pass_time(60_000)
        broker.run_jobs()


def check_all_is_there(broker: CoreUnderTest, start: int = 1) -> None:
    for name in TOPICS:
        log = broker.core.catalog.log(name, 0)
        assert [header.base_offset for header in stored(log)] == BASES, name
        assert log.end_offset == 2 * COUNT
    assert broker.core.catalog.log("kept", 0).start_offset == start
    assert committed(broker) == COMMITTED


def remove(name: str) -> Fault:
    return lambda path: [one.unlink() for one in only(path, name)]


def write(name: str, content: bytes) -> Fault:
    return lambda path: [one.write_bytes(content) for one in only(path, name)]


def flip(name: str, at: int = -4) -> Fault:
    def fault(path: Path) -> None:
        for one in only(path, name):
            content = bytearray(one.read_bytes())
            content[at] ^= 1
            one.write_bytes(content)

    return fault


def cut(name: str) -> Fault:
    return lambda path: [one.write_bytes(one.read_bytes()[: one.stat().st_size // 2]) for one in only(path, name)]


def with_crc(content: bytes) -> bytes:
    """A copy of a checkpoint."""
    return b"%bcrc %08x\n" % (content, zlib.crc32(content))


def add(name: str, content: bytes = b"half") -> Fault:
    return lambda path: (path / name).write_bytes(content)


def only(path: Path, pattern: str) -> list[Path]:
    found = list(path.glob(pattern))
    assert found, pattern
    return found


CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
KEPT = "kept-0/00000000000000000000"
MADE_AGAIN = r"kept-0: the indexes of \d+.log were rebuilt from its batches"

CELLS: dict[str, tuple[Fault, str]] = {
    # The catalog: what one of the files lacks, the other has.
    **{f"{name} missing": (remove(name), f"{re.escape(name)} is missing") for name in ("topics.json", "topics.json.copy")},
    **{f"{name} empty": (write(name, b""), f"{re.escape(name)} is empty") for name in ("topics.json", "topics.json.copy")},
    **{
        f"{name} is [{text!r}": (write(name, text), rf"line 1 of .*{name} is damaged")
        for name in ("topics.json",)
        for text in (b"{", b"[]")
    },
    **{f"{name} flipped": (flip(name), rf"line \d+ of .*{name} is damaged") for name in ("topics.json", "topics.json.copy")},
    **{f"{name} cut": (cut(name), rf"{name} (ends in the middle|lacks)") for name in ("topics.json", "topics.json.copy")},
    "meta.properties missing": (remove("meta.properties"), "meta.properties is missing: this broker has a new cluster.id"),
    # The checkpoints.
    **{
        f"{name} missing": (remove(name), f"{name} is missing: its copy is used")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    **{
        f"{name} empty": (write(name, b""), f"{name} was not written completely or is damaged: its copy")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    **{
        f"{name} newer": (write(name, b"1\n0\n"), f"{name} was not written completely or is damaged: its copy")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    **{
        f"{name} flipped": (flip(name, 2), f"{name} was not written completely or is damaged: its copy")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    **{
        f"{name}.copy missing": (remove(f"{name}.copy"), f"{name}.copy is missing or damaged")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    **{
        f"{name}.copy flipped": (flip(f"{name}.copy"), f"{name}.copy is missing or damaged")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    **{
        f"{name}.copy newer": (write(f"{name}.copy", with_crc(b"1\n0\n")), f"{name}.copy is missing or damaged")
        for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT)
    },
    # What is never read.
    "clean marker missing": (remove(".kafka_cleanshutdown"), ""),
    "clean marker damaged": (write(".kafka_cleanshutdown", b"\x00"), ""),
    "clean marker newer": (write(".kafka_cleanshutdown", b'{"version": 1}'), ""),
    "lock missing": (remove(".lock"), ""),
    "lock damaged": (write(".lock", b"\x00"), ""),
    "lock newer": (write(".lock", b"version=2"), ""),
    # The files of a partition.
    "partition.metadata missing": (remove("*-0/partition.metadata"), "partition.metadata was missing or damaged and was written"),
    "partition.metadata empty": (write("*-0/partition.metadata", b""), "partition.metadata was missing or damaged and was written"),
    "partition.metadata flipped": (flip("*-0/partition.metadata"), "partition.metadata was missing or damaged and was written"),
    "partition.metadata newer": (flip("*-0/partition.metadata", 9), ""),
    "epochs missing": (remove("*-0/leader-epoch-checkpoint"), "kept-0: leader-epoch-checkpoint was missing and was written"),
    "epochs damaged": (
        write("*-0/leader-epoch-checkpoint", b"0\n"),
        "kept-0: leader-epoch-checkpoint was damaged and was written",
    ),
    "epochs newer": (write("*-0/leader-epoch-checkpoint", b"1\n1\n0 0\n"), "kept-0: leader-epoch-checkpoint was damaged"),
    "snapshot missing": (remove("*-0/*.snapshot"), ""),
    "snapshot damaged": (
        flip("*-0/*.snapshot"),
        r"kept-0: \d+.snapshot is damaged: the producers are those of the batches",
    ),
    "snapshot newer": (flip("*-0/*.snapshot", 1), r"kept-0: \d+.snapshot is damaged"),
    "index missing": (remove("*-0/*.index"), MADE_AGAIN),
    "index damaged": (write("*-0/*.index", b"\x01\x02\x03"), MADE_AGAIN),
    "timeindex missing": (remove("*-0/*.timeindex"), MADE_AGAIN),
    "timeindex damaged": (write("*-0/*.timeindex", b"\x01\x02\x03"), MADE_AGAIN),
    "txnindex damaged": (add(f"{KEPT}.txnindex"), ""),
    "copy of txnindex damaged": (add(f"{KEPT}.txnindex.copy"), f"{re.escape(KEPT[7:])}.txnindex.copy is damaged"),
    "unfinished file": (add(f"{KEPT}.index.tmp"), ""),
    "unfinished catalog": (add("topics.json.tmp"), ""),
    "unfinished compaction": (add(f"{KEPT}.log.cleaned"), ""),
    "unfinished swap": (lambda path: shutil.copy(path / f"{KEPT}.log", path / f"{KEPT}.log.swap"), MADE_AGAIN),
    "files that were given up": (add(f"{KEPT}.log.deleted"), ""),
}


@pytest.mark.parametrize("ended", ["well", "killed"])
@pytest.mark.parametrize(("fault", "said"), CELLS.values(), ids=CELLS)
def test_a_fault_of_one_file_costs_no_record_and_no_offset(
    data: Path, fault: Fault, said: str, ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    if ended == "killed":
        (data / ".kafka_cleanshutdown").write_bytes(b"")
    fault(data)
    if ended == "killed":
        (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    broker = CoreUnderTest(data, LATER)
    text = "\n".join([*broker.warnings, *(record.getMessage() for record in caplog.records)])
    assert re.search(said, text), text
    assert said or not text
    assert not [topic.name for topic in broker.core.catalog.topics if topic.settings_unknown]
    clean(broker)
    check_all_is_there(broker)
    broker.store.remove_leftovers()()
    broker.close()
    assert not [one.name for one in data.rglob("*") if one.name.endswith((".tmp", ".cleaned", ".swap", "-stray"))]
    caplog.clear()
    again = CoreUnderTest(data, LATER)
    assert not [*again.warnings, *caplog.records], "the second start finds nothing wrong"
    check_all_is_there(again)
    again.close()


REFUSED = {
    "topics.json": (write("topics.json", b'{"version": 3}\n'), "topics.json has version 3 .* reads versions 0 to 2"),
    "topics.json.copy": (write("topics.json.copy", b'{"version": 3}\n'), "topics.json.copy has version 3 .* reads versions 0 to 2"),
    "both catalogs": (write("topics.json*", b'{"version": 3}\n'), "topics.json has version 3 .* reads versions 0 to 2"),
    "meta.properties empty": (write("meta.properties", b""), "meta.properties is damaged: it is empty"),
    "meta.properties bytes": (write("meta.properties", b"\xff"), "meta.properties is damaged: byte 0 is not UTF-8"),
    "meta.properties newer": (write("meta.properties", b"version=2\n"), "meta.properties has version 2"),
}


@pytest.mark.parametrize(("fault", "said"), REFUSED.values(), ids=REFUSED)
def test_a_start_that_is_refused_changes_nothing(data: Path, fault: Fault, said: str) -> None:
    fault(data)
    before = {one: one.read_bytes() for one in data.rglob("*") if one.is_file()}
    with pytest.raises(StorageError, match=said):
        CoreUnderTest(data, LATER)
    assert {one: one.read_bytes() for one in data.rglob("*") if one.is_file()} == before


LOST = {
    CHECKPOINTS[0]: ("after an unclean end all logs are scanned", 1),
    CHECKPOINTS[1]: ("records deleted by DeleteRecords may be readable again", 0),
    CHECKPOINTS[2]: ("compaction starts over", 1),
}


@pytest.mark.parametrize("ended", ["well", "killed"])
def test_records_whose_files_were_removed_are_said_to_be_missing(data: Path, ended: str) -> None:
    if ended == "killed":
        (data / ".kafka_cleanshutdown").unlink()
    shutil.rmtree(data / "compacted-0")
    for one in only(data, f"kept-0/{BASES[-1]:020d}.*"):
        one.unlink()
    broker = CoreUnderTest(data, LATER)
    end = 2 * COUNT
    no_folder = f"compacted-0: its folder is missing, and with it the records before offset {end}, where the log goes on"
    assert no_folder in broker.warnings
    assert f"kept-0: it ends at offset {BASES[-1]}, but had ended at {end}, where it goes on: records are lost" in broker.warnings
    broker.close()
    again = CoreUnderTest(data, LATER)
    lasting = f"kept-0: offsets {BASES[-1]} to {end - 1} are missing between {BASES[-2]:020d}.log and {end:020d}.log"
    assert again.warnings == [lasting]
    again.close()


LOSSES = {"missing": (None, None), "damaged": (b"0\n", b"0\n"), "newer": (b"1\n0\n", with_crc(b"1\n0\n"))}
"""Of the file and of its copy."""


def lose(data: Path, name: str, how: str) -> None:
    for one, content in zip((name, f"{name}.copy"), LOSSES[how], strict=True):
        (remove(one) if content is None else write(one, content))(data)


@pytest.mark.parametrize("ended", ["well", "killed"])
@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("name", LOST)
def test_a_checkpoint_that_is_lost_with_its_copy_is_said(data: Path, name: str, how: str, ended: str) -> None:
    lose(data, name, how)
    if ended == "killed":
        (data / ".kafka_cleanshutdown").unlink()
    broker = CoreUnderTest(data, LATER)
    said, start = LOST[name]
    assert any(f"{name} is missing or damaged: " in warning and said in warning for warning in broker.warnings)
    clean(broker)
    check_all_is_there(broker, start)
    broker.close()
    again = CoreUnderTest(data, LATER)
    assert not again.warnings
    again.close()


@pytest.mark.parametrize("how", LOSSES)
def test_the_ends_of_logs_are_not_needed(data: Path, how: str) -> None:
    lose(data, HIGH_WATERMARK_CHECKPOINT, how)
    broker = CoreUnderTest(data, LATER)
    assert not broker.warnings
    check_all_is_there(broker)
    broker.close()
    assert (data / HIGH_WATERMARK_CHECKPOINT).stat().st_size > len(b"0\n0\n")


@pytest.mark.parametrize("how", LOSSES)
def test_all_checkpoints_may_be_lost_at_once(data: Path, how: str) -> None:
    for name in (*CHECKPOINTS, HIGH_WATERMARK_CHECKPOINT):
        lose(data, name, how)
    broker = CoreUnderTest(data, LATER)
    assert [warning.split()[0] for warning in broker.warnings] == list(CHECKPOINTS)
    check_all_is_there(broker, start=0)
    broker.close()


def test_a_kill_in_the_first_minute_loses_no_checkpoint(tmp_path: Path) -> None:
    """DeleteRecords writes one of them at once, and so does a compaction: the others are there, too."""
    broker = CoreUnderTest(tmp_path)
    fill(broker)
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert not again.warnings
    again.close()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_a_lost_one(
    data: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.open

    def denying(path: str | Path, flags: int, *arguments: int, **named: int) -> int:
        if Path(path).name in unreadable and flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(path, flags, *arguments, **named)

    unreadable = {name, f"{name}.copy"}
    before = {one: one.read_bytes() for one in data.glob("*checkpoint*")}
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denying)
        with pytest.raises(OSError, match="Too many open files"):
            CoreUnderTest(data, LATER)
        assert {one: one.open("rb").read() for one in before if one.name not in unreadable} == {
            one: content for one, content in before.items() if one.name not in unreadable
        }
        for one in sorted(unreadable):
            unreadable = {one}
            shutil.copytree(data, data.with_name(f"with {one}"))
            broker = CoreUnderTest(data.with_name(f"with {one}"), LATER)
            assert f"{one} cannot be read: Too many open files" in caplog.text
            check_all_is_there(broker)
            broker.close()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 2}\n', None])
def test_topics_whose_settings_are_unknown_are_neither_deleted_nor_compacted(data: Path, damage: bytes | None) -> None:
    for one in data.glob("topics.json*"):
        one.unlink() if damage is None else one.write_bytes(damage)
    for _ in range(2):  # after a restart, too
        broker = CoreUnderTest(data, LATER)
        (warning,) = broker.warnings
        assert "the settings of 2 topic(s) are unknown" in warning
        assert warning.endswith(": compacted, kept")
        clean(broker)
        check_all_is_there(broker)
        held = {one.name: one.effective for one in describe(broker.core.catalog, ResourceType.TOPIC, "compacted")}
        assert (held["cleanup.policy"].value, held["cleanup.policy"].source) == ("", 1)
        assert broker.core.catalog.topic(OFFSETS_TOPIC).partition_count == 50
        broker.close()
    broker = CoreUnderTest(data, LATER)
    for name, configs in TOPICS.items():
        changes = [(one, AlterConfigOp.SET, value) for one, value in configs.items()]
        alter(
            broker.core.catalog,
            ResourceType.TOPIC,
            name,
            changes,
            broker.core.state.alter_settings,
            replacing=False,
            validate_only=False,
        )
    broker.close()
    broker = CoreUnderTest(data, LATER)
    assert not broker.warnings
    assert broker.core.catalog.log("compacted", 0).config.compacted
    clean(broker)
    check_all_is_there(broker)
    alter(
        broker.core.catalog,
        ResourceType.TOPIC,
        "kept",
        [("retention.ms", AlterConfigOp.DELETE, None)],
        broker.core.state.alter_settings,
        replacing=False,
        validate_only=False,
    )
    clean(broker)
    assert not stored(broker.core.catalog.log("kept", 0)), "retention is back"
    broker.close()


def hollow(path: Path) -> tuple[CoreUnderTest, list[int]]:
    """A broker with a log that was compacted, and the offsets of its batches: there are holes between them."""
    broker = CoreUnderTest(path)
    broker.core.catalog.create_topic("compacted", 1, {**TOPICS["compacted"], "min.cleanable.dirty.ratio": "0"})
    log = broker.core.catalog.log("compacted", 0)
    for number in range(COUNT):
        data = encode_batch([NewRecord(b"same", b"v", timestamp=START.wall - (COUNT - number) * DAY)])
        broker.core.catalog.append(log, data, read_header(data), broker.now)
    clean(broker)
    left = [header.base_offset for header in stored(log)]
    assert len(left) < COUNT
    return broker, left


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("ended", ["well", "killed"])
def test_what_an_earlier_release_has_written_is_not_called_damaged(
    data: Path, version: int, ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It wrote no copies, and a checkpoint only when there was something in it."""
    lines = [json.loads(line) for line in (data / "topics.json").read_bytes().splitlines()][2:]
    changes = [{name: value for name, value in line.items() if name not in ("line", "crc")} for line in lines]
    if version == 1:
        text = "".join(json.dumps(change) + "\n" for change in [{"version": 1}, *changes])
    else:
        last = {name: value for change in changes for name, value in change.items() if name != "topic"}
        text = json.dumps({"version": 0, "topics": [change["topic"] for change in changes if "topic" in change], **last})
    for one in (*data.glob("*.copy"), data / CHECKPOINTS[2], *([data / ".kafka_cleanshutdown"] if ended == "killed" else [])):
        one.unlink()
    (data / "topics.json").write_text(text)
    for _ in range(2):
        broker = CoreUnderTest(data, LATER)
        assert not [*broker.warnings, *caplog.records]
        clean(broker)
        check_all_is_there(broker)
        broker.close()
    assert len(list(data.glob("*.copy"))) == 5


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("before", [OFFSETS_TOPIC, "kept"])
def test_folders_show_what_a_catalog_lacks_that_was_cut_at_the_end_of_a_line(data: Path, row: int, before: str) -> None:
    """Nothing else does where the other file is unusable; the folders were set aside, and with them the offsets of all groups."""
    one, other = (data / name for name in (("topics.json", "topics.json.copy")[:: 1 - 2 * row]))
    lines = one.read_bytes().splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if b'"%s"' % before.encode() in line)
    one.write_bytes(b"".join(lines[:first]))
    other.write_bytes(b"")
    for _ in range(2):  # after a restart, too
        broker = CoreUnderTest(data, LATER)
        clean(broker)
        check_all_is_there(broker)
        assert all(broker.core.catalog.topic(name).settings_unknown for name in TOPICS)
        broker.close()


def test_a_compacted_log_with_holes_is_not_cut_when_its_settings_are_unknown(tmp_path: Path) -> None:
    broker, left = hollow(tmp_path)
    broker.kill()
    for one in [*tmp_path.glob("topics.json*"), *tmp_path.glob("*-checkpoint*")]:
        one.unlink()
    again = CoreUnderTest(tmp_path)
    assert [header.base_offset for header in stored(again.core.catalog.log("compacted", 0))] == left
    again.close()


def test_a_log_with_holes_that_is_not_compacted_any_more_is_not_cut_when_the_checkpoints_are_lost(tmp_path: Path) -> None:
    broker, left = hollow(tmp_path)
    changes = [("cleanup.policy", AlterConfigOp.SET, "delete"), ("retention.ms", AlterConfigOp.SET, "-1")]
    alter(
        broker.core.catalog,
        ResourceType.TOPIC,
        "compacted",
        changes,
        broker.core.state.alter_settings,
        replacing=False,
        validate_only=False,
    )
    broker.kill()
    for one in tmp_path.glob("*-checkpoint*"):
        one.unlink()
    for _ in range(2):  # the second start finds checkpoints, and scans the log again
        again = CoreUnderTest(tmp_path)
        assert [header.base_offset for header in stored(again.core.catalog.log("compacted", 0))] == left
        assert not [warning for warning in again.warnings if "truncated" in warning]
        again.kill()


def test_a_coordinator_s_topic_keeps_the_partition_count_that_it_was_found_with(data: Path) -> None:
    """It was in neither catalog, so the settings decided. Other settings at a later start may not: no group would be found."""
    for one in data.glob("topics.json*"):
        one.unlink()
    for settings in ({}, {"offsets.topic.num.partitions": "100"}):
        broker = CoreUnderTest(data, LATER, **settings)
        assert broker.core.catalog.topic(OFFSETS_TOPIC).partition_count == 50
        assert committed(broker) == COMMITTED
        broker.close()


def stored_settings(data: Path, settings: object) -> None:
    """As another release may have stored them."""
    told = catalog_lines.read_files(data / "topics.json", data / "topics.json.copy")
    content = catalog_lines.whole(map(catalog_lines.body_of, [*told.contents, {"settings": settings}]), 100)
    for name in ("topics.json", "topics.json.copy"):
        (data / name).write_bytes(content)


def test_a_setting_of_a_group_that_this_release_cannot_use_is_kept_and_has_no_effect(data: Path) -> None:
    stored_settings(data, {"groups": {"g": {"consumer.session.timeout.ms": "long", "consumer.heartbeat.interval.ms": "700"}}})
    for _ in range(2):
        broker = CoreUnderTest(data, LATER)
        assert "are kept: consumer.session.timeout.ms=long" in broker.warnings[0]
        held = {one.name: one.effective.value for one in describe(broker.core.catalog, ResourceType.GROUP, "g")}
        assert held["consumer.session.timeout.ms"] == "45000"
        assert held["consumer.heartbeat.interval.ms"] == "700"
        changes = [("consumer.heartbeat.interval.ms", AlterConfigOp.SET, "700")]
        alter(
            broker.core.catalog,
            ResourceType.GROUP,
            "g",
            changes,
            broker.core.state.alter_settings,
            replacing=False,
            validate_only=False,
        )
        broker.close()


def test_a_setting_of_the_broker_that_this_release_cannot_use_refuses_the_start(data: Path) -> None:
    """With its default in its place, retention might delete what it was to keep."""
    stored_settings(data, {"broker": {"log.cleanup.policy": "shred"}})
    with pytest.raises(ConfigError, match=r"that is stored in the data directory cannot be used: Invalid value shred") as refused:
        CoreUnderTest(data, LATER)
    assert "another release of Ottla" in (refused.value.hint or "")
    assert (data / ".kafka_cleanshutdown").exists(), "without it, the next start would not notice a lost folder"


def test_settings_of_a_topic_that_contradict_those_of_the_broker_refuse_the_start(tmp_path: Path) -> None:
    """They were left out, and the next change of the topic lost them: one of a compacted topic had retention delete it."""
    broker = CoreUnderTest(tmp_path)
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    broker.core.catalog.create_topic("compacted", 1, configs)
    broker.close()
    with pytest.raises(
        ConfigError, match=r"topic compacted: min.compaction.lag.ms=3600000 is more than max.compaction.lag.ms=60000"
    ):
        CoreUnderTest(tmp_path, **{"log.cleaner.max.compaction.lag.ms": "60000"})
    broker = CoreUnderTest(tmp_path)
    assert broker.core.catalog.topic("compacted").overrides == configs
    broker.close()


def test_settings_of_a_later_release_are_kept_and_the_others_hold(data: Path) -> None:
    told = catalog_lines.read_files(data / "topics.json", data / "topics.json.copy")
    rows = [one for one in told.contents if "topic" in one]
    rows[0]["topic"]["configs"]["tiers"] = "3"
    rows[1]["topic"]["configs"]["retention.ms"] = "forever"
    rows.append({"settings": {"broker": {"log.tiers": "2", "message.max.bytes": "9"}, "groups": {"g": {"tiers": "1"}}}})
    content = catalog_lines.whole(map(catalog_lines.body_of, rows), 100)
    for name in ("topics.json", "topics.json.copy"):
        (data / name).write_bytes(content)
    for _ in range(2):
        broker = CoreUnderTest(data, LATER)
        assert broker.core.catalog.config.message_max_bytes == 9
        assert broker.core.catalog.log("compacted", 0).config.compacted
        text = "\n".join(broker.warnings)
        assert "topic compacted has settings that this release does not support; they are kept: tiers=3" in text
        assert "topic kept has settings that this release does not support; they are kept: retention.ms=forever" in text
        assert "the settings of 1 topic(s) are unknown" in text
        assert "settings of the broker or of groups that this release does not support are kept: log.tiers=2, tiers=1" in text
        clean(broker)
        check_all_is_there(broker)
        alter(
            broker.core.catalog,
            ResourceType.BROKER,
            "1",
            [("message.max.bytes", AlterConfigOp.SET, "9")],
            broker.core.state.alter_settings,
            replacing=False,
            validate_only=False,
        )
        alter(
            broker.core.catalog,
            ResourceType.TOPIC,
            "compacted",
            [("segment.ms", AlterConfigOp.SET, "9")],
            broker.core.state.alter_settings,
            replacing=False,
            validate_only=False,
        )
        broker.close()
    settings = [json.loads(line) for line in (data / "topics.json").read_text().splitlines() if "log.tiers" in line]
    assert settings[-1]["settings"]["groups"] == {"g": {"tiers": "1"}}
    assert '"tiers": "3", ' in (data / "topics.json").read_text().splitlines()[-1]
