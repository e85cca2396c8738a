from collections.abc import Generator
from typing import Any

from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_delivery import ArrowDelivery, MemoryShort, MissingPartitions

COMPILED: bool

class RowEncoder:
    @property
    def delivery(self) -> ArrowDelivery: ...
    @property
    def rows_done(self) -> int: ...
    def __init__(self, accumulator: RecordAccumulator, data: Any, topic: str | None = None) -> None: ...
    def steps(self) -> Generator[MissingPartitions | MemoryShort]: ...
