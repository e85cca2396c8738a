"""``light_dataclass``: dataclasses of which many are made every millisecond.

Owns the decorator alone; imports nothing of the package. Invariant: to the type checker, which reads all of the code, such a class
is a frozen dataclass, and it has the equality and the hash of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as light_dataclass
else:
    from dataclasses import dataclass

    def light_dataclass(*, frozen, **options):
        """``dataclass(frozen=True, ...)`` without the guard at run time, which makes an instance cost three times as much."""
        assert frozen
        return dataclass(unsafe_hash=True, **options)


__all__ = ["light_dataclass"]
