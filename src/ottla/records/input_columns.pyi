from ottla.records.arrow_types import ColumnType

COMPILED: bool

class Column:
    @property
    def kind(self) -> int: ...
    @property
    def children(self) -> list[Column]: ...
    def __init__(self, address: int, kind: ColumnType, shift: int) -> None: ...
