"""The simulator: the CPU time of an hour in the life of a member, by group protocol.

Method: a group of ten members that polls an idle topic for twenty simulated minutes, after it has settled. Each figure is the
median of some rounds, since the speed of a shared machine varies. Heartbeats are 5 seconds apart (in ZooKeeper groups, pings of a
session of 15 s; in central groups, the coordinator's pings, with a session of 30 s). In the first row of a protocol a member does
nothing else: a poll waits for a minute, a fetch for five, and nothing is committed. In the second row fetches, polls and
auto-commits are 5 seconds apart as well. The figure is the CPU time of the whole simulation, members, broker, network and
ZooKeeper, divided by the hours of all members. The target is that of heartbeats.

    python benchmarks/simulator.py [--minutes 20] [--members 10] [--rounds 5]

The exit code is 1 if the target is missed. It needs no other program.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from typing import Any

from ottla.simulation.application import member
from ottla.simulation.outcome import Generation
from ottla.simulation.workload import BROKER_SETTINGS
from ottla.simulation.world import World

TARGET = 0.3
INTERVAL = 5_000
NEVER = 1 << 60
SETTINGS: dict[Generation, dict[str, Any]] = {
    Generation.ZOOKEEPER: {"zookeeper_session_timeout_ms": 3 * INTERVAL},
    Generation.CLASSIC: {"session_timeout_ms": 30_000, "heartbeat_interval_ms": INTERVAL},
    Generation.CONSUMER: {},
    Generation.CENTRAL: {"session_timeout_ms": 6 * INTERVAL},
}
COMMON = {"group_id": "g", "metadata_max_age_ms": 300_000, "max_poll_interval_ms": 300_000}
QUIET = {"enable_auto_commit": False, "fetch_max_wait_ms": 300_000, "request_timeout_ms": 330_000}
BUSY = {"auto_commit_interval_ms": INTERVAL, "fetch_max_wait_ms": INTERVAL}


def cpu_per_member_hour(
    generation: Generation, members: int, minutes: int, poll: int, settings: dict[str, Any]
) -> tuple[float, float]:
    """CPU seconds and requests to the broker, for each hour of each member."""
    times = {"group.consumer.heartbeat.interval.ms": INTERVAL, "group.consumer.session.timeout.ms": 45_000}
    world = World(1, in_zookeeper=generation == Generation.CENTRAL, **{**BROKER_SETTINGS, **times})
    world.create_topic("t", members)
    for number in range(members):
        app = world.app(f"m{number}", group_protocol=generation, **COMMON, **SETTINGS[generation], **settings)
        app.checked_passes = NEVER
        app.start(member(app, timeout=poll, work=0))
    world.run(30_000)
    if sum(len(app.calls.owned) for app in world.apps.values()) != members:
        raise SystemExit(f"the {generation} group has not settled")
    before, began = len(world.broker.seen), time.process_time()
    world.run(minutes * 60_000)
    hours = members * minutes / 60
    return (time.process_time() - began) / hours, (len(world.broker.seen) - before) / hours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    gc.disable()
    missed = False
    print(f"{options.members} members, {options.minutes} simulated minutes, an interval of {INTERVAL / 1000:g} s")
    print(f"{'CPU s per hour of a member':44}{'':>8}{'requests':>10}")
    for generation in Generation:
        for what, poll, settings in (("heartbeats", 60_000, QUIET), ("heartbeats, fetches, commits", INTERVAL, BUSY)):
            costs = []
            for _ in range(options.rounds):
                cost, requests = cpu_per_member_hour(generation, options.members, options.minutes, poll, settings)
                costs.append(cost)
                gc.collect()
            cost = statistics.median(costs)
            counts = settings is QUIET
            missed = missed or (counts and cost > TARGET)
            verdict = f"   (at most {TARGET:g}){'' if cost <= TARGET else '   MISSED'}" if counts else ""
            print(f"{f'{generation}: {what}':44}{cost:8.2f}{requests:10.0f}{verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
