from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ottla.records.compression import DEFAULT_MAX_BATCH_BYTES
from ottla.records.header import BatchHeader, Buffer
from ottla.records.partition_records import PartitionRecords
from ottla.types import IsolationLevel

COMPILED: bool

class PartitionReader:
    def __init__(
        self,
        data: Buffer,
        *,
        topic: str,
        partition: int,
        fetch_offset: int,
        isolation_level: IsolationLevel = ...,
        aborted: Iterable[tuple[int, int]] = (),
        check_crcs: bool = True,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        key_deserializer: Callable[[bytes | None], Any] | None = None,
        value_deserializer: Callable[[bytes | None], Any] | None = None,
        deserialize_nulls: bool = False,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def next_leader_epoch(self) -> int | None: ...
    @property
    def exhausted(self) -> bool: ...
    def read(self, max_records: int) -> PartitionRecords | None: ...

class StoredRecord(NamedTuple):
    header: BatchHeader
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

def iter_entries(
    data: Buffer, *, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> Iterator[tuple[BatchHeader, list[tuple[bytes | None, bytes | None]]]]: ...
def iter_records(data: Buffer, *, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES) -> Iterator[StoredRecord]: ...
