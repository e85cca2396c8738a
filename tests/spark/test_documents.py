"""The programs for Spark in the documents run, in the session of these tests instead of one of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla import Broker
from tests.documents import is_for_spark, name_of, programs

SLOW = ("docs/spark.md", "docs/spark-recipes.md", "docs/spark-exactly-once.md")


@pytest.mark.parametrize(
    ("document", "number", "text"),
    [
        pytest.param(*each, id=f"{name_of(each[0])}-{each[1]}", marks=[pytest.mark.slow] if name_of(each[0]) in SLOW else [])
        for each in programs()
        if is_for_spark(each[2])
    ],
)
def test_a_program(
    document: Path, number: int, text: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        text = text.replace("localhost:9092", broker.bootstrap_servers)
        text = text.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')  # the JVM has another working directory
        exec(compile(text, f"{name_of(document)} ({number})", "exec"), {"__name__": "__main__"})
    assert SparkSession.getActiveSession() is spark
