"""``subscribePattern`` selects the topics that Spark's own connector selects."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from ottla import Admin, TopicPartition
from ottla.errors import ConfigError
from ottla.java_regex import compile_java_pattern
from tests.example_counts import examples
from tests.spark.conftest import Kafka, Load, connector_jars, numbered

NAMES = ["orders", "old-orders", "orders-eu", "ORDERS.v1", "a", "aa", "ab_1", "__x", "9-9.9", "kK", "bab-aba"]

PIECES = [
    "a", "b", "ab", "orders", "-", "_", ".", "9", "k", "K", "\u212a", "\u017f", "\\.", "\\-", "\\w", "\\d", "\\W", "\\b", "\\B",
    "\\A", "\\Z", "\\e", "\\G", "\\x61", "\\n", "^", "$", "|", "(", "(?:", "(?=", "(?!", "(?<!", "(?>", "(?i:",
    "(?-i:", ")", "[", "[^", "]", "a-z", "[ab]", "[^a]", "[\\w.]", "*", "+", "?", "*?", "++", "{2}", "{1,2}", "{0,}", "{", "}",
    ",", "&&", "#", " ", "(?i)",
]  # fmt: skip


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_accepted_pattern_finds_the_same_names_in_java(spark: SparkSession, pieces: list[str]) -> None:
    pattern = "".join(pieces)
    try:
        ours = compile_java_pattern(pattern)
    except ConfigError:
        return
    regex = spark.sparkContext._jvm.java.util.regex.Pattern
    try:
        theirs = regex.compile(pattern)
    except Py4JJavaError as error:
        pytest.fail(f"Java refuses {pattern!r}: {error.java_exception.getMessage()}")
    assert [name for name in NAMES if ours.search(name)] == [name for name in NAMES if theirs.matcher(name).find()]


@pytest.mark.skipif(not connector_jars(), reason="Spark's connector needs Maven")
def test_a_pattern_selects_the_topics_that_the_connector_selects(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    with Admin(bootstrap_servers=kafka.servers) as admin:
        admin.alter_group_offsets(f"{topic}-group", {TopicPartition(topic, 0): 0})  # so there is a topic of offsets
    for name in (topic, kafka.create(name=f"old-{topic}"), kafka.create(name=f"{topic}-eu")):
        kafka.produce(name, numbered(1))
    for pattern in (topic, f"^{topic}$|__consumer", f".*{topic}.*|__consumer_offsets"):
        found, expected = (
            {row.topic for row in load(source=source, subscribePattern=pattern).select("topic").distinct().collect()}
            for source in ("ottla", "kafka")
        )
        assert found == expected
        assert not found & {"__consumer_offsets", "__transaction_state"}
