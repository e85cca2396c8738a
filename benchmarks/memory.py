"""The memory of a consumer with default settings that reads a large backlog record by record.

Method: a topic is filled once. A separate process reads all of it with ``for record in consumer`` and reports its peak resident set
size (Linux: VmHWM), its size before the first fetch, and the time. Slow handlers (``--pause``, microseconds per record) make no
difference, because ``fetch_buffer_bytes`` limits the fetched records that are not consumed yet. Exits with 1 if it needs more than
150 MB.

    python benchmarks/memory.py [--gigabytes 2] [--size 1000] [--partitions 4] [--pause 0] [--buffer BYTES] [--by-poll]
                                [--bootstrap-servers HOST:PORT]

Without ``--bootstrap-servers`` it starts Apache Kafka (which needs Java 17 and Maven; see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _cluster import cluster
from _topics import fill

from ottla import Consumer, Record, TopicPartition

PORTS = range(19_700, 19_790, 2)
TARGET = 150_000_000
"""The maximum of resident memory in bytes."""


def resident(what: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}: this benchmark needs Linux")


def one_by_one(consumer: Consumer, by_poll: bool) -> Iterator[Record]:
    """Yield all records, from polls with one record each or by iteration over the consumer."""
    while by_poll:
        yield from consumer.poll(1)
    yield from consumer


def read(servers: str, topic: str, partitions: int, records: int, pause: float, settings: dict[str, Any]) -> None:
    """Read all records and print the figures. Runs in a separate process."""
    before, began, seen, size = resident("VmRSS"), time.perf_counter(), 0, 0
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign(TopicPartition(topic, number) for number in range(partitions))
        for record in one_by_one(consumer, settings.get("max_poll_records") == 1):
            seen += 1
            size += len(record.value)
            if pause:
                time.sleep(pause)
            if seen == records:
                break
    took = time.perf_counter() - began
    print(json.dumps({"before": before, "highest": resident("VmHWM"), "bytes": size, "seconds": took}))


def main() -> None:
    """Fill the topic, read it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0, help="microseconds to handle each record")
    parser.add_argument("--buffer", type=int, help="fetch_buffer_bytes (default: the consumer's)")
    parser.add_argument("--by-poll", action="store_true", help="use poll() with max_poll_records=1 instead of the for loop")
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    args = parser.parse_args()
    records = int(args.gigabytes * 1e9 / args.size)
    settings: dict[str, Any] = {} if args.buffer is None else {"fetch_buffer_bytes": args.buffer}
    if args.by_poll:
        settings["max_poll_records"] = 1
    if args.read:
        read(args.bootstrap_servers, args.read, args.partitions, records, args.pause / 1e6, settings)
        return
    with cluster(args.bootstrap_servers, PORTS) as servers:
        topic = fill(servers, records, args.size, args.partitions)
        command = [sys.executable, __file__, *sys.argv[1:], "--read", topic, "--bootstrap-servers", servers]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    megabytes = {name: found[name] / 1e6 for name in ("before", "highest", "bytes")}
    print(
        f"{megabytes['bytes']:,.0f} MB of values one record at a time in {found['seconds']:.1f} s:"
        f" {megabytes['highest']:.0f} MB resident at most, {megabytes['before']:.0f} MB before the first fetch"
    )
    if found["highest"] > TARGET:
        print(f"more than the target of {TARGET / 1e6:.0f} MB", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
