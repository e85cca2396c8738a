"""The time to create and delete ten thousand topics, and the longest wait of another client during it.

Method: the broker is a separate process. One connection sends CreateTopics requests of 500 topics with one partition each, one
after the other, then DeleteTopics requests of as many; a second process sends one request after the other to an existing topic
(Metadata, Produce and Fetch in turn), with a pause of 3 ms, and records its longest wait. The first request of each kind does not
count: the broker generates the code for its messages then. With ``--written`` each topic gets a record before it is deleted, so
that there are files to remove. Bare sockets on both sides; the figures are medians of the runs. In addition: all topics described
by one Metadata request, the memory of the broker, and its next start. Exits with 1 if creating or deleting takes more than 20 s, or
the other client waits longer than 100 ms.

    python benchmarks/topics.py [--topics 10000] [--runs 3] [--written]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from _wire import Api, Lane

from ottla.records import NewRecord, encode_batch

IN_ONE_REQUEST = 500
TARGET_SECONDS, TARGET_WAIT = 20, 100
PAUSE = 0.003
OTHER = "other"

BROKER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from ottla import Broker
with Broker(sys.argv[1]) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""

METADATA, PRODUCE, FETCH = Api("metadata", 12), Api("produce", 9), Api("fetch", 12)
CREATE, DELETE = Api("create_topics", 7), Api("delete_topics", 6)
_BATCH = encode_batch([NewRecord(b"key", b"value", timestamp=round(time.time() * 1000))])


@contextmanager
def broker(folder: str) -> Iterator[tuple[str, int, float]]:
    """Ottla's broker in a separate process with 1024 file descriptors: its address, process id and seconds to start."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", BROKER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        servers = process.stdout.readline().strip()
        yield servers, process.pid, time.perf_counter() - began
    finally:
        process.communicate()


def create(lane: Lane, names: list[str]) -> None:
    cls = CREATE.requests.CreatableTopic
    topics = tuple(cls(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()) for name in names)
    for result in lane.ask(CREATE, topics=topics, timeout=timedelta(seconds=60), validate_only=False).topics:
        assert result.error_code == 0, result


def delete(lane: Lane, names: list[str]) -> None:
    topics = tuple(DELETE.requests.DeleteTopicState(name=name, topic_id=None) for name in names)
    for result in lane.ask(DELETE, topics=topics, timeout=timedelta(seconds=60)).responses:
        assert result.error_code == 0, result


def describe(lane: Lane, names: list[str] | None) -> Any:
    topics = None if names is None else tuple(METADATA.requests.MetadataRequestTopic(topic_id=None, name=name) for name in names)
    return lane.ask(METADATA, topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def produce(lane: Lane, name: str) -> None:
    partitions = (PRODUCE.requests.PartitionProduceData(index=0, records=_BATCH),)
    topics = (PRODUCE.requests.TopicProduceData(name=name, partition_data=partitions),)
    (answer,) = lane.ask(PRODUCE, transactional_id=None, acks=-1, timeout=timedelta(seconds=30), topic_data=topics).responses
    assert answer.partition_responses[0].error_code == 0, answer


def fetch(lane: Lane, name: str) -> None:
    partition = FETCH.requests.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=1000
    )
    (answer,) = lane.ask(
        FETCH,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(FETCH.requests.FetchTopic(topic=name, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    ).responses
    assert answer.partitions[0].error_code == 0, answer


def wait(servers: str) -> None:
    """The other client, in a separate process: for each line on its standard input it prints its longest wait so far."""
    import threading

    lane, longest = Lane(servers), [0.0]

    def tell() -> None:
        for _ in sys.stdin:
            print(longest[0], flush=True)
            longest[0] = 0.0
        os._exit(0)

    asks = (lambda: describe(lane, [OTHER]), lambda: produce(lane, OTHER), lambda: fetch(lane, OTHER))
    for ask in asks:
        ask()
    threading.Thread(target=tell, daemon=True).start()
    print("ready", flush=True)
    while True:
        for ask in asks:
            began = time.perf_counter()
            ask()
            longest[0] = max(longest[0], time.perf_counter() - began)
            time.sleep(PAUSE)


class Other:
    """The process of the other client."""

    def __init__(self, servers: str) -> None:
        command = [sys.executable, __file__, "--wait", servers]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def longest(self) -> float:
        """Its longest wait since the last call, in milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline()) * 1000

    def close(self) -> None:
        self._process.communicate()


def measure(count: int, written: bool) -> dict[str, float]:
    """One run: seconds, and the other client's longest wait in milliseconds."""
    names = [f"topic-{number:06}" for number in range(count)]
    requests = [names[at : at + IN_ONE_REQUEST] for at in range(0, count, IN_ONE_REQUEST)]
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        with broker(folder) as (servers, pid, _):
            lane = Lane(servers)
            create(lane, [OTHER])
            produce(lane, OTHER)
            other = Other(servers)
            took: list[float] = []
            for request in requests:
                began = time.perf_counter()
                create(lane, request)
                took.append(time.perf_counter() - began)
            found |= {"create": sum(took), "create wait": other.longest()}
            quarter = max(1, len(took) // 4)
            found |= {"first quarter": sum(took[:quarter]), "last quarter": sum(took[-quarter:])}
            if written:
                for name in names:
                    produce(lane, name)
                other.longest()
            began = time.perf_counter()
            assert len(describe(lane, None).topics) == count + 1
            found |= {"describe all": time.perf_counter() - began, "describe wait": other.longest(), "memory": memory(pid)}
            other.close()
        with broker(folder) as (servers, _, start):
            found["start"] = start
            lane, other = Lane(servers), Other(servers)
            began = time.perf_counter()
            for request in requests:
                delete(lane, request)
            found |= {"delete": time.perf_counter() - began, "delete wait": other.longest()}
            assert [topic.name for topic in describe(lane, None).topics] == [OTHER]
            other.close()
    return found


def memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def main() -> int:
    """Print the table. The exit code is 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--written", action="store_true", help="a record in each topic before it is deleted")
    parser.add_argument("--wait", metavar="SERVERS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.wait:
        wait(options.wait)
    runs = [measure(options.topics, options.written) for _ in range(options.runs)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, median of {options.runs}")
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    of = f"{options.topics} topics{' with a record each' if options.written else ''}"
    broken = False
    for what in ("create", "delete"):
        broken |= median[what] > TARGET_SECONDS or median[f"{what} wait"] > TARGET_WAIT
        print(
            f"{what} {of}: {median[what]:.1f} s (target {TARGET_SECONDS}),"
            f" another client waits {median[f'{what} wait']:.0f} ms at most (target {TARGET_WAIT})"
        )
    print(f"of these the first quarter was made in {median['first quarter']:.2f} s, the last in {median['last quarter']:.2f} s")
    print(f"all described: {median['describe all'] * 1000:.0f} ms, another client waits {median['describe wait']:.0f} ms at most")
    print(
        f"the broker with them: {median['memory']:.0f} MiB, {median['start']:.1f} s from the start of its process until it serves"
    )
    print(json.dumps(runs))
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
