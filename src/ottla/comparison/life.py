"""The life of a group that all generations live: it grows, members are killed, partitions are added, all members are rolled, and
the coordinator is killed.

Owns the steps, their order, and when a step is over. Must not know clocks or processes: a ``Stage`` has them. Invariant: a step
begins only after the group has been stable for ``REST`` seconds, so what it costs is due to this step.

A rest lasts up to a heartbeat longer, by chance. Otherwise the comparison is unfair: 1. A rebalance ends, and all classic
members begin to send heartbeats at that moment. 2. The rest is a multiple of their interval. 3. Each step begins just after a
heartbeat, and has to wait for the next one.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from ottla.comparison.history import History
from ottla.errors import OttlaTimeoutError
from ottla.protocol.apis import Api
from ottla.simulation.outcome import Generation

GROUP = TOPIC = "compared"
BROKERS = 3
MEMBERS, VICTIMS = 8, 2
PARTITIONS, MORE_PARTITIONS = 12, 16
RECORD_INTERVAL = 0.5
"""Seconds between two records of a partition."""
COMMIT_INTERVAL = 1.0
"""Seconds between two commits of a member. It commits what it gives up, too."""
DOWNTIME = 2.0
"""Seconds from the kill of a coordinator until its process is started again."""
REST = 3.0
"""Seconds for which nothing changes after each step, at least."""
LIMIT = 60.0
"""Seconds after which a step counts as failed."""
SESSION_TIMEOUT, HEARTBEAT_INTERVAL, METADATA_MAX_AGE = 6_000, 1_000, 5_000
"""Milliseconds, of the members."""
BROKER_SESSION_TIMEOUT = 2_400
"""Milliseconds after which a broker that was killed is gone from ZooKeeper. The defaults, 18 s and 45 s, have the same ratio: a
central group needs its next coordinator before the leases of its members end."""


NAMES: Mapping[Generation, str] = {
    Generation.ZOOKEEPER: "ZooKeeper (0.8)",
    Generation.CENTRAL: "central (0.9 draft)",
    Generation.CLASSIC: "classic (0.9)",
    Generation.CONSUMER: "consumer (4.0)",
}
"""The generations in the order of their design, with their versions of Kafka."""

BROKER_SETTINGS: Mapping[str, Any] = {
    "zookeeper.session.timeout.ms": BROKER_SESSION_TIMEOUT,
    "group.consumer.session.timeout.ms": SESSION_TIMEOUT,
    "group.consumer.min.session.timeout.ms": SESSION_TIMEOUT,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_INTERVAL,
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_INTERVAL,
    "offsets.topic.num.partitions": 1,
}
"""A silent member is found after the same time in each generation: with KIP-848 the broker decides about that."""


def member_settings(generation: Generation, name: str) -> dict[str, Any]:
    """The settings of a member, apart from the addresses. What is not here has its default, such as the assignor."""
    settings: dict[str, Any] = {
        "group_id": GROUP,
        "group_protocol": generation.value,
        "client_id": name,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "metadata_max_age_ms": METADATA_MAX_AGE,
    }
    match generation:
        case Generation.ZOOKEEPER:
            settings.update(zookeeper_session_timeout_ms=SESSION_TIMEOUT)
        case Generation.CENTRAL:
            settings.update(session_timeout_ms=SESSION_TIMEOUT)
        case Generation.CLASSIC:
            settings.update(session_timeout_ms=SESSION_TIMEOUT, heartbeat_interval_ms=HEARTBEAT_INTERVAL)
        case Generation.CONSUMER:
            pass
    return settings


class Phase(enum.StrEnum):
    """The phases of the life."""

    GROW = "grow from 1 to 8 members"
    KILL = "kill 2 members"
    ADD = "add 4 partitions"
    ROLL = "restart each member"
    COORDINATOR = "kill the coordinator"


COUNTED: Mapping[Api, str] = {
    api: "".join(word.capitalize() for word in api.name.split("_"))
    for api in (
        Api.FIND_COORDINATOR,
        Api.JOIN_GROUP,
        Api.SYNC_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.CONSULT,
        Api.REGISTER,
        Api.LEAVE,
        Api.PING,
        Api.STOP,
        Api.START,
        Api.OFFSET_FETCH,
        Api.OFFSET_COMMIT,
    )
}
"""The APIs whose messages are counted, and the name of each in ``Traffic``."""


class Traffic(NamedTuple):
    """What was sent because of the group. Messages about records and metadata are not counted."""

    messages: Mapping[str, float]
    """API, as in ``COUNTED`` -> its requests and responses, between members and brokers."""
    operations: float
    """ZooKeeper operations, as they were issued: a multi counts once, and a sync, which reads and writes nothing, does not."""
    single_operations: float
    """The same as 0.8 would issue them: one for each write of a multi, without checks, which it did not have."""
    offset_operations: float
    """Those of ``operations`` that only read or write committed offsets."""
    notifications: float
    """Watches that fired."""

    def total(self, *apis: str) -> float:
        """The messages of some APIs; without any, of all."""
        return sum(count for api, count in self.messages.items() if not apis or api in apis)

    @staticmethod
    def weighted_sum(parts: Iterable[tuple[float, Traffic]]) -> Traffic:
        """Return the sum of some traffic, each multiplied by its weight: a difference, a total or a mean."""
        messages: dict[str, float] = {}
        counts = [0.0] * 4
        for weight, one in parts:
            for api, count in one.messages.items():
                messages[api] = messages.get(api, 0) + weight * count
            counts = [total + weight * count for total, count in zip(counts, one[1:], strict=True)]
        return Traffic({api: count for api, count in messages.items() if count}, *counts)


class Step(NamedTuple):
    """A step of a phase. Seconds."""

    phase: Phase
    began: float
    stable: float
    """When the group was stable again."""
    ended: float
    traffic: Traffic
    """Since the beginning of the life, at the end of the step."""


class Life(NamedTuple):
    """A life that is over."""

    generation: Generation
    seed: int
    began: float
    """When the first member was alone, and had all partitions."""
    before: Traffic
    """What was sent by then."""
    steps: tuple[Step, ...]
    history: History


class Unstable(OttlaTimeoutError):
    """The group has not become stable."""


class Stage(Protocol):
    """Where a life takes place: a clock, brokers, and processes of members, which report to ``history``."""

    history: History

    def now(self) -> float:
        """The time (seconds)."""

    def pass_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let time pass until a condition holds, for at most ``limit`` seconds; return whether it does."""

    def start(self, name: str) -> None:
        """Start a member."""

    def stop(self, name: str) -> None:
        """Ask a member to leave and end. ``history`` says when it has."""

    def kill(self, name: str) -> None:
        """Kill a member."""

    def add_partitions(self, count: int) -> None:
        """Let the topic have ``count`` partitions."""

    def find_coordinator(self) -> None:
        """Find out what coordinates the group: a broker, or for 0.8, which has no coordinator, ZooKeeper."""

    def kill_coordinator(self) -> None:
        """Kill what ``find_coordinator`` has found."""

    def start_coordinator(self) -> None:
        """Start what was killed again. It need not serve when this returns."""

    def traffic(self) -> Traffic:
        """What was sent so far."""

    def produced(self) -> int:
        """The number of records that were produced so far. No more follow."""


