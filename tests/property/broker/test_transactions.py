"""A whole broker under producers that start, write, end, fence each other and time out, and under kills (I21, I28).

Invariants: readers of committed records get exactly the committed records in order; committed offsets are
those of the last committed transaction; a fenced producer never writes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.protocol import ErrorCode
from tests.example_counts import examples
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.transactional import Producer, committed_offset, fetch, make_topic, read, state_of

NONE = ErrorCode.none
NUMBERS = st.integers(0, 3)
PARTITIONS = st.integers(0, 1)
TIMEOUT_MS = 10_000


class Model:
    """The content of a transactional id's open transaction."""

    def __init__(self) -> None:
        self.owner: Producer | None = None
        self.records: list[tuple[int, int]] = []
        self.offset: int | None = None
        self.began: int | None = None
        self.outcome: bool | None = None

    def forget(self, outcome: bool) -> None:
        """Forget the transaction, which was committed or aborted."""
        self.records, self.offset, self.began = [], None, None
        self.outcome = outcome


class Transactional(RuleBasedStateMachine):
    """Two transactional ids, each with two producers that fence each other."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.broker = CoreUnderTest(Path(self.folder.name))
        make_topic(self.broker, segment_bytes=str(1 << 20))
        self.producers = [Producer(self.broker, name, newest=newest, timeout_ms=TIMEOUT_MS) for name, newest in self._kinds()]
        self.models = {"a": Model(), "b": Model()}
        self.committed: dict[int, list[int]] = {0: [], 1: []}
        self.offsets: dict[str, int] = {}

    @staticmethod
    def _kinds() -> list[tuple[str, bool]]:
        return [("a", True), ("a", False), ("b", True), ("b", False)]

    def teardown(self) -> None:
        self.broker.kill()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        for number in (0, 3):
            self.init(number)

    def _model(self, producer: Producer) -> Model:
        return self.models[producer.transactional_id]

    def _began(self, model: Model) -> None:
        if model.began is None:
            model.began = self.broker.now.mono

    @rule(number=NUMBERS)
    def init(self, number: int) -> None:
        producer = self.producers[number]
        model = self._model(producer)
        was_open = model.began is not None
        first = producer.init()
        assert first is (ErrorCode.concurrent_transactions if was_open else NONE)
        if was_open:
            assert producer.init() is NONE
        model.forget(False)
        model.owner = producer

    @rule(number=NUMBERS, partition=PARTITIONS, count=st.integers(1, 3))
    def write(self, number: int, partition: int, count: int) -> None:
        producer = self.producers[number]
        model = self._model(producer)
        offset = self.broker.core.catalog.log("t", partition).end_offset
        added = NONE if producer.newest else producer.add("t", partition)
        if added is NONE and not producer.newest and model.owner is producer:
            self._began(model)
        written = producer.write(partition, count)
        assert (added is NONE and written is NONE) == (model.owner is producer), (added, written)
        if written is NONE:
            self._began(model)
            model.records += [(partition, offset + index) for index in range(count)]

    @rule(number=NUMBERS, offset=st.integers(0, 99))
    def commit_offset(self, number: int, offset: int) -> None:
        producer = self.producers[number]
        model = self._model(producer)
        group = f"group-{producer.transactional_id}"
        added = NONE if producer.newest else producer.add_offsets(group)
        if added is NONE and model.owner is producer and not producer.newest:
            self._began(model)
        said = producer.commit_offset(offset, group=group)
        assert (said is NONE) == (model.owner is producer), said
        if said is NONE:
            self._began(model)
            model.offset = offset

    @rule(number=NUMBERS, commit=st.booleans())
    def end(self, number: int, commit: bool) -> None:
        producer = self.producers[number]
        model = self._model(producer)
        was_open = model.began is not None
        said = producer.end(commit=commit)
        if model.owner is not producer:
            if said is NONE:
                self._asked_again(producer, commit)
            return
        if not was_open:
            return
        assert said is NONE
        if commit:
            for partition, offset in model.records:
                self.committed[partition] = sorted([*self.committed[partition], offset])
            if model.offset is not None:
                self.offsets[producer.transactional_id] = model.offset
        model.forget(commit)

    def _asked_again(self, producer: Producer, commit: bool) -> None:
        """A producer of version 2 repeats EndTxn for an ended transaction; the answer has its next producer id and epoch."""
        model = self._model(producer)
        assert (producer.newest, commit) == (True, model.outcome)
        if model.owner is None:  # its own transaction, which has timed out
            model.owner = producer
        else:
            # That of one of the first version which came after it: Kafka tells it that one's epoch, too, and there would be two.
            assert not model.owner.newest
            self.init(self.producers.index(producer))

    @rule(milliseconds=st.sampled_from([1, 4_000, TIMEOUT_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.broker.pass_time(milliseconds)
        for model in self.models.values():
            if model.began is not None and self.broker.now.mono >= model.began + TIMEOUT_MS:
                model.forget(False)
                model.owner = None

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.broker.close() if clean else self.broker.kill()
        self.broker = CoreUnderTest(Path(self.folder.name), self.broker.now)
        for producer in self.producers:
            producer.broker = self.broker

    @invariant()
    def readers_get_what_was_committed(self) -> None:
        for partition, offsets in self.committed.items():
            first_open = [offset for model in self.models.values() for one, offset in model.records if one == partition]
            stable = min([*first_open, self.broker.core.catalog.log("t", partition).end_offset])
            assert fetch(self.broker, partition).last_stable_offset == stable
            assert read(self.broker, partition) == [offset for offset in offsets if offset < stable]

    @invariant()
    def committed_offsets_are_those_of_committed_transactions(self) -> None:
        for name, model in self.models.items():
            group = f"group-{name}"
            assert committed_offset(self.broker, group=group) == self.offsets.get(name, -1)
            stable = committed_offset(self.broker, group=group, require_stable=True)
            assert (stable is ErrorCode.unstable_offset_commit) == (model.offset is not None)

    @invariant()
    def the_coordinator_knows_what_is_open(self) -> None:
        for name, model in self.models.items():
            assert (state_of(self.broker, name)[0] == "Ongoing") == (model.began is not None)


Transactional.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestTransactional = Transactional.TestCase
