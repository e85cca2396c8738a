"""Random runs of the simulator: some seeds of each generation hold all invariants, and broken cores do not.

Owns the mutants: cores in which one line is wrong. Must not know how a run is judged.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.zookeeper import central_calls
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.groups.central.channel import Channel
from ottla.client.groups.zookeeper.membership import ZooKeeperMembership
from ottla.client.positions.commit import CommitManager
from ottla.coordinator import offsets
from ottla.coordinator.central import offsets as central_offsets
from ottla.coordinator.classic.machine import ClassicGroupDraft
from ottla.coordinator.classic.rebalance import sync_received as correct_sync_received
from ottla.coordinator.consumer import reconcile
from ottla.simulation.outcome import Generation
from ottla.simulation.run import most_operations, run
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from ottla.zookeeper import multis, session
from ottla.zookeeper.multis import MULTI_OPERATIONS
from ottla.zookeeper.operations import Exists, Write
from ottla.zookeeper.session import Session

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
SEEDS = [pytest.param(range(first, first + 10), marks=pytest.mark.slow if first > 10 else ()) for first in range(1, 81, 10)]
"""Eighty runs of each generation, of which ``make test`` does ten; ``make simulate`` runs 10,000."""


@pytest.mark.always
@pytest.mark.long
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
@pytest.mark.parametrize("generation", Generation)
def test_all_invariants_hold(generation: Generation, seeds: range) -> None:
    outcomes = [run(generation, seed) for seed in seeds]
    assert [(outcome.seed, outcome.failure, outcome.details) for outcome in outcomes if outcome.failure is not None] == []
    assert sum(outcome.handled for outcome in outcomes) > 500
    assert sum(outcome.commits for outcome in outcomes) > 150


Patch = Callable[[pytest.MonkeyPatch], None]


def commits_of_all_senders(patch: pytest.MonkeyPatch) -> None:
    """The classic coordinator accepts the commit of a member of an earlier generation."""
    patch.setattr(offsets, "_group_error", lambda group, context, request: None)


def partitions_with_an_owner(patch: pytest.MonkeyPatch) -> None:
    """The coordinator of a consumer group gives a partition away before its owner has revoked it."""
    correct = reconcile._compute_next_assignment
    patch.setattr(reconcile, "_compute_next_assignment", lambda member, context: correct(member, replace(context, owners={})))


def one_record_too_many(patch: pytest.MonkeyPatch) -> None:
    """Auto-commit commits the offset after the next one."""
    correct = CommitManager.polled

    def polled(self: CommitManager, positions: Offsets, now: Now) -> None:
        correct(self, {tp: place._replace(offset=place.offset + 1) for tp, place in positions.items()}, now)

    patch.setattr(CommitManager, "polled", polled)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """A member that ZooKeeper has not confirmed for a session time-out reads on."""
    patch.setattr(Session, "has_lease", lambda self, now: self.session_id is not None)
    patch.setattr(Session, "lease_until", property(lambda self: 1 << 62))


def a_lease_from_reads(patch: pytest.MonkeyPatch) -> None:
    """The session counts as confirmed when a server has answered a read, which it does without its leader."""
    patch.setattr(session, "_needs_leader", lambda operation: True)
    patch.setattr(session, "Sync", Exists)


def no_lease_for_the_application(patch: pytest.MonkeyPatch) -> None:
    """The network thread knows that the lease is over, and the application's thread does not."""
    patch.setattr(Session, "lease_until", property(lambda self: 1 << 62))


def missed_watches(patch: pytest.MonkeyPatch) -> None:
    """A member does not react to what its watches tell about its group."""
    correct = ZooKeeperMembership.on_event

    def on_event(self: ZooKeeperMembership, event: Any, now: Now) -> None:
        if getattr(event, "path", None) not in self._reader.watched:
            correct(self, event, now)

    patch.setattr(ZooKeeperMembership, "on_event", on_event)


def no_lease_of_a_channel(patch: pytest.MonkeyPatch) -> None:
    """A member of a central group that hears nothing from the coordinator reads on."""
    patch.setattr(Channel, "lease_until", property(lambda self: 1 << 62))


def commits_of_all_generations(patch: pytest.MonkeyPatch) -> None:
    """The central coordinator accepts the commit of a member of an earlier generation, or of one that it has removed."""
    patch.setattr(central_offsets, "_sender_error", lambda group, context, request: None)
    patch.setattr(central_offsets, "_is_of_another", lambda group, request, topic, partition: False)


def a_generation_before_its_owners(patch: pytest.MonkeyPatch) -> None:
    """Of the several multis of a generation, the first one and not the last has its number."""
    correct = central_calls._changes

    def changes(group_id: str, wanted: Any, known: Any, *, proves: bool) -> list[Write]:
        return sorted(correct(group_id, wanted, known, proves=proves), key=lambda write: not write.path.endswith("/generation"))

    patch.setattr(central_calls, "_changes", changes)


