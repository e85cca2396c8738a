"""The steps of a life on a stage that obeys at once, and the figures of it."""

from __future__ import annotations

import pytest

from ottla.comparison import report
from ottla.comparison.figures import figures
from ottla.comparison.life import (
    MEMBERS,
    MORE_PARTITIONS,
    NAMES,
    PARTITIONS,
    VICTIMS,
    Phase,
    Unstable,
    live,
    step_count,
)
from ottla.comparison.page import page
from ottla.simulation.outcome import Generation
from tests.unit.comparison.obedient import DELAY, Obedient


def test_the_steps_in_their_order() -> None:
    stage = Obedient()
    seen: list[Phase] = []
    life = live(Generation.CLASSIC, stage, 1, seen.append)
    names = [f"member-{number}" for number in range(1, 16)]
    assert stage.acts == [
        *(f"start {name}" for name in names[:MEMBERS]),
        "kill member-2",
        "kill member-3",
        f"add {MORE_PARTITIONS}",
        *(
            act
            for old, new in zip(["member-1", *names[3:MEMBERS]], names[MEMBERS:], strict=False)
            for act in (f"stop {old}", f"start {new}")
        ),
        "find coordinator",
        "kill coordinator",
        "start coordinator",
    ]
    assert sorted(stage.history.live) == sorted(names[MEMBERS : 2 * MEMBERS - VICTIMS])
    assert len(seen) == len(life.steps) == step_count()
    assert list(dict.fromkeys(seen)) == list(Phase)


def test_the_figures_of_the_phases_add_up() -> None:
    found = figures([live(Generation.CLASSIC, Obedient(), 1)])
    assert found.of(Phase.GROW).stable == pytest.approx((DELAY,) * 7)
    assert found.of(Phase.COORDINATOR).time_to_stable == pytest.approx(2 + DELAY), "it was found before"
    assert found.of(Phase.ADD).unread == pytest.approx(4 * DELAY)
    assert found.of(Phase.KILL).unread_at_once == 2 * PARTITIONS // MEMBERS + 1
    assert found.of(Phase.GROW).traffic.messages == {"JoinGroup": 14}
    assert found.of(Phase.KILL).traffic.messages == {"JoinGroup": 4}
    assert found.traffic.messages == {"JoinGroup": 14 + 4 + 2 + 24 + 2}, "the first member's are none of the life"
    assert found.traffic[1:4] == (3 * 46, 4 * 46, 46)
    assert found.traffic.notifications == 0, "they fired before it"
    assert (found.records, found.repeated) == (2, 1)
    assert found.duration == pytest.approx(sum(one.duration for one in found.phases))
    document = found.as_json()
    assert (document["generation"], document["lives"]) == ("classic", 1)
    assert document["messages"] == sum(phase["messages"] for phase in document["phases"]) == 46
    assert document["partition_seconds_unread"] == pytest.approx(
        sum(phase["partition_seconds_unread"] for phase in document["phases"]), abs=0.01
    )


def test_the_figures_of_several_lives_are_means() -> None:
    lives = [live(Generation.CLASSIC, Obedient(), seed) for seed in (1, 2)]
    one, other, both = figures(lives[:1]), figures(lives[1:]), figures(lives)
    assert one.duration != other.duration, "the rests are random"
    assert both.duration == pytest.approx((one.duration + other.duration) / 2)
    assert both.of(Phase.GROW).stable == (*one.of(Phase.GROW).stable, *other.of(Phase.GROW).stable)
    assert (both.lives, both.traffic.messages, both.records) == (2, one.traffic.messages, 2)


def test_a_group_that_does_not_become_stable() -> None:
    stage = Obedient()
    stage.stays_unstable = True
    with pytest.raises(Unstable, match=r"with one member, the group is not stable after 60 s: members \['member-1'\]"):
        live(Generation.CLASSIC, stage, 1)


def test_records_that_are_lost() -> None:
    stage = Obedient()
    stage.loses = 1
    with pytest.raises(Unstable, match="3 records were produced, and 2 of them handled after 60 s"):
        live(Generation.CLASSIC, stage, 1)


def test_the_tables_and_the_page_have_all_figures() -> None:
    compared = [figures([live(generation, Obedient(factor), 1)]) for factor, generation in enumerate(NAMES, 1)]
    rows = {row["figure"]: row for row in report.table(compared)}
    assert all(row.keys() == {"figure", *Generation} for row in rows.values())
    assert [rows["messages"][generation] for generation in NAMES] == ["46", "92", "138", "184"]
    assert "| messages | 46 | 92 | 138 | 184 |" in report.markdown_table(compared)
    text = page(compared, [], "images/p.svg")
    assert report.markdown_table(compared) in text
    assert "](images/p.svg)" in text
    assert "## The figures, on real processes" not in text
    assert page(compared, compared, "images/p.svg").count(report.markdown_table(compared)) == 2
