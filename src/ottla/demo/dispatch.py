"""The group ``dispatch``: three members share the flights, one is killed, a new one joins.

Owns the play: who is started and killed when, and what has to be true before the next act. Must not know how a member
reads. Invariant: it ends when the committed offset of each partition is the end of that partition, or with ``Stalled``.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ottla.demo import DemoFailed
from ottla.demo.owners import Owners
from ottla.demo.processes import Child, Children, Event

GROUP = "dispatch"
MEMBERS = ("member-1", "member-2", "member-3")
VICTIM, NEWCOMER = "member-2", "member-4"
SESSION_TIMEOUT = 6.0
"""Seconds after which the coordinator takes a silent member for dead."""
PACED_RUN = 16.5
"""Seconds that three members would need if they shared the flights evenly: with a kill in it, well above the session."""
FLIGHTS_A_POLL = 500
KILL_AT, JOIN_AT = 1 / 3, 0.7
"""Done, as a part of all flights, when one member is killed and when another one joins."""
LIMIT = 120.0
"""Seconds after which a run that is not done is stuck."""


class Stalled(DemoFailed):
    """The group did not get where it had to in time."""


class Act(enum.Enum):
    """Where the play is; the value says what it waits for."""

    GATHERING = "the three members own all partitions"
    WORKING = "a third of the flights is done"
    ORPHANED = "the survivors own all partitions"
    SURVIVING = "it is time for a new member"
    JOINING = "the new member owns partitions"
    FINISHING = "every flight is committed"
    DONE = "nothing"


def pace_for(flights: int) -> int:
    """Flights a second that each member handles at most."""
    return max(1, round(flights / len(MEMBERS) / PACED_RUN))


@dataclass
class Story:
    """What happened: when (seconds, wall clock), and who owned what after each act."""

    owners: Owners
    moments: dict[str, float] = field(default_factory=dict)
    snapshots: dict[str, dict[int, str]] = field(default_factory=dict)
    commits_refused: int = 0


class Dispatch:
    """One performance."""

    def __init__(
        self, children: Children, bootstrap_servers: str, topic: str, ends: Mapping[int, int], files: Path, pace: int
    ) -> None:
        self._children, self._bootstrap, self._topic, self._files, self._pace = children, bootstrap_servers, topic, files, pace
        self._ends, self._total = dict(ends), sum(ends.values())
        self._committed = dict.fromkeys(ends, 0)
        self._members: dict[str, Child] = {}
        self._act = Act.GATHERING
        self._last = ""
        self.story = Story(Owners(len(ends)))
        self._play: dict[Act, tuple[Callable[[], bool], Callable[[float], None], Act]] = {
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

    def run(self, on_progress: Callable[[int], None], on_act: Callable[[Act], None]) -> Story:
        """Play to the end. ``on_progress`` gets the flights done, ``on_act`` each new act."""
        for name in MEMBERS:
            self._start(name)
        for event in self._children.events(LIMIT):
            self._note(event)
            on_progress(self.done)
            while self._act is not Act.DONE and self._play[self._act][0]():
                _, action, following = self._play[self._act]
                action(event.at)
                self._act = following
                on_act(following)
            if self._act is Act.DONE:
                self._children.stop(*self._members.values())
                self.story.owners.close(event.at)
                self.story.moments["end"] = event.at
                return self.story
        raise Stalled(
            f"group {GROUP}: after {LIMIT:g} s still waiting until {self._act.value}; "
            f"committed {self._committed} of {self._ends}, owners {self.story.owners.present()}"
        )

    def _note(self, event: Event) -> None:
        self._last = event.child
        alive = event.child in self._members  # what a killed member still reported is history
        match event.kind:
            case "assigned" if alive:
                self.story.moments.setdefault("start", event.at)
                self.story.owners.assigned(event.child, event.data["partitions"], event.at)
            case "revoked" | "lost" if alive:
                self.story.owners.revoked(event.child, event.data["partitions"], event.at)
            case "committed":
                for partition, offset in event.data["offsets"].items():
                    self._committed[int(partition)] = max(offset, self._committed[int(partition)])
            case "commit_failed":
                self.story.commits_refused += 1

    def _all_own(self) -> bool:
        return self.story.owners.all_owned_by(self._members)

    def _snapshot(self, title: str) -> Callable[[float], None]:
        def take(at: float) -> None:
            self.story.snapshots[title] = self.story.owners.present()

        return take

    def _start(self, name: str) -> None:
        self._members[name] = self._children.start(
            name,
            "ottla.demo.member_process",
            {
                "name": name,
                "bootstrap_servers": self._bootstrap,
                "group": GROUP,
                "topic": self._topic,
                "session_timeout": SESSION_TIMEOUT,
                "pace": self._pace,
                "max_poll_records": FLIGHTS_A_POLL,
                "file": str(self._files / f"{name}.tsv"),
            },
        )

    def _kill(self, at: float) -> None:
        """Kill the victim, which has just committed, in the middle of its next batch: what it did of that will be repeated."""
        time.sleep(FLIGHTS_A_POLL / self._pace / 2)
        self._children.kill(self._members.pop(VICTIM))
        self.story.moments["kill"] = at
        self.story.owners.died(VICTIM, at)

    def _join(self, at: float) -> None:
        self._start(NEWCOMER)
        self.story.moments["join"] = at
