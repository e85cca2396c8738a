"""Record batches and ``Record``: reads and writes Kafka's format version 2. This is the hot path of the package.

Owns the conversion between the bytes of batches and the application's objects. Must not know connections, groups or logs.
Invariant: bytes from outside are bounds-checked before use, and invalid ones raise ``CorruptRecordError``.

Cython compiles the modules that ``_twin`` lists if there is a C compiler; otherwise the same files run uncompiled, slowly.
``COMPILED`` tells which. Uncompiled modules cause a ``RuntimeWarning``, unless the environment has ``OTTLA_RECORDS=python``.
"""

from __future__ import annotations

import os
import warnings

if os.environ.get("OTTLA_RECORDS") == "python":
    from ottla.records import _twin

    _twin.prefer_source()

from ottla.records.batch import (
    COMPILED,
    control_marker,
    find_timestamp,
    verify_batch,
)
from ottla.records.compression import DEFAULT_MAX_BATCH_BYTES
from ottla.records.encode import NewRecord, encode_batch, encode_compacted, encode_end_transaction, recompressed
from ottla.records.fetched import Records
from ottla.records.header import (
    HEADER_SIZE,
    BatchHeader,
    Compression,
    ControlType,
    InvalidBatchError,
    first_offset,
    iter_headers,
    last_header,
    read_header,
)
from ottla.records.partition_records import PartitionRecords
from ottla.records.reader import PartitionReader, StoredRecord, iter_entries, iter_records
from ottla.records.record import Record, Walk

__all__ = [
    "COMPILED",
    "DEFAULT_MAX_BATCH_BYTES",
    "HEADER_SIZE",
    "BatchHeader",
    "Compression",
    "ControlType",
    "InvalidBatchError",
    "NewRecord",
    "PartitionReader",
    "PartitionRecords",
    "Record",
    "Records",
    "StoredRecord",
    "Walk",
    "control_marker",
    "encode_batch",
    "encode_compacted",
    "encode_end_transaction",
    "find_timestamp",
    "first_offset",
    "iter_entries",
    "iter_headers",
    "iter_records",
    "last_header",
    "read_header",
    "recompressed",
    "verify_batch",
]

if not COMPILED and os.environ.get("OTTLA_RECORDS") != "python":
    warnings.warn(
        "Ottla runs uncompiled and reads records some 20 times slower: it was installed without a C compiler. Install one with "
        "Python's headers (Debian: apt-get install gcc python3-dev), then: pip install --force-reinstall --no-deps --no-cache-dir "
        "ottla. OTTLA_RECORDS=python in the environment accepts the slow version and silences this warning.",
        RuntimeWarning,
        stacklevel=2,
    )
