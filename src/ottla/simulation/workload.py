"""What members of a group do in a run: how they are configured, and their programs.

Owns the random choices about members and topics. Must not know what goes wrong. Invariant: all choices come from one generator, in
the order in which they are made.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.client.calls.listeners import Listeners
from ottla.errors import FencedInstanceIdError, OttlaError, UnreleasedInstanceIdError
from ottla.simulation.application import App, Program, Sleep
from ottla.simulation.judge import GROUP, Judge, Store
from ottla.simulation.outcome import IN_ZOOKEEPER, Generation
from ottla.simulation.requests import Unanswered
from ottla.simulation.trace import Trace
from ottla.simulation.world import World
from ottla.types import OffsetAndMetadata, TopicPartition

MOST_MEMBERS = 4
MOST_PARTITIONS = 8
MAX_POLL_INTERVAL = 10_000
CHECKED_PASSES = 8
"""One in this many passes of a network thread is checked for work that it has left: the check is a fifth of a run's time."""

_ASSIGNORS = {
    Generation.CLASSIC: ("range", "roundrobin", "sticky", "cooperative-sticky"),
    Generation.CONSUMER: ("uniform", "range"),
    Generation.ZOOKEEPER: ("range", "roundrobin"),
    Generation.CENTRAL: ("range", "roundrobin"),
}


class Member:
    """A consumer that polls, works, and commits in its own way."""

    def __init__(
        self, app: App, settings: dict[str, Any], judge: Judge, trace: Trace, chance: random.Random, topics: Topics
    ) -> None:
        self.app = app
        self.settings = settings
        self.stall = 0
        """Milliseconds for which it does not poll, once."""
        self.gave_up = False
        """Whether it has ended by itself, after an error that only a new process can overcome."""
        self._judge = judge
        self._trace = trace
        self._chance = chance
        self._topics = topics
        self._work = chance.choice((1, 5, 20, 100))
        self._commits = chance.choice(("sync", "async", "some"))
        """How it commits if it does not leave that to its consumer: after each poll, in the background, or after some polls."""

    def start(self) -> None:
        """Run the program."""
        self.app.start(self._program())

    def _program(self) -> Program:
        app, calls, judge = self.app, self.app.calls, self._judge
        listeners = Listeners(
            on_assign=lambda partitions: judge.assigned(app, partitions),
            on_revoke=lambda partitions: judge.given_up(app, partitions),
            on_lost=lambda partitions: judge.given_up(app, partitions),
        )
        topics, subscribed = self._topics, False
        while not app.stop:
            try:
                if not subscribed:  # a process that is stopped for longer than the call may take calls again
                    names = () if topics.pattern is not None else topics.names
                    yield from calls.subscribe(names, listeners, app.now, topics.pattern)
                    subscribed = True
                records = yield from calls.poll(1_000, app.now)
                judge.returned(app, records)
                yield Sleep(self.stall or self._work)
                self.stall = 0
                judge.handled(records)
                self._trace.records(app.name, records)
                yield from self._commit()
            except OttlaError as error:
                judge.failed(app, error)
                # 1. It starts while the session of its killed predecessor goes on. 2. It joins a classic group, and the coordinator
                # loads the group again, as it was stored before: with the predecessor's member id.
                if isinstance(error, UnreleasedInstanceIdError | FencedInstanceIdError):
                    self.gave_up = True
                    break
                yield Sleep(50)
        try:
            yield from calls.close(5_000, app.now)
        except OttlaError as error:
            judge.failed(app, error)

    def _commit(self) -> Program:
        app = self.app
        if app.config.enable_auto_commit or (self._commits == "some" and self._chance.random() < 0.7):
            return
        if self._commits == "async" and self._chance.random() < 0.9:
            yield from app.calls.commits.commit_async(None, self._on_committed, app.now)
        else:
            yield from app.calls.commits.commit(None, 3_000, app.now)

    def _on_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        """A commit in the background may fail: the next one contains more."""
        if isinstance(error, OttlaError):
            self._judge.failed(self.app, error)


