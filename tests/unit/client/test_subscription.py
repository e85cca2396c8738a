"""Partitions, their phases and their epochs."""

from __future__ import annotations

import pytest

from ottla.client.subscription import EARLIEST, LATEST, Mode, Phase, SubscriptionState
from ottla.errors import NoOffsetForPartitionError
from ottla.types import OffsetAndMetadata
from tests.unit.client.managers import T0, T1, T2, TOPIC_ID

AT_3 = OffsetAndMetadata(3)


@pytest.fixture
def subscription() -> SubscriptionState:
    subscription = SubscriptionState(LATEST)
    subscription.assign([T1, T0])
    return subscription


def epochs(subscription: SubscriptionState) -> dict[object, int]:
    return {tp: state.epoch for tp, state in subscription.partitions.items()}


def test_new_partitions_have_no_position_and_stand_in_order(subscription: SubscriptionState) -> None:
    assert (subscription.mode, subscription.topics) == (Mode.MANUAL, {"t"})
    assert list(subscription.partitions) == [T0, T1]
    assert {view.position for view in subscription.views().values()} == {None}
    assert not any(state.fetchable for state in subscription.partitions.values())


def test_what_stays_assigned_keeps_everything(subscription: SubscriptionState) -> None:
    subscription.seek({T0: AT_3})
    subscription.pause([T0], {})
    kept = subscription.partitions[T0]
    assert subscription.set_partitions([T0, T2]) == {T2}
    assert subscription.partitions[T0] is kept
    assert list(subscription.partitions) == [T0, T2]


def test_a_view_follows_what_was_handed_out_before_a_pause_and_not_before_a_seek() -> None:
    subscription = SubscriptionState(EARLIEST)
    subscription.assign([T0])
    subscription.seek({T0: OffsetAndMetadata(5)})
    handed_out = subscription.partitions[T0].epoch
    subscription.pause([T0], {T0: (handed_out, OffsetAndMetadata(20))})
    view = subscription.views()[T0]
    assert view.epoch != handed_out
    assert view.follows(handed_out)
    assert view.follows(view.epoch)
    assert not view.follows(handed_out - 1)
    subscription.seek({T0: OffsetAndMetadata(7)})
    assert not subscription.views()[T0].follows(view.epoch)


@pytest.mark.parametrize("change", ["seek", "reset", "pause"])
def test_what_sets_a_position_gives_an_epoch_that_was_never_used(subscription: SubscriptionState, change: str) -> None:
    subscription.seek({T0: AT_3, T1: AT_3})
    before = epochs(subscription)
    match change:
        case "seek":
            subscription.seek({T0: AT_3})
        case "reset":
            subscription.reset([T0], EARLIEST)
        case "pause":
            subscription.pause([T0], {})
    after = epochs(subscription)
    assert after[T0] > max(before.values())
    assert after[T1] == before[T1]


def test_reassigning_after_unsubscribe_is_a_new_epoch(subscription: SubscriptionState) -> None:
    before = epochs(subscription)
    subscription.unsubscribe()
    assert subscription.mode is Mode.NONE
    subscription.assign([T0])
    assert epochs(subscription)[T0] > max(before.values())


def test_fetching_moves_on_without_an_epoch_and_without_being_seen(subscription: SubscriptionState) -> None:
    subscription.seek({T0: AT_3})
    epoch, version = subscription.partitions[T0].epoch, subscription.version
    subscription.advance(T0, epoch, 9)
    subscription.advance(T0, epoch - 1, 99)
    assert subscription.partitions[T0].fetch == 9
    assert (subscription.partitions[T0].epoch, subscription.version) == (epoch, version)
    assert subscription.views()[T0].position == AT_3


def test_pausing_goes_back_to_where_the_application_is(subscription: SubscriptionState) -> None:
    subscription.seek({T0: AT_3})
    subscription.advance(T0, subscription.partitions[T0].epoch, 900)
    state = subscription.partitions[T0]
    subscription.pause([T0], {T0: (state.epoch, OffsetAndMetadata(20))})
    assert (state.fetch, state.paused, state.fetchable) == (20, True, False)
    epoch = state.epoch
    subscription.pause([T0], {T0: (epoch, OffsetAndMetadata(5))})
    assert (state.fetch, state.epoch) == (20, epoch)
    subscription.resume([T0])
    assert (state.fetchable, state.epoch) == (True, epoch)


def test_pausing_does_not_undo_a_seek_that_the_application_had_not_seen(subscription: SubscriptionState) -> None:
    """The position is one of before the seek: of another task, or after a leader had a shorter log."""
    subscription.seek({T0: AT_3})
    seen = subscription.partitions[T0].epoch
    subscription.seek({T0: OffsetAndMetadata(7)})
    subscription.pause([T0], {T0: (seen, OffsetAndMetadata(20))})
    state = subscription.partitions[T0]
    assert (state.fetch, state.position, state.paused) == (7, OffsetAndMetadata(7), True)
    assert not state.view().follows(seen)


