"""The life of a group in the simulator: the cores of production under a virtual clock, with network, disks and ZooKeeper in memory.

Owns the members' programs, the producer, and the counts of what is sent. Must not know the steps. Invariant: the seed determines
all that happens, so the same code has the same figures on each machine.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from ottla.client.calls.listeners import Listeners
from ottla.comparison.history import History
from ottla.comparison.life import (
    BROKER_SETTINGS,
    BROKERS,
    COMMIT_INTERVAL,
    COUNTED,
    GROUP,
    PARTITIONS,
    RECORD_INTERVAL,
    TOPIC,
    Life,
    Traffic,
    live,
    log_level,
    member_settings,
)
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep
from ottla.simulation.broker import Asked, Exchange
from ottla.simulation.outcome import Generation
from ottla.simulation.requests import errors_in
from ottla.simulation.world import World
from ottla.simulation.zookeeper import Executed, Fired
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.operations import Check, Create, Multi, Operation, SetData, Sync

POLL, WORK = 100, 10
"""Milliseconds that a member waits for records, and that it works on them."""
UNCHECKED = 1 << 30
"""So many passes of a network thread are not checked for work that it has left. The check takes a sixth of the time."""
CLOSE = 5_000
"""Milliseconds for ``close()``."""
_GROUPS = (f"{paths.CONSUMERS}/", paths.COORDINATOR_EPOCH)
"""What brokers do in ZooKeeper because of central groups is below these paths. It counts for them alone: the other generations need
no broker for it, though these brokers elect a coordinator in any case, and look whether a group is central."""


def simulated_life(generation: Generation, seed: int) -> Life:
    """Play the life of a generation. Raises ``Unstable``."""
    with log_level(logging.CRITICAL):  # the life has failures, which are no news
        return live(generation, SimulatedStage(generation, seed), seed)


class SimulatedStage:
    """A ``Stage`` under a virtual clock."""

    def __init__(self, generation: Generation, seed: int) -> None:
        self.history = History(PARTITIONS)
        self._generation = generation
        self._world = World(seed, brokers=BROKERS, chance=random.Random(seed), in_zookeeper=True, **BROKER_SETTINGS)
        assert self._world.brokers is not None
        self._brokers = self._world.brokers
        self._meter = _Meter(self._world, self.history, _GROUPS if generation is Generation.CENTRAL else ())
        self._world.create_topic(TOPIC, PARTITIONS)
        self._coordinator: int | None = None
        """The broker that coordinates the group; ``None``: not known, or there is none."""
        self._next: dict[int, int] = dict.fromkeys(range(PARTITIONS), self._world.now.mono)
        """Partition -> when its next record is produced."""

    def now(self) -> float:
        """The virtual time (seconds)."""
        return self._world.now.mono / 1000

    def pass_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Run the clock, and produce records meanwhile."""
        clock, until = self._world.clock, self._world.now.mono + round(limit * 1000)
        while not condition():
            due = min(self._next.values(), default=until)
            if not clock.step(min(due, until)):
                if due > until:
                    return condition()
                self._produce()
            self._check_members()
        return True

    def _produce(self) -> None:
        """Produce what is due, where the leader runs."""
        now = self._world.now.mono
        for number, at in self._next.items():
            if at <= now:
                self._next[number] = now + round(RECORD_INTERVAL * 1000)
                if self._brokers.can_produce(TopicPartition(TOPIC, number)):
                    self._world.produce(TOPIC, number, 1)

    def _check_members(self) -> None:
        for app in self._world.apps.values():
            if app.error is not None:
                raise app.error

    def produced(self) -> int:
        """Stop producing."""
        self._next.clear()
        return sum(self._world.produced.values())

    # -- members ----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a member."""
        settings = {
            **member_settings(self._generation, name),
            "enable_auto_commit": True,  # a commit in on_revoke would nest the members' turns in one another
            "auto_commit_interval_ms": round(COMMIT_INTERVAL * 1000),
        }
        app = self._world.app(name, **settings)
        app.checked_passes = UNCHECKED
        self.history.started(name, self.now())
        app.start(self._program(app))

    def stop(self, name: str) -> None:
        """Let a member end after its poll."""
        self._world.apps[name].stop = True

    def kill(self, name: str) -> None:
        """Kill a member."""
        self._world.apps[name].kill()
        self.history.ended(name, self.now())

    def _program(self, app: App) -> Program:
        history, calls, name = self.history, app.calls, app.name

        def numbers(partitions: list[TopicPartition]) -> list[int]:
            return [each.partition for each in partitions]

        listeners = Listeners(
            on_assign=lambda partitions: history.assigned(name, numbers(partitions), self.now()),
            on_revoke=lambda partitions: history.given_up(name, numbers(partitions), self.now()),
            on_lost=lambda partitions: history.given_up(name, numbers(partitions), self.now()),
        )
        yield from calls.subscribe((TOPIC,), listeners, app.now, None)
        while not app.stop:
            try:
                records = list((yield from calls.poll(POLL, app.now)))
            except OttlaError:
                yield Sleep(POLL)  # it reports what it cannot do at present, and goes on
                continue
            if records:
                yield Sleep(WORK)
            for record in records:
                history.handled(record.partition, (record.offset,))
        yield from calls.close(CLOSE, app.now)
        history.ended(name, self.now())

    # -- the cluster ------------------------------------------------------------------------------------------------------

    def add_partitions(self, count: int) -> None:
        """Let the topic grow."""
        self._world.grow(TOPIC, count)
        self._next.update(dict.fromkeys(range(len(self._next), count), self._world.now.mono))

    def find_coordinator(self) -> None:
        """Find the coordinating broker, if there is one."""
        match self._generation:
            case Generation.CENTRAL:
                self._coordinator = int(self._world.zookeeper.model.data(paths.COORDINATOR) or b"")
            case Generation.CLASSIC | Generation.CONSUMER:
                self._coordinator = self._brokers.coordinator(GROUP)

    def kill_coordinator(self) -> None:
        """Kill it, or ZooKeeper."""
        if self._coordinator is None:
            self._world.zookeeper.stop()
        else:
            self._brokers.kill(self._coordinator)

    def start_coordinator(self) -> None:
        """Start it again."""
        if self._coordinator is None:
            self._world.zookeeper.start()
        else:
            self._brokers.start(self._coordinator)

    def traffic(self) -> Traffic:
        """What was sent so far."""
        return self._meter.traffic()


