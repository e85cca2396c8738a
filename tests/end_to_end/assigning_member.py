"""A member that runs the assignor of its group. As a program, it runs in a separate process and prints the calls of its listeners.

Owns the assignor and the member's settings. Must not know the expected assignment.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from ottla import Consumer, TopicPartition, stop_on_signals
from ottla.assignors import Cluster, ConsumerPartitionAssignor, MemberAssignment


class InTurn(ConsumerPartitionAssignor):
    """Assigns partitions in turn to the members, ordered by their names, which they send as user data.

    ``fails``: numbers of members for which the assignor fails, once each.
    """

    name = "in-turn"

    def __init__(self, member: str, *fails: int) -> None:
        self.member = member
        self.fails = list(fails)
        self.asked_in: set[int] = set()
        self.heard: list[MemberAssignment] = []

    def subscription_user_data(self, topics: frozenset[str]) -> bytes:
        return self.member.encode()

    def assign(self, cluster: Cluster, members: Any) -> Any:
        self.asked_in.add(threading.get_ident())
        if len(members) in self.fails:
            self.fails.remove(len(members))
            raise ArithmeticError(f"{self.member} cannot count")
        ids = sorted(members, key=lambda one: members[one].user_data)
        found = [TopicPartition(topic, number) for topic, count in sorted(cluster.partitions.items()) for number in range(count)]
        shares = {}
        for place, one in enumerate(ids):
            shares[one] = MemberAssignment(tuple(found[place :: len(ids)]), b"%d of %d" % (place, len(ids)))
        return shares

    def on_assignment(self, assignment: MemberAssignment, metadata: Any) -> None:
        self.heard.append(assignment)


def settings(servers: str, assignor: object) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "group_id": "g",
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
        "group_client_assignors": [assignor],
    }


def main(servers: str, name: str) -> None:
    """Read until a signal arrives."""

    def say(what: str) -> Callable[[Any, list[TopicPartition]], None]:
        return lambda consumer, partitions: print(json.dumps({what: [tp.partition for tp in partitions]}), flush=True)

    with Consumer(settings(servers, InTurn(name))) as consumer, stop_on_signals(consumer) as stop:
        consumer.subscribe(["orders"], on_assign=say("assigned"), on_revoke=say("gone"), on_lost=say("gone"))
        while not stop:
            consumer.poll(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
