"""Ottla: Kafka consumer groups for Python and Spark.

The public names and nothing else; they are loaded when they are first used, so that ``import ottla`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ottla.version import __version__

_HOMES = {
    "Broker": "ottla.embedded",
    "Consumer": "ottla.consumer",
    "AsyncConsumer": "ottla.async_consumer",
    "Producer": "ottla.producer",
    "AsyncProducer": "ottla.async_producer",
    "Admin": "ottla.admin",
    "Transaction": "ottla.transaction",
    "AsyncTransaction": "ottla.transaction",
    "Prepared": "ottla.client.produce.transactions.prepared",
    "Delivery": "ottla.records.producer_queues",
    "GroupMembershipOperation": "ottla.types",
    "Health": "ottla.client.health.verdicts",
    "ProducerHealth": "ottla.client.produce.health",
    "MetricName": "ottla.client.health.metrics",
    "Rebalance": "ottla.client.groups.rebalances",
    "Record": "ottla.records",
    "Records": "ottla.records",
    "Stream": "ottla.streams",
    "ConsumerGroupMetadata": "ottla.types",
    "IsolationLevel": "ottla.types",
    "Node": "ottla.types",
    "OAuthToken": "ottla.types",
    "OffsetAndMetadata": "ottla.types",
    "OffsetAndTimestamp": "ottla.types",
    "PartitionInfo": "ottla.types",
    "RecordMetadata": "ottla.types",
    "TimestampType": "ottla.types",
    "TopicPartition": "ottla.types",
    "OttlaConfigWarning": "ottla.config",
    "OttlaError": "ottla.errors",
    "transactions": "ottla.read_process_write",
    "ZooKeeperAdmin": "ottla.zookeeper_admin",
    "finish": "ottla.two_phase",
    "stop_on_signals": "ottla.signals",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from ottla.admin import Admin as Admin
    from ottla.async_consumer import AsyncConsumer as AsyncConsumer
    from ottla.async_producer import AsyncProducer as AsyncProducer
    from ottla.client.groups.rebalances import Rebalance as Rebalance
    from ottla.client.health.metrics import MetricName as MetricName
    from ottla.client.health.verdicts import Health as Health
    from ottla.client.produce.health import ProducerHealth as ProducerHealth
    from ottla.client.produce.transactions.prepared import Prepared as Prepared
    from ottla.config import OttlaConfigWarning as OttlaConfigWarning
    from ottla.consumer import Consumer as Consumer
    from ottla.embedded import Broker as Broker
    from ottla.errors import OttlaError as OttlaError
    from ottla.producer import Producer as Producer
    from ottla.read_process_write import transactions as transactions
    from ottla.records import Record as Record, Records as Records
    from ottla.records.producer_queues import Delivery as Delivery
    from ottla.signals import stop_on_signals as stop_on_signals
    from ottla.streams import Stream as Stream
    from ottla.transaction import AsyncTransaction as AsyncTransaction, Transaction as Transaction
    from ottla.two_phase import finish as finish
    from ottla.types import (
        ConsumerGroupMetadata as ConsumerGroupMetadata,
        GroupMembershipOperation as GroupMembershipOperation,
        IsolationLevel as IsolationLevel,
        Node as Node,
        OAuthToken as OAuthToken,
        OffsetAndMetadata as OffsetAndMetadata,
        OffsetAndTimestamp as OffsetAndTimestamp,
        PartitionInfo as PartitionInfo,
        RecordMetadata as RecordMetadata,
        TimestampType as TimestampType,
        TopicPartition as TopicPartition,
    )
    from ottla.zookeeper_admin import ZooKeeperAdmin as ZooKeeperAdmin
