"""A broker on a data directory with folders of partitions that cannot be read: these are offline, and the others are served."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.records import NewRecord, encode_batch, read_header
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.damage import ALL, BATCHES, bases, filled, flipped, with_bad_sector


@pytest.mark.parametrize("clean", [True, False])
def test_a_partition_that_cannot_be_loaded_is_offline_and_the_others_are_served(tmp_path: Path, clean: bool) -> None:
    broker = filled(tmp_path, "bad", "good")
    broker.close() if clean else broker.kill()
    first = sorted((tmp_path / "bad-0").glob("*.log"))[0]
    content = first.read_bytes()
    first.unlink()
    first.mkdir()
    for _ in range(2):
        again = CoreUnderTest(tmp_path)
        (line,) = [warning for warning in again.warnings if "offline" in warning]
        assert line.startswith("bad-0 is offline until the next start, since its files cannot be read: ")
        with pytest.raises(ApiError, match="bad-0 is offline") as refused:
            again.core.catalog.log("bad", 0)
        assert refused.value.code is ErrorCode.kafka_storage_error
        assert bases(again, "good") == ALL
        again.close()
    first.rmdir()
    first.write_bytes(content)
    again = CoreUnderTest(tmp_path)
    assert bases(again, "bad") == ALL
    again.close()


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [_folder, _pipe, _loop])
@pytest.mark.parametrize(
    "name",
    [
        "partition.metadata",
        "leader-epoch-checkpoint",
        f"{0:020d}.log",
        f"{0:020d}.log.swap",
        f"{0:020d}.index",
        f"{0:020d}.timeindex",
        f"{0:020d}.txnindex",
        f"{24:020d}.snapshot",
    ],
)
def test_a_file_of_the_wrong_kind_takes_one_partition_offline(tmp_path: Path, name: str, kind: Callable[[Path], object]) -> None:
    """A pipe without a writer would make the start wait for ever."""
    filled(tmp_path, "bad", "good").close()
    file = tmp_path / "bad-0" / name
    content = file.read_bytes() if file.exists() else None
    file.unlink(missing_ok=True)
    kind(file)
    for _ in range(2):
        again = CoreUnderTest(tmp_path)
        (line,) = again.warnings
        assert line.startswith("bad-0 is offline until the next start, since its files cannot be read: ")
        assert str(file) in line
        with pytest.raises(ApiError, match="bad-0 is offline"):
            again.core.catalog.log("bad", 0)
        assert bases(again, "good") == ALL
        again.close()
    file.rmdir() if kind is _folder else file.unlink()
    if content is not None:
        file.write_bytes(content)
    again = CoreUnderTest(tmp_path)
    assert bases(again, "bad") == ALL
    assert not again.warnings
    again.close()


@pytest.mark.parametrize("kind", [_folder, _pipe])
@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_after_a_kill_an_index_of_the_wrong_kind_does_not_keep_the_others_from_a_clean_end(
    tmp_path: Path, suffix: str, kind: Callable[[Path], object]
) -> None:
    """The index of the newest segment is not needed then, but it would have to be replaced."""
    filled(tmp_path, "bad", "good").kill()
    file = sorted((tmp_path / "bad-0").glob("*.log"))[-1].with_suffix(f".{suffix}")
    kind(file)
    again = CoreUnderTest(tmp_path)
    (line,) = [line for line in again.warnings if "rebuilt" not in line]
    assert line.startswith("bad-0 is offline until the next start, since its files cannot be read: ")
    assert str(file) in line
    assert bases(again, "good") == ALL
    again.close()
    again = CoreUnderTest(tmp_path)
    assert again.store.clean
    again.close()


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", f"{6:020d}.index", f"{24:020d}.snapshot"])
def test_a_file_with_a_hole_of_a_terabyte_takes_one_partition_offline(tmp_path: Path, name: str) -> None:
    filled(tmp_path, "bad", "good").close()
    os.truncate(tmp_path / "bad-0" / name, 1 << 40)
    again = CoreUnderTest(tmp_path)
    assert bases(again, "good") == ALL
    again.close()


@pytest.mark.timeout(20)
def test_no_record_is_written_to_a_pipe_in_place_of_a_segment(tmp_path: Path) -> None:
    broker = filled(tmp_path, "t")
    log = broker.core.catalog.log("t", 0)
    data = encode_batch([NewRecord(b"", b"new")])
    broker.core.catalog.append(log, data, read_header(data), broker.now)
    path = max((tmp_path / "t-0").glob("*.log"))
    path.unlink()
    os.mkfifo(path)
    broker.store.close_files()
    with pytest.raises(ApiError, match="it is not a file"):
        broker.core.catalog.append(log, data, read_header(data), broker.now)
    broker.kill()


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_end_is_noticed_after_a_start_at_which_the_partition_was_offline(tmp_path: Path, clean: bool) -> None:
    broker = filled(tmp_path, "bad", "good")
    broker.pass_time(120_000)
    broker.run_jobs()
    broker.kill()
    epochs = tmp_path / "bad-0" / "leader-epoch-checkpoint"
    content = epochs.read_bytes()
    epochs.unlink()
    epochs.mkdir()
    again = CoreUnderTest(tmp_path)
    again.pass_time(120_000)
    again.run_jobs()
    again.close() if clean else again.kill()
    epochs.rmdir()
    epochs.write_bytes(content)
    newest = max((tmp_path / "bad-0").glob("*.log"))
    newest.write_bytes(b"")
    again = CoreUnderTest(tmp_path)
    assert "but had ended at 24, where it goes on" in "".join(again.warnings)
    assert again.core.catalog.log("bad", 0).end_offset == 24
    again.close()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_clean_end_does_not_vouch_for_a_partition_that_was_offline(tmp_path: Path, has_checkpoint: bool) -> None:
    """The broker before it was killed: what is behind the recovery point was never checked."""
    broker = filled(tmp_path, "bad", "good")
    if has_checkpoint:
        broker.pass_time(120_000)
        broker.run_jobs()
    log = broker.core.catalog.log("bad", 0)
    for _ in range(BATCHES):
        data = encode_batch([NewRecord(b"key", b"value" * 20)])
        broker.core.catalog.append(log, data, read_header(data), broker.now)
        broker.run_jobs()
    broker.kill()
    epochs = tmp_path / "bad-0" / "leader-epoch-checkpoint"
    content = epochs.read_bytes()
    epochs.unlink()
    epochs.mkdir()
    CoreUnderTest(tmp_path).close()
    epochs.rmdir()
    epochs.write_bytes(content)
    *_, last, _ = sorted((tmp_path / "bad-0").glob("*.log"))
    flipped(last, 80)
    again = CoreUnderTest(tmp_path)
    (line,) = again.warnings
    assert f"{last.name} is damaged at byte 0: the batch at offset {int(last.stem)} fails its checksum" in line
    again.close()


def test_a_segment_that_cannot_be_read_whole_is_not_scanned_for_each_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan would take the broker's thread for seconds: a large segment, on a disk that tries again and again."""
    filled(tmp_path, "t", segment_bytes=1 << 20).close()
    file = tmp_path / "t-0" / f"{0:020d}.log"
    broker = CoreUnderTest(tmp_path)
    log = broker.core.catalog.log("t", 0)
    places = [log.segments[0].locate(offset) for offset in (6, 20)]
    flipped(file, (places[0] or 0) + 16)
    with_bad_sector(monkeypatch, file, places[1] or 0)
    scans: list[int] = []
    real = log.segments[0].rescan
    monkeypatch.setattr(type(log.segments[0]), "rescan", lambda *_: scans.append(1) or real(log.end_offset))
    for _ in range(5):
        with pytest.raises(ApiError, match="magic byte") as refused:
            log.read(6, 1, at_least_one=True)
        assert refused.value.code is ErrorCode.corrupt_message
    assert len(scans) == 1
    assert log.read(0, 1, at_least_one=True) is not None
    broker.kill()


