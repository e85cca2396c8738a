"""Random runs of the simulator: some seeds of each generation hold all invariants, and broken cores do not.

Owns the mutants: cores in which one line is wrong. Must not know how a run is judged.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.cluster.metadata import MetadataManager
from ottla.client.groups.zookeeper.membership import ZooKeeperMembership
from ottla.client.positions.commit import CommitManager
from ottla.coordinator import offsets
from ottla.coordinator.consumer import reconcile
from ottla.simulation.run import run
from ottla.simulation.workload import Generation
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from ottla.zookeeper import session
from ottla.zookeeper.operations import Exists
from ottla.zookeeper.session import Session

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
SEEDS = [range(first, first + 20) for first in range(1, 81, 20)]
"""Eighty runs of each generation; ``make simulate`` runs 10,000."""


@pytest.mark.long
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
@pytest.mark.parametrize("generation", Generation)
def test_all_invariants_hold(generation: Generation, seeds: range) -> None:
    outcomes = [run(generation, seed) for seed in seeds]
    assert [(outcome.seed, outcome.failure, outcome.details) for outcome in outcomes if outcome.failure is not None] == []
    assert sum(outcome.handled for outcome in outcomes) > 1_000
    assert sum(outcome.commits for outcome in outcomes) > 300


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


MUTANTS: list[tuple[Generation, Patch]] = [
    (Generation.CLASSIC, commits_of_all_senders),
    (Generation.CONSUMER, partitions_with_an_owner),
    (Generation.CONSUMER, one_record_too_many),
    (Generation.ZOOKEEPER, no_lease),
    (Generation.ZOOKEEPER, a_lease_from_reads),
    (Generation.ZOOKEEPER, no_lease_for_the_application),
    (Generation.ZOOKEEPER, missed_watches),
]


@pytest.mark.parametrize(("generation", "mutant"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
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
}


@pytest.mark.long
@pytest.mark.parametrize("generation", FAULTS)
def test_all_kinds_of_faults_occur(generation: Generation) -> None:
    lines: list[str] = []
    for seed in range(1, 31):
        run(generation, seed, lines.append)
    history = "\n".join(lines)
    assert [text for text in FAULTS[generation] if text not in history] == []


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
    assert outcome.failure is not None
    assert "a bug" in outcome.failure + outcome.details


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
