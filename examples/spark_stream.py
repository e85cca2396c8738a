"""A stream into Parquet, each order once, and its progress in a consumer group that any lag tool shows."""

from __future__ import annotations

import os
import sys
import tempfile

from _cluster import cluster, produce_orders
from pyspark.sql import SparkSession

from ottla import Admin

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").appName("orders").config("spark.ui.enabled", "false").getOrCreate()


def run(bootstrap_servers: str, folder: str) -> int:
    """Write all that is there now; how many orders the folder holds then."""
    orders = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("groupId", "orders-to-lake")
        .load()
    )
    rows = orders.selectExpr("CAST(key AS STRING) AS table", "CAST(value AS STRING) AS drink", "timestamp", "partition", "offset")
    writer = (
        rows.writeStream.format("parquet").option("path", f"{folder}/orders").option("checkpointLocation", f"{folder}/checkpoint")
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{folder}/orders").count()


with cluster() as bootstrap_servers, tempfile.TemporaryDirectory() as folder:
    produce_orders(bootstrap_servers, "orders", 30)
    print("orders in the lake:", run(bootstrap_servers, folder))
    produce_orders(bootstrap_servers, "orders", 12)
    print("and a run later:", run(bootstrap_servers, folder))
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        for partition, position in sorted(admin.group_offsets("orders-to-lake").items()):
            print(f"orders-to-lake has finished {partition} up to offset {position.offset}")
    spark.stop()
