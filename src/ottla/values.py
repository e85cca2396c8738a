"""``light_dataclass``: dataclasses that are cheap to create.

Owns the decorator. Must not import anything of the package. Invariant: for the type checker, such a class is a frozen dataclass,
and it has the equality and the hash of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as light_dataclass
else:
    from dataclasses import dataclass

    def light_dataclass(*, frozen, **options):
        """``dataclass(frozen=True, ...)`` without the check at run time, which makes creating an instance three times as slow."""
        assert frozen
        return dataclass(unsafe_hash=True, **options)


__all__ = ["light_dataclass"]