def test_a_bad_sector_in_the_first_batch_of_the_newest_segment_refuses_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, "t").close()
    broker = CoreUnderTest(tmp_path)
    log = broker.core.catalog.log("t", 0)
    with_bad_sector(monkeypatch, tmp_path / "t-0" / f"{log.segments[-1].base_offset:020d}.log", 0)
    data = encode_batch([NewRecord(None, b"new")])
    for number in range(3):
        broker.core.catalog.append(log, data, read_header(data), broker.now)
        broker.run_jobs()
        assert log.end_offset == 25 + number
        assert log.read(24, 1 << 20, at_least_one=True) is not None
    broker.close()


def test_a_largest_timestamp_that_cannot_be_looked_for_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was that the log has no records."""
    filled(tmp_path, "t", segment_bytes=1 << 20).close()
    name = tmp_path / "t-0" / f"{0:020d}"
    broker = CoreUnderTest(tmp_path)
    log = broker.core.catalog.log("t", 0)
    largest = log.find_max_timestamp()
    assert largest is not None
    position = log.segments[0].locate(6)
    log.segments[0].max_timestamp, log.segments[0].is_max_timestamp_from_file = largest[1] + 1, True  # as a damaged time index says
    with_bad_sector(monkeypatch, name.with_suffix(".log"), (position or 0) + 80)
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            log.find_max_timestamp()
        assert refused.value.code is ErrorCode.kafka_storage_error
    broker.kill()


def test_an_emptied_folder_whose_topic_is_not_known_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, "t", "good").close()
    for one in [*(tmp_path / "t-0").iterdir(), *tmp_path.glob("topics.json*")]:
        one.unlink()
    again = CoreUnderTest(tmp_path)
    lines = [line for line in (*again.warnings, *caplog.messages) if str(tmp_path / "t-0") in line]
    assert lines == [f"{tmp_path / 't-0'} is left as it is, since its topic is not known: it has no partition.metadata"]
    again.core.catalog.create_topic("t", 1, {})
    data = encode_batch([NewRecord(None, b"new")])
    again.core.catalog.append(again.core.catalog.log("t", 0), data, read_header(data), again.now)
    assert bases(again, "t") == [0]
    again.close()


@pytest.mark.parametrize("size", [0, 40, 10_000])
@pytest.mark.parametrize("clean", [True, False])
def test_no_record_is_written_in_the_wrong_place_of_a_segment_that_was_changed_from_outside(
    tmp_path: Path, size: int, clean: bool
) -> None:
    """As by ``copytruncate`` of logrotate. Records were acknowledged that could not be read."""
    broker = filled(tmp_path, "t")
    log = broker.core.catalog.log("t", 0)
    data = encode_batch([NewRecord(b"", b"new")])
    broker.core.catalog.append(log, data, read_header(data), broker.now)
    newest = max((tmp_path / "t-0").glob("*.log"))
    content = newest.read_bytes()
    os.truncate(newest, size)
    with pytest.raises(ApiError, match=rf"it had {size} bytes instead of {len(content)}: .*{newest.name}"):
        broker.core.catalog.append(log, data, read_header(data), broker.now)
    broker.core.catalog.append(log, data, read_header(data), broker.now)
    assert newest.read_bytes()[: len(content)] == content[:size].ljust(len(content), b"\0")
    assert log.read(25, 10_000, at_least_one=True) is not None
    broker.close() if clean else broker.kill()
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    assert log.end_offset == 26
    assert log.read(25, 10_000, at_least_one=True) is not None
    assert bool(again.warnings) is (size < len(content) and not clean)  # after a clean end, batches are not read
    again.close()
