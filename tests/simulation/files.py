"""Real files for simulated brokers, which can so be killed and restarted on them.

Owns the bytes of ranges of files. Must not know what is in a file.
"""

from __future__ import annotations

import os
from typing import Any

from ottla.runtime.data_dir import DataDir


def content(piece: Any) -> bytes:
    """The bytes of a piece of a frame or of a range of a log, be it in memory or in a file."""
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    return os.pread(piece.handle.fd, len(piece), piece.position)


class RealFiles(DataDir):
    """A data directory on a disk, for a simulated broker (``OpenStore``)."""

    def content(self, piece: Any) -> bytes:
        """The bytes of a piece of a response."""
        return content(piece)
