"""The single gate to the uncompiled source of modules that have been compiled.

Owns which modules may be compiled. Must not know what they do. Invariant: after ``prefer_source()`` all of them come from
their ``.py`` files, so that a test run is of one kind throughout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

MODULES = ("batch", "cdata", "columns", "encode", "header_columns", "reader", "record", "rows")
"""What ``setup.py`` compiles."""


class _SourceFinder(MetaPathFinder):
    """Finds these modules by their source, where the usual finder would take the compiled file beside it."""

    def __init__(self) -> None:
        self._sources = FileFinder(str(Path(__file__).parent), (SourceFileLoader, SOURCE_SUFFIXES))

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return self._sources.find_spec(fullname) if package == __package__ and name in MODULES else None


def prefer_source() -> None:
    """From here on import the modules of this room from their source."""
    sys.meta_path.insert(0, _SourceFinder())
