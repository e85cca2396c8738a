from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ottla.records.header import BatchHeader, Compression, ControlType
from ottla.types import TimestampType

COMPILED: bool

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

class NewRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1

Row: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]

def put_varint(output: bytearray, number: int) -> None: ...
def put_sized(output: bytearray, data: bytes | None) -> None: ...
def encode_records(rows: Iterable[tuple[int, Row]], base_timestamp: int) -> bytearray: ...
def encode_batch(
    records: Sequence[Row],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = ...,
    timestamp_type: TimestampType = ...,
    log_append_time: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes: ...
def assemble(
    header: BatchHeader, records: bytes | bytearray | memoryview, level: int | None = None
) -> tuple[BatchHeader, bytes]: ...
def encode_compacted(
    header: BatchHeader, records: Sequence[tuple[int, NewRecord]], *, delete_horizon: int | None
) -> tuple[BatchHeader, bytes]: ...
def recompressed(header: BatchHeader, batch: bytes, codec: Compression, level: int | None = None) -> tuple[BatchHeader, bytes]: ...
def encode_end_transaction(
    marker: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    coordinator_epoch: int = 0,
    timestamp: int = -1,
) -> bytes: ...
