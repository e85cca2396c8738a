"""Imports the uncompiled source of modules that have been compiled.

Owns the list of modules to compile. Must not know their content. Invariant: after ``prefer_source()`` all of them are imported from
their ``.py`` files, so that no test run mixes both kinds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

MODULES = (
    "accumulator",
    "arrow_input",
    "batch",
    "cdata",
    "columns",
    "encode",
    "header_columns",
    "input_columns",
    "input_rows",
    "murmur2",
    "producer_queues",
    "reader",
    "record",
    "row_fingerprint",
    "rows",
)
"""The modules that ``setup.py`` compiles."""


class _SourceFinder(MetaPathFinder):
    """Finds the source of these modules, where the default finder prefers the compiled file in the same folder."""

    def __init__(self) -> None:
        self._sources = FileFinder(str(Path(__file__).parent), (SourceFileLoader, SOURCE_SUFFIXES))

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return self._sources.find_spec(fullname) if package == __package__ and name in MODULES else None


def prefer_source() -> None:
    """Import the modules of this package from their source from now on."""
    sys.meta_path.insert(0, _SourceFinder())
