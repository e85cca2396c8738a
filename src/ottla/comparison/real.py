"""The stage of a real life: a real ZooKeeper, brokers, members and a producer in processes of their own, and the wall clock.

Owns the members, the producer, and what the processes report. Must not know what the life consists of, or how its figures are
computed. Invariants: however a life ends, none of its processes is left; a killed member counts as ended at once, and all that it
has reported of handled records still counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ottla.comparison.cluster import ZOOKEEPER_SETTINGS, Cluster
from ottla.comparison.history import History
from ottla.comparison.life import LIMIT, PARTITIONS, Life, Phase, Traffic, live, log_level, member_settings
from ottla.comparison.proxies import serving
from ottla.demo.processes import ENDED, Child, Children, Event
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.signals import Stop
from ottla.simulation.outcome import Generation

PRODUCER = "producer"
SEED = 1


class RealStage:
    """A ``Stage`` for one life. ``open`` first."""

    def __init__(self, generation: Generation, cluster: Cluster, children: Children) -> None:
        self.history = History(PARTITIONS)
        self._generation, self._cluster, self._children = generation, cluster, children
        self._members: dict[str, Child] = {}
        self._leaving: set[str] = set()
        """The members that were asked to leave."""
        self._producer: Child | None = None

    def open(self) -> None:
        """Start the cluster and the producer."""
        self._cluster.start()
        arguments = {"bootstrap_servers": self._cluster.bootstrap_servers}
        self._producer = self._children.start(PRODUCER, "ottla.comparison.producer_process", arguments)
        self._children.wait_for(self._producer, "producing", LIMIT)

    def close(self) -> None:
        """Kill all processes. Nothing depends on how they end."""
        for child in (*self._members.values(), *([self._producer] if self._producer is not None else [])):
            self._children.kill(child)
        self._cluster.close()

    # -- Stage ------------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds of the wall clock, which all processes share."""
        return time.time()

    def pass_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """See ``Stage``. Raises ``ChildFailed`` if a process fails, ``Interrupted`` after a signal."""
        self._cluster.check()
        if condition():
            return True
        for event in self._children.events(limit):
            self._take(event)
            if condition():
                return True
        return False

    def start(self, name: str) -> None:
        """See ``Stage``."""
        settings = {**member_settings(self._generation, name), **self._cluster.addresses()}
        self._members[name] = self._children.start(name, "ottla.comparison.member_process", {"settings": settings})
        self.history.started(name, self.now())

    def stop(self, name: str) -> None:
        """See ``Stage``."""
        self._leaving.add(name)
        self._members[name].process.terminate()

    def kill(self, name: str) -> None:
        """See ``Stage``."""
        self._children.kill(self._members.pop(name))
        self.history.ended(name, self.now())

    def add_partitions(self, count: int) -> None:
        """See ``Stage``."""
        self._cluster.add_partitions(count)

    def find_coordinator(self) -> None:
        """See ``Stage``."""
        self._cluster.find_coordinator()

    def kill_coordinator(self) -> None:
        """See ``Stage``."""
        self._cluster.kill_coordinator()

    def start_coordinator(self) -> None:
        """See ``Stage``."""
        self._cluster.start_coordinator()

    def traffic(self) -> Traffic:
        """See ``Stage``."""
        return self._cluster.tally.total()

    def produced(self) -> int:
        """See ``Stage``."""
        assert self._producer is not None
        self._producer.process.terminate()
        count: int = self._children.wait_for(self._producer, "produced", LIMIT).data["count"]
        return count

    # -- reports ----------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """Pass a report on to the history."""
        name, data = event.child, event.data
        if event.kind == "handled":
            self.history.handled(data["partition"], range(data["first"], data["end"]))
        elif event.kind == ENDED:
            self._on_end(event)
        elif name in self.history.live:  # a killed member has nothing, whatever it has reported before
            match event.kind:
                case "assigned":
                    self.history.assigned(name, data["partitions"], event.at)
                case "revoked" | "lost":
                    self.history.given_up(name, data["partitions"], event.at)
                case "committed":
                    self.history.committed(name, data["asked_at"])

    def _on_end(self, event: Event) -> None:
        """A process has ended: a member that was asked to leave, one that was killed, or the producer after its last record."""
        child = self._members.get(event.child)
        if child is None:
            self._cluster.check_end(event)
            return
        if event.child not in self._leaving:
            raise child.failure()
        del self._members[event.child]
        self._children.stop(child)
        self.history.ended(event.child, event.at)


def real_life(generation: Generation, folder: Path, stop: Stop, on_step: Callable[[Phase], None] = lambda phase: None) -> Life:
    """Live a life of this generation, with all data and logs in ``folder``, which is empty or does not exist.

    Raises what ``live`` raises, ``ChildFailed`` with the end of the log of a process that fails, and ``Interrupted`` after a signal
    in ``stop``.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (
        log_level(logging.ERROR),  # that the killed broker has closed a connection is no news
        ZooKeeperServer(folder / "zookeeper", settings=ZOOKEEPER_SETTINGS) as zookeeper,
        Children(logs, stop) as children,
    ):
        cluster = Cluster(generation, folder, zookeeper, children)
        stage = RealStage(generation, cluster, children)
        with serving(*cluster.proxies):
            try:
                stage.open()
                return live(generation, stage, SEED, on_step)
            finally:
                stage.close()
