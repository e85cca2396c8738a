"""A client's fetch session: what is said, what is forgotten, and every answer that ends it or casts doubt on it."""

from __future__ import annotations

import uuid

import pytest

from ottla.client.fetch.session import LAST_EPOCH, TRANSITIONS, FetchSession, Outcome, SessionPhase, SessionRequest, Wanted
from tests.unit.client.managers import T0, T1, T2, TOPIC_ID

OTHER_ID = uuid.UUID(int=6)


def wanted(offset: int = 0, topic_id: uuid.UUID | None = TOPIC_ID) -> Wanted:
    return Wanted(offset, 3, topic_id, 1 << 20)


def opened(*partitions: object, session_id: int = 9) -> FetchSession:
    """A session with these partitions, which the broker has begun."""
    session = FetchSession()
    for tp in partitions:
        session.want(tp, wanted())  # type: ignore[arg-type]
    request = session.request()
    assert session.answered(request, 0, session_id, list(request.all))
    return session


def ids(request: SessionRequest) -> tuple[int, int]:
    return request.session_id, request.epoch


def test_the_first_request_names_everything_and_begins_a_session() -> None:
    session = FetchSession()
    session.want(T0, wanted(5))
    session.want(T1, wanted())
    request = session.request()
    assert (ids(request), request.named, request.forgotten, request.full) == ((0, 0), {T0: wanted(5), T1: wanted()}, (), True)
    assert session.answered(request, 0, 9, [T1, T0])
    assert session.phase is SessionPhase.OPEN
    assert ids(session.request()) == (9, 1)


def test_later_requests_name_what_was_added_or_altered_and_forget_what_was_removed() -> None:
    session = opened(T0, T1)
    session.want(T0, wanted(7))
    session.drop(T1)
    session.want(T2, wanted())
    request = session.request()
    assert (ids(request), request.named, request.forgotten) == ((9, 1), {T0: wanted(7), T2: wanted()}, ((T1, TOPIC_ID),))
    assert session.answered(request, 0, 9, [T2])
    request = session.request()
    assert (ids(request), request.named, request.forgotten) == ((9, 2), {}, ())


def test_what_comes_back_as_it_was_is_not_spoken_of() -> None:
    session = opened(T0, T1)
    session.drop(T1)
    session.want(T1, wanted())
    request = session.request()
    assert (request.named, request.forgotten) == ({}, ())


def test_asking_twice_without_a_change_says_nothing() -> None:
    session = opened(T0)
    session.want(T0, wanted())
    assert session.request().named == {}


def test_a_recreated_topic_replaces_the_one_of_the_same_name() -> None:
    session = opened(T0)
    session.want(T0, wanted(topic_id=OTHER_ID))
    request = session.request()
    assert (request.named, request.forgotten) == ({T0: wanted(topic_id=OTHER_ID)}, ((T0, TOPIC_ID),))
    assert session.names[OTHER_ID] == "t"


def test_a_topic_without_an_id_makes_it_a_session_by_names_and_back() -> None:
    session = opened(T0)
    session.want(T1, wanted(topic_id=None))
    request = session.request()
    assert (ids(request), request.by_id, list(request.named)) == ((9, 0), False, [T0, T1])
    assert session.answered(request, 0, 10, [T0, T1])
    # A request that named nothing would go out in a version with ids.
    assert list(session.request().named) == [T0]
    session.want(T1, wanted())
    request = session.request()
    assert (ids(request), request.by_id, list(request.named)) == ((10, 0), True, [T0, T1])


def test_in_a_session_by_names_another_topic_id_is_no_reason_to_forget() -> None:
    session = FetchSession()
    session.want(T0, wanted())
    session.want(T1, wanted(topic_id=None))
    assert session.answered(session.request(), 0, 9, [T0, T1])
    session.want(T0, wanted(topic_id=OTHER_ID))
    request = session.request()
    assert (list(request.named), request.forgotten) == ([T0], ())


def test_the_epoch_begins_again_after_the_last() -> None:
    session = opened(T0)
    session._epoch = LAST_EPOCH
    request = session.request()
    assert ids(request) == (9, LAST_EPOCH)
    assert session.answered(request, 0, 9, [])
    assert ids(session.request()) == (9, 1)


