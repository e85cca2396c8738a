"""Offsets in Kafka and in ZooKeeper: which of two committed offsets a look-up returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ottla.client.groups.membership import NO_MEMBER
from ottla.client.positions.stores.both import DualOffsetStore
from ottla.client.positions.stores.interface import FetchDone, FetchOutcome
from ottla.types import Now, OffsetAndMetadata
from tests.unit.client.managers import T0, T1, T2

Offsets = Mapping[Any, OffsetAndMetadata | None]
NOW = Now(0, 0)


class Lookup:
    """A store that is asked for offsets, and answers when the test says so."""

    def __init__(self) -> None:
        self._done: FetchDone | None = None

    def fetch(self, partitions: object, reader: object, done: FetchDone) -> None:
        self._done = done

    def answer(self, found: Offsets) -> None:
        assert self._done is not None
        self._done(FetchOutcome(found), NOW)


@pytest.mark.parametrize("kafka_first", [True, False])
def test_a_look_up_takes_the_larger_offset(kafka_first: bool) -> None:
    kafka, zookeeper = Lookup(), Lookup()
    outcomes: list[FetchOutcome] = []
    store = DualOffsetStore(kafka, zookeeper)  # type: ignore[arg-type]
    store.fetch(frozenset({T0, T1, T2}), NO_MEMBER, lambda outcome, now: outcomes.append(outcome))
    answers: list[tuple[Lookup, Offsets]] = [
        (kafka, {T0: OffsetAndMetadata(7, "by Kafka"), T1: OffsetAndMetadata(9), T2: None}),
        (zookeeper, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(12), T2: OffsetAndMetadata(3)}),
    ]
    for lookup, found in answers[:: 1 if kafka_first else -1]:
        assert outcomes == []
        lookup.answer(found)
    (outcome,) = outcomes
    assert outcome.error is None
    assert outcome.found == {T0: OffsetAndMetadata(7, "by Kafka"), T1: OffsetAndMetadata(12), T2: OffsetAndMetadata(3)}
