from ottla.records.cdata import Block
from ottla.records.rows import Rows

COMPILED: bool

def header_column(rows: Rows, block: Block, array: int) -> None: ...
