"""Whether and when a query is started again.

Owns the states of a query and the pauses between its starts. Must not know Spark, nor the clock: the time is an argument, in
seconds. Invariants: a state changes only by a row of ``TRANSITIONS``; a query that soon fails again, without a finished batch,
fails for good after ``limit`` restarts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first restart, which double with each further one, and their maximum."""
HEALTHY = 600.0
"""Seconds after which a run counts as good, also if no records arrived in it."""


class QueryState(enum.Enum):
    """Where a query of a job is. The values are in the state file."""

    STARTING = "starting"
    """it is started as soon as its time has come"""
    RUNNING = "running"
    """Spark runs it"""
    WAITING = "waiting"
    """it has failed, and waits for its next start"""
    DRAINING = "draining"
    """the job ends: its running batch is the last"""
    DONE = "done"
    """it has ended without an error"""
    FAILED = "failed"
    """it has failed, and is not started again"""


class QueryInput(enum.Enum):
    """What happens to a query."""

    START = "Spark has started it"
    FAIL = "it has failed, and may be started again"
    GIVE_UP = "it has failed too often, or with an error that a restart does not fix"
    DUE = "the pause has passed"
    DRAIN = "the job ends"
    END = "it has ended without an error"


TRANSITIONS: Mapping[QueryState, Mapping[QueryInput, QueryState]] = {
    QueryState.STARTING: {
        QueryInput.START: QueryState.RUNNING,
        QueryInput.FAIL: QueryState.WAITING,
        QueryInput.GIVE_UP: QueryState.FAILED,
        QueryInput.DRAIN: QueryState.DONE,
    },
    QueryState.RUNNING: {
        QueryInput.FAIL: QueryState.WAITING,
        QueryInput.GIVE_UP: QueryState.FAILED,
        QueryInput.DRAIN: QueryState.DRAINING,
        QueryInput.END: QueryState.DONE,
    },
    QueryState.WAITING: {QueryInput.DUE: QueryState.STARTING, QueryInput.DRAIN: QueryState.FAILED},
    QueryState.DRAINING: {QueryInput.GIVE_UP: QueryState.FAILED, QueryInput.END: QueryState.DONE},
    QueryState.DONE: {},
    QueryState.FAILED: {},
}

ENDED = frozenset({QueryState.DONE, QueryState.FAILED})


class Supervision:
    """One query. ``limit`` is the number of restarts in a row, without a finished batch between them."""

    def __init__(self, limit: int) -> None:
        self.state = QueryState.STARTING
        self.restarts = 0
        """All restarts of this run."""
        self.in_a_row = 0
        """Restarts since the last finished batch."""
        self.due_at = 0.0
        """When a waiting query is started."""
        self._limit = limit
        self._started_at = 0.0

    def started(self, now: float) -> None:
        """Spark has started the query."""
        self._started_at = now
        self._move(QueryInput.START)

    def finished_batch(self) -> None:
        """The query has finished a batch."""
        self.in_a_row = 0

    def failed(self, now: float, *, is_permanent: bool) -> None:
        """The query has failed. With ``is_permanent`` a restart would fail in the same way."""
        if self.state is not QueryState.STARTING and now >= self._started_at + HEALTHY:
            self.in_a_row = 0
        may_restart = not is_permanent and self.in_a_row < self._limit and self.state is not QueryState.DRAINING
        if not may_restart:
            self._move(QueryInput.GIVE_UP)
            return
        self._move(QueryInput.FAIL)
        self.due_at = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**self.in_a_row)
        self.in_a_row += 1
        self.restarts += 1

    def is_due(self, now: float) -> bool:
        """Whether the query has to be started now."""
        if self.state is QueryState.WAITING and now >= self.due_at:
            self._move(QueryInput.DUE)
        return self.state is QueryState.STARTING

    def drain(self) -> None:
        """The job ends: what runs finishes its batch, and nothing is started. A query that waits for its next start has failed."""
        if QueryInput.DRAIN in TRANSITIONS[self.state]:
            self._move(QueryInput.DRAIN)

    def ended(self) -> None:
        """The query has ended without an error."""
        self._move(QueryInput.END)

    def _move(self, cause: QueryInput) -> None:
        self.state = TRANSITIONS[self.state][cause]
