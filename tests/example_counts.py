"""The number of examples of a property test.

Owns the fraction that the loaded profile generates; must not know any test. Invariant: in ``make test-slow`` and in
``make test-random`` a test has its full number of examples, in ``make test`` 30 %, in ``make check`` a tenth, but at least one.
"""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Hypothesis's own number, which the profiles of ``conftest.py`` keep, except ``test`` and ``check``."""


def examples(count: int) -> int:
    """Return the loaded profile's part of ``count``, for ``@settings(max_examples=...)`` or the seeds of a test."""
    return max(1, count * settings.default.max_examples // USUAL)
