"""Any history of assign, seek and pause: records arrive in order, without gap or repetition, and only of active partitions.

Two worlds. In the first a consumer with ``assign()`` reads from our broker, seeks, pauses and reassigns, while
sessions are evicted and the broker restarts; a model knows the next offset. In the second a log of
transactions is cut into responses, and a reader of committed records must get exactly those.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import FetchedPartition, FetchedResponse
from ottla.client.subscription import Mode, PartitionView, Snapshot
from ottla.records import ControlType, NewRecord, encode_batch, encode_end_transaction
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.example_counts import examples
from tests.simulation.world import World
from tests.unit.client.managers import T0, config

PARTITIONS = 3
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
tps = st.sampled_from(ALL)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), tps, st.integers(1, 12)),
        st.tuples(st.just("poll"), st.just(ALL[0]), st.sampled_from([0, 50, 700])),
        st.tuples(st.just("poll"), st.just(ALL[0]), st.sampled_from([0, 50, 700])),
        st.tuples(st.just("seek"), tps, st.integers(0, 20)),
        st.tuples(st.just("pause"), tps, st.just(0)),
        st.tuples(st.just("resume"), tps, st.just(0)),
        st.tuples(st.just("assign"), tps, st.just(0)),
        st.tuples(st.just("evict"), st.just(ALL[0]), st.just(0)),
        st.tuples(st.just("restart"), st.just(ALL[0]), st.just(0)),
        st.tuples(st.just("pass"), st.just(ALL[0]), st.integers(1, 300)),
    ),
    max_size=30,
)


class Reading:
    """One consumer, and the next offset of each of its partitions."""

    def __init__(self, path: Path, limit: int, buffer: int) -> None:
        self.world = World(path)
        self.world.create_topic("t", PARTITIONS)
        self.limit = limit
        self.app = self.world.app("a", max_poll_records=limit, fetch_buffer_bytes=buffer, retry_backoff_ms=20)
        self.next = dict.fromkeys(ALL, 0)
        self.paused: set[TopicPartition] = set()
        self.world.call(self.app, self.app.calls.assign(ALL, self.world.now))

    def end(self, tp: TopicPartition) -> int:
        return self.world.produced.get(tp, 0)

    def play(self, what: str, tp: TopicPartition, number: int) -> None:
        world, calls = self.world, self.app.calls
        match what:
            case "produce":
                world.produce("t", tp.partition, number)
            case "poll":
                self.poll(number)
            case "seek" if tp in self.next:
                self.next[tp] = min(number, self.end(tp))
                world.call(self.app, calls.positions.seek({tp: OffsetAndMetadata(self.next[tp])}, world.now))
            case "pause" if tp in self.next:
                self.paused.add(tp)
                world.call(self.app, calls.positions.pause((tp,), world.now))
            case "resume" if tp in self.next:
                self.paused.discard(tp)
                world.call(self.app, calls.positions.resume((tp,), world.now))
            case "assign":
                wanted = set(self.next) ^ {tp} or {tp}
                self.next = {kept: self.next.get(kept, 0) for kept in wanted}
                self.paused &= wanted
                world.call(self.app, calls.assign(sorted(wanted), world.now))
            case "evict":
                world.broker.core.state.fetch_sessions.clear()
            case "restart":
                world.broker.kill()
                world.broker.start()
            case "pass":
                world.run(number)

    def poll(self, timeout: int) -> int:
        records = self.world.call(self.app, self.app.calls.poll(timeout, self.world.now))
        assert len(records) <= self.limit
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            assert tp in self.next
            assert tp not in self.paused
            assert record.offset == self.next[tp]
            assert record.value == b"%d" % record.offset
            self.next[tp] += 1
        for tp, offset in self.next.items():
            position = self.app.calls.collector.position(tp)
            assert position is None or position.offset == offset
        return len(records)

    def read_all(self) -> None:
        for tp in list(self.paused):
            self.play("resume", tp, 0)
        for _ in range(1_000):
            if all(offset == self.end(tp) for tp, offset in self.next.items()):
                return
            self.poll(1_000)
        raise AssertionError(f"stuck at {self.next}, the ends are {self.world.produced}")


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.integers(1, 15), st.sampled_from([300, 2_000, 1_000_000]))
def test_every_record_comes_once_and_in_order(history: list[tuple[str, TopicPartition, int]], limit: int, buffer: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        reading = Reading(Path(path), limit, buffer)
        for step in history:
            reading.play(*step)
        reading.read_all()
        reading.poll(100)
        reading.world.run(100)
        assert reading.app.assembly.fetches.memory.held == 0


class Log:
    """Batches of plain and transactional producers, and the records that a reader of committed records must get."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        """(first offset, last offset, bytes)"""
        self.end = 0
        self.open: dict[int, list[int]] = {}
        """Producer -> the offsets of its transaction."""
        self.aborted: list[tuple[int, int, int]] = []
        """(producer, first offset, offset of the marker)"""
        self.visible: set[int] = set()

    def write(self, producer: int, count: int) -> None:
        """Append a batch; ``producer`` 0 writes without transactions."""
        options: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "transactional": True} if producer else {}
        data = encode_batch([NewRecord(None, b"v") for _ in range(count)], base_offset=self.end, **options)
        offsets = list(range(self.end, self.end + count))
        if producer:
            self.open.setdefault(producer, []).extend(offsets)
        else:
            self.visible.update(offsets)
        self._append(bytes(data), count)

    def finish(self, producer: int, *, commit: bool) -> None:
        offsets = self.open.pop(producer, [])
        if commit:
            self.visible.update(offsets)
        elif offsets:
            self.aborted.append((producer, offsets[0], self.end))
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        self._append(bytes(encode_end_transaction(kind, producer_id=producer, producer_epoch=0, base_offset=self.end)), 1)

    def _append(self, data: bytes, count: int) -> None:
        self.batches.append((self.end, self.end + count - 1, data))
        self.end += count

    @property
    def stable(self) -> int:
        return min((offsets[0] for offsets in self.open.values()), default=self.end)

    def read(self, offset: int, most: int) -> FetchedPartition:
        """Whole batches below the last stable offset and their aborted transactions, like a broker's response."""
        wanted = [batch for batch in self.batches if batch[1] >= offset and batch[1] < self.stable][:most]
        last = wanted[-1][1] if wanted else offset
        aborted = tuple((producer, first) for producer, first, marker in self.aborted if first <= last and marker >= offset)
        return FetchedPartition(T0, 1, offset, b"".join(data for _, _, data in wanted), self.stable, aborted)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("abort"), st.integers(1, 3), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(100), deadline=None)
