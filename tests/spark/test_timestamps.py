"""The options with timestamps select the records that Spark's own connector selects, with its precedence, or both refuse."""

from __future__ import annotations

import json
import time

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tests.spark.conftest import Kafka, Load, Message, connector_jars

pytestmark = pytest.mark.skipif(not connector_jars(), reason="Spark's connector needs Maven")

RECORDS = 5


@pytest.fixture(scope="module")
def base() -> int:
    """The time of the first record. (Not 1970: records that old are deleted.)"""
    return int(time.time() * 1000) - 3_600_000


@pytest.fixture(scope="module")
def topic(kafka: Kafka, base: int) -> str:
    """Two partitions with a record each second; those of partition 1 are half a second later."""
    name = kafka.create(2)
    of_both = [(partition, number) for partition in (0, 1) for number in range(RECORDS)]
    kafka.produce(name, [Message(b"x", None, partition, base + 1000 * number + 500 * partition) for partition, number in of_both])
    return name


def rows(load: Load, source: str, options: dict[str, str]) -> list[tuple[int, int]] | None:
    """Partitions and offsets of all records; nothing if the options are refused."""
    try:
        found = load(source=source, **options).select("partition", "offset").collect()
    except (PySparkException, Py4JJavaError):
        return None
    return sorted((row.partition, row.offset) for row in found)


ALWAYS = {
    "startingTimestamp=1001 endingTimestamp=2501": 3,
    "startingTimestamp=4200": None,
    "startingTimestamp=4200 startingOffsetsByTimestampStrategy=latest": 1,
    "startingOffsetsByTimestamp=1000,3000 startingOffsets=latest endingOffsetsByTimestamp=9000,4000 endingOffsets=latest": 5,
    "startingTimestamp=1000 startingOffsetsByTimestamp=3000,9000 endingTimestamp=3000 endingOffsetsByTimestamp=1000,1000": 4,
}
"""Options, and the number of records they select; ``None``: they are refused. Times are relative to the first record."""

SLOW = {
    "startingTimestamp=1000": 8,
    "startingTimestamp=9000 startingOffsetsByTimestampStrategy=LATEST": 0,
    "startingTimestamp=3000 endingTimestamp=1000": None,
    "startingTimestamp=1000 endingTimestamp=2000": 2,
    "endingTimestamp=9000": 10,
    "endingTimestamp=2500": 5,
    "startingOffsetsByTimestamp=1000,9000": None,
    "startingOffsetsByTimestamp=1000": None,
    "startingOffsetsByTimestamp=1000,3000,1000": None,
    "startingOffsetsByTimestamp=4000,9000 startingOffsetsByTimestampStrategy=latest": 1,
    "startingTimestamp=3000 startingOffsetsByTimestamp=1000,1000 startingOffsets=latest": 4,
    "startingTimestamp=4200 startingOffsetsByTimestamp=1000,1000 startingOffsetsByTimestampStrategy=error": None,
    "endingOffsetsByTimestamp=1000": None,
    "endingTimestamp=3000 endingOffsetsByTimestamp=1000,1000 endingOffsets=latest": 6,
    "startingTimestamp=3000 endingOffsetsByTimestamp=9000,4000": 3,
    "startingTimestamp=1000 startingOffsetsByTimestampStrategy=none": None,
    "startingTimestamp=-5": None,
    "startingTimestamp=soon": None,
    "startingTimestamp=": None,
}


@pytest.mark.parametrize(
    ("options", "count"),
    [*ALWAYS.items(), *(pytest.param(options, count, marks=pytest.mark.slow) for options, count in SLOW.items())],
)
def test_the_same_records_as_the_connector(load: Load, topic: str, base: int, options: str, count: int | None) -> None:
    named = {name: value_of(name, text, topic, base) for name, _, text in (each.partition("=") for each in options.split())}
    found = rows(load, "ottla", {"subscribe": topic, **named})
    assert found == rows(load, "kafka", {"subscribe": topic, **named})
    assert (found if found is None else len(found)) == count


def value_of(name: str, text: str, topic: str, base: int) -> str:
    """Return the value of an option: times are in milliseconds after the first record, those of partitions in their order."""
    if name.endswith("ByTimestamp"):
        times = [base + int(each) for each in text.split(",")]
        return json.dumps({topic: {str(number): time for number, time in enumerate(times)}})
    return str(base + int(text)) if text.isdecimal() else text
