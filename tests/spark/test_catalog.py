"""Topics as tables of Spark's catalog, by SQL and by ``spark.catalog``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.conftest import Kafka, numbered

pytestmark = pytest.mark.slow


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    yield "orders_of_kafka"
    spark.sql("DROP TABLE IF EXISTS orders_of_kafka")


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    name = kafka.create(2)
    kafka.produce(name, numbered(3) + numbered(2, 3, 1))
    return name


def values(spark: SparkSession, query: str) -> list[int]:
    return sorted(int(row.value) for row in spark.sql(query).collect())


def test_a_table_by_sql(spark: SparkSession, kafka: Kafka, topic: str, table: str) -> None:
    options = f"'kafka.bootstrap.servers' '{kafka.servers}', subscribe '{topic}', includeHeaders 'true'"
    properties = "'startingOffset' = 'a property, not an option', 'owner.team' = 'sales'"
    spark.sql(f"CREATE TABLE {table} USING ottla OPTIONS ({options}) COMMENT 'orders' TBLPROPERTIES ({properties})")
    assert values(spark, f"SELECT value FROM {table}") == [0, 1, 2, 3, 4]
    assert values(spark, f"SELECT value FROM {table} WHERE partition = 1") == [3, 4]
    assert spark.table(table).columns[-1] == "headers"
    query = spark.readStream.table(table).writeStream.format("memory").queryName("of_table").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert spark.table("of_table").count() == 0  # a stream begins at the end
    stream = spark.readStream.option("startingOffsets", "earliest").table(table)
    query = stream.writeStream.format("memory").queryName("of_table_whole").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert values(spark, "SELECT value FROM of_table_whole") == [0, 1, 2, 3, 4]


def test_a_table_with_columns_raises_with_advice(spark: SparkSession, kafka: Kafka, topic: str, table: str) -> None:
    options = f"'kafka.bootstrap.servers' '{kafka.servers}', 'subscribe' '{topic}'"
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING ottla OPTIONS ({options})")
    with pytest.raises(PySparkException, match="omit the columns in CREATE TABLE"):
        spark.table(table).collect()


def test_a_table_has_no_password(spark: SparkSession, kafka: Kafka, topic: str, table: str) -> None:
    """Spark copies the metadata of columns into files."""
    options = f"'kafka.bootstrap.servers' '{kafka.servers}', 'subscribe' '{topic}', 'kafka.sasl.mechanism' 'PLAIN'"
    login = "'kafka.security.protocol' 'SASL_PLAINTEXT', 'kafka.sasl.username' 'u', 'kafka.sasl.password' 'hidden'"
    with pytest.raises(PySparkException, match=r"cannot have the option kafka\.sasl\.password") as raised:
        spark.sql(f"CREATE TABLE {table} USING ottla OPTIONS ({options}, {login})")
    assert "hidden" not in str(raised.value)


def test_a_table_by_the_catalogs_api(spark: SparkSession, kafka: Kafka, topic: str, table: str) -> None:
    options: Any = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    frame = spark.catalog.createTable(table, source="ottla", description="orders", **options)
    assert frame.count() == 5
    assert values(spark, f"SELECT value FROM {table}") == [0, 1, 2, 3, 4]


def test_a_wrong_option_of_a_table_is_refused_when_it_is_created(spark: SparkSession, kafka: Kafka, table: str) -> None:
    options = f"'kafka.bootstrap.servers' '{kafka.servers}', 'subscribe' 't', 'startingOffset' 'earliest'"
    with pytest.raises(PySparkException, match=r"unknown option 'startingoffset' \(did you mean startingOffsets\?\)"):
        spark.sql(f"CREATE TABLE {table} USING ottla OPTIONS ({options})")


def test_writing_to_a_table_raises_with_advice(spark: SparkSession, kafka: Kafka, topic: str, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} USING ottla OPTIONS ('kafka.bootstrap.servers' '{kafka.servers}', subscribe '{topic}')")
    with pytest.raises(PySparkException, match="a table of the catalog cannot be written to"):
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
