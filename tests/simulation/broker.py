"""A broker's core on real files and a virtual clock, which a test drives step by step.

Owns the replies and jobs that the core has produced. Must not know what is tested. Invariant: all happens in calls; the files are
those of an earlier process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ottla.broker.cluster import TopicRegistration
from ottla.broker.effects import BrokerEffect, CancelTimer, Reply, RunJob, SetTimer
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader
from ottla.simulation.clock import START, Clock, CountingIds
from ottla.simulation.process import BrokerProcess
from ottla.types import Now
from tests.simulation.files import RealFiles


class CoreUnderTest(BrokerProcess):
    """A core on real files whose timers, jobs and replies a test drives one by one."""

    def __init__(
        self,
        path: Path,
        now: Now = START,
        *,
        loaded: bool = True,
        durable: bool = True,
        registered: Sequence[TopicRegistration] | None = None,
        first_producer_id: int | None = None,
        **settings: Any,
    ) -> None:
        self.store: RealFiles
        store = RealFiles(path, int(settings.get("node.id", 1)), durable=durable)
        super().__init__(store, Clock(now), CountingIds(), self._keep, settings)
        self.replies: dict[int, Any] = {}
        self.jobs: list[RunJob] = []
        self.others: list[BrokerEffect] = []
        self._ticket = 0
        self.start(registered, first_producer_id)
        if loaded:
            self.run_jobs()

    def _keep(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply(ticket, response):
                assert ticket not in self.replies, "a request was answered twice"
                self.replies[ticket] = response
            case RunJob():
                self.jobs.append(effect)
            case SetTimer() | CancelTimer():
                pass
            case _:
                self.others.append(effect)

    def send(self, api: Api, message: Any, *, version: int | None = None, connection: int = 1, turn_ends: bool = True) -> int:
        """Send a request in the newest version, or in ``version``; returns its ticket."""
        self._ticket += 1
        header = RequestHeader(api, SPOKEN[api].maximum if version is None else version, self._ticket, "test")
        self.handle(header, message, self._ticket, connection, turn_ends=turn_ends)
        return self._ticket

    def ask(self, api: Api, message: Any, *, version: int | None = None) -> Any:
        """Send a request and return its response, which must be there after its slices and jobs."""
        ticket = self.send(api, message, version=version)
        while ticket not in self.replies and (at := self.timers.next_at()) is not None and at <= self.now.mono + 1:
            self.pass_time(1)
        if ticket not in self.replies:
            self.run_jobs()
        return self.replies[ticket]

    def run_jobs(self) -> None:
        """Run all jobs, as the disk thread does."""
        while self.jobs:
            self.run(self.jobs.pop(0))

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, timer by timer."""
        end = self.now.mono + milliseconds
        while (at := self.timers.next_at()) is not None and at <= end:
            self.clock.move_to(max(at, self.now.mono))
            assert self.fire(at)
        self.clock.move_to(end)

    def close(self) -> None:
        """End cleanly."""
        self.run_jobs()
        for jobs in self.core.close():
            for job in jobs:
                job()
        self.store.mark_clean_shutdown()
        self.store.release()
