"""Which leader epoch a leader is asked with, whatever commits, seeks and metadata name."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ottla.client.cluster.metadata import PATIENCE, REFRESHES, RefusedEpochs, SeenEpochs
from ottla.types import Now, TopicPartition

TP = TopicPartition("t", 0)


def now(mono: int) -> Now:
    return Now(mono, 0)


def test_an_observed_epoch_counts_if_it_is_above_that_of_the_metadata() -> None:
    seen = SeenEpochs().after_metadata(None, 5)
    assert seen.current(5) == 5
    assert seen.after_observation(7).current(5) == 7
    assert seen.after_observation(4).current(5) == 5
    assert seen.after_observation(7).after_metadata(5, 8).current(8) == 8
    assert seen.after_observation(7).current(None) is None, "a cluster without epochs is asked with none"


def test_a_refused_epoch_is_replaced_by_that_of_the_metadata_and_not_used_again() -> None:
    seen = SeenEpochs(5).after_observation(1_000).after_refusal(1_000)
    assert seen.current(5) == 5
    assert seen.after_observation(1_000) == seen.after_observation(1_001) == seen
    assert seen.after_observation(6).current(5) == 6


def test_an_epoch_counts_again_once_the_metadata_reaches_it() -> None:
    seen = SeenEpochs(1).after_observation(3).after_refusal(3).after_metadata(1, 2)
    assert (seen.current(2), seen.after_observation(3)) == (2, seen)
    seen = seen.after_metadata(2, 3)
    assert (seen.current(3), seen.after_observation(4).current(3)) == (3, 4)


def test_the_metadata_may_have_an_epoch_that_the_leader_does_not_know() -> None:
    seen = SeenEpochs(7).after_refusal(7)
    assert seen.current(7) is None
    seen = seen.after_metadata(7, 7)
    assert seen.current(7) is None
    assert seen.after_metadata(7, 0).current(0) == 0, "restored from a backup"
    assert seen.after_metadata(7, 8).current(8) == 8


@given(st.lists(st.tuples(st.sampled_from(["named", "told", "refused"]), st.integers(0, 6)), max_size=30))
def test_requests_have_no_epoch_below_the_metadata_and_no_refused_one(
    steps: list[tuple[str, int]],
) -> None:
    seen, told = SeenEpochs(), None
    for step, epoch in steps:
        if step == "named":
            seen = seen.after_observation(epoch)
        elif step == "told" and (told is None or epoch >= told or told == seen.unknown):
            seen, told = seen.after_metadata(told, epoch), epoch
        elif step == "refused" and (asked := seen.current(told)) is not None:
            seen = seen.after_refusal(asked)
        current = seen.current(told)
        if told is not None and current is not None:
            assert current >= told
            assert current != seen.unknown
        if told is not None and current is None:
            assert told == seen.unknown


def test_an_epoch_is_dropped_after_refreshes_and_time() -> None:
    refused = RefusedEpochs()
    assert not refused.refused(TP, 5, 10, now(0))
    assert not refused.refused(TP, 5, 10 + REFRESHES, now(PATIENCE - 1))
    assert not refused.refused(TP, 5, 10 + REFRESHES - 1, now(PATIENCE))
    assert refused.refused(TP, 5, 10 + REFRESHES, now(PATIENCE))


def test_another_epoch_and_a_success_reset_the_count() -> None:
    refused = RefusedEpochs()
    refused.refused(TP, 5, 10, now(0))
    assert not refused.refused(TP, 6, 20, now(PATIENCE))
    refused.accepted(TP)
    assert not refused.refused(TP, 6, 30, now(2 * PATIENCE))


def test_a_partition_without_metadata_resets_the_count() -> None:
    refused = RefusedEpochs()
    refused.refused(TP, 5, 10, now(0))
    refused.keep({TP})
    assert refused.refused(TP, 5, 10 + REFRESHES, now(PATIENCE))
    refused.refused(TP, 5, 10, now(0))
    refused.keep(())
    assert not refused.refused(TP, 5, 10 + REFRESHES, now(PATIENCE))
