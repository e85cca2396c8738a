"""What the tests of the source's structure share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _freeze_parsed_sources() -> Iterator[None]:
    """Exclude the parsed sources, a million objects, from later garbage collections, which took half a second each."""
    yield
    gc.collect()
    gc.freeze()
