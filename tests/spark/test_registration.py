"""A new Spark session finds the format as soon as Ottla is installed, without imports or registration."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.interop.real_kafka import QUICK_JVM
from tests.spark.conftest import Kafka, numbered

SCRIPT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("ottla").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
print("rows", frame.count(), "imported", "ottla" in sys.modules)
spark.stop()
"""


@pytest.mark.slow
def test_a_fresh_process_finds_the_format_by_itself(kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(7))
    environment = {"PYSPARK_PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_SUBMIT_OPTS"] = QUICK_JVM
    command = [sys.executable, "-c", SCRIPT, kafka.servers, topic]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert "rows 7 imported False" in done.stdout, done.stdout + done.stderr


def test_the_module_that_spark_imports_is_light_and_never_raises() -> None:
    """Without ``pyspark`` there is no source, and no error."""
    without = "import sys; sys.modules['pyspark.sql.datasource'] = None; import pyspark_ottla"
    script = f"{without}; print(hasattr(pyspark_ottla, 'DefaultSource'))"
    broken = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert broken.stdout.strip() == "False", broken.stderr
    script = "import pyspark_ottla, sys; print(sorted({'pyarrow', 'ottla.consumer', 'kio'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert loaded.stdout.strip() == "[]", loaded.stdout + loaded.stderr
