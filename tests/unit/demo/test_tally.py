"""The count of the members' work from their files."""

from __future__ import annotations

from pathlib import Path

from ottla.demo import tally


def test_repeats_and_unfinished_lines(tmp_path: Path) -> None:
    first, second = tmp_path / "member-1.tsv", tmp_path / "member-2.tsv"
    first.write_text("flights\t0\t0\tUA\nflights\t0\t1\tAA\nflights\t0\t2\tU")
    second.write_text("flights\t0\t1\tAA\nflights\t0\t2\tUA\nflights\t1\t0\tB6\n")
    counted = tally.read([first, second])
    assert counted.distinct == 4
    assert counted.repeated == 1
    assert counted.by_carrier == {"UA": 2, "AA": 1, "B6": 1}
    assert counted.by_member == {"member-1": 2, "member-2": 3}


def test_nothing_written_is_nothing_counted(tmp_path: Path) -> None:
    (tmp_path / "member-1.tsv").write_text("")
    assert tally.read(tmp_path.glob("*.tsv")) == tally.Tally(0, 0, {}, {"member-1": 0})
