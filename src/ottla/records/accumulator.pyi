from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from threading import Lock
from typing import Any, Protocol

from ottla.records.arrow_delivery import ArrowDelivery, WrittenRows
from ottla.records.producer_queues import Delivery, PartitionQueue, ProducerBatch, TopicQueues
from ottla.types import RecordMetadata

COMPILED: bool

class _Random(Protocol):
    def random(self) -> float: ...

class _Waits(Protocol):
    def result(self, delivery: Delivery, timeout: float | timedelta | None) -> RecordMetadata: ...
    def wait(self, delivery: Delivery) -> Generator[Any, None, RecordMetadata]: ...
    def rows(self, delivery: ArrowDelivery, timeout: float | timedelta | None) -> list[WrittenRows]: ...
    def wait_for_rows(self, delivery: ArrowDelivery) -> Generator[Any, None, list[WrittenRows]]: ...

class RecordAccumulator:
    accepts: bool
    waits: _Waits
    def __init__(
        self,
        *,
        batch_size: int,
        memory: int,
        max_record: int,
        lock: Lock,
        nanoseconds: Callable[[], int],
        mono: Callable[[], int],
        random: _Random,
        wake: Callable[[], object],
        settled: Callable[[ProducerBatch], object],
        unseen: Callable[[ProducerBatch], object],
        partitioner: Callable[[str, bytes | None, int], int] | None = None,
        ignores_keys: bool = False,
    ) -> None: ...
    @property
    def topics(self) -> dict[str, TopicQueues]: ...
    @property
    def incomplete(self) -> dict[ProducerBatch, None]: ...
    @property
    def used(self) -> int: ...
    @property
    def freed(self) -> int: ...
    @property
    def waiters(self) -> list[Callable[[], object]]: ...
    def append(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        headers: Any = (),
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery | None: ...
    def reserve(self, size: int) -> bool: ...
    def has_room(self, size: int) -> bool: ...
    def enqueue(self, batch: ProducerBatch) -> bool: ...
    def sticky_partition(self, queues: TopicQueues) -> int: ...
    def set_partitions(self, topic: str, count: int, available: Sequence[int] | None = None) -> None: ...
    def active(self) -> list[PartitionQueue]: ...
    def close(self, queue: PartitionQueue) -> None: ...
    def close_all(self) -> list[ProducerBatch]: ...
    def set_idle(self, queue: PartitionQueue) -> None: ...
    def put_back(self, queue: PartitionQueue, place: int, batches: Sequence[ProducerBatch]) -> None: ...
    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None: ...
    def release(self, batch: ProducerBatch) -> None: ...

class RecordSender:
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Any = (),
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery: ...
