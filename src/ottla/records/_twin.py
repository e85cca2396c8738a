"""The single gate to the uncompiled source of modules that have been compiled.

Owns which modules may be compiled. Must not know what they do. Invariant: after ``prefer_source()`` all of them come from
their ``.py`` files, so that a test run is of one kind throughout.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

MODULES = ("batch", "cdata", "columns", "reader", "record")
"""What ``setup.py`` compiles."""


class _SourceFinder(importlib.machinery.FileFinder):
    """Finds these modules by their source, where the usual finder would take the compiled file beside it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != __package__ or name not in MODULES:
            return None
        return super().find_spec(fullname, target)


def prefer_source() -> None:
    """From here on import the modules of this room from their source."""
    loader = (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES)
    sys.meta_path.insert(0, _SourceFinder(str(Path(__file__).parent), loader))
