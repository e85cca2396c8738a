"""How many examples a property test draws.

Owns the share of each number that the loaded profile draws; must not know any test. Invariant: in ``make test`` and ``make
test-random`` a test draws as many examples as it says, in ``make check`` a tenth, and always one at least.
"""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Hypothesis's own number, which the profiles of ``conftest.py`` keep, except ``check``."""


def examples(count: int) -> int:
    """The loaded profile's share of ``count``, for ``@settings(max_examples=...)`` or the seeds of a test that draws by itself."""
    return max(1, count * settings.default.max_examples // USUAL)
