"""Producers in the simulator's world: both threads of a producer, and the program that uses it, against the broker's core.

Owns the stand-ins for the threads, and the reading of a log. Must not know what is tested. Invariant: all happens in events of the
clock.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, cast

from ottla import Delivery
from ottla.client.produce.calls import Abandon, Drain, ProducerCalls
from ottla.client.produce.outcome import Wait
from ottla.client.produce.transactions.calls import TransactionCalls
from ottla.client.producer_assembly import ProducerAssembly
from ottla.config.producer import ProducerConfig
from ottla.errors import ClosedError
from ottla.protocol.apis import Api
from ottla.records import iter_records
from ottla.records.accumulator import RecordAccumulator
from ottla.simulation import world
from ottla.simulation.application import Sleep
from ottla.simulation.broker import Brokers
from ottla.simulation.clock import Clock
from ottla.simulation.link import Link
from ottla.simulation.network import Network
from ottla.types import Now

LAST_WITHOUT_IDS = 12
"""The last version of Produce that names topics."""

Program = Generator[Wait | Sleep, Now, Any]
"""An application: it yields what its calls yield, and ``Sleep``."""


class ProducerApp:
    """One application: a producer and the program that uses it."""

    def __init__(self, name: str, config: ProducerConfig, clock: Clock, network: Network, broker: Brokers, seed: int) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.closed = False
        self._clock = clock
        self._inbox: list[object] = []
        self._pass_due: int | None = None
        self._program: Program | None = None
        self._wait_number = 0
        chance = random.Random(seed)
        self.accumulator = RecordAccumulator(
            batch_size=config.batch_size,
            memory=config.buffer_memory,
            max_record=min(config.max_request_size, config.buffer_memory),
            lock=threading.Lock(),
            nanoseconds=lambda: clock.now.wall * 1_000_000,
            mono=lambda: clock.now.mono,
            random=chance,
            wake=lambda: self.submit(Drain()),
            settled=lambda batch: self.calls.settled(batch),
            unseen=lambda _batch: None,
        )
        self.calls = ProducerCalls(config, self.accumulator, self.submit, lambda: 0)
        self.transactions = TransactionCalls(config, self.submit)
        self.assembly = ProducerAssembly(config, chance, self.accumulator, self.calls)
        self.link = Link(
            name,
            self.assembly.core.connections,
            clock,
            network,
            broker,
            alive=lambda: not self.closed,
            run=self._run,
            pass_soon=partial(self._pass_soon, 0),
        )
        self.numbers = self.link.numbers
        """The client's id of each connection -> its number in the network."""

    # -- the application thread -------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return self._clock.now

    @property
    def running(self) -> bool:
        return self._program is not None

    @property
    def sequences(self) -> Any:
        """The sequence numbers of an idempotent producer."""
        assert self.assembly.sequences is not None
        return self.assembly.sequences

    def start(self, program: Program) -> None:
        """Start a program; its first step runs at once."""
        assert self._program is None
        self._program, self.error = program, None
        self._resume(first=True)

    def send(
        self, topic: str, value: Any, partition: int | None = None, *, on_delivery: Any = None
    ) -> Generator[Any, Now, Delivery]:
        """Send a record, as ``Producer.send`` does."""
        record = value, None, partition, (), None, on_delivery
        delivery = self.accumulator.append(topic, *record)
        return delivery if delivery is not None else (yield from self.calls.send(topic, record, self.now))

    def close(self, timeout: int) -> Generator[Any, Now, None]:
        """Close the producer within ``timeout`` (milliseconds), as ``Producer.close`` does."""
        yield from self.calls.close(self.now.mono + timeout)
        core = self.assembly.core
        core.handle_command(Abandon(ClosedError("the producer was closed before the record was acknowledged")), self.now)
        self.closed = True
        for effect in core.shut_down(ClosedError("the client was closed"), self.now):
            self.link.perform(effect)
        self.calls.run_callbacks()
        self.calls.raise_failure()

    def _resume(self, *, first: bool = False) -> None:
        program = self._program
        assert program is not None
        self._wait_number += 1
        number = self._wait_number
        try:
            wait = next(program) if first else program.send(self.now)
        except StopIteration:
            self._program = None
        except BaseException as error:
            self._program, self.error = None, error
        else:
            resume = partial(self._resume_if, number)
            if isinstance(wait, Sleep):
                self._clock.after(wait.duration, resume)
                return
            wait.for_.waiters.append(lambda: self._clock.after(0, resume))
            if wait.is_over():
                self._clock.after(0, resume)
            if wait.until is not None:
                self._clock.at(wait.until, resume)

    def _resume_if(self, number: int) -> None:
        if number == self._wait_number and self._program is not None:
            self._resume()

    def submit(self, command: object) -> None:
        """Hand a command to the network thread, as any thread of the application may."""
        self._inbox.append(command)
        self._pass_soon(0)

    # -- the network thread -----------------------------------------------------------------------------------------------

    def _run(self, action: Callable[[], None]) -> None:
        if not self.closed:
            action()

    def _pass_soon(self, delay: int) -> None:
        due = self.now.mono + delay
        if self._pass_due is None or due < self._pass_due:
            self._pass_due = due
            self._clock.after(delay, lambda: self._pass(due))

    def _pass(self, due: int) -> None:
        if due != self._pass_due or self.closed:
            return
        self._pass_due = None
        core = self.assembly.core
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            core.handle_command(command, self.now)
        effects, wake_at, _ = core.poll(self.now)
        for effect in effects:
            self.link.perform(effect)
        core.take_notifications()
        if wake_at is None or wake_at > self.now.mono:
            left = core.poll(self.now)
            assert not left.effects, f"a real shell would not poll again, and this be left: {left.effects}"
        if wake_at is not None:
            self._pass_soon(max(0, wake_at - self.now.mono))