MUTANTS: list[tuple[Generation, Patch]] = [
    (Generation.CONSUMER, partitions_with_an_owner),
    (Generation.ZOOKEEPER, no_lease),
    (Generation.CENTRAL, a_generation_before_its_owners),
]
"""Those that are found within seconds."""
MORE_MUTANTS: list[tuple[Generation, Patch]] = [
    (Generation.CLASSIC, commits_of_all_senders),
    (Generation.CENTRAL, no_lease_of_a_channel),
    (Generation.CONSUMER, one_record_too_many),
    (Generation.ZOOKEEPER, a_lease_from_reads),
    (Generation.ZOOKEEPER, no_lease_for_the_application),
    (Generation.ZOOKEEPER, missed_watches),
    (Generation.CENTRAL, commits_of_all_generations),
]


@pytest.mark.parametrize(
    ("generation", "mutant"),
    [
        *(pytest.param(*one, marks=pytest.mark.always) for one in MUTANTS),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE_MUTANTS),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_core_is_found(generation: Generation, mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(run(generation, seed).failure is not None for seed in range(1, 1_001))


FAULTS = {
    Generation.CLASSIC: (
        "is killed",
        "is started in place of the killed process",
        "is stopped, as by SIGSTOP",
        "will not poll for",
        "does not reach",
        "reaches no host",
        "loses its connections",
        "has a connection on which nothing moves",
        "takes up to",
        "moves by",
        "lose the response to the next",
        "ms late to the next",
        "drop the connection (halfway) of the next",
        "answer not_coordinator to the next",
        "cannot write offsets and groups",
        "freeze",
        "do not coordinate the group",
        "expire m",
        "joins",
        "will leave",
        "grows to",
    ),
    Generation.ZOOKEEPER: ("zookeeper    is stopped", "ends session", "is cut off from its leader"),
    Generation.CENTRAL: (
        "broker-1     is killed",
        "broker-1     is stopped, as by SIGSTOP",
        "broker-1     does not reach zookeeper",
        "broker-1     reaches no host",
        "zookeeper    is stopped",
        "of broker-1 will lose its connection in its next multi, before it is executed",
        "of broker-1 will lose its connection in its next multi, after it is executed",
        "of broker-1\n",
        "is cut off from its leader",
        " REGISTER within",
        " CONSULT within",
    ),
}


FAULTS_OF_BROKERS = {
    "freeze": "answer again",
    "cannot write offsets and groups": "can write offsets and groups again",
    "do not coordinate the group": "coordinate the group again",
}
"""How these faults begin and end in a trace."""


@pytest.mark.slow
@pytest.mark.parametrize("generation", FAULTS)
def test_all_kinds_of_faults_occur(generation: Generation) -> None:
    lines: list[str] = []
    for seed in range(1, 31):
        run(generation, seed, lines.append)
    history = "\n".join(lines)
    assert [text for text in FAULTS[generation] if text not in history] == []
    for beginning, ending in FAULTS_OF_BROKERS.items() if generation != Generation.CENTRAL else ():
        begun = history.count(f"brokers      {beginning} (")
        assert 0 < begun == history.count(f"brokers      {ending}\n")


@pytest.mark.parametrize("generation", Generation)
def test_a_seed_determines_everything(generation: Generation) -> None:
    """Also in another process, in which sets have another order."""
    program = f"from ottla.simulation.run import Generation, run; run(Generation('{generation}'), 5, print)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        for seed in "12"
    ]
    assert len(runs[0].stdout.splitlines()) > 100
    assert runs[0].stdout == runs[1].stdout


def test_a_bug_in_a_core_ends_a_run_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def polled(self: CommitManager, positions: Offsets, now: Now) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(CommitManager, "polled", polled)
    outcome = run(Generation.CONSUMER, 1)
    assert outcome.failure == "m1: ZeroDivisionError: a bug"
    assert "in polled" in outcome.details


def test_a_bug_that_a_core_survives_is_found_in_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that raises is polled again later, so the run itself may end well."""
    correct, calls = MetadataManager.poll, itertools.count()

    def poll(self: MetadataManager, now: Now) -> Any:
        if next(calls) == 100:
            raise ZeroDivisionError("a bug")
        return correct(self, now)

    monkeypatch.setattr(MetadataManager, "poll", poll)
    outcome = run(Generation.CLASSIC, 1)
    assert "a bug" in (outcome.failure or "")


def test_a_bug_in_a_log_is_the_failure_whatever_fails_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator fails in a classic group of three members, which then never becomes stable."""

    def sync_received(draft: ClassicGroupDraft, member_id: str) -> None:
        if len(draft.group.members) > 2:
            raise ValueError("a bug\nwith two lines")
        correct_sync_received(draft, member_id)

    monkeypatch.setattr("ottla.coordinator.classic.sync.sync_received", sync_received)
    monkeypatch.setattr("ottla.simulation.run.RECOVERY", 10_000)
    lines: list[str] = []
    quiet, traced = run(Generation.CLASSIC, 2), run(Generation.CLASSIC, 2, lines.append)
    assert quiet.failure == traced.failure == r"broker-1: ValueError: a bug\nwith two lines"
    for outcome in (quiet, traced):
        assert "after that: 10 s after the last fault: " in outcome.details
    assert "in sync_received" in quiet.details
    first = next(number for number, line in enumerate(lines) if "in sync_received" in line)
    rest = [line.split(maxsplit=1)[1] for line in lines[first + 1 : first + 4]]
    assert [text.split(maxsplit=1) for text in rest] == [
        ["broker-1", 'raise ValueError("a bug\\nwith two lines")'],
        ["broker-1", "ValueError: a bug"],
        ["broker-1", "with two lines"],
    ]


def test_a_core_that_exits_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def polled(self: CommitManager, positions: Offsets, now: Now) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(CommitManager, "polled", polled)
    outcome = run(Generation.CONSUMER, 1)
    assert outcome.failure == "SystemExit: 0"
    assert "in polled" in outcome.details


def test_an_interrupt_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def polled(self: CommitManager, positions: Offsets, now: Now) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CommitManager, "polled", polled)
    with pytest.raises(KeyboardInterrupt):
        run(Generation.CONSUMER, 1)


