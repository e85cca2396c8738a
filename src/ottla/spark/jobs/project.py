"""The files of a new project: a job, its test, and what they need.

Owns their texts. Must not know how a job is run or tested. Invariant: no file that exists is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ottla.errors import OttlaError

JOB = '''\
"""Prices the orders in the topic "orders": one record per order into "invoices", those without a price into "rejected"."""

import os

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming import DataStreamWriter

KAFKA = {"kafka.bootstrap.servers": os.environ.get("OTTLA_BOOTSTRAP_SERVERS", "localhost:9092")}
PRICES = {"coffee": 3, "tea": 2}


def queries(spark: SparkSession) -> dict[str, DataStreamWriter]:
    source = spark.readStream.format("ottla").options(**KAFKA, subscribe="orders", startingOffsets="earliest")
    orders = source.load().select("key", F.col("value").cast("string").alias("drink"))
    prices = F.create_map(*(F.lit(each) for pair in PRICES.items() for each in pair))
    priced = orders.withColumn("price", F.try_element_at(prices, F.col("drink")))
    invoice = F.to_json(F.struct("drink", "price"))
    invoices = priced.where("price IS NOT NULL").select("key", invoice.alias("value"))
    rejected = priced.where("price IS NULL").select("key", F.col("drink").alias("value"))
    return {
        "invoices": invoices.writeStream.format("ottla").options(**KAFKA, topic="invoices"),
        "rejected": rejected.writeStream.format("ottla").options(**KAFKA, topic="rejected"),
    }
'''

TEST = '''\
"""The job on records of a test, with a broker and a Spark session of the test run."""

import json


def test_orders_are_priced(run_queries):
    output = run_queries("job.py", {"orders": [("ada", "coffee"), ("bea", "water"), ("cy", "tea")]})
    assert sorted(json.loads(row.value)["price"] for row in output["invoices"]) == [2, 3]
    assert [row.value for row in output["rejected"]] == ["water"]


def test_a_later_run_reads_only_what_is_new(run_queries):
    run_queries("job.py", {"orders": ["coffee"]})
    output = run_queries("job.py", {"orders": ["tea", "tea"]})
    assert [json.loads(row.value)["drink"] for row in output["invoices"]] == ["tea", "tea"]
'''

PROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["ottla[cli,spark]"]

[project.optional-dependencies]
dev = ["ottla[broker]", "pytest>=8"]

[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["job"]
"""

README = """\
# {name}

A job of Spark: the function `queries` in [job.py](job.py) returns its streaming queries by name.

    pip install -e '.[dev]'
    pytest                            # needs Java 17 or newer, and nothing else
    ottla pipeline check job.py       # options, columns, and the plan on real records; writes nothing
    ottla pipeline run job.py         # until Ctrl-C
    ottla pipeline status job.py      # from another terminal

The address of the Kafka cluster is in `OTTLA_BOOTSTRAP_SERVERS`. The topics `orders`, `invoices` and `rejected` have to exist:
`ottla topic create orders`. The checkpoints are in `checkpoints/job`; without them the job begins again at the oldest order.
"""

IGNORED = "checkpoints/\n__pycache__/\n*.egg-info/\n"

FILES: Mapping[str, str] = {
    "job.py": JOB,
    "test_job.py": TEST,
    "pyproject.toml": PROJECT,
    "README.md": README,
    ".gitignore": IGNORED,
}


def write_project(folder: Path) -> list[Path]:
    """Write the files into ``folder``, which must be new or empty, and return their paths. Raises ``OttlaError``."""
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        hint = "use letters, digits, '.', '_' and '-', and a letter or digit at both ends"
        raise OttlaError(f"{name!r} cannot be the name of a Python project", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OttlaError(f"{folder} is not empty", hint="name a new directory")
        for file, text in FILES.items():
            (folder / file).write_text(text.replace("{name}", name))
    except OSError as error:
        raise OttlaError(f"cannot write {error.filename or folder}: {error.strerror}", cause=error) from error
    return [folder / file for file in FILES]
