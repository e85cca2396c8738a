"""Ottla's producer, confluent-kafka and aiokafka, on Apache Kafka and on Ottla's broker.

Method: all clients send the same records from one process, in turn, each time with a new producer: keys of 8 bytes, values of
100, 4 partitions, ``acks=all``, idempotent. A run ends with the last acknowledgement. The figures are medians of the rounds after
the first, a ratio is that of two medians, and processor time is that of all threads of the process. confluent-kafka and Ottla
have equivalent settings for throughput (see ``TUNED``); the rate of aiokafka hardly depends on its settings. ``send_arrow`` is
also compared with batches of 2,000 records that are made in advance and sent over one connection.

    python benchmarks/producer.py [--rows send,arrow,...] [--brokers kafka,ottla] [--records 1000000] [--rounds 5]

Rows: ``send`` and ``arrow`` (rate and processor time), ``async``, ``codecs`` (lz4, zstd), ``sizes`` (1 kB, 10 kB), ``latency``,
``transactions``, ``gone`` (a broker that is gone), ``import``. The exit code is 1 if a target is missed. Apache Kafka needs Java 17
and Maven (see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import _acknowledging
import _producing
import _topics
from _contest import Verdict, alternating, brokers
from _producing import Produce, Producing, Settings

from ottla.records import COMPILED

PORTS = range(19_700, 19_790, 2)

TUNED: Settings = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}
"""confluent-kafka's settings. Two of them are those of Ottla, too; its ``buffer.memory`` is the default, 32 MiB."""

OURS: Settings = {"linger": 0.05, "batch_size": 1_000_000}
AIOKAFKA: Settings = {"acks": "all", "enable_idempotence": True, "linger_ms": 5, "max_batch_size": 131_072}

BUFFER_MEMORY = 32 << 20


@dataclass(frozen=True, eq=False)
class Case:
    """A way to produce, and its settings. ``share``: of the records, for a client that is slow."""

    name: str
    produce: Produce
    settings: Settings
    share: int = 1


SEND = Case("send()", _producing.send, OURS)
ARROW = Case("send_arrow()", _producing.send_arrow, OURS)
ASYNC = Case("AsyncProducer.send()", _producing.send_async, OURS)
PRODUCE = Case("confluent produce()", _producing.confluent, TUNED)
GATHERED = Case("aiokafka send()", _producing.aiokafka, AIOKAFKA, 5)
TRANSACTIONS = Case("transaction()", _producing.transactions, {"linger": 0}, 100)
COMMITS = Case("confluent commit_transaction()", _producing.confluent_transactions, {"linger.ms": 0, "acks": "all"}, 100)
READY = Case("ready-made batches", _producing.ready_made, {})


