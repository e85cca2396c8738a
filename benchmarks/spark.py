"""Spark reads a topic of Apache Kafka with ``format("ottla")`` and with Spark's own JVM connector, in one session.

Method: both read the same records, from ``load()`` to all columns in Spark's ``noop`` sink, alternating, after three warm-ups each.
The figures are medians of the runs. Both sources have default settings, and share the session, whose settings are printed. Both
check CRCs.

    python benchmarks/spark.py [--records 3000000] [--size 100] [--partitions 4] [--runs 5] [--bootstrap-servers HOST:PORT]

Without ``--bootstrap-servers`` it starts Apache Kafka (which needs Java 17 and Maven; see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time

import confluent_kafka
from _cluster import cluster, tool
from confluent_kafka import admin
from pyspark.sql import SparkSession

WARM_UPS = 3
PORTS = range(19_600, 19_690, 2)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": "1048576",
}


def fill(servers: str, topic: str, records: int, size: int, partitions: int) -> None:
    """Produce ``records`` values of ``size`` bytes with keys of 8 bytes, evenly over the partitions."""
    control = admin.AdminClient({"bootstrap.servers": servers})
    for created in control.create_topics([admin.NewTopic(topic, partitions, 1)]).values():
        created.result(20)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 200_000, "queue.buffering.max.messages": 1_000_000}
    )
    value = random.Random(1).randbytes(size)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, key=number.to_bytes(8, "big"), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def session(cores: int) -> SparkSession:
    """Create a session with both sources."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{cores}]").appName("ottla benchmark").config("spark.jars", tool("spark-jvm-connector"))
    )
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, source: str, servers: str, topic: str) -> float:
    """Return the seconds of one batch read of all columns into ``noop``."""
    begun = time.perf_counter()
    frame = spark.read.format(source).option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bootstrap-servers")
    given = parser.parse_args()
    sources = {"ottla": "ottla", "Spark's JVM connector": "kafka"}
    with cluster(given.bootstrap_servers, PORTS) as servers:
        topic = f"benchmark-spark-{os.getpid()}"
        print(f"{given.records:,} records of {given.size} B in {given.partitions} partitions of a real Kafka, local[{given.cores}]")
        print("session:", ", ".join(f"{name}={value}" for name, value in SETTINGS.items()))
        fill(servers, topic, given.records, given.size, given.partitions)
        spark = session(given.cores)
        for source in sources.values():
            for _ in range(WARM_UPS):
                read(spark, source, servers, topic)
            assert (
                spark.read.format(source).options(subscribe=topic, **{"kafka.bootstrap.servers": servers}).load().count()
                == given.records
            )
        rates: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(given.runs):
            for name, source in sources.items():
                rates[name].append(given.records / read(spark, source, servers, topic))
        spark.stop()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        print(f"{name:24} {medians[name] / 1e6:6.2f} M rows/s   (runs: {', '.join(f'{rate / 1e6:.2f}' for rate in found)})")
    print(f"{'ratio':24} {medians['ottla'] / medians[next(reversed(sources))]:6.2f}")


if __name__ == "__main__":
    main()