HEADS = [
    (Generation.ZOOKEEPER, 3, ["t0 (3 partitions), subscribed to by name", "roundrobin", "in Kafka and ZooKeeper", "no"]),
    (Generation.CLASSIC, 4, ["t0 (2 partitions), t1 (1 partition), subscribed to by name", "range", "in Kafka", "no"]),
    (Generation.CONSUMER, 5, ["t0 (2 partitions), subscribed to by the pattern t.*", "uniform", "in Kafka", "yes"]),
    (Generation.CENTRAL, 5, ["t0 (1 partition), subscribed to by name", "roundrobin", "in ZooKeeper", "no"]),
]


@pytest.mark.parametrize(("generation", "seed", "chosen"), HEADS)
def test_a_trace_begins_with_what_the_run_is(generation: Generation, seed: int, chosen: list[str]) -> None:
    lines: list[str] = []
    run(generation, seed, lines.append)
    assert lines[:2] == [f"generation: {generation}", f"seed: {seed}"]
    assert re.fullmatch(r"brokers: [1-3]", lines[2])
    names = ("topics", "assignor", "offsets", "static members")
    assert lines[3:7] == [f"{name}: {choice}" for name, choice in zip(names, chosen, strict=True)]
    assert re.fullmatch(r"    0\.000 m1           joins \((auto-commit|manual commits), max_poll_records \d+\)", lines[7])


def test_some_runs_of_central_groups_divide_generations_into_several_multis() -> None:
    limits = {seed: most_operations(Generation.CENTRAL, seed) for seed in range(1, 101)}
    assert 20 < sum(1 for limit in limits.values() if limit != MULTI_OPERATIONS) < 40
    seed = next(seed for seed, limit in limits.items() if limit == 2)
    lines: list[str] = []
    assert run(Generation.CENTRAL, seed, lines.append).failure is None
    assert lines[7] == "multis: of 2 operations at most"
    assert multis.MULTI_OPERATIONS == MULTI_OPERATIONS
    written = [line for line in lines if "/owners/" in line and "Multi of" in line]
    assert written
    assert all(int(line.split("Multi of ")[1].split()[0]) <= 5 for line in written), "with the epoch, and the proof of no member"


def test_a_trace_names_the_members_of_sessions_and_what_they_commit() -> None:
    lines: list[str] = []
    run(Generation.ZOOKEEPER, 3, lines.append)
    history = [line.split(maxsplit=1)[1] for line in lines[7:]]
    begins = {text: number for number, text in enumerate(history) if re.fullmatch(r"m\d\S* +has session \d+", text)}
    assert len({text.split()[0] for text in begins}) > 1
    for text, begin in begins.items():
        session = f"session {text.split()[-1]} "
        assert all(not earlier.startswith(session) for earlier in history[:begin])
        assert history[begin + 1].startswith(session)
    offsets = r"t0-\d=\d+( t0-\d=\d+)*"
    assert any(re.fullmatch(rf"m1 +OFFSET_COMMIT of {offsets} to broker \d: done", text) for text in history)
    assert any(re.fullmatch(rf"session \d+ +Multi of \d+ /consumers/g/\S+ \({offsets}\): done", text) for text in history)