class Bench:
    """The rows, against one broker."""

    def __init__(self, name: str, servers: str, options: argparse.Namespace) -> None:
        self.name = name
        self._servers = servers
        self._rounds: int = options.rounds
        self._records: int = options.records
        self._seconds: float = options.seconds

    def send(self) -> Iterator[Verdict]:
        """Record by record."""
        runs = self._runs([SEND, PRODUCE])
        yield _rate(SEND, PRODUCE, runs, 2.0)
        yield _cpu(SEND, PRODUCE, runs, 0.5)

    def arrow(self) -> Iterator[Verdict]:
        """Columns; on Apache Kafka the lower of two targets counts."""
        runs = self._runs([ARROW, PRODUCE, READY])
        if self.name == "Ottla":
            yield _rate(ARROW, PRODUCE, runs, 6.0)
        else:
            ready = 0.8 * _per_second(runs[READY]) / _per_second(runs[PRODUCE])
            yield _rate(ARROW, PRODUCE, runs, round(min(3.0, ready), 2))
        yield _rate(ARROW, READY, runs, None)
        yield _cpu(ARROW, PRODUCE, runs, 0.1)

    def asyncio(self) -> Iterator[Verdict]:
        """On an event loop."""
        yield _rate(ASYNC, GATHERED, self._runs([ASYNC, GATHERED]), 10.0)

    def codecs(self) -> Iterator[Verdict]:
        """Compressed batches."""
        for codec in ("lz4", "zstd"):
            runs = self._runs([SEND, ARROW, PRODUCE], codec=codec)
            for ours in (SEND, ARROW):
                yield _rate(ours, PRODUCE, runs, 1.0, f", {codec}")

    def sizes(self) -> Iterator[Verdict]:
        """Longer values."""
        for size in (1_000, 10_000):
            runs = self._runs([SEND, ARROW, PRODUCE], size=size)
            for ours in (SEND, ARROW):
                yield _rate(ours, PRODUCE, runs, 1.0, f", {size // 1_000} kB")

    def latency(self) -> Iterator[Verdict]:
        """From sending a record to its acknowledgement, with 1,000 records per second."""
        topic = self._topic()
        clients = {"ours": _acknowledging.ottla, "theirs": _acknowledging.confluent, "least": _acknowledging.two_threads}
        found = alternating(
            {
                name: partial(_acknowledging.waits, client, self._servers, topic, 1_000, self._seconds)
                for name, client in clients.items()
            },
            self._rounds,
        )
        for field in ("median", "p99"):
            ours, theirs, least = (statistics.median(getattr(one, field) for one in found[name]) for name in clients)
            what, at_best = f"two Python threads and a ready-made request: {field}", f"{least:.2f} ms"
            yield Verdict(what, at_best, f"confluent {theirs:.2f} ms", least / theirs, None, least=False)
            yield Verdict(
                f"acknowledged, 1,000 a second: {field}",
                f"{ours:.2f} ms",
                f"confluent {theirs:.2f} ms",
                ours / theirs,
                1.2,
                least=False,
            )

    def transactions(self) -> Iterator[Verdict]:
        """Transactions of 100 records each, one after the other."""
        runs = self._runs([TRANSACTIONS, COMMITS])
        ours, theirs = (_per_second(runs[case]) / _producing.TRANSACTION for case in (TRANSACTIONS, COMMITS))
        yield Verdict("transactions of 100 records", f"{ours:.0f} /s", f"confluent {theirs:.0f} /s", ours / theirs, 1.0)

    def gone(self) -> Iterator[Verdict]:
        """The memory of a producer whose broker is gone."""
        grown, records = max(_acknowledging.growth() for _ in range(self._rounds))
        limit = BUFFER_MEMORY + 20_000_000
        yield Verdict(
            f"a broker that is gone, {records} records",
            f"{grown / 1e6:.1f} MB",
            f"limit {limit / 1e6:.1f} MB",
            grown / limit,
            1.0,
            least=False,
        )

    def imports(self) -> Iterator[Verdict]:
        """The import of the package, which leaves out the producer until it is used."""
        found = [_acknowledging.imported() for _ in range(self._rounds)]
        took, modules = statistics.median(one[0] for one in found), max(one[1] for one in found)
        yield Verdict("import ottla: modules of the producer", f"{modules}", f"{took * 1000:.0f} ms", modules, 0, least=False)

    def _topic(self) -> str:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        _topics.create(self._servers, topic, 4)
        return topic

    def _runs(self, cases: list[Case], size: int = 100, codec: str = "none") -> dict[Case, list[Producing]]:
        topic = self._topic()
        records = self._records * 300 // size if size > 100 else self._records

        def produce(case: Case) -> Producing:
            codecs = {} if codec == "none" else {"compression.type" if case is PRODUCE else "compression_type": codec}
            return case.produce(self._servers, topic, _producing.whole(records // case.share), size, {**case.settings, **codecs})

        found = alternating({case: partial(produce, case) for case in cases}, self._rounds)
        _topics.delete(self._servers, topic)
        return found


def _per_second(runs: list[Producing]) -> float:
    return statistics.median(one.records / one.seconds for one in runs)


def _rate(ours: Case, theirs: Case, runs: dict[Case, list[Producing]], target: float | None, what: str = "") -> Verdict:
    mine, other = (_per_second(runs[case]) / 1e6 for case in (ours, theirs))
    return Verdict(f"{ours.name}{what}", f"{mine:.3f} M/s", f"{theirs.name} {other:.3f} M/s", mine / other, target)


def _cpu(ours: Case, theirs: Case, runs: dict[Case, list[Producing]], target: float) -> Verdict:
    mine, other = (statistics.median(one.cpu / one.records * 1e6 for one in runs[case]) for case in (ours, theirs))
    return Verdict(
        f"CPU s a million: {ours.name}", f"{mine:.3f} s", f"{theirs.name} {other:.3f} s", mine / other, target, least=False
    )


ROWS: dict[str, Callable[[Bench], Iterator[Verdict]]] = {
    "send": Bench.send,
    "arrow": Bench.arrow,
    "async": Bench.asyncio,
    "codecs": Bench.codecs,
    "sizes": Bench.sizes,
    "latency": Bench.latency,
    "transactions": Bench.transactions,
    "gone": Bench.gone,
    "import": Bench.imports,
}
ONCE = {"gone", "import"}
"""The rows that do not depend on the broker."""


def main() -> int:
    """Print a table for each broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--brokers", default="kafka,ottla")
    parser.add_argument("--bootstrap-servers", help="use this broker instead")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes; of longer ones three times as many bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of a round of latency")
    options = parser.parse_args()
    peers = ", ".join(f"{name} {version(name)}" for name in ("confluent-kafka", "aiokafka"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {peers}, compiled: {COMPILED}")
    for name, settings in (("Ottla", OURS), ("confluent-kafka", TUNED), ("aiokafka", AIOKAFKA)):
        print(f"{name}: {', '.join(f'{setting}={value}' for setting, value in settings.items())}")
    missed, done = 0, set[str]()
    with closing(brokers(options.brokers.split(","), options.bootstrap_servers, PORTS)) as each:
        for name, servers in each:
            print(f"\n{name}; medians of {options.rounds}; load of the machine {os.getloadavg()[0]:.1f}")
            bench = Bench(name, servers, options)
            for row in options.rows.split(","):
                if row not in done:
                    for verdict in ROWS[row](bench):
                        print(verdict, flush=True)
                        missed += not verdict.reached
                    done |= {row} & ONCE
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
