"""Streams in any order of events: records come in order, none is lost or handed out twice, and none is committed unfinished."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings, strategies as st

from ottla.types import Now
from tests.example_counts import examples
from tests.unit.client.consumer_with_streams import PARTITIONS, STREAMS, ConsumerWithStreams

partitions = st.integers(0, len(PARTITIONS) - 1)
serve = st.tuples(st.just("serve"), partitions, st.integers(1, 6))
take = st.tuples(st.just("take"), st.integers(0, STREAMS - 1), st.integers(1, 4))
events = st.lists(
    st.one_of(
        *[serve] * 4,
        *[take] * 4,
        st.tuples(st.just("arrive"), partitions, st.integers(1, 6)),
        st.tuples(st.just("poll"), st.just(0), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, STREAMS - 1), st.just(0)),
        st.tuples(st.just("seek"), partitions, st.just(0)),
        st.tuples(st.just("replace"), partitions, st.just(0)),
        st.tuples(st.just("revoke"), partitions, st.just(0)),
        st.tuples(st.just("keep"), partitions, st.just(0)),
        st.tuples(st.just("lose"), partitions, st.just(0)),
        st.tuples(st.just("assign"), partitions, st.just(0)),
        st.tuples(st.just("pause"), partitions, st.just(0)),
        st.tuples(st.just("resume"), partitions, st.just(0)),
        st.tuples(st.just("execute"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(100, 1_500)),
    ),
    min_size=30,
    max_size=80,
)


def happen(consumer: ConsumerWithStreams, what: str, which: int, how: int) -> None:
    tp = PARTITIONS[which]
    match what:
        case "arrive":
            consumer.arrive(tp, how)
        case "poll":
            consumer.poll()
        case "take":
            consumer.take(which, how)
        case "finish":
            consumer.finish(which)
            consumer.queues[which].advance()
        case "serve":
            for each in PARTITIONS:
                consumer.arrive(each, how)
            consumer.poll()
        case "seek" if tp in consumer.subscription.partitions:
            consumer.withdraw(tp)
            consumer.commands.append(lambda: consumer.seek(tp))
        case "replace" if tp in consumer.subscription.partitions:
            consumer.execute()
            consumer.subscription.set_partitions(consumer.subscription.partitions.keys() - {tp})
            consumer.assign(tp)
        case "revoke" | "lose" | "keep":
            consumer.revoke(tp, lost=what == "lose", kept=what == "keep")
        case "assign":
            consumer.assign(tp)
        case "pause" if tp in consumer.subscription.partitions:
            consumer.withdraw(tp)
            consumer.streams.user_paused.add(tp)
            positions, views = consumer.collector.positions(with_current=True), consumer.collector.snapshot.partitions
            consumed = {tp: (views[tp].epoch, positions[tp])}
            consumer.commands.append(lambda: consumer.subscription.pause([tp], consumed))
        case "resume" if tp in consumer.subscription.partitions:
            consumer.streams.user_paused.discard(tp)
            consumer.commands.append(lambda: consumer.subscription.resume([tp]))
        case "execute":
            consumer.execute()
        case "wait":
            consumer.now = Now(consumer.now.mono + how, consumer.now.wall + how)


def drained(consumer: ConsumerWithStreams) -> Iterator[int]:
    """Let everything that was fetched be handed out; yields how many records were, in each round."""
    consumer.assign(*PARTITIONS)
    for tp in PARTITIONS:
        happen(consumer, "resume", PARTITIONS.index(tp), 0)
    for round_number in range(60):
        for number in range(STREAMS):
            happen(consumer, "finish", number, 0)
        consumer.now = Now(consumer.now.mono + 2_000, 0)
        consumer.poll()
        for tp in PARTITIONS:
            if round_number < 30 or consumer.subscription.partitions[tp].fetch < consumer.log[tp]:
                consumer.arrive(tp, 1)
        yield sum(consumer.take(number, 20) for number in range(STREAMS))
        consumer.check()


@settings(deadline=None, max_examples=examples(300))
@given(events)
def test_records_come_in_order_and_only_finished_ones_are_committed(todo: list[tuple[str, int, int]]) -> None:
    consumer = ConsumerWithStreams()
    for what, which, how in todo:
        happen(consumer, what, which, how)
        consumer.check()
    assert sum(drained(consumer)) >= 20
    for tp in PARTITIONS:
        assert consumer.expected[tp] >= consumer.log[tp], f"{tp}: records were left out"
