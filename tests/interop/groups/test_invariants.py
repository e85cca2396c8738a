"""The invariants of groups: each check accepts a correct history, and finds its kind of violation."""

from __future__ import annotations

from tests.interop.groups.invariants import Commit, MemberReport, gave_up, parse_report, twice, violations


def commit(offset: int, note: str, partition: int = 0) -> Commit:
    return Commit(partition, offset, note, 1000 + offset)


def life(member: str, *offsets: int, owned: tuple[int, ...] = (), said: tuple[int, ...] = ()) -> MemberReport:
    """A member that consumed offsets of partition 0, and whose commits of those in ``said`` have succeeded."""
    committed = tuple((0, offset, f"{member}/1", 1000 + offset) for offset in said)
    return MemberReport(member, frozenset(owned), {0: frozenset(offsets)}, committed)


def judge(
    commits: list[Commit], lives: list[MemberReport], *, acknowledged: tuple[int, ...] = (0, 1, 2, 3), answered: int | None = None
) -> list[str]:
    last = commits[-1].offset if answered is None else answered
    return violations(commits, lives, [one for one in lives if one.owned], {0: acknowledged}, {0: 4}, {0: last})


def test_a_partition_that_was_handed_over_is_sound() -> None:
    lives = [life("a", 0, 1, said=(2,)), life("b", 2, 3, owned=(0,), said=(4,))]
    assert judge([commit(2, "a/1"), commit(4, "b/1")], lives) == []


def test_two_owners_whose_commits_are_both_accepted() -> None:
    lives = [life("a", 0, 1, 2, 3), life("b", 2, 3, owned=(0,))]
    found = judge([commit(2, "a/1"), commit(3, "b/1"), commit(4, "a/1")], lives)
    assert found == ["two owners: partition 0: a/1 committed 4 after b/1"]


def test_a_partition_that_comes_back_is_a_new_ownership() -> None:
    lives = [life("a", 0, 1, 3, owned=(0,)), life("b", 2)]
    assert judge([commit(2, "a/1"), commit(3, "b/1"), commit(4, "a/2")], lives) == []


def test_a_commit_without_a_note_is_attributed_by_the_acknowledged_offset() -> None:
    lives = [life("a", 0, 1, 2, 3, said=(2, 4)), life("b", 2, owned=(0,), said=(3,))]
    assert judge([commit(2, ""), commit(3, ""), commit(4, "")], lives) == [
        "two owners: partition 0: a/1 committed 4 after b/1",
    ]


def test_a_committed_offset_that_goes_back() -> None:
    lives = [life("a", 0, 1, 2, 3, owned=(0,))]
    found = judge([commit(3, "a/1"), commit(2, "a/2"), commit(4, "a/2")], lives)
    assert found == ["went back: partition 0: 3 (a/1), then 2 (a/2)"]


def test_a_commit_that_was_acknowledged_and_is_not_there() -> None:
    lives = [life("a", 0, 1, 2, 3, owned=(0,), said=(2, 4))]
    assert judge([commit(4, "a/1")], lives) == ["forgotten: partition 0: a/1 got an acknowledgement of 2"]


def test_an_acknowledged_commit_that_only_another_member_has_made() -> None:
    lives = [life("a", 0, 1, said=(2,)), life("b", 0, 1, 2, 3, owned=(0,), said=(2, 4))]
    assert judge([commit(2, "b/1"), commit(4, "b/1")], lives) == ["forgotten: partition 0: a/1 got an acknowledgement of 2"]


def test_a_commit_beyond_what_was_consumed() -> None:
    lives = [life("a", 0, 1, 2, owned=(0,))]
    found = judge([commit(4, "a/1")], lives, acknowledged=(0, 1, 2))
    assert found == ["not read: partition 0: a/1 committed 4, no member consumed 3"]


def test_an_acknowledged_record_without_a_consumer() -> None:
    lives = [life("a", 0, 1, 3, owned=(0,))]
    assert judge([commit(4, "a/1")], lives) == ["missed: partition 0: 1 records were not consumed, the first at 2"]


def test_an_acknowledged_record_that_another_one_has_taken_the_place_of() -> None:
    lives = [life("a", 0, 1, 2, 3, owned=(0,))]
    assert judge([commit(4, "a/1")], lives, acknowledged=(0, 1, 2, 2, 3)) == ["lost: partition 0: 2 was acknowledged 2 times"]


def test_a_coordinator_that_answers_another_offset_than_it_has_written() -> None:
    lives = [life("a", 0, 1, 2, 3, owned=(0,))]
    found = judge([commit(4, "a/1")], lives, answered=3)
    assert found == ["answered otherwise: partition 0: committed 4, the answer is 3"]


def test_an_end_that_is_not_committed() -> None:
    lives = [life("a", 0, 1, 2, 3, owned=(0,))]
    assert judge([commit(3, "a/1")], lives) == ["wrong end: partition 0: committed 3, the log ends at 4"]


def test_partitions_without_an_owner_or_with_two() -> None:
    gone = [life("a", 0, 1, 2, 3)]
    assert judge([commit(4, "a/1")], gone) == ["shared badly: partition 0: owned by []"]
    both = [life("a", 0, 1, 2, 3, owned=(0,)), life("b", owned=(0,))]
    assert judge([commit(4, "a/1")], both) == ["shared badly: partition 0: owned by ['a', 'b']"]


def test_records_consumed_again_are_counted() -> None:
    assert twice([life("a", 0, 1, 2), life("b", 2, 3)]) == 1


def test_who_may_end_by_itself() -> None:
    fenced = "ERROR ... UnknownMemberIdException: The coordinator is not aware of this member."
    assert gave_up("java", fenced, away=3100, session=3000)
    assert not gave_up("java", fenced, away=2900, session=3000), "its session was not over"
    assert not gave_up("java", "OutOfMemoryError", away=3100, session=3000)
    assert not gave_up("confluent", fenced, away=3100, session=3000), "it joins again by itself"


def test_a_member_s_lines_are_put_together() -> None:
    rows = [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}]
    said = parse_report(
        "a",
        [
            {"timestamp": 1, "name": "startup_complete"},
            {"timestamp": 2, "name": "partitions_assigned", "partitions": rows},
            {"timestamp": 3, "name": "records_consumed", "partitions": [{**rows[0], "count": 2, "minOffset": 5, "maxOffset": 6}]},
            {"timestamp": 4, "name": "offsets_committed", "success": True, "offsets": [{**rows[0], "offset": 7}]},
            {"timestamp": 5, "name": "offsets_committed", "success": True, "offsets": [{**rows[0], "offset": 7, "note": "a/3"}]},
            {"timestamp": 6, "name": "partitions_revoked", "partitions": rows[:1]},
            {"timestamp": 7, "name": "offsets_committed", "success": False, "error": "x", "offsets": [{**rows[1], "offset": 1}]},
        ],
    )
    assert said == MemberReport("a", frozenset({1}), {0: frozenset({5, 6})}, [(0, 7, "a/1", 4), (0, 7, "a/3", 5)], refused=1)


def test_a_record_left_out_in_the_midst_of_a_poll_does_not_count_as_consumed() -> None:
    said = parse_report(
        "a", [{"name": "records_consumed", "partitions": [{"partition": 0, "count": 3, "minOffset": 0, "maxOffset": 3}]}]
    )
    assert said.consumed == {0: frozenset({0, 3})}
