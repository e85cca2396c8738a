"""Ottla's assignors of consumer groups, and those of Apache Kafka's coordinator (its own classes, in a JVM), in one run.

Both compute the same assignments, in turn. Kafka's assignors get the owner of each partition, which its coordinator stores; the
time of Ottla's includes finding the owners. The figures are medians of all rounds after the first, so the JVM is warm.
``scattered``: members have partitions of many topics, as in an old group. ``mixed``: each member is subscribed to half of the
topics.

    python benchmarks/assignors.py [--members 10000] [--topics 100] [--partitions 1000] [--rounds 6]

Kafka's classes need Java 17 and Maven (see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from _cluster import TOOLS

from ottla.assignors import SERVER_ASSIGNORS, Assignment, GroupSpec, MemberSpec, TopicSpec

OURS_A_ROUND, THEIRS_A_ROUND = 3, 10


class Case(NamedTuple):
    """One row of the table. The targets are milliseconds, and a multiple of the JVM's median, for 10,000 members and 100,000
    partitions."""

    title: str
    assignor: str
    group: GroupSpec
    target_ms: float | None = None
    target_ratio: float | None = None


def cases(members: int, topics: int, partitions: int) -> Iterator[Case]:
    """Return the groups to assign."""
    dice = random.Random(1)
    known = {UUID(int=dice.getrandbits(63) << 64 | dice.getrandbits(63)): TopicSpec(f"t{n}", partitions) for n in range(topics)}
    every = MemberSpec(frozenset(known))
    group = {str(UUID(int=dice.getrandbits(128))): every for _ in range(members)}
    more = {**group, str(UUID(int=dice.getrandbits(128))): every}
    settled = SERVER_ASSIGNORS["uniform"](GroupSpec(group, {}, known))
    yield Case("uniform, from nothing", "uniform", GroupSpec(group, {}, known), 100, 3)
    yield Case("uniform, one more joins", "uniform", GroupSpec(more, settled, known), 30, 3)
    yield Case("uniform, one leaves", "uniform", GroupSpec(dict(list(group.items())[1:]), settled, known))
    yield Case("uniform, scattered, one more joins", "uniform", GroupSpec(more, scattered(group, known, dice), known))
    yield Case("range, from nothing", "range", GroupSpec(group, {}, known))
    halves = [frozenset(dice.sample(sorted(known), (topics + 1) // 2)) for _ in range(50)]
    mixed = {member: MemberSpec(dice.choice(halves)) for member in more}
    few = GroupSpec({member: mixed[member] for member in group}, {}, known)
    yield Case("uniform, mixed, from nothing", "uniform", few)
    yield Case("uniform, mixed, one more joins", "uniform", GroupSpec(mixed, SERVER_ASSIGNORS["uniform"](few), known))


def scattered(group: dict[str, MemberSpec], topics: dict[UUID, TopicSpec], dice: random.Random) -> dict[str, Assignment]:
    """Return a random assignment of the partitions to the members."""
    pool = [(topic_id, number) for topic_id, topic in topics.items() for number in range(topic.partitions)]
    dice.shuffle(pool)
    shares: dict[str, dict[UUID, list[int]]] = {member: {} for member in group}
    for place, member in enumerate(group):
        for topic_id, number in pool[place :: len(group)]:
            shares[member].setdefault(topic_id, []).append(number)
    return {member: {topic_id: tuple(sorted(some)) for topic_id, some in share.items()} for member, share in shares.items()}


def question(case: Case) -> str:
    """Return a case as a request line of ``tools/KafkaAssignors.java``."""
    texts = {topic_id: urlsafe_b64encode(topic_id.bytes).decode().rstrip("=") for topic_id in case.group.topics}
    members: list[dict[str, Any]] = []
    for member_id, member in case.group.members.items():
        had = case.group.assignments.get(member_id, {})
        one = {"id": member_id, "assignment": {texts[topic_id]: numbers for topic_id, numbers in had.items()}}
        members.append(one if case.group.homogeneous else {**one, "topics": [texts[topic_id] for topic_id in member.topics]})
    topics = {texts[topic_id]: topic.partitions for topic_id, topic in case.group.topics.items()}
    return json.dumps({"assignor": case.assignor, "topics": topics, "members": members, "rounds": THEIRS_A_ROUND})


@contextmanager
def java() -> Iterator[subprocess.Popen[str]]:
    """A process that computes assignments with Kafka's own classes."""
    command = [str(TOOLS / "kafka"), "run", str(TOOLS / "KafkaAssignors.java")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process


def theirs(process: subprocess.Popen[str], line: str) -> tuple[list[float], int]:
    """Return the milliseconds of each round, and the number of assigned partitions."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    given_out = sum(len(numbers) for target in answer["targets"].values() for numbers in target.values())
    return [nanos / 1e6 for nanos in answer["nanos"]], given_out


def ours(case: Case) -> tuple[list[float], int]:
    """Return the same for Ottla's assignor."""
    milliseconds, targets = [], {}
    for _ in range(OURS_A_ROUND):
        group = GroupSpec(case.group.members, case.group.assignments, case.group.topics)  # no cached results
        begin = time.perf_counter()
        targets = SERVER_ASSIGNORS[case.assignor](group)
        milliseconds.append((time.perf_counter() - begin) * 1000)
    return milliseconds, sum(len(numbers) for target in targets.values() for numbers in target.values())


def kept(case: Case, mine: list[float], kafkas: list[float]) -> bool:
    """Print one row. Return whether the targets are met."""
    median, kafka = statistics.median(mine), statistics.median(kafkas)
    late = median > (case.target_ms or median) or median / kafka > (case.target_ratio or median / kafka)
    target = f"  target {case.target_ms:.0f} ms, {case.target_ratio:.0f}x" if case.target_ms else ""
    print(
        f"{case.title:36} Ottla {median:6.1f} ({min(mine):.1f})  Kafka {kafka:6.1f} ({min(kafkas):.1f})  {median / kafka:.2f}x"
        f"{target}{'  MISSED' if late else ''}",
        flush=True,
    )
    return not late


def main() -> int:
    """Print the table. The exit code is 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Apache Kafka's classes on Java")
    print(f"{options.members} members, {options.topics} topics of {options.partitions} partitions; milliseconds, median (best)")
    broken = False
    with java() as process:
        for case in cases(options.members, options.topics, options.partitions):
            line = question(case)
            mine: list[float] = []
            kafkas: list[float] = []
            for number in range(options.rounds + 1):
                their_times, their_count = theirs(process, line)
                our_times, our_count = ours(case)
                assert their_count == our_count
                if number:  # the first round warms up
                    kafkas += their_times
                    mine += our_times
            broken |= not kept(case, mine, kafkas)
        assert process.stdin is not None
        process.stdin.close()
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
