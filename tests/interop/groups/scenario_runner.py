"""Runs a scenario: starts its processes, takes its steps, waits after each until the group works again, collects the results.

Owns the order of the steps and the waiting. Must not know the rules (``invariants``) nor how a process is started
(``scenario_processes``). Invariant: a step is over when the running members share all partitions and have committed all records
that were acknowledged when the last of them had started; a group that does not reach this in time is a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from ottla.protocol.group_records import OffsetCommitKey, OffsetCommitValue, decode_record
from tests.end_to_end.programs import ottla
from tests.interop.groups.invariants import Commit, MemberReport, gave_up, shared_badly, twice, violations
from tests.interop.groups.member_program import Settings
from tests.interop.groups.scenario_processes import BrokerProcess, JavaWriter, MemberProcess, Writer
from tests.interop.groups.scenarios import Join, Kill, KillAndReturn, Leave, RestartBroker, Return, Scenario, Step
from tests.interop.other_clients import create_topic

HEARTBEAT = 400
"""Milliseconds."""
SESSIONS = (3_000, 15_000)
"""Milliseconds of a session at least, so that the death of a member is noticed while someone watches, and at most."""
STARTED = 120.0
"""Seconds after which a process that has said nothing never will."""
SETTLED = 60.0
"""Seconds after which a group whose members have all started, and that has not settled, never will."""
RATE = 200
"""Records a second that are written meanwhile."""
WRITERS: Mapping[str, Callable[..., Writer | JavaWriter]] = {"confluent": Writer, "java": JavaWriter}


def session_for_now(shortest: int = SESSIONS[0]) -> int:
    """The session on this machine as busy as it is, in milliseconds: ten times what a small process takes to start and end.

    A broker that comes back gives its members one session to come back too. On two cores with fifty busy processes they need more
    than three seconds for that, and VerifiableConsumer ends where its session has run out.
    """
    began = time.monotonic()
    assert ottla("--version").returncode == 0
    return min(max(shortest, int(10_000 * (time.monotonic() - began))), SESSIONS[1])


def settings(session: int) -> Mapping[str, object]:
    """The broker's settings."""
    return {
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": session,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.heartbeat.interval.ms": HEARTBEAT,
    }


@dataclass
class Figures:
    """What a run has shown, for the documents."""

    seconds: float = 0.0
    slowest_step: tuple[float, str] = (0.0, "")
    records: int = 0
    commits: int = 0
    refused: int = 0
    twice: int = 0
    ended: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "time": f"{self.seconds:.0f} s",
            "slowest step": "{:.1f} s, {}".format(*self.slowest_step),
            "records": self.records,
            "consumed again": self.twice,
            "commits": self.commits,
            "refused": self.refused,
            "ended": self.ended,
        }


@dataclass
class Seat:
    """A place in the group: one client and instance over several lives."""

    client: str
    instance: str | None
    lives: list[MemberProcess] = field(default_factory=list)