class ProducerWorld(world.World):
    """A cluster of brokers with their files in memory, and producers. ``t`` is a topic of two partitions."""

    def __init__(self, *, brokers: int = 1, chance: random.Random | None = None, **settings: Any) -> None:
        few = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}  # to load
        super().__init__(brokers=brokers, chance=chance, **{"auto.create.topics.enable": "false", **few, **settings})
        self.create_topic("t", 2)

    def producer(self, name: str = "p", **settings: Any) -> ProducerApp:
        """A producer with short times. Its records leave without linger by default."""
        nodes = self.broker.cluster.nodes.values()
        defaults: dict[str, Any] = {
            "bootstrap_servers": ",".join(f"{node.host}:{node.port}" for node in nodes),
            "client_id": name,
            "linger_ms": 0,
            "request_timeout_ms": 3_000,
            "delivery_timeout_ms": 30_000,
        }
        config = ProducerConfig.parse({**defaults, **settings})
        return ProducerApp(name, config, self.clock, self.network, self.broker, self.seed)

    def finish(self, app: ProducerApp, program: Program | None = None, limit: int = 300_000) -> None:
        """Run a program, or that which runs, to its end."""
        if program is not None:
            app.start(program)
        self.run_until(lambda: not app.running, limit)
        if app.error is not None:
            raise app.error

    def log(self, partition: int = 0, topic: str = "t") -> list[str]:
        """The values in a partition, in order."""
        log = self.broker.core.catalog.log(topic, partition)
        data = log.read(log.start_offset, 1 << 30, at_least_one=True)
        return [] if data is None else [bytes(record.value or b"").decode() for record in iter_records(cast(bytes, data))]

    def sent(self, api: Api = Api.PRODUCE) -> list[Any]:
        """The requests of one API that the broker has handled, in order."""
        return [message for _, seen, message in self.broker.seen if seen is api]


def without_topic_ids(response: Any) -> Any:
    """Change the response to ApiVersions to that of a broker that does not notice when a producer means a topic that is gone."""
    keys = [
        dataclasses.replace(key, max_version=LAST_WITHOUT_IDS) if key.api_key == Api.PRODUCE else key for key in response.api_keys
    ]
    return dataclasses.replace(response, api_keys=tuple(keys))
