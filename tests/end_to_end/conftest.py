"""One broker, started as a user starts it, for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.end_to_end.programs import broker, ottla

NUMBERS = count(1)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that all tests of the session share: use fresh names for topics and groups."""
    folder = tmp_path_factory.mktemp("served")
    with broker("--data-dir", str(folder), "--set", "group.initial.rebalance.delay.ms=0") as (_, address):
        yield address


@pytest.fixture
def topic(served: str) -> Callable[..., str]:
    """Makes topics with fresh names: ``topic(partitions)``."""

    def make(partitions: int = 1, *lines: str) -> str:
        name = f"topic-{next(NUMBERS)}"
        created = ottla("topic", "create", name, "-p", str(partitions), bootstrap_servers=served)
        assert created.returncode == 0, created.stderr
        if lines:
            produced = ottla("produce", "-t", name, "-K", ":", bootstrap_servers=served, stdin="\n".join(lines) + "\n")
            assert (produced.returncode, produced.stderr) == (0, "")
        return name

    return make
