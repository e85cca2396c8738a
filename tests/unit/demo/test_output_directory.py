"""The output directory: cleared only if it is a demo's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.demo.output_directory import OutputDirectoryError, locked_output_directory


def test_a_second_run_deletes_the_files_of_the_first(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    with locked_output_directory(out):
        (out / "broker").mkdir()
        (out / "broker" / "log").write_text("old")
        (out / "members" / "member-9.tsv").write_text("old")
        (out / "summary.json").write_text("{}")
        (out / "notes.txt").write_text("mine")
    with locked_output_directory(out):
        assert not (out / "broker").exists()
        assert not (out / "summary.json").exists()
        assert list((out / "members").iterdir()) == []
        assert (out / "notes.txt").read_text() == "mine"


def test_a_directory_without_the_marker_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "precious").write_text("keep")
    with pytest.raises(OutputDirectoryError, match=r"not from the demo.*--out"), locked_output_directory(tmp_path):
        pass
    assert (tmp_path / "broker" / "precious").read_text() == "keep"


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputDirectoryError, match="is a file"), locked_output_directory(tmp_path / "out"):
        pass


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked_output_directory(out):
        (out / "logs" / "x").write_text("")
        with pytest.raises(OutputDirectoryError, match="another demo is running"), locked_output_directory(out):
            pass
        assert (out / "logs" / "x").exists()


@pytest.mark.parametrize("place", ["/proc/nothing/out", "/dev/null/out", "/proc/self/out"])
def test_where_nothing_can_be_written_is_refused(place: str) -> None:
    with pytest.raises(OutputDirectoryError, match=r"cannot write to .*: .*--out"), locked_output_directory(Path(place)):
        pass


def test_an_error_of_the_run_itself_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), locked_output_directory(tmp_path / "out"):
        raise PermissionError("of a later step")
