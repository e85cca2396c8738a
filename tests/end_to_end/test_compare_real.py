"""The life of ``ottla compare`` on real processes: what each generation sends, and that no process is left."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from ottla.comparison.figures import Figures, figures
from ottla.comparison.life import MORE_PARTITIONS, Phase
from ottla.comparison.real import real_life
from ottla.demo.processes import ChildFailed
from ottla.signals import Interrupted, Stop
from ottla.simulation.outcome import Generation
from tests.end_to_end.marked_processes import MARK, named, none_left

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OF_OFFSETS = {"FindCoordinator", "OffsetCommit", "OffsetFetch"}
APIS = {
    Generation.ZOOKEEPER: set(),
    Generation.CENTRAL: {"Consult", "Register", "Leave", "Ping", "Stop", "Start", "OffsetCommit", "OffsetFetch"},
    Generation.CLASSIC: {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", *OF_OFFSETS},
    Generation.CONSUMER: {"ConsumerGroupHeartbeat", *OF_OFFSETS},
}
"""All of these are sent, and no others that count."""
SESSION = 6.0
"""Seconds."""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """That of all processes which a test starts."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


def check_zookeeper(found: Figures) -> None:
    """Members of the first generation use nothing else, the central coordinator stores there, and the others do not need it."""
    operations = (found.traffic.operations, found.traffic.single_operations, found.traffic.notifications)
    match found.generation:
        case Generation.ZOOKEEPER:
            assert found.traffic.operations > 1000
            assert found.traffic.single_operations > found.traffic.operations
            assert found.traffic.notifications > 80, "a member has a watch on the others, of whom 7 + 6 join and 2 + 6 leave"
        case Generation.CENTRAL:
            assert found.traffic.operations > 100
            assert found.traffic.single_operations > 100
            assert found.traffic.notifications > 0
        case _:
            assert operations == (0, 0, 0)


@pytest.mark.parametrize("generation", Generation)
def test_each_generation_lives_the_whole_life(tmp_path: Path, mark: str, generation: Generation) -> None:
    steps: list[Phase] = []
    life = real_life(generation, tmp_path, Stop(), steps.append)
    assert none_left(mark)
    found = figures([life])
    assert set(found.traffic.messages) == APIS[generation]
    check_zookeeper(found)
    assert list(dict.fromkeys(steps)) == list(Phase)
    assert life.history.partitions == MORE_PARTITIONS
    assert found.records > 1000
    assert found.repeated < found.records / 10
    assert SESSION / 2 < found.of(Phase.KILL).time_to_stable < 5 * SESSION
    assert found.of(Phase.KILL).unread > SESSION / 2 * 3, "two members of eight had three partitions, which no one has read"
    assert found.of(Phase.COORDINATOR).time_to_stable > 2, "the coordinator is down for two seconds"
    assert all(found.of(phase).unread < 200 for phase in Phase)


def test_an_interrupted_life_leaves_no_process(tmp_path: Path, mark: str) -> None:
    stop = Stop()

    def interrupt(phase: Phase) -> None:
        assert named(mark)
        stop.signal = signal.SIGINT
        stop.wake()

    with pytest.raises(Interrupted):
        real_life(Generation.CENTRAL, tmp_path, stop, interrupt)
    assert none_left(mark)


def test_a_member_that_fails_ends_the_life(tmp_path: Path, mark: str) -> None:
    def kill_member(phase: Phase) -> None:
        (pid,) = [pid for pid, command in named(mark) if "member_process" in command]
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(ChildFailed, match="member-1 exited with -9"):
        real_life(Generation.CONSUMER, tmp_path, Stop(), kill_member)
    assert none_left(mark)