@given(actions, st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=8), st.integers(0, 10))
def test_read_committed_returns_exactly_the_committed_records(
    history: list[tuple[str, int, int]], cuts: list[tuple[int, int]], start: int
) -> None:
    log = Log()
    for what, producer, count in history:
        match what:
            case "write":
                log.write(producer, count)
            case "commit" | "abort":
                log.finish(producer, commit=what == "commit")
    start = min(start, log.stable)
    collector = FetchCollector(config(isolation_level="read_committed"), SharedState())
    view = PartitionView(1, OffsetAndMetadata(start), paused=False, fetchable=True, since=1)
    collector.on_snapshot(Snapshot(Mode.MANUAL, frozenset({"t"}), MappingProxyType({T0: view})))
    seen: list[int] = []
    position = start
    for number in range(200):
        batches, limit = cuts[number % len(cuts)]
        part = log.read(position, batches)
        if not part.data:
            break
        collector.on_fetched(FetchedResponse(number, 1, (part,), len(part.data)), Now(0, 0))
        while (delivery := collector.collect(limit)) is not None:
            seen += [record.offset for handed in delivery.parts for record in handed.records]
            delivery.whole = True
            collector.acknowledge()
        found = collector.position(T0)
        assert found is not None
        assert found.offset > position
        position = found.offset
    assert seen == sorted(offset for offset in log.visible if start <= offset < log.stable)
    assert position == log.stable
    assert collector.log_end(T0) in (None, log.stable)
