"""Whether a group is central: a question that any broker asks ZooKeeper for a client.

Owns the questions under way. Must not know requests, nor groups otherwise. Invariants: each question ends, without some answers if
ZooKeeper gives none in time; an answer is not older than its question; a group is asked for once at a time, however many ask, and
a question about many groups holds up neither the others nor the renewals of the session's lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ottla.broker.central_coordinator_service import Lookup
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, first_error
from ottla.zookeeper.operations import Exists, Sync
from ottla.zookeeper.session import SessionChanged, SessionState, WatchFired

PATIENCE = 1_000
"""Milliseconds without an answer after which the client gets what the broker knew before."""
_AT_ONCE = 1000
"""Groups that are asked for at the same time."""
_TURN = 100
"""Those of one question, before the next question has its turn."""


@dataclass(eq=False, slots=True)
class _Open:
    """A question under way."""

    lookup: Lookup
    on_end: Callable[[Lookup], None]
    unasked: deque[str]
    deadline: int


class CentralLookup:
    """See the module. ``timeout``: the milliseconds after which an operation fails. It implements ``ZooKeeperManager``."""

    def __init__(self, timeout: int) -> None:
        self._asks = AskQueue(timeout)
        self._open: dict[_Open, None] = {}
        """In the order of their turns."""
        self._asked: dict[str, list[_Open]] = {}
        """The groups that are asked for now, and the questions that they belong to."""
        self._has_news = False
        self._is_connected = False

    def __repr__(self) -> str:
        return f"<CentralLookup {len(self._open)} open>"

    @property
    def is_due(self) -> bool:
        """Whether there is a new question."""
        return self._has_news

    def look(self, group_ids: Collection[str], on_end: Callable[[Lookup], None], now: Now) -> Lookup:
        """Ask which of these groups are central. The question may end at once."""
        lookup = Lookup(tuple(dict.fromkeys(group_ids)))
        one = _Open(lookup, on_end, deque(filter(paths.may_be_central, lookup.group_ids)), now.mono + PATIENCE)
        self._open[one] = None
        self._has_news = True
        if not (one.unasked and self._is_connected):
            self._end(one)
        return lookup

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """End all questions when the connection breaks: clients do not wait for the next one."""
        if isinstance(event, WatchFired):
            return
        self._asks.abandon()
        self._asked.clear()
        self._is_connected = event.state is SessionState.CONNECTED
        for one in tuple(self._open):
            self._end(one)

    def poll(self, now: Now) -> ManagerPoll:
        """Return the groups to ask for."""
        self._has_news = False
        for one in [one for one in self._open if now.mono >= one.deadline]:
            self._end(one)
        if not self._asked:
            self._ask()
        return ManagerPoll(self._asks.take(), min([one.deadline for one in self._open], default=None))

    def _ask(self) -> None:
        """Ask for groups of all questions, in turns."""
        while len(self._asked) < _AT_ONCE and (one := next((one for one in self._open if one.unasked), None)) is not None:
            for _ in range(min(_TURN, len(one.unasked))):
                self._asked.setdefault(one.unasked.popleft(), []).append(one)
            del self._open[one]
            self._open[one] = None
        if self._asked:
            # With a Sync: the group may have become central through a server that is ahead of this broker's.
            self._asks.ask_all([Sync(), *(Exists(paths.generation(name)) for name in self._asked)], self._answered)

    def _answered(self, outcomes: list[Outcome], now: Now) -> None:
        asked, self._asked = self._asked, {}
        has_failed = first_error(outcomes) is not None
        concerned: dict[_Open, None] = {}
        for (name, ones), outcome in zip(asked.items(), outcomes[1:], strict=True):
            for one in ones:
                if one in self._open:
                    concerned[one] = None
                    one.lookup.found.update({} if has_failed else {name: outcome is not None})
        for one in concerned:
            one.deadline = now.mono + PATIENCE
            if has_failed or not one.unasked:
                self._end(one)

    def _end(self, one: _Open) -> None:
        del self._open[one]
        one.lookup.is_done = True
        one.on_end(one.lookup)
