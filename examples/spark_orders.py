"""A stream into Parquet, each order once, with its progress in a consumer group; then the topic as a batch."""

from __future__ import annotations

import os
import sys
import tempfile

from _cluster import cluster, produce_orders
from pyspark.sql import SparkSession

from ottla import Admin

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def fill(lake: str, options: dict[str, str]) -> int:
    """Write what has arrived since the last time; return the number of orders in the lake."""
    orders = spark.readStream.format("ottla").options(**options, groupId="orders-to-lake").load()
    rows = orders.selectExpr("CAST(key AS STRING) AS table", "CAST(value AS STRING) AS drink", "timestamp")
    writer = rows.writeStream.format("parquet").option("path", f"{lake}/orders").option("checkpointLocation", f"{lake}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{lake}/orders").count()


with cluster() as bootstrap_servers, tempfile.TemporaryDirectory() as lake:
    source = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": "orders", "startingOffsets": "earliest"}
    produce_orders(bootstrap_servers, "orders", 30)
    print("orders in the lake:", fill(lake, source))
    produce_orders(bootstrap_servers, "orders", 12)
    print("and a run later:", fill(lake, source))
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        for partition, position in sorted(admin.group_offsets("orders-to-lake").items()):
            print(f"done with {partition} up to offset {position.offset}")
    batch = spark.read.format("ottla").options(**source).load()
    for row in batch.groupBy(batch.value.cast("string").alias("drink")).count().orderBy("drink").collect():
        print(f"{row['drink']}: {row['count']}")
    spark.stop()
