"""The group ``dispatch``: three members share the flights, one is killed, a new one joins.

Owns the script of starts and kills, the condition for each next act, and the history of the partitions' owners. Must not know how a
member reads. Invariant: it ends when the committed offset of each partition is its end offset, or with ``Stalled``.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ottla.demo import DemoFailed
from ottla.demo.processes import Child, Children, Event

GROUP = "dispatch"
MEMBERS = ("member-1", "member-2", "member-3")
VICTIM, NEWCOMER = "member-1", "member-4"
"""The victim owns more than half of the flights, so that it is certainly at work when it is killed."""
SESSION_TIMEOUT = 6.0
"""Seconds without a sign of life after which a member is removed."""
BROKER_SETTINGS = {
    "group.consumer.min.session.timeout.ms": round(SESSION_TIMEOUT * 1000),
    "group.consumer.session.timeout.ms": round(SESSION_TIMEOUT * 1000),
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
}
"""In a consumer group (KIP-848) the broker sets the session time-out of members."""
MEMBER_SETTINGS: Mapping[str, Mapping[str, object]] = {
    "zookeeper": {"partition_assignment_strategy": ["roundrobin"], "zookeeper_session_timeout": SESSION_TIMEOUT},
    "classic": {"partition_assignment_strategy": ["roundrobin"], "session_timeout": SESSION_TIMEOUT, "heartbeat_interval": 1.0},
    "consumer": {},
    "central": {"partition_assignment_strategy": ["roundrobin"], "session_timeout": SESSION_TIMEOUT},
}
"""Group protocol -> the settings of a member."""
PACED_RUN = 16.5
"""Seconds that three members need for the flights: with a kill, the run takes much longer than the session timeout."""
FLIGHTS_A_POLL = 500
KILL_AT, JOIN_AT = 1 / 3, 0.7
"""The fractions of committed flights at which a member is killed, and a new one joins."""
LIMIT = 120.0
"""Seconds after which a run fails with ``Stalled``."""


class Stalled(DemoFailed):
    """The group did not fulfil the condition of an act in time."""


class Act(enum.Enum):
    """The acts of the run; the value is the condition for the next one."""

    GATHERING = "the three members own all partitions"
    WORKING = "a third of the flights is done"
    ORPHANED = "the survivors own all partitions"
    SURVIVING = "it is time for a new member"
    JOINING = "the new member owns partitions"
    FINISHING = "every flight is committed"
    DONE = "nothing"


def pace_for(flights: int) -> int:
    """Return the maximum of flights per second for each member."""
    return max(1, round(flights / len(MEMBERS) / PACED_RUN))


class OwnershipPeriod(NamedTuple):
    """``member`` owned ``partition`` from ``start`` to ``end`` (seconds). ``orphan``: it was dead during this period."""

    partition: int
    member: str
    start: float
    end: float
    orphan: bool = False


class Owners:
    """The history of the partitions' owners, built from the members' reports: the current ones, and the periods that have ended.

    A partition's periods follow one another in time. After its owner was killed, the partition has an orphaned period until the
    group assigns it to another member.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.periods: list[OwnershipPeriod] = []
        self._current: dict[int, tuple[str, float]] = {}
        self._orphans: dict[int, tuple[str, float]] = {}

    def assigned(self, member: str, partitions: Iterable[int], at: float) -> None:
        """Record that the group assigned ``partitions`` to ``member``."""
        for partition in partitions:
            self._end_orphan(partition, at)
            self._current[partition] = (member, at)

    def revoked(self, member: str, partitions: Iterable[int], at: float) -> None:
        """Record that ``member`` revoked ``partitions``, or lost them."""
        for partition in partitions:
            if self._current.get(partition, ("",))[0] == member:
                owner, since = self._current.pop(partition)
                self.periods.append(OwnershipPeriod(partition, owner, since, at))

    def died(self, member: str, at: float) -> None:
        """Record that ``member`` was killed: its partitions become orphans."""
        for partition, (owner, since) in list(self._current.items()):
            if owner == member:
                del self._current[partition]
                self.periods.append(OwnershipPeriod(partition, owner, since, at))
                self._orphans[partition] = (owner, at)

    def close(self, at: float) -> None:
        """End all periods."""
        for partition, (owner, since) in sorted(self._current.items()):
            self.periods.append(OwnershipPeriod(partition, owner, since, at))
        for partition in list(self._orphans):
            self._end_orphan(partition, at)
        self._current.clear()

    def current(self) -> dict[int, str]:
        """Return partition -> live owner."""
        return {partition: owner for partition, (owner, _) in sorted(self._current.items())}

    def all_owned_by(self, members: Iterable[str]) -> bool:
        """Whether each partition has a live owner, and each of ``members`` owns a partition."""
        current = self.current()
        return len(current) == self.partitions and set(members) <= set(current.values())

    def _end_orphan(self, partition: int, at: float) -> None:
        if partition in self._orphans:
            owner, since = self._orphans.pop(partition)
            self.periods.append(OwnershipPeriod(partition, owner, since, at, orphan=True))


