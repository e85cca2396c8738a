"""A topic as a DataFrame: what was ordered how often, without a JAR."""

from __future__ import annotations

import os
import sys

from _cluster import cluster, produce_orders
from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").appName("orders").config("spark.ui.enabled", "false").getOrCreate()

with cluster() as bootstrap_servers:
    produce_orders(bootstrap_servers, "orders", 30)
    orders = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap_servers).option("subscribe", "orders").load()
    for row in orders.groupBy(orders.value.cast("string").alias("drink")).count().orderBy("drink").collect():
        print(f"{row.drink}: {row['count']}")
    spark.stop()
