"""The Arrow data of ``ottla produce --arrow``: a Parquet file, or an Arrow IPC file or stream.

Owns how the format is recognized, and the reading in parts. Must not know the columns of records. Invariants: only a part of the
data is in memory; data that cannot be read is an error that names the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from ottla.cli.output import CommandFailed
from ottla.cli.sending import Sending

STDIN = "-"
PARQUET, IPC_FILE, IPC_STREAM = b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff"
"""The first bytes of each format; the first two end with the same letters. In an IPC file, a stream comes after them."""
ROWS = 65_536
"""The rows of a Parquet file that are decoded at a time."""
BUFFER = 1 << 20
"""The bytes of a column of a Parquet file that are read at a time."""


class ArrowInput:
    """The rows of a file, or of stdin for ``-``, as an ``Input``.

    Raises ``CommandFailed`` without PyArrow, ``OSError`` if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.total: int | None = None
        self._name = "stdin" if path == STDIN else path
        self._rows = 0
        try:
            import pyarrow  # takes a fifth of a second
        except ModuleNotFoundError as error:
            raise CommandFailed('--arrow needs pyarrow: pip install "ottla[arrow]"') from error
        self._unreadable = (pyarrow.ArrowException, OSError)
        self._file = io.BufferedReader(io.FileIO(0, closefd=False) if path == STDIN else io.FileIO(path))

    def send_to(self, sending: Sending) -> None:
        """Send all rows. Raises ``CommandFailed`` if they cannot be read, or cannot be records."""
        parts = self._parts()
        while not sending.is_over:
            try:
                part = next(parts, None)
            except self._unreadable as error:
                raise CommandFailed(f"cannot read {self._name}: {_line(error)}") from error
            if part is None:
                return
            try:
                sending.send_rows(part, self._rows)
            except CommandFailed as failed:
                raise CommandFailed(f"{self._name}: {failed}") from failed
            self._rows += part.num_rows

    def place(self, sending: Sending) -> str:
        """The number of rows that were read."""
        return f"row {self._rows:,}"

    def _parts(self) -> Iterator[Any]:
        """Yield an empty table, whose columns can be refused, and then the rows."""
        start = self._file.peek(len(IPC_FILE))
        if start.startswith(PARQUET):
            yield from self._parquet()
        elif start.startswith((IPC_FILE, IPC_STREAM)):
            yield from self._ipc(is_file=start.startswith(IPC_FILE))
        else:
            found = f"begins with {start[: len(IPC_FILE)]!r}" if start else "is empty"
            raise CommandFailed(f"{self._name} is neither Parquet nor Arrow: it {found}")

    def _parquet(self) -> Iterator[Any]:
        import pyarrow.parquet

        if not self._file.seekable():
            raise CommandFailed(f"{self._name}: Parquet cannot be read from a pipe; name the file, or send an Arrow IPC stream")
        self._check_end(PARQUET)
        file = pyarrow.parquet.ParquetFile(self._file, pre_buffer=False, buffer_size=BUFFER)
        self.total = file.metadata.num_rows
        yield file.schema_arrow.empty_table()
        for group in range(file.num_row_groups):
            yield from file.iter_batches(ROWS, row_groups=[group])

    def _ipc(self, *, is_file: bool) -> Iterator[Any]:
        import pyarrow.ipc

        if is_file and self._file.seekable():
            self._check_end(IPC_FILE)
            file = pyarrow.ipc.open_file(self._file)
            yield file.schema.empty_table()
            yield from map(_valid, map(file.get_batch, range(file.num_record_batches)))
            return
        if is_file:
            self._file.read(len(IPC_FILE))
        stream = pyarrow.ipc.open_stream(self._file)
        yield stream.schema.empty_table()
        yield from map(_valid, stream)

    def _check_end(self, start: bytes) -> None:
        """Raise ``CommandFailed`` if the end of a file is missing, with which PyArrow begins."""
        end = start.rstrip(b"\0")
        self._file.seek(-len(end), io.SEEK_END)
        if self._file.read() != end:
            raise CommandFailed(f"{self._name} is truncated, or still being written: it does not end with {end!r}")
        self._file.seek(0)


def _valid(batch: Any) -> Any:
    """Return a batch of IPC data. Raises pyarrow's error for damaged data, whose offsets may point anywhere in memory: nothing else
    checks them."""
    batch.validate(full=True)
    return batch


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
