"""The pytest fixtures: one broker per test session, a new topic per test. Run it with ``pytest examples/test_orders.py``."""

from __future__ import annotations

from _cluster import produce_orders

from ottla import Broker, Consumer


def drinks_of_table(consumer: Consumer[str, str], table: str, orders: int) -> list[str]:
    """A table's orders among the next ``orders`` records: the code under test."""
    drinks, seen = [], 0
    while seen < orders:
        for record in consumer.poll(timeout=5.0):
            seen += 1
            if record.key == table and record.value is not None:
                drinks.append(record.value)
    return drinks


def test_a_table_gets_what_it_ordered(kafka_broker: Broker, kafka_topic: str) -> None:
    produce_orders(kafka_broker.bootstrap_servers, kafka_topic, 10)
    with Consumer(
        bootstrap_servers=kafka_broker.bootstrap_servers,
        group_id=f"bar-{kafka_topic}",
        auto_offset_reset="earliest",
        key_deserializer=bytes.decode,
        value_deserializer=bytes.decode,
    ) as consumer:
        consumer.subscribe([kafka_topic])
        assert drinks_of_table(consumer, "table 3", 10) == ["coffee", "chocolate"]
