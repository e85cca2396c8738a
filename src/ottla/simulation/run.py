"""One run: a group under a random workload and random faults, from one seed, and the verdict on it.

Owns the course of a run. Must not know how many runs there are. Invariant: generation and seed determine everything that happens,
so a run that has failed fails again.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from ottla.simulation.clock import Clock
from ottla.simulation.faults import Faults
from ottla.simulation.judge import BrokenInvariant, Judge
from ottla.simulation.outcome import IN_ZOOKEEPER, Generation, Outcome, TooLong
from ottla.simulation.trace import LogLines, Trace, one_line
from ottla.simulation.workload import BROKER_SETTINGS, MOST_MEMBERS, Workload, stores
from ottla.simulation.world import World
from ottla.zookeeper import multis
from ottla.zookeeper.multis import MULTI_OPERATIONS

RECOVERY = 180_000
"""Milliseconds after the end of all faults until all has to be read and committed."""

MEAN_PAUSE = 600
"""Milliseconds between two things that happen, on average."""

STEP = 250
"""Milliseconds between two looks at what is left to do."""

DIVIDED = 0.3
"""The share of the runs of central groups in which a multi has few operations, so that generations are written in several."""

MOST_EVENTS = 1_000_000
"""A run with more events than this does not come to rest."""


class Run:
    """One run of one generation."""

    def __init__(self, generation: Generation, seed: int, clock: Clock, trace: Trace, *, in_zookeeper: bool = False) -> None:
        """``in_zookeeper``: whether each broker has a core of its own; those of central groups always have."""
        self.generation, self.seed, self.trace = generation, seed, trace
        chance = random.Random(f"{generation} {seed}")
        self.chance = chance
        brokers = chance.randint(1, 3)
        network_chance = random.Random(chance.random())
        self.world = World(
            seed,
            brokers=brokers,
            chance=network_chance,
            clock=clock,
            in_zookeeper=in_zookeeper or generation == Generation.CENTRAL,
            **BROKER_SETTINGS,
        )
        self.judge = Judge(
            self.world,
            stores(generation, chance),
            is_fenced=generation != Generation.ZOOKEEPER,
            is_central=generation == Generation.CENTRAL,
        )
        self.workload = Workload(self.world, self.judge, generation, chance, self.trace)
        limit = most_operations(generation, seed)
        limits = [] if limit == MULTI_OPERATIONS else [f"multis: of {limit} operations at most"]
        trace.head([f"generation: {generation}", f"seed: {seed}", f"brokers: {brokers}", *self.workload.describe(), *limits])
        trace.follow_brokers(self.world)
        if generation in IN_ZOOKEEPER:
            trace.follow_zookeeper(self.world)
        self.faults = Faults(self.world, self.workload, generation, chance, self.trace)
        self._member_time = 0

    def play(self) -> Outcome:
        """Play the whole run; never raises because of what it finds."""
        failure, details = None, ""
        try:
            self._play()
        except BrokenInvariant as broken:
            failure = one_line(str(broken))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit, which would end the command as if all was well
            failure, details = _in_one_line(error), traceback.format_exc()
        handled = sum(progress.next for progress in self.judge.progress.values())
        commits, set_back = self.judge.commits, self.judge.set_back
        return Outcome(self.generation, self.seed, failure, details, self._member_time, handled, commits, set_back)

    def _play(self) -> None:
        chance, workload = self.chance, self.workload
        for _ in range(chance.randint(1, 3)):
            workload.join()
            self._pass_time(chance.randint(0, 2_000))
        end = self.world.now.mono + chance.randint(5_000, 18_000)
        while self.world.now.mono < end:
            self._pass_time(int(chance.expovariate(1 / MEAN_PAUSE)))
            self._act()
        self.faults.end_all()
        self.trace.line("", "all faults have ended")
        if len(workload.live) < 2:
            workload.join()
        self._pass_time(STEP)
        workload.produce_everywhere()
        self._recover()

    def _act(self) -> None:
        """One thing happens."""
        chance, workload = self.chance, self.workload
        what = chance.random()
        if what < 0.25 and self.world.broker.answers:
            workload.produce()
        elif what < 0.35 and len(workload.live) < MOST_MEMBERS:
            workload.join()
        elif what < 0.40 and workload.live:
            member = chance.choice(workload.live)
            self.trace.line(member.app.name, "will leave")
            member.app.stop = True
        elif what < 0.45 and self.world.broker.can_change_topics:
            self.trace.line("topics", workload.grow())
        else:
            self.faults.begin()

    def _recover(self) -> None:
        """Run until nothing is left to do."""
        until = self.world.now.mono + RECOVERY
        may_hide_growth = self.workload.may_hide_growth
        while (left := next(self.judge.open_points(), None)) is not None:
            if self.world.now.mono >= until:
                raise BrokenInvariant(f"{RECOVERY // 1000} s after the last fault: {left}")
            if may_hide_growth and self.world.now.mono >= until - RECOVERY // 2:
                may_hide_growth = False
                self.workload.reveal_growth()
            self._pass_time(STEP)
        self.judge.check_stored()

    def _pass_time(self, duration: int) -> None:
        until = self.world.now.mono + duration
        self._member_time += duration * len(self.workload.live)
        while self.world.clock.step(until):
            pass
        if self.world.clock.events > MOST_EVENTS:
            raise BrokenInvariant(f"{MOST_EVENTS} events, and no end")
        for member in self.workload.members:
            if member.app.error is not None:
                raise member.app.error
        self.workload.supervise()


def run(generation: Generation, seed: int, write: Callable[[str], None] | None = None, *, in_zookeeper: bool = False) -> Outcome:
    """Play one run; never raises because of what it finds. ``write`` gets each line of its history; for ``in_zookeeper`` see
    ``Run``."""
    clock = Clock()
    trace, bug = Trace(clock, write), FirstBug(clock)
    with (
        _log_to(bug, logging.ERROR),
        _log_to(LogLines(trace, clock), logging.DEBUG) if write is not None else nullcontext(),
        _multis_of(most_operations(generation, seed)),
    ):
        try:
            outcome = Run(generation, seed, clock, trace, in_zookeeper=in_zookeeper).play()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcome = Outcome(generation, seed, f"at the beginning: {_in_one_line(error)}", traceback.format_exc())
    if bug.failure is None:
        return outcome
    # What has failed after the bug may be its consequence.
    later = "" if outcome.failure is None else f"after that: {outcome.failure}\n{outcome.details}"
    return outcome._replace(failure=bug.failure, details=later if write is not None else bug.traceback + later)


def most_operations(generation: Generation, seed: int) -> int:
    """Return how many operations of a run fit into a multi. This leaves all other choices as they are."""
    chance = random.Random(f"multis {generation} {seed}")
    return chance.randint(1, 4) if generation == Generation.CENTRAL and chance.random() < DIVIDED else MULTI_OPERATIONS


@contextmanager
def _multis_of(limit: int) -> Iterator[None]:
    """Divide operations in here into multis of this size."""
    before, multis.MULTI_OPERATIONS = multis.MULTI_OPERATIONS, limit
    try:
        yield
    finally:
        multis.MULTI_OPERATIONS = before


class FirstBug(logging.Handler):
    """Keeps the first exception that a core logs: the core has survived it, and it is a bug all the same."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.ERROR)
        self.failure: str | None = None
        """The host, and the exception in one line."""
        self.traceback = ""
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an exception."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and self.failure is None:
            self.failure = f"{self._clock.acting}: {_in_one_line(error)}"
            self.traceback = "".join(traceback.format_exception(error))


def _in_one_line(error: BaseException) -> str:
    """The type and the message of an exception."""
    if isinstance(error, TooLong):
        return str(error)
    return one_line("".join(traceback.format_exception_only(error)).strip())


@contextmanager
def _log_to(handler: logging.Handler, level: int) -> Iterator[None]:
    """Let only handlers that are added in here get what the cores log: in a run, failures are no news."""
    logger = logging.getLogger("ottla")
    level_before, propagated_before = logger.level, logger.propagate
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)  # not by assignment: loggers keep what they have computed from the level of a parent
        logger.propagate = propagated_before
