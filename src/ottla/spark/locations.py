"""Where checkpoints are: a path, or a URL of a file system that only Spark knows.

Owns the difference. Must not know what is there. Invariant: ``file:`` is a path, in each of its spellings.
"""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Hadoop also takes ``hdfs:/path``. A letter alone is a drive of Windows."""
_FILE = re.compile(r"file:(//(?=/))?(?=/)")


def is_url(location: str) -> bool:
    """Whether a location has a scheme, also ``file:``."""
    return _URL.match(location) is not None


def local_path(location: str) -> str | None:
    """Return the path on a local disk; ``None`` for another file system."""
    path = _FILE.sub("", location, count=1) if location.startswith("file:") else location
    return None if is_url(path) else path
