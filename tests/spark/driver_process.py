"""Spark sessions in processes of their own: on a cluster, or to be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from ottla.spark.jobs.session import use_installed_pyspark
from tests.interop.real_kafka import QUICK_JVM
from tests.spark.conftest import SETTINGS

HEAD = """
import json, os, pathlib, signal, sys
from pyspark.sql import SparkSession
servers, topic, master, home = sys.argv[1:]
builder = SparkSession.builder.remote(master) if os.environ["IS_CONNECT"] else SparkSession.builder.master(master)
builder = builder.config("spark.local.dir", home)
for name, value in json.loads(os.environ["SETTINGS"]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
if not os.environ["IS_CONNECT"]:
    spark.sparkContext.setLogLevel("OFF")

def load(name=topic):
    return spark.read.format("ottla").option("kafka.bootstrap.servers", servers).option("subscribe", name).load()

"""


def driver(
    home: Path,
    script: str,
    servers: str,
    topic: str,
    master: str = "local[2]",
    *,
    is_connect: bool = False,
    python: str | Path = sys.executable,
    settings: Mapping[str, str] = {},
) -> subprocess.Popen[str]:
    """Start a Python process with its own Spark session that runs ``script``.

    ``is_connect``: a server of Spark Connect with this master, started by the process. ``python`` is the interpreter of Spark's
    workers, and ``settings`` are added to those of the session.
    """
    file = home / "driver.py"
    file.write_text(HEAD + textwrap.dedent(script))
    environment = {**os.environ, "SETTINGS": json.dumps({**SETTINGS, **settings}), "IS_CONNECT": "yes" if is_connect else ""}
    environment |= {"DRIVER_HOME": str(home)}
    use_installed_pyspark(home, environment)  # each of these Pythons has PySpark
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_SUBMIT_OPTS": QUICK_JVM}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    command = [sys.executable, str(file), servers, topic, master, str(home)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str], timeout: float = 600.0) -> str:
    """Wait for the end of a driver, and return the last line of its output."""
    with process:
        try:
            out, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
    assert process.returncode == 0
    return out.splitlines()[-1]


SOURCE_AND_SINK = """
kafka = {"kafka.bootstrap.servers": servers}

def write():
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("ottla").options(**kafka, topic=f"{topic}-written").mode("append").save()

def copy(checkpoint):
    reader = spark.readStream.format("ottla").options(**kafka, subscribe=topic, groupId=f"{topic}-{checkpoint}")
    stream = reader.option("startingOffsets", "earliest").load()
    writer = stream.select("value").writeStream.format("ottla").options(**kafka, topic=f"{topic}-copy")
    writer = writer.option("checkpointLocation", f"{home}/{checkpoint}").trigger(availableNow=True)
    assert writer.start().awaitTermination(100)


count = load().count()
write()
copy("first")
"""
"""A script that reads the batch ``topic``, writes 100 records to ``{topic}-written``, and copies ``topic`` to ``{topic}-copy``."""
