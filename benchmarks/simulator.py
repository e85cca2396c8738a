"""The simulator: the CPU time of an hour in the life of a member, by group protocol.

Method: a group of ten members that polls an idle topic for twenty simulated minutes, after it has settled. Heartbeats are 5 seconds
apart (in a ZooKeeper group, pings of a session of 15 s), and so are fetches, polls and auto-commits. The figure is the CPU time of
the whole simulation, members, broker, network and ZooKeeper, divided by the hours of all members.

    python benchmarks/simulator.py [--minutes 20] [--members 10]

The exit code is 1 if the target is missed. It needs no other program.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import Any

from ottla.simulation.application import member
from ottla.simulation.workload import BROKER_SETTINGS, Generation
from ottla.simulation.world import World

TARGET = 0.3
INTERVAL = 5_000
NEVER = 1 << 60
SETTINGS: dict[Generation, dict[str, Any]] = {
    Generation.ZOOKEEPER: {"zookeeper_session_timeout_ms": 3 * INTERVAL},
    Generation.CLASSIC: {"session_timeout_ms": 30_000, "heartbeat_interval_ms": INTERVAL},
    Generation.CONSUMER: {},
}
COMMON = {
    "group_id": "g",
    "fetch_max_wait_ms": INTERVAL,
    "auto_commit_interval_ms": INTERVAL,
    "metadata_max_age_ms": 300_000,
    "max_poll_interval_ms": 300_000,
}


def cpu_per_member_hour(generation: Generation, members: int, minutes: int) -> tuple[float, float]:
    """CPU seconds and requests to the broker, for each hour of each member."""
    world = World(
        1, **{**BROKER_SETTINGS, "group.consumer.heartbeat.interval.ms": INTERVAL, "group.consumer.session.timeout.ms": 45_000}
    )
    world.create_topic("t", members)
    for number in range(members):
        app = world.app(f"m{number}", group_protocol=generation, **COMMON, **SETTINGS[generation])
        app.checked_passes = NEVER
        app.start(member(app, timeout=INTERVAL, work=0))
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
    options = parser.parse_args()
    gc.disable()
    missed = False
    print(f"{options.members} members, {options.minutes} simulated minutes, an interval of {INTERVAL / 1000:g} s")
    print(f"{'CPU s per hour of a member':28}{'':>8}{'requests':>10}")
    for generation in Generation:
        cost, requests = cpu_per_member_hour(generation, options.members, options.minutes)
        reached = cost <= TARGET
        missed = missed or not reached
        print(f"{generation:28}{cost:8.2f}{requests:10.0f}   (at most {TARGET:g}){'' if reached else '   MISSED'}", flush=True)
        gc.collect()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
