"""A data directory that is damaged at random: what is intact is served, what is lost is said, and nothing else is affected.

A round that fails prints its number, and ``python -m tests.damage.rounds NUMBER`` repeats it.
"""

from __future__ import annotations

import pytest

from tests.damage.faults import FILES, HOW, candidates, fault_of
from tests.damage.rounds import Rounds

pytestmark = pytest.mark.slow

QUICK, MANY, BLOCK = 100, 5000, 250


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    return Rounds(tmp_path_factory.mktemp("damage"))


def test_the_first_rounds_meet_every_kind_of_file_and_of_fault(rounds: Rounds) -> None:
    faults = [fault_of(number, rounds.wholes) for number in range(QUICK)]
    assert all(any(candidates(kind, whole) for whole in rounds.wholes.values()) for kind in FILES)
    assert {fault.kind for fault in faults} == set(FILES)
    assert {fault.how for fault in faults} == set(HOW)
    assert {fault.ended for fault in faults} == set(rounds.wholes)


@pytest.mark.parametrize("number", range(QUICK))
def test_a_round_of_damage(rounds: Rounds, number: int) -> None:
    wrong = rounds.run(number)
    assert not wrong, "\n".join(wrong)


@pytest.mark.torture
@pytest.mark.parametrize("first", range(QUICK, MANY, BLOCK))
def test_many_rounds_of_damage(rounds: Rounds, first: int) -> None:
    failed = [wrong for number in range(first, min(first + BLOCK, MANY)) if (wrong := rounds.run(number))]
    assert not failed, f"{len(failed)} rounds failed\n\n" + "\n\n".join("\n".join(wrong) for wrong in failed)