@pytest.mark.parametrize(
    ("code", "next_request"),
    [(70, (0, 0)), (71, (9, 0)), (106, (9, 0)), (-1, (9, 0)), (56, (9, 0))],
    ids=["not found", "invalid epoch", "topic id error", "unknown", "storage"],
)
def test_an_error_of_the_whole_response_ends_or_restarts_the_session(code: int, next_request: tuple[int, int]) -> None:
    session = opened(T0)
    assert not session.answered(session.request(), code, 0, [])
    request = session.request()
    assert (ids(request), list(request.named)) == (next_request, [T0])


@pytest.mark.parametrize("partitions", [[T0], [T0, T1, T2], [T0, None], []], ids=["less", "more", "unknown", "none"])
def test_a_full_answer_must_speak_of_just_what_was_asked(partitions: list[object]) -> None:
    session = FetchSession()
    session.want(T0, wanted())
    session.want(T1, wanted())
    assert not session.answered(session.request(), 0, 9, partitions)  # type: ignore[arg-type]
    assert ids(session.request()) == (0, 0)


def test_an_empty_full_answer_of_a_broker_that_throttles_is_no_doubt() -> None:
    session = opened(T0)
    session.answered(session.request(), 71, 0, [])
    assert not session.answered(session.request(), 0, 0, [], throttled=True)
    assert session.phase is SessionPhase.NEW


def test_an_incremental_answer_may_leave_out_but_not_bring_in() -> None:
    session = opened(T0, T1)
    assert session.answered(session.request(), 0, 9, [T1])
    assert not session.answered(session.request(), 0, 9, [T2])
    assert ids(session.request()) == (9, 0)


def test_an_answer_without_a_session_is_used_and_the_next_request_is_full() -> None:
    session = opened(T0)
    assert session.answered(session.request(), 0, 0, [T0])
    request = session.request()
    assert (ids(request), list(request.named)) == ((0, 0), [T0])


def test_an_answer_of_another_session_is_dropped() -> None:
    session = opened(T0)
    assert not session.answered(session.request(), 0, 10, [])


def test_no_answer_replaces_the_session() -> None:
    session = opened(T0)
    session.request()
    session.failed()
    assert ids(session.request()) == (9, 0)
    session.failed()
    assert ids(session.request()) == (9, 0)


def test_without_a_session_no_answer_changes_nothing() -> None:
    session = FetchSession()
    session.want(T0, wanted())
    session.request()
    session.failed()
    assert ids(session.request()) == (0, 0)


def test_it_ends_with_the_last_epoch_and_nothing_named() -> None:
    session = opened(T0)
    waiting = session.request()
    last = session.end()
    assert last is not None
    assert (ids(last), last.named, last.forgotten) == ((9, -1), {}, ())
    assert not session.answered(waiting, 0, 9, [])
    assert FetchSession().end() is None


def test_what_was_served_is_asked_for_last() -> None:
    session = FetchSession()
    for tp in (T0, T1, T2):
        session.want(tp, wanted())
    session.served(T0)
    assert list(session.request().named) == [T1, T2, T0]


def test_every_outcome_is_provided_for() -> None:
    assert {phase: set(row) for phase, row in TRANSITIONS.items()} == {phase: set(Outcome) for phase in SessionPhase}


def test_what_replaces_a_session_stands_for_what_is_wanted_now() -> None:
    session = opened(T0, T1)
    session.request()
    session.failed()
    session.drop(T1)
    request = session.request()
    assert (ids(request), request.all) == ((9, 0), {T0: wanted()})
    assert session.answered(request, 0, 10, [T0])


def test_a_dropped_topic_without_an_id_makes_it_no_session_by_names() -> None:
    session = opened(T0)
    session.want(T1, wanted(topic_id=None))
    session.drop(T1)
    request = session.request()
    assert (request.by_id, ids(request)) == (True, (9, 1))


@pytest.mark.parametrize(("code", "partitions"), [(71, []), (0, [T1])], ids=["an error", "an unrequested partition"])
def test_a_throttled_answer_that_casts_doubt_replaces_the_session(code: int, partitions: list[object]) -> None:
    """A broker that merely wants to be left alone answers with nothing at all."""
    session = opened(T0)
    assert not session.answered(session.request(), code, 9, partitions, throttled=True)  # type: ignore[arg-type]
    assert session.phase is SessionPhase.REPLACING
