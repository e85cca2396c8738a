"""The folders of partitions while other threads work on them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from ottla.runtime.data_dir import DataDir


def test_a_compaction_leaves_nothing_in_the_folder_of_a_new_topic_of_the_same_name(tmp_path: Path) -> None:
    """The topic may be deleted and created again between any two steps of it."""
    data = DataDir(tmp_path, 1)
    old = data.log_files("t", uuid.UUID(int=1), 0)
    old.make()
    draft = old.create_cleaned(0)
    draft.append([b"old"])
    old.mark_topic_deleted()
    data.delete_topic_folders("t", uuid.UUID(int=1), [0])
    new = data.log_files("t", uuid.UUID(int=2), 0)
    new.make()
    before = sorted(os.listdir(new.path))
    for step in (lambda: old.finish_cleaned(0, {"index": b""}), lambda: old.create_cleaned(0)):
        with pytest.raises(FileNotFoundError):
            step()
    assert sorted(os.listdir(new.path)) == before
    data.release()