class ScenarioRunner:
    """One scenario on one broker. ``broker`` is given where the scenario may restart it."""

    def __init__(self, scenario: Scenario, servers: str, folder: Path, session: int, broker: BrokerProcess | None = None) -> None:
        self._scenario, self._servers, self._folder, self._broker = scenario, servers, folder, broker
        self._session = session
        self._topic, self._group = f"{scenario.name}-topic", f"{scenario.name}-group"
        self._seats: list[Seat] = []
        self._away = 0.0
        self.figures = Figures()

    def play(self) -> list[str]:
        """Play the scenario and judge it: what did not hold, in words."""
        began = time.monotonic()
        create_topic(self._servers, self._topic, self._scenario.partitions)
        self._writer = WRITERS[self._scenario.writer](self._servers, self._topic, self._scenario.partitions, self._folder, RATE)
        try:
            for step in self._scenario.steps:
                self._take(step)
            self._writer.close()
            self._settle("the end")
            found = self._judge()
        finally:
            self._clear()
        self.figures.seconds = time.monotonic() - began
        return found

    def _take(self, step: Step) -> None:
        match step:
            case Join(clients, static):
                for client in clients:
                    number = len(self._seats)
                    self._seats.append(Seat(client, f"instance-{number}" if static else None))
                    self._enter(number)
            case Leave(number):
                member = self._seats[number].lives[-1]
                member.ask_to_end()
                code = member.wait(30)
                assert any(event["name"] == "shutdown_complete" for event in member.events), f"{member.name} ended with {code}"
            case Kill(number):
                self._seats[number].lives[-1].kill()
            case Return(number):
                self._enter(number)
            case KillAndReturn(number):
                self._seats[number].lives[-1].kill()
                self._enter(number)
            case RestartBroker(kill):
                assert self._broker is not None, "this broker is not ours to restart"
                began = time.monotonic()
                self._broker.restart(kill=kill)
                self._away = 1000 * (time.monotonic() - began)
        self._settle(str(step))
        self._away = 0.0

    def _enter(self, number: int) -> None:
        seat = self._seats[number]
        name = f"{seat.client}-{number}-{len(seat.lives)}"
        client, _, protocol = seat.client.partition("@")
        settings = Settings(
            self._servers,
            self._topic,
            self._group,
            name,
            seat.instance,
            protocol or self._scenario.protocol,
            self._session,
            HEARTBEAT,
            self._scenario.assignor,
        )
        seat.lives.append(MemberProcess(client, settings, self._folder))

    def _settle(self, what: str) -> None:
        """Wait until the members share all partitions and have read and committed all that is acknowledged now."""
        self._wait_for_starts(what)
        began = time.monotonic()
        aims = {number: max(found, default=-1) + 1 for number, found in self._writer.acknowledged().items()}
        while True:
            live = self._live()
            lacking = shared_badly(live, self._scenario.partitions) if live else []
            if live and not lacking:
                lacking = self._behind(aims)
            if not lacking:
                break
            passed = time.monotonic() - began
            assert passed < SETTLED, f"{what}: not within {SETTLED} s\n" + "\n".join([*lacking, self._last_words()])
            self._look_for_deaths(what)
            time.sleep(0.05)
        self.figures.slowest_step = max(self.figures.slowest_step, (time.monotonic() - began, what.split("(")[0]))

    def _wait_for_starts(self, what: str) -> None:
        """Wait until each member that lives has started. A JVM's start is not the group's time; eight of them take long."""
        end = time.monotonic() + STARTED
        while late := [life.name for seat in self._seats if (life := seat.lives[-1]).running and not life.events]:
            assert time.monotonic() < end, f"{what}: {late} did not start within {STARTED} s\n{self._last_words()}"
            self._look_for_deaths(what)
            time.sleep(0.05)

    def _look_for_deaths(self, what: str) -> None:
        """Members that have ended although no one asked them to are a failure, but for what ``gave_up`` says."""
        dead = [number for number, seat in enumerate(self._seats) if self._died(seat.lives[-1])]
        for number in tuple(dead):
            member = self._seats[number].lives[-1]
            if gave_up(member.client, member.errors.read_text(), self._away, self._session):
                self.figures.ended += 1
                self._enter(number)
                dead.remove(number)
        assert not dead, f"{what}: {[self._seats[one].lives[-1].name for one in dead]} ended by themselves\n{self._last_words()}"

    def _behind(self, aims: Mapping[int, int]) -> list[str]:
        """The partitions that no one has committed far enough yet."""
        reached: dict[int, int] = {}
        for life in self._lives():
            for partition, offset, _, _ in life.committed:
                reached[partition] = max(reached.get(partition, 0), offset)
        return [
            f"partition {partition}: committed {reached.get(partition, 0)} of {aim}"
            for partition, aim in aims.items()
            if reached.get(partition, 0) < aim
        ]

    def _died(self, member: MemberProcess) -> bool:
        """Whether a member has ended although no one asked it to."""
        return not member.running and not member.ended

    def _live(self) -> list[MemberReport]:
        return [seat.lives[-1].report() for seat in self._seats if seat.lives[-1].running]

    def _lives(self) -> list[MemberReport]:
        return [life.report() for seat in self._seats for life in seat.lives]

    def _last_words(self) -> str:
        lines = []
        for seat in self._seats:
            member = seat.lives[-1]
            lines += [f"{member.name} (running: {member.running}) owns {sorted(member.report().owned)}"]
            lines += [f"    {event}"[:200] for event in member.events[-4:]]
            lines += [f"    {line}"[:200] for line in member.errors.read_text().splitlines()[-12:]]
        return "\n".join(lines)

    def _judge(self) -> list[str]:
        lives, live = self._lives(), self._live()
        acknowledged = self._writer.acknowledged()
        commits = accepted_commits(self._servers, self._group, self._topic)
        ends = log_ends(self._servers, self._topic, self._scenario.partitions)
        self.figures.records = sum(len(found) for found in acknowledged.values())
        self.figures.commits = sum(len(one.committed) for one in lives)
        self.figures.refused = sum(one.refused for one in lives)
        self.figures.twice = twice(lives)
        found = violations(commits, lives, live, acknowledged, ends, self._answered())
        found += [f"not written: {one}" for one in self._writer.failed]
        found += self._misdescribed(len(live))
        if self._broker is not None and self._broker.complaints():
            found.append(f"the broker complained: {self._broker.complaints()[-2000:]}")
        return found

    def _misdescribed(self, live: int) -> list[str]:
        """What is wrong in the admin client's description of the group. It may lag by a heartbeat behind the owners."""
        admin = AdminClient({"bootstrap.servers": self._servers})  # an answer comes only while it is there
        end = time.monotonic() + SETTLED
        while True:
            group = admin.describe_consumer_groups([self._group])[self._group].result(60)
            if (group.state.name, len(group.members)) == ("STABLE", live):
                return []
            if time.monotonic() >= end:
                return [f"described as {group.state.name} with {len(group.members)} members, {live} live"]
            time.sleep(0.05)

    def _answered(self) -> dict[int, int]:
        """The committed offsets, as the coordinator answers them."""
        admin = AdminClient({"bootstrap.servers": self._servers})
        asked = confluent_kafka.ConsumerGroupTopicPartitions(self._group)
        answer = admin.list_consumer_group_offsets([asked])[self._group].result(60)
        return {one.partition: one.offset for one in answer.topic_partitions if one.topic == self._topic}

    def _clear(self) -> None:
        for seat in self._seats:
            for life in seat.lives:
                life.kill()
        if isinstance(self._writer, JavaWriter):
            self._writer.kill()