@dataclass
class DispatchResult:
    """The events of a run: times (seconds, wall clock), and the owners at the end of acts."""

    owners: Owners
    moments: dict[str, float] = field(default_factory=dict)
    snapshots: dict[str, dict[int, str]] = field(default_factory=dict)
    commits_refused: int = 0


class Dispatch:
    """One run of the group. ``settings`` are those of each member's consumer."""

    def __init__(
        self, children: Children, settings: Mapping[str, object], topic: str, ends: Mapping[int, int], files: Path, pace: int
    ) -> None:
        self._children, self._settings, self._topic, self._files, self._pace = children, settings, topic, files, pace
        self._ends, self._total = dict(ends), sum(ends.values())
        self._committed = dict.fromkeys(ends, 0)
        self._members: dict[str, Child] = {}
        self._act = Act.GATHERING
        self._last = ""
        self.result = DispatchResult(Owners(len(ends)))
        self._script: dict[Act, tuple[Callable[[], bool], Callable[[float], None], Act]] = {
            Act.GATHERING: (self._all_own, self._snapshot("three members"), Act.WORKING),
            Act.WORKING: (lambda: self._last == VICTIM and self.done >= self._total * KILL_AT, self._kill, Act.ORPHANED),
            Act.ORPHANED: (self._all_own, self._snapshot("one killed"), Act.SURVIVING),
            Act.SURVIVING: (lambda: self.done >= self._total * JOIN_AT, self._join, Act.JOINING),
            Act.JOINING: (self._all_own, self._snapshot("a new one"), Act.FINISHING),
            Act.FINISHING: (lambda: self._committed == self._ends, lambda at: None, Act.DONE),
        }

    @property
    def done(self) -> int:
        """Flights whose offsets are committed."""
        return sum(self._committed.values())

    def run(self, on_progress: Callable[[int], None], on_act: Callable[[Act], None]) -> DispatchResult:
        """Run all acts. ``on_progress`` gets the number of committed flights, ``on_act`` each new act."""
        for name in MEMBERS:
            self._start(name)
        for event in self._children.events(LIMIT):
            self._handle(event)
            on_progress(self.done)
            while self._act is not Act.DONE and self._script[self._act][0]():
                _, action, following = self._script[self._act]
                action(event.at)
                self._act = following
                on_act(following)
            if self._act is Act.DONE:
                self._children.stop(*self._members.values())
                self.result.owners.close(event.at)
                self.result.moments["end"] = event.at
                return self.result
        raise Stalled(
            f"group {GROUP}: after {LIMIT:g} s still waiting until {self._act.value}; "
            f"committed {self._committed} of {self._ends}, owners {self.result.owners.current()}"
        )

    def _handle(self, event: Event) -> None:
        self._last = event.child
        alive = event.child in self._members  # events of a killed member may still arrive: ignore its assignments
        match event.kind:
            case "assigned" if alive:
                self.result.moments.setdefault("start", event.at)
                self.result.owners.assigned(event.child, event.data["partitions"], event.at)
            case "revoked" | "lost" if alive:
                self.result.owners.revoked(event.child, event.data["partitions"], event.at)
            case "committed":
                for partition, offset in event.data["offsets"].items():
                    self._committed[int(partition)] = max(offset, self._committed[int(partition)])
            case "commit_failed":
                self.result.commits_refused += 1

    def _all_own(self) -> bool:
        return self.result.owners.all_owned_by(self._members)

    def _snapshot(self, title: str) -> Callable[[float], None]:
        def take(at: float) -> None:
            self.result.snapshots[title] = self.result.owners.current()

        return take

    def _start(self, name: str) -> None:
        self._members[name] = self._children.start(
            name,
            "ottla.demo.member_process",
            {
                "name": name,
                "settings": {**self._settings, "group_id": GROUP, "client_id": name, "max_poll_records": FLIGHTS_A_POLL},
                "topic": self._topic,
                "pace": self._pace,
                "file": str(self._files / f"{name}.tsv"),
            },
        )

    def _kill(self, at: float) -> None:
        """Kill the victim, which has just committed, during its next batch: other members repeat the flights of that batch."""
        time.sleep(FLIGHTS_A_POLL / self._pace / 2)
        self._children.kill(self._members.pop(VICTIM))
        self.result.moments["kill"] = at
        self.result.owners.died(VICTIM, at)

    def _join(self, at: float) -> None:
        self._start(NEWCOMER)
        self.result.moments["join"] = at