class _Meter:
    """Counts what is sent, and tells the history which commits are accepted."""

    def __init__(self, world: World, history: History, of_brokers: tuple[str, ...]) -> None:
        """``of_brokers``: the paths below which the operations of brokers count."""
        assert world.brokers is not None
        self._world, self._history, self._of_brokers = world, history, of_brokers
        self._messages: Counter[str] = Counter()
        self._operations = self._single_operations = self._offset_operations = self._notifications = 0
        self._commits: dict[str, float] = {}
        """Member -> when its latest commit came to a broker."""
        world.brokers.request_observers.append(self._on_request)
        world.brokers.observers.append(self._on_exchange)
        world.brokers.push_observers.append(self._on_push)
        world.zookeeper.observers.append(self._on_operation)
        world.zookeeper.fired_observers.append(self._on_fired)

    def traffic(self) -> Traffic:
        counts = self._operations, self._single_operations, self._offset_operations, self._notifications
        return Traffic(self._messages.copy(), *counts)

    def _on_request(self, asked: Asked) -> None:
        if asked.api is Api.OFFSET_COMMIT:
            self._commits[asked.sender.name] = self._now()

    def _on_exchange(self, exchange: Exchange) -> None:
        if exchange.api in COUNTED and exchange.client in self._world.apps:
            self._messages[COUNTED[exchange.api]] += 2
        if exchange.api is Api.OFFSET_COMMIT and set(errors_in(exchange.response)) <= {ErrorCode.none}:
            self._history.committed(exchange.client, self._commits[exchange.client])

    def _on_push(self, api: Api, message: object) -> None:
        self._messages[COUNTED[api]] += 2  # a member answers each

    def _on_operation(self, session_id: int, operation: Operation[Any], executed: Executed) -> None:
        member = self._member(session_id)
        parts = operation.operations if isinstance(operation, Multi) else (operation,)
        if isinstance(operation, Sync) or (member is None and not any(one.path.startswith(self._of_brokers) for one in parts)):
            return
        others = [one for one in parts if not isinstance(one, Check)]
        is_about_offsets = all(one.path.startswith(paths.offsets(GROUP)) for one in others)
        self._operations += 1
        self._single_operations += len(others)
        self._offset_operations += is_about_offsets
        if member is not None and executed.error is None and is_about_offsets and isinstance(others[0], Create | SetData):
            self._history.committed(member, self._now())

    def _on_fired(self, fired: Fired) -> None:
        if self._member(fired.session_id) is not None or fired.path.startswith(self._of_brokers):
            self._notifications += 1

    def _member(self, session_id: int) -> str | None:
        """The member that has a session with ZooKeeper."""
        for app in self._world.apps.values():
            session = app.assembly.core.session
            if session is not None and session.session_id == session_id:
                return app.name
        return None

    def _now(self) -> float:
        return self._world.now.mono / 1000