def everything(servers: str, topic: str, isolation: str) -> list[confluent_kafka.Message]:
    """All records of a topic, in the order of each partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False, "isolation.level": isolation}
    )
    try:
        partitions = consumer.list_topics(topic, 20).topics[topic].partitions
        tops = {number: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), 20) for number in partitions}
        consumer.assign([confluent_kafka.TopicPartition(topic, number, low) for number, (low, high) in tops.items() if high > low])
        left = {number for number, (low, high) in tops.items() if high > low}
        found: list[confluent_kafka.Message] = []
        end = time.monotonic() + 60
        while left and time.monotonic() < end:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                found.append(message)
                if message.offset() + 1 >= tops[message.partition()][1]:
                    left.discard(message.partition())
        assert not left, f"{topic}: partitions {left} could not be read to their ends"
        return found
    finally:
        consumer.close()


def accepted_commits(servers: str, group: str, topic: str) -> list[Commit]:
    """The commits of a group in the order in which its coordinator took them: as they stand in ``__consumer_offsets``."""
    found = []
    for message in everything(servers, "__consumer_offsets", "read_uncommitted"):
        key, value = decode_record(message.key(), message.value())
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue) and (key.group, key.topic) == (group, topic):
            note = value.metadata.rstrip("\0")  # confluent-kafka sends the end of its C string as well
            found.append(Commit(key.partition, value.offset, note, value.commit_timestamp))
    return found


def log_ends(servers: str, topic: str, partitions: int) -> dict[int, int]:
    """Where each partition ends."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    try:
        return {
            number: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), 20)[1]
            for number in range(partitions)
        }
    finally:
        consumer.close()