def test_pausing_what_has_no_position_yet_lets_the_look_up_go_on(subscription: SubscriptionState) -> None:
    subscription.pause([T0], {})
    state = subscription.partitions[T0]
    assert subscription.found(T0, state.epoch, AT_3, TOPIC_ID)
    assert (state.phase, state.fetchable) == (Phase.FETCHING, False)


def test_a_look_up_sets_only_what_still_waits_for_it(subscription: SubscriptionState) -> None:
    old = subscription.partitions[T0].epoch
    subscription.seek({T0: AT_3})
    assert not subscription.found(T0, old, OffsetAndMetadata(70), TOPIC_ID)
    assert not subscription.found(T0, subscription.partitions[T0].epoch, OffsetAndMetadata(70), TOPIC_ID)
    assert not subscription.found(T2, 1, OffsetAndMetadata(70), TOPIC_ID)
    assert subscription.partitions[T0].fetch == 3


def test_nothing_committed_resets_or_is_a_problem(subscription: SubscriptionState) -> None:
    state = subscription.partitions[T0]
    subscription.not_committed(T0, state.epoch, NoOffsetForPartitionError(str(T0)))
    assert (state.phase, state.reset_to) == (Phase.RESETTING, LATEST)
    strict = SubscriptionState(None)
    strict.assign([T0])
    strict.not_committed(T0, strict.partitions[T0].epoch, NoOffsetForPartitionError(str(T0)))
    assert isinstance(strict.views()[T0].problem, NoOffsetForPartitionError)
    strict.seek({T0: AT_3})
    assert strict.views()[T0].problem is None


def test_what_awaits_on_assign_is_not_fetchable_but_may_get_its_position(subscription: SubscriptionState) -> None:
    subscription.unsubscribe()
    subscription.subscribe(frozenset({"t"}))
    assert subscription.set_partitions([T0], await_acceptance=True) == {T0}
    state = subscription.partitions[T0]
    assert subscription.found(T0, state.epoch, AT_3, TOPIC_ID)
    assert not state.fetchable
    subscription.accept()
    assert state.fetchable


def test_a_subscription_that_loses_a_topic_hands_nothing_more_of_it_out(subscription: SubscriptionState) -> None:
    subscription.unsubscribe()
    subscription.subscribe(frozenset({"t"}))
    subscription.set_partitions([T0])
    subscription.seek({T0: AT_3})
    subscription.subscribe(frozenset({"t", "u"}))
    assert subscription.partitions[T0].fetchable
    subscription.subscribe(frozenset({"u"}))
    assert not subscription.partitions[T0].fetchable
    subscription.subscribe(frozenset({"t"}))
    assert subscription.partitions[T0].fetchable


def test_suspending_stops_everything_and_keeps_positions(subscription: SubscriptionState) -> None:
    subscription.seek({T0: AT_3})
    subscription.suspend()
    view = subscription.views()[T0]
    assert (view.fetchable, view.position) == (False, AT_3)


def test_only_what_goes_is_suspended_and_what_stays_is_read_on(subscription: SubscriptionState) -> None:
    subscription.seek({T0: AT_3, T1: AT_3})
    subscription.pause([T1], {})
    subscription.suspend([T0, T2])
    assert (subscription.partitions[T0].fetchable, subscription.partitions[T1].revoking) == (False, False)
    assert subscription.set_partitions([T1]) == frozenset()
    assert subscription.partitions[T1].paused
    subscription.suspend([T1])
    subscription.set_partitions([T1])
    assert not subscription.partitions[T1].revoking


def test_an_equal_problem_is_no_news(subscription: SubscriptionState) -> None:
    epoch = subscription.partitions[T0].epoch
    subscription.set_problem(T0, epoch, NoOffsetForPartitionError("x"))
    version = subscription.version
    subscription.set_problem(T0, epoch, NoOffsetForPartitionError("x"))
    assert subscription.version == version
    subscription.set_problem(T0, epoch, None)
    assert subscription.version > version


def test_a_rewind_counts_after_a_pause_that_was_under_way_and_not_after_a_seek(subscription: SubscriptionState) -> None:
    """1. The application pauses at 8. 2. Before it knows the new epoch, it returns to 5, in the epoch that it knows."""
    subscription.seek({T0: AT_3, T1: AT_3})
    known = epochs(subscription)
    later, earlier = OffsetAndMetadata(8), OffsetAndMetadata(5)
    subscription.pause([T0], {T0: (known[T0], later)})
    subscription.seek({T1: later})
    subscription.rewind({T0: (known[T0], earlier), T1: (known[T1], earlier)})
    assert [subscription.partitions[tp].position for tp in (T0, T1)] == [earlier, later]
