"""Ottla: Kafka consumer groups for Python and Spark.

The public names and nothing else; they are loaded when they are first used, so that ``import ottla`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Broker": "ottla.embedded",
    "Consumer": "ottla.consumer",
    "Admin": "ottla.admin",
    "Record": "ottla.records",
    "Records": "ottla.records",
    "ConsumerGroupMetadata": "ottla.types",
    "IsolationLevel": "ottla.types",
    "Node": "ottla.types",
    "OffsetAndMetadata": "ottla.types",
    "OffsetAndTimestamp": "ottla.types",
    "PartitionInfo": "ottla.types",
    "TimestampType": "ottla.types",
    "TopicPartition": "ottla.types",
    "OttlaError": "ottla.errors",
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
    from ottla.errors import OttlaError as OttlaError
    from ottla.types import (
        ConsumerGroupMetadata as ConsumerGroupMetadata,
    )
    from ottla.types import (
        IsolationLevel as IsolationLevel,
    )
    from ottla.types import (
        Node as Node,
    )
    from ottla.types import (
        OffsetAndMetadata as OffsetAndMetadata,
    )
    from ottla.types import (
        OffsetAndTimestamp as OffsetAndTimestamp,
    )
    from ottla.types import (
        PartitionInfo as PartitionInfo,
    )
    from ottla.types import (
        TimestampType as TimestampType,
    )
    from ottla.types import (
        TopicPartition as TopicPartition,
    )