class Topics:
    """The topics that the members subscribe to, by name or, if there is one, by ``pattern``."""

    def __init__(self, names: list[str], pattern: str | None) -> None:
        self.names = names
        self.pattern = pattern


class Workload:
    """The topics and members of one run."""

    def __init__(self, world: World, judge: Judge, generation: Generation, chance: random.Random, trace: Trace) -> None:
        self.members: list[Member] = []
        self._world = world
        self._judge = judge
        self._generation = generation
        self._chance = chance
        self._trace = trace
        self._is_static = generation not in IN_ZOOKEEPER and chance.random() < 0.3
        """Whether members have a ``group.instance.id``."""
        self._settings = shared_settings(generation, judge.stores, chance)
        self._joined = 0
        self.topics = Topics([f"t{number}" for number in range(chance.randint(1, 2))], "t.*" if chance.random() < 0.3 else None)
        for topic in self.topics.names:
            world.create_topic(topic, chance.randint(1, 4))
            self.produce(topic)

    @property
    def live(self) -> list[Member]:
        """The members that run."""
        return [member for member in self.members if member.app.alive and member.app.running and not member.app.stop]

    def describe(self) -> Iterator[str]:
        """What was chosen for all members, for the head of the trace."""
        counts = {topic: self._partition_count(topic) for topic in self.topics.names}
        names = ", ".join(f"{topic} ({count} {'partition' if count == 1 else 'partitions'})" for topic, count in counts.items())
        pattern, settings = self.topics.pattern, self._settings
        yield f"topics: {names}, subscribed to {'by name' if pattern is None else f'by the pattern {pattern}'}"
        yield f"assignor: {settings.get('group_remote_assignor') or settings['partition_assignment_strategy'][0]}"
        yield f"offsets: in {' and '.join(store.value for store in Store if store in self._judge.stores)}"
        yield f"static members: {'yes' if self._is_static else 'no'}"

    def join(self) -> None:
        """Start a new member."""
        self._joined += 1
        name = f"m{self._joined}"
        settings: dict[str, Any] = {
            **self._settings,
            "enable_auto_commit": self._chance.random() < 0.5,
            "max_poll_records": self._chance.choice((1, 7, 500)),
        }
        if self._is_static:
            settings["group_instance_id"] = name
        elif self._generation in IN_ZOOKEEPER and self._chance.random() < 0.3:
            settings["consumer_id"] = name
        self._start(name, settings, "joins")

    def supervise(self) -> None:
        """Restart the members that have given up."""
        for member in self.members:
            if member.gave_up and not member.app.running:
                member.gave_up = False
                self.restart(member, "is started again")

    def restart(self, member: Member, what: str) -> None:
        """Start a member whose process has ended again: the same settings, in a new process. ``what`` happens, for the trace."""
        name, _, number = member.app.name.partition(".")
        self._start(f"{name}.{int(number or 1) + 1}", member.settings, what)

    def _start(self, name: str, settings: dict[str, Any], what: str) -> None:
        commits = "auto-commit" if settings["enable_auto_commit"] else "manual commits"
        self._trace.line(name, f"{what} ({commits}, max_poll_records {settings['max_poll_records']})")
        chance = self._chance
        app = self._world.app(name, **settings)
        app.checked_passes = CHECKED_PASSES
        app.lag = chance.choice((0, 0, 1, 3))
        app.eager = chance.random() < 0.3
        app.pause = chance.choice((0, 0, 1))
        member = Member(app, settings, self._judge, self._trace, chance, self.topics)
        self.members.append(member)
        member.start()

    def produce(self, topic: str | None = None) -> None:
        """Produce to some partitions."""
        world, chance = self._world, self._chance
        for tp in [tp for tp in self._partitions() if topic is None or tp.topic == topic]:
            if chance.random() < 0.7 and world.broker.can_produce(tp):
                world.produce(tp.topic, tp.partition, chance.randint(1, 20))

    def produce_everywhere(self) -> None:
        """Produce a record to each partition."""
        for tp in self._partitions():
            self._world.produce(tp.topic, tp.partition, 1)

    @property
    def may_hide_growth(self) -> bool:
        """Whether partitions that were added may stay unassigned until more are added: in classic groups of static members.

        1. The leader is killed. 2. A topic grows. 3. The leader returns, and must not assign again (KIP-814). It does not know that
        there were fewer partitions when it assigned them, nor does Java's: the next growth shows it.
        """
        return self._is_static and self._generation == Generation.CLASSIC

    def reveal_growth(self) -> None:
        """Add a partition."""
        self._trace.line("topics", f"{self.topics.names[0]} grows to {self._add_partition(self.topics.names[0])} partitions")

    def grow(self) -> str:
        """Add a partition to a topic, or a topic that the pattern matches; returns what was done."""
        chance = self._chance
        names = self.topics.names
        if self.topics.pattern is not None and len(names) < 4 and chance.random() < 0.5:
            topic = f"t{len(names)}"
            names.append(topic)
            partitions = chance.randint(1, 3)
            try:
                self._world.create_topic(topic, partitions)
            except Unanswered as error:
                return f"{topic} may be created: {error}"
            return f"topic {topic} is created"
        topic = chance.choice(names)
        if self._partition_count(topic) == 0:
            return f"{topic} does not exist"
        if self._partition_count(topic) >= MOST_PARTITIONS:
            return f"{topic} is large enough"
        try:
            return f"{topic} grows to {self._add_partition(topic)} partitions"
        except Unanswered as error:
            return f"{topic} may grow: {error}"

    def _add_partition(self, topic: str) -> int:
        count = self._partition_count(topic) + 1
        self._world.grow(topic, count)
        return count

    def _partition_count(self, topic: str) -> int:
        return self._world.broker.partition_count(topic)

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name in self.topics.names for number in range(self._partition_count(name))]


