"""Who should own which partition, computed from the nodes of ZooKeeper as 0.8's design says.

Owns the formulas of ``range`` and ``roundrobin``, written once more for the tests. Must not import the package, which is tested
against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

INTERNAL = ("__consumer_offsets", "__transaction_state")
Owners = dict[tuple[str, int], str]
"""Topic and partition -> the text of the consumer thread."""


def children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


def data(client: KazooClient, path: str) -> str | None:
    try:
        return str(client.get(path)[0].decode())
    except NoNodeError:
        return None


def actual_owners(client: KazooClient, group: str) -> Owners:
    found = {}
    for topic in children(client, f"/consumers/{group}/owners"):
        for number in children(client, f"/consumers/{group}/owners/{topic}"):
            owner = data(client, f"/consumers/{group}/owners/{topic}/{number}")
            if owner is not None:
                found[topic, int(number)] = owner
    return found


def expected_owners(client: KazooClient, group: str, strategy: str) -> Owners:
    """The owners after a rebalance of the members that are registered now."""
    threads: dict[str, set[str]] = {}
    for member_id in children(client, f"/consumers/{group}/ids"):
        registration = data(client, f"/consumers/{group}/ids/{member_id}")
        if registration is None:
            continue
        for topic, count in streams(json.loads(registration), children(client, "/brokers/topics")):
            threads.setdefault(topic, set()).update(f"{member_id}-{number}" for number in range(count))
    partitions = {}
    for topic in threads:
        assigned = data(client, f"/brokers/topics/{topic}")
        partitions[topic] = sorted(int(number) for number in json.loads(assigned)["partitions"]) if assigned else []
    return (by_range if strategy == "range" else in_turn)(threads, partitions)


def streams(registration: dict[str, object], topics: Iterable[str]) -> list[tuple[str, int]]:
    subscription = registration["subscription"]
    assert isinstance(subscription, dict)
    if registration["pattern"] == "static":
        return list(subscription.items())
    ((pattern, count),) = subscription.items()
    is_white = registration["pattern"] == "white_list"
    allowed = [topic for topic in topics if bool(re.fullmatch(pattern, topic)) is is_white and topic not in INTERNAL]
    return [(topic, count) for topic in allowed]


def by_range(threads: dict[str, set[str]], partitions: dict[str, list[int]]) -> Owners:
    owners = {}
    for topic, numbers in partitions.items():
        among = sorted(threads[topic])
        for place, thread in enumerate(among):
            size, more = len(numbers) // len(among), len(numbers) % len(among)
            first = size * place + min(place, more)
            for number in numbers[first : first + size + (1 if place < more else 0)]:
                owners[topic, number] = thread
    return owners


def in_turn(threads: dict[str, set[str]], partitions: dict[str, list[int]]) -> Owners:
    everyone = sorted(set().union(*threads.values()))
    owners, turn = {}, 0
    for topic, number in sorted(((of, each) for of, numbers in partitions.items() for each in numbers), key=hash_code):
        while everyone[turn % len(everyone)] not in threads[topic]:
            turn += 1
        owners[topic, number] = everyone[turn % len(everyone)]
        turn += 1
    return owners


def hash_code(partition: tuple[str, int]) -> int:
    """Java's hash code of ``topic-partition``."""
    code = 0
    for character in f"{partition[0]}-{partition[1]}":
        code = (code * 31 + ord(character)) & 0xFFFFFFFF
    return code - 2**32 if code & 2**31 else code
