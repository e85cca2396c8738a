"""Spark Declarative Pipelines: ``format("ottla")`` works unchanged as a source of tables and as a sink of flows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.real_kafka import QUICK_JVM
from tests.spark.conftest import Kafka, numbered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a JVM of its own

TRANSFORMATIONS = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
kafka = {"kafka.bootstrap.servers": "SERVERS"}

@dp.table
def orders() -> DataFrame:
    return spark.readStream.format("ottla").options(**kafka, subscribe="TOPIC", startingOffsets="earliest").load()

@dp.materialized_view
def counted() -> DataFrame:
    return spark.read.format("ottla").options(**kafka, subscribe="TOPIC").load().groupBy("partition").count()

dp.create_sink(name="copy", format="ottla", options={**kafka, "topic": "TOPIC-copy"})

@dp.append_flow(target="copy")
def copied() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("CAST(2 * CAST(CAST(value AS STRING) AS INT) AS STRING) AS value")
"""

SPEC = """
name: orders
storage: file://HOME/storage
libraries:
  - glob:
      include: transformations.py
"""


def test_tables_and_a_sink(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create(2)
    copy = kafka.create(name=f"{topic}-copy")
    kafka.produce(topic, [*numbered(30), *numbered(20, 30, 1)])
    named = TRANSFORMATIONS.replace("SERVERS", kafka.servers).replace("TOPIC", topic)
    (tmp_path / "transformations.py").write_text(named)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.replace("HOME", str(tmp_path)))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"SPARK_SUBMIT_OPTS": QUICK_JVM}
    command = Path(sys.executable).with_name("spark-pipelines")
    done = subprocess.run([command, "run"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert kafka.ends(copy) == {(copy, 0): 50}