def step_count() -> int:
    """The number of steps of a life."""
    return (MEMBERS - 1) + 1 + 1 + (MEMBERS - VICTIMS) + 1


@contextmanager
def log_level(level: int) -> Iterator[None]:
    """Let Ottla log only lines of this level and above."""
    logger = logging.getLogger("ottla")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def live(generation: Generation, stage: Stage, seed: int, on_step: Callable[[Phase], None] = lambda phase: None) -> Life:
    """Live the life on a stage with a topic of ``PARTITIONS`` partitions, to which records are produced.

    ``seed`` determines how long the rests are. ``on_step`` is called at the beginning of each step. Raises ``Unstable`` if the
    group does not become stable, or does not handle all records.
    """
    script, history = _Script(stage, random.Random(seed)), stage.history
    stage.start(script.new_name())
    script.settle("with one member", history.is_shared)
    began, before = stage.now(), stage.traffic()
    steps = []
    for phase, act in script.steps():
        on_step(phase)
        step_began, stable = act()
        steps.append(Step(phase, step_began, stable, stage.now(), stage.traffic()))
    produced = stage.produced()
    if not stage.pass_until(lambda: history.distinct == produced, LIMIT):
        raise Unstable(f"{produced} records were produced, and {history.distinct} of them handled after {LIMIT:g} s")
    return Life(generation, seed, began, before, tuple(steps), history)


