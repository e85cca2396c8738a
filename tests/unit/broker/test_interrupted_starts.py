"""A start that repairs a log and is interrupted after a step of it: the next one completes the repair, and consumers notice it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.runtime.folders import PinnedFolder
from ottla.runtime.log_files import DiskSegment
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.damage import ALL, bases, filled, flipped


class Killed(BaseException):
    """Nothing happens after it, as after kill -9."""


def kill_after(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let the process end when a method has done its work."""
    real = getattr(owner, name)

    def method(*arguments: object, **named: Any) -> None:
        real(*arguments, **named)
        raise Killed

    patch.setattr(owner, name, method)


def interrupted(path: Path, owner: type, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, owner, name)
        with pytest.raises(Killed):
            CoreUnderTest(path)


STEPS = pytest.mark.parametrize(
    ("owner", "name"),
    [(PinnedFolder, "make_folder"), (PinnedFolder, "write_small"), (PinnedFolder, "create")],
    ids=["folder", "small file", "segment"],
)


def _emptied(folder: Path) -> None:
    for one in folder.iterdir():
        one.unlink()


@STEPS
@pytest.mark.parametrize("fault", [shutil.rmtree, _emptied])
def test_a_lost_folder_has_a_new_leader_epoch(tmp_path: Path, fault: Callable[[Path], object], owner: type, name: str) -> None:
    """Epoch 0 would be older than what clients know: they would be refused for ever."""
    filled(tmp_path, "t").close()
    fault(tmp_path / "t-0")
    interrupted(tmp_path, owner, name)
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    assert log.end_offset == 24
    assert log.leader_epochs.current >= 1 << 16
    again.close()


@pytest.mark.parametrize(("owner", "name"), [(PinnedFolder, "write_small"), (PinnedFolder, "create"), (DiskSegment, "truncate")])
def test_an_end_that_is_cut_off_has_a_new_leader_epoch(tmp_path: Path, owner: type, name: str) -> None:
    broker = filled(tmp_path, "t")
    segment = broker.core.catalog.log("t", 0).segments[-1]
    broker.close()
    newest = tmp_path / "t-0" / f"{segment.base_offset:020d}.log"
    newest.write_bytes(newest.read_bytes()[:-1])
    interrupted(tmp_path, owner, name)
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    assert bases(again, "t") == ALL[:-1]
    assert log.end_offset == 24
    assert log.leader_epochs.current > 0
    assert log.leader_epochs.end_offset_for(0, log.end_offset) == (0, 22), "so consumers notice that 22 and 23 are lost"
    again.close()


@pytest.mark.parametrize(("owner", "name"), [(PinnedFolder, "write_small"), (DiskSegment, "truncate")])
def test_a_damaged_end_that_no_checkpoint_knows_has_a_new_leader_epoch(tmp_path: Path, owner: type, name: str) -> None:
    broker = filled(tmp_path, "t")
    segment = broker.core.catalog.log("t", 0).segments[-1]
    broker.kill()
    newest = tmp_path / "t-0" / f"{segment.base_offset:020d}.log"
    flipped(newest, newest.stat().st_size - 1)
    interrupted(tmp_path, owner, name)
    again = CoreUnderTest(tmp_path)
    assert bases(again, "t") == ALL[:-1]
    assert again.core.catalog.log("t", 0).leader_epochs.current > 0
    again.close()


def test_a_copy_of_a_damaged_end_that_fills_the_disk_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start would leave another part of it."""
    broker = filled(tmp_path, "t")
    segment = broker.core.catalog.log("t", 0).segments[-1]
    broker.kill()
    newest = tmp_path / "t-0" / f"{segment.base_offset:020d}.log"
    flipped(newest, newest.stat().st_size - 1)

    def copy(source: object, target: object) -> None:
        target.write(b"part")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", copy)
        again = CoreUnderTest(tmp_path)
        assert "t-0 is offline" in "".join(again.warnings)
        assert not list((tmp_path / "t-0" / "damaged").iterdir())
        again.close()
    again = CoreUnderTest(tmp_path)
    assert bases(again, "t") == ALL[:-1]
    again.close()
