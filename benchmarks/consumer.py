"""Ottla's consumer, confluent-kafka and aiokafka, on Apache Kafka and on Ottla's broker.

Method: all clients read the same records in one process, in turn, each time with a new consumer and assigned partitions. The
figures are medians of the rounds after the first, a ratio is that of two medians. All clients check CRCs. Ottla has default
settings except ``max_poll_records``; confluent-kafka, whose defaults are slow here, the settings that its documentation recommends;
aiokafka its defaults except CRC and ``max_partition_fetch_bytes``, which make it faster.

    python benchmarks/consumer.py [--rows objects,iteration,...] [--brokers kafka,ottla] [--records 3000000] [--rounds 5]

Rows: ``objects``, ``iteration``, ``arrow``, ``codecs`` (lz4, zstd), ``sizes`` (1 kB, 10 kB), ``async``, ``cpu``, ``first``,
``latency``, ``assigned``. The exit code is 1 if a target is missed. Apache Kafka needs Java 17 and Maven (see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import _reading
import _topics
import _waiting
from _contest import Verdict, alternating, brokers
from _reading import Read, Reading, Settings

from ottla.records import COMPILED

PORTS = range(19_500, 19_590, 2)


@dataclass(frozen=True, eq=False)
class Case:
    """A way to read, and its settings."""

    name: str
    read: Read
    settings: Settings


TUNED = {
    "check.crcs": True,
    "enable.auto.commit": False,
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_048_576,
}
OBJECTS = Case("poll()", _reading.objects, {"max_poll_records": 5_000})
ITERATION = Case("for record in consumer", _reading.iteration, {"max_poll_records": 5_000})
ARROW = Case("to_arrow()", _reading.arrow, {"max_poll_records": 100_000})
FETCHING = Case("fetching alone", _reading.fetching, {})
BATCHES = Case("AsyncConsumer.poll()", _reading.batches, {"max_poll_records": 5_000})
CONSUME = Case("confluent consume(500)", _reading.consume, TUNED)
POLL = Case("confluent poll()", _reading.poll, TUNED)
GETMANY = Case("aiokafka getmany()", _reading.getmany, {"max_partition_fetch_bytes": 4 << 20})


class Bench:
    """The rows, against one broker."""

    def __init__(self, name: str, servers: str, options: argparse.Namespace) -> None:
        self.name = name
        self._servers = servers
        self._rounds: int = options.rounds
        self._records: int = options.records
        self._partitions: int = options.partitions
        self._seconds: float = options.seconds

    def objects(self) -> Iterator[Verdict]:
        """Access every key and value."""
        yield from self._rates([(OBJECTS, CONSUME, 2.0)])

    def iteration(self) -> Iterator[Verdict]:
        """One record after the other."""
        yield from self._rates([(ITERATION, POLL, 3.0)])

    def arrow(self) -> Iterator[Verdict]:
        """Read Arrow columns; compared with confluent-kafka, and with the fetches alone."""
        yield from self._rates([(ARROW, CONSUME, 5.0), (ARROW, FETCHING, 0.8)])

    def codecs(self) -> Iterator[Verdict]:
        """Compressed topics."""
        for codec in ("lz4", "zstd"):
            yield from self._rates([(OBJECTS, CONSUME, 1.0), (ITERATION, POLL, 1.0), (ARROW, CONSUME, 1.0)], codec=codec)

    def sizes(self) -> Iterator[Verdict]:
        """Longer values."""
        for size in (1_000, 10_000):
            yield from self._rates([(OBJECTS, CONSUME, 1.0), (ITERATION, POLL, 1.0), (ARROW, CONSUME, 1.0)], size=size)

    def asyncio(self) -> Iterator[Verdict]:
        """On an event loop."""
        yield from self._rates([(BATCHES, GETMANY, 4.0)])

    def cpu(self) -> Iterator[Verdict]:
        """Processor time per million records, of all threads of the process."""
        pairs = [(OBJECTS, CONSUME), (ITERATION, POLL), (ARROW, CONSUME)]
        readings = self._readings(dict.fromkeys(case for pair in pairs for case in pair), self._records, 100, "none")
        spent = {case: statistics.median(one.cpu / one.records * 1e6 for one in readings[case]) for pair in pairs for case in pair}
        for ours, theirs in pairs:
            yield Verdict(
                f"CPU s a million: {ours.name}",
                f"{spent[ours]:.2f} s",
                f"{theirs.name} {spent[theirs]:.2f} s",
                spent[ours] / spent[theirs],
                0.7,
                least=False,
            )

    def first(self) -> Iterator[Verdict]:
        """The time to a new group's first record."""
        topic = _topics.fill(self._servers, 1_000, 100, self._partitions)
        contenders = {"ours": _waiting.first_of_ottla, "theirs": _waiting.first_of_confluent}
        found = alternating({name: partial(measure, self._servers, topic) for name, measure in contenders.items()}, self._rounds)
        ours, theirs = (statistics.median(found[name]) for name in contenders)
        yield Verdict(
            "first record after subscribe()", f"{ours:.3f} s", f"confluent {theirs:.3f} s", ours / theirs, 0.7, least=False
        )

    def latency(self) -> Iterator[Verdict]:
        """The latency from produce to the handler, with 1,000 records per second."""
        yield from self._waits("latency", self._partitions, 1_000)

    def assigned(self) -> Iterator[Verdict]:
        """The same with 1,000 partitions, of which one has records."""
        yield from self._waits("1,000 partitions", 1_000, 200)

    def _waits(self, what: str, partitions: int, rate: int) -> Iterator[Verdict]:
        topic = f"bench-waits-{partitions}"
        _topics.create(self._servers, topic, partitions)
        contenders = {"ours": _waiting.follow_ottla, "theirs": _waiting.follow_confluent}
        found = alternating(
            {
                name: partial(_waiting.waits, follow, self._servers, topic, partitions, rate, self._seconds)
                for name, follow in contenders.items()
            },
            self._rounds,
        )
        for field, unit, scale in (("median", "ms", 1.0), ("p99", "ms", 1.0), ("cpu", "% of a core", 100 / self._seconds)):
            ours, theirs = (statistics.median(getattr(one, field) for one in found[name]) * scale for name in contenders)
            if field != "cpu" or partitions >= 1_000:
                yield Verdict(
                    f"{what}: {field}", f"{ours:.2f} {unit}", f"confluent {theirs:.2f} {unit}", ours / theirs, 1.0, least=False
                )

    def _rates(self, pairs: list[tuple[Case, Case, float]], size: int = 100, codec: str = "none") -> Iterator[Verdict]:
        cases = dict.fromkeys(case for pair in pairs for case in pair[:2])
        records = self._records if size == 100 else self._records * 300 // size
        readings = self._readings(cases, records, size, codec)
        rates = {case: statistics.median(one.records / one.seconds for one in readings[case]) / 1e6 for case in cases}
        what = "".join([f", {codec}"] * (codec != "none") + [f", {size} B"] * (size != 100))
        for ours, theirs, target in pairs:
            yield Verdict(
                ours.name + what,
                f"{rates[ours]:.2f} M/s",
                f"{theirs.name} {rates[theirs]:.2f} M/s",
                rates[ours] / rates[theirs],
                target,
            )

    def _readings(self, cases: Iterable[Case], records: int, size: int, codec: str) -> dict[Case, list[Reading]]:
        topic = _topics.fill(self._servers, records, size, self._partitions, codec)

        def read(case: Case) -> Reading:
            found = case.read(self._servers, topic, self._partitions, records, case.settings)
            assert (found.records, found.size) in ((records, records * (size + 8)), (records, -1)), (case.name, found)
            return found

        return alternating({case: partial(read, case) for case in cases}, self._rounds)


ROWS = {
    "objects": Bench.objects,
    "iteration": Bench.iteration,
    "arrow": Bench.arrow,
    "codecs": Bench.codecs,
    "sizes": Bench.sizes,
    "async": Bench.asyncio,
    "cpu": Bench.cpu,
    "first": Bench.first,
    "latency": Bench.latency,
    "assigned": Bench.assigned,
}


def main() -> int:
    """Print a table for each broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--brokers", default="kafka,ottla")
    parser.add_argument("--bootstrap-servers", help="use this broker instead")
    parser.add_argument("--records", type=int, default=3_000_000, help="of 100 bytes; of longer ones three times as many bytes")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of a round of latency")
    options = parser.parse_args()
    peers = ", ".join(f"{name} {version(name)}" for name in ("confluent-kafka", "aiokafka"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {peers}, compiled: {COMPILED}")
    missed = 0
    with closing(brokers(options.brokers.split(","), options.bootstrap_servers, PORTS)) as each:
        for name, servers in each:
            print(f"\n{name}; medians of {options.rounds}")
            bench = Bench(name, servers, options)
            for row in options.rows.split(","):
                for verdict in ROWS[row](bench):
                    print(verdict, flush=True)
                    missed += not verdict.reached
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
