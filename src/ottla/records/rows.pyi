from collections.abc import Iterable, Iterator

from ottla.records.partition_records import PartitionRecords, Segment
from ottla.records.record import Origin

COMPILED: bool

class Rows:
    def __init__(self, segments: list[Segment]) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def origins(self) -> list[tuple[Origin, int]]: ...

def pieces(parts: Iterable[PartitionRecords], max_rows: int, max_bytes: int) -> Iterator[Rows]: ...