class _Script:
    """The steps. Each returns when it began, and since when the group is stable again."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self._stage, self._history, self._chance = stage, stage.history, chance
        self._members: list[str] = []

    def steps(self) -> Iterator[tuple[Phase, Callable[[], tuple[float, float]]]]:
        """All steps, in their order."""
        yield from [(Phase.GROW, self._grow)] * (MEMBERS - 1)
        yield Phase.KILL, self._kill
        yield Phase.ADD, self._add
        yield from [(Phase.ROLL, self._roll)] * (MEMBERS - VICTIMS)
        yield Phase.COORDINATOR, self._kill_coordinator

    def new_name(self) -> str:
        """Return the name of the member that is started next."""
        self._members.append(f"member-{len(self._members) + 1}")
        return self._members[-1]

    def settle(self, what: str, condition: Callable[[], bool]) -> float:
        """Let time pass until a condition holds, and no owner changes for a while. Returns since when it holds."""
        history, stage = self._history, self._stage
        until, rest = stage.now() + LIMIT, REST + self._chance.random() * HEARTBEAT_INTERVAL / 1000
        while stage.pass_until(condition, until - stage.now()):
            stable, changes = stage.now(), history.changes
            if not stage.pass_until(lambda seen=changes: history.changes > seen, rest):  # type: ignore[misc]
                return stable
        owners = dict(sorted(history.owners.items()))
        raise Unstable(f"{what}, the group is not stable after {LIMIT:g} s: members {sorted(history.live)}, owners {owners}")

    def _grow(self) -> tuple[float, float]:
        began = self._stage.now()
        self._stage.start(self.new_name())
        return began, self.settle(f"with {len(self._history.live)} members", self._history.is_shared)

    def _kill(self) -> tuple[float, float]:
        began = self._stage.now()
        for name in self._members[1 : 1 + VICTIMS]:
            self._stage.kill(name)
        return began, self.settle(f"{VICTIMS} members were killed", self._history.is_shared)

    def _add(self) -> tuple[float, float]:
        began = self._stage.now()
        self._history.added(MORE_PARTITIONS, began)
        self._stage.add_partitions(MORE_PARTITIONS)
        return began, self.settle("partitions were added", self._history.is_shared)

    def _roll(self) -> tuple[float, float]:
        """Stop the member that has run for the longest time, and start a new one as soon as it has ended."""
        began = self._stage.now()
        oldest = next(name for name in self._members if name in self._history.live)
        self._stage.stop(oldest)
        if not self._stage.pass_until(lambda: oldest not in self._history.live, LIMIT):
            raise Unstable(f"{oldest} has not ended {LIMIT:g} s after it was asked to")
        self._stage.start(self.new_name())
        return began, self.settle("a member was restarted", self._history.is_shared)

    def _kill_coordinator(self) -> tuple[float, float]:
        """Here stable means that commits are accepted: the owners may be the same all the time."""
        history, stage = self._history, self._stage
        stage.find_coordinator()
        began = stage.now()
        stage.kill_coordinator()
        stage.pass_until(lambda: False, DOWNTIME)
        stage.start_coordinator()
        return began, self.settle("the coordinator was killed", lambda: history.is_shared() and history.have_committed(began))