def shared_settings(generation: Generation, kept_in: frozenset[Store], chance: random.Random) -> dict[str, Any]:
    """The settings that all members of a run have."""
    assignor = chance.choice(_ASSIGNORS[generation])
    settings: dict[str, Any] = {
        "group_id": GROUP,
        "group_protocol": generation,
        "max_poll_interval_ms": MAX_POLL_INTERVAL,
        "auto_commit_interval_ms": chance.choice((200, 1_000, 5_000)),
        "request_timeout_ms": 3_000,
        "default_api_timeout_ms": 10_000,
        "fetch_max_wait_ms": chance.choice((500, 2_000)),
        "metadata_max_age_ms": 5_000,
    }
    if generation == Generation.CLASSIC:
        settings.update(partition_assignment_strategy=[assignor], session_timeout_ms=6_000, heartbeat_interval_ms=2_000)
    elif generation == Generation.CENTRAL:
        settings.update(partition_assignment_strategy=[assignor], session_timeout_ms=6_000)
    elif generation == Generation.CONSUMER:
        settings.update(group_remote_assignor=assignor)
    else:
        settings.update(partition_assignment_strategy=[assignor], zookeeper_session_timeout_ms=6_000)
        if Store.KAFKA in kept_in:
            settings.update(offsets_storage="kafka", dual_commit_enabled=Store.ZOOKEEPER in kept_in)
    return settings


def stores(generation: Generation, chance: random.Random) -> frozenset[Store]:
    """Where the group keeps its offsets."""
    if generation == Generation.CENTRAL:
        return frozenset({Store.ZOOKEEPER})
    if generation != Generation.ZOOKEEPER:
        return frozenset({Store.KAFKA})
    kept: tuple[set[Store], ...] = ({Store.ZOOKEEPER}, {Store.ZOOKEEPER}, {Store.KAFKA}, {Store.ZOOKEEPER, Store.KAFKA})
    return frozenset(chance.choice(kept))


BROKER_SETTINGS: dict[str, Any] = {
    "group.consumer.heartbeat.interval.ms": 2_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.initial.rebalance.delay.ms": 500,
    "offsets.topic.num.partitions": 1,
}
"""Settings with which members are found dead as quickly in one generation as in the other."""
