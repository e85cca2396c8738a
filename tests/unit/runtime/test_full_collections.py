"""Putting off full collections: as long as anyone wants it, and without a trace afterwards."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.runtime.broker_node import FULL_COLLECTIONS, BrokerNode, FullCollections

USUAL = (701, 11, 12)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    """Those of the other tests come back."""
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def test_they_come_back_when_the_last_has_resumed() -> None:
    collections = FullCollections()
    collections.put_off()
    collections.put_off()
    collections.resume()
    assert gc.get_threshold()[:2] == USUAL[:2]
    assert gc.get_threshold()[2] > 1_000_000
    collections.resume()
    assert gc.get_threshold() == USUAL


def test_what_the_application_has_set_meanwhile_stays() -> None:
    collections = FullCollections()
    collections.put_off()
    gc.set_threshold(5000, 20, 30)
    collections.resume()
    assert gc.get_threshold() == (5000, 20, 30)


def test_a_forked_child_has_its_own_again() -> None:
    FULL_COLLECTIONS.put_off()
    try:
        child = os.fork()
        if not child:
            os._exit(gc.get_threshold() != USUAL)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_threshold() != USUAL
    finally:
        FULL_COLLECTIONS.resume()


def test_a_broker_that_has_started_and_ended_leaves_them_as_they_were(tmp_path: Path) -> None:
    BrokerNode(tmp_path, "127.0.0.1", 0, {}).stop()
    assert gc.get_threshold() == USUAL
