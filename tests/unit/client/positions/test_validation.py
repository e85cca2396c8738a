"""Positions and new leaders: who is asked about what, what a log that was cut or recreated leads to, and every row of errors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ottla.client.effects import AnySend, ToNode
from ottla.client.positions import validation
from ottla.client.positions.validation import PositionValidator
from ottla.client.subscription import EARLIEST, LATEST, Phase, Reset, SubscriptionState
from ottla.errors import DisconnectedError, LogTruncationError, ProtocolError, TopicAuthorizationFailedError, UnsupportedApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_for_leader_epoch_request, offset_for_leader_epoch_response as messages
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import NO_THROTTLE, T0, T1, T2, TOPIC_ID, Asked, Cluster, backoff, config, unmade

ASKED = Api.OFFSET_FOR_LEADER_EPOCH


class Validating(Asked):
    """Partitions at offset 10, behind a batch of epoch 2, in a cluster whose leaders have epoch 3."""

    def __init__(self, *partitions: TopicPartition, reset_to: Reset | None = EARLIEST, leader_epoch: int | None = 2) -> None:
        self.subscription = SubscriptionState(reset_to)
        self.cluster = Cluster()
        self.held: set[TopicPartition] = set()
        super().__init__(
            PositionValidator(config(), self.subscription, self.cluster.manager, backoff(), lambda tp: tp in self.held)
        )
        self.subscription.assign(partitions)
        for tp in partitions:
            self.subscription.found(tp, self.state(tp).epoch, OffsetAndMetadata(10, leader_epoch=leader_epoch), TOPIC_ID)

    def pause(self, offset: int) -> None:
        """Pause T0 at an offset that the application has reached in the present epoch."""
        self.subscription.pause([T0], {T0: (self.state().epoch, OffsetAndMetadata(offset, leader_epoch=2))})

    def seek(self, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.subscription.seek(positions)

    def state(self, tp: TopicPartition = T0) -> Any:
        return self.subscription.partitions[tp]

    def phase(self, tp: TopicPartition = T0) -> Phase:
        found: Phase = self.state(tp).phase
        return found

    def confirmed(self) -> None:
        """Past the first question, at the leaders of epoch 3."""
        for send in self.poll():
            self.answer(send, end(*((tp, 2, 10) for tp in about(send))))
        assert self.phase() is Phase.FETCHING


def about(send: AnySend) -> dict[TopicPartition, tuple[int, int]]:
    """Partition -> (current leader's epoch, epoch asked about)."""
    return {
        TopicPartition(topic.topic, part.partition): (part.current_leader_epoch, part.leader_epoch)
        for topic in send.message.topics
        for part in topic.partitions
    }


def end(*parts: tuple[TopicPartition, int, int], code: int = 0) -> Any:
    """(partition, epoch, end offset) each."""
    items = tuple(
        messages.EpochEndOffset(error_code=ErrorCode(code), partition=tp.partition, leader_epoch=epoch, end_offset=offset)
        for tp, epoch, offset in parts
    )
    topic = messages.OffsetForLeaderTopicResult(topic="t", partitions=items)
    return messages.OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=(topic,))


def test_each_leader_is_asked_about_the_positions_that_have_an_epoch() -> None:
    validating = Validating(T0, T1, T2)
    validating.seek({T2: OffsetAndMetadata(7)})
    sends = {send.target: about(send) for send in validating.poll()}
    assert sends == {ToNode(1): {T0: (3, 2)}, ToNode(2): {T1: (3, 2)}}
    assert [validating.phase(tp) for tp in (T0, T1, T2)] == [Phase.VALIDATING, Phase.VALIDATING, Phase.FETCHING]
    assert not validating.state().fetchable
    assert validating.subscription.views()[T0].fetchable  # what was fetched before is handed out all the same
    assert validating.poll() == []


def test_a_position_that_fits_is_fetched_on_and_asked_about_no_more() -> None:
    validating = Validating(T0)
    validating.answer(validating.one(ASKED), end((T0, 2, 10)))
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 10)
    assert validating.poll() == []


def test_a_new_leader_or_epoch_needs_another_validation_and_the_same_does_not() -> None:
    validating = Validating(T0)
    validating.confirmed()
    validating.cluster.tell()
    assert validating.poll() == []
    validating.cluster.tell(epoch=4)
    assert about(validating.one(ASKED)) == {T0: (4, 2)}
    validating.cluster.tell(leaders={T0: 2}, epoch=5)
    send = validating.one(ASKED)
    assert (send.target, about(send)) == (ToNode(2), {T0: (5, 2)})


def test_a_pause_does_not_ask_again() -> None:
    validating = Validating(T0)
    validating.confirmed()
    validating.pause(9)
    validating.subscription.resume([T0])
    assert validating.poll() == []


def test_a_pause_in_the_middle_asks_about_the_new_position() -> None:
    validating = Validating(T0)
    late = validating.one(ASKED)
    validating.pause(9)
    send = validating.one(ASKED)
    validating.answer(late, end((T0, 2, 5)))
    assert validating.phase() is Phase.VALIDATING
    validating.answer(send, end((T0, 2, 9)))
    assert validating.phase() is Phase.FETCHING


def test_a_late_answer_after_a_seek_is_ignored() -> None:
    validating = Validating(T0)
    send = validating.one(ASKED)
    validating.seek({T0: OffsetAndMetadata(90)})
    validating.answer(send, end((T0, 2, 5)))
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 90)


def test_an_answer_of_the_leader_before_the_last_is_ignored() -> None:
    validating = Validating(T0)
    late = validating.one(ASKED)
    validating.cluster.tell(leaders={T0: 2}, epoch=4)
    send = validating.one(ASKED)
    validating.answer(late, end((T0, 2, 10)))
    assert validating.phase() is Phase.VALIDATING
    assert validating.poll() == [], "the other one is still under way"
    validating.answer(send, end((T0, 2, 10)))
    assert validating.phase() is Phase.FETCHING


def test_a_log_that_was_cut_is_read_on_from_where_it_was_cut() -> None:
    validating = Validating(T0)
    validating.answer(validating.one(ASKED), end((T0, 1, 6)))
    assert validating.state().position == OffsetAndMetadata(6, leader_epoch=1)
    validating.answer(validating.one(ASKED), end((T0, 1, 6)))
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 6)


def test_what_was_fetched_before_is_consumed_before_the_position_moves() -> None:
    validating = Validating(T0)
    validating.held.add(T0)
    epoch = validating.state().epoch
    validating.answer(validating.one(ASKED), end((T0, 1, 6)))
    assert validating.poll() == []
    assert (validating.phase(), validating.state().epoch) == (Phase.VALIDATING, epoch)
    validating.held.clear()
    validating.one(ASKED)
    assert validating.state().fetch == 6


def test_another_leader_may_have_what_the_last_had_not() -> None:
    validating = Validating(T0)
    validating.held.add(T0)
    validating.answer(validating.one(ASKED), end((T0, 1, 6)))
    validating.cluster.tell(leaders={T0: 2}, epoch=4)
    validating.answer(validating.one(ASKED), end((T0, 2, 10)))
    validating.held.clear()
    validating.poll()
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 10)


@pytest.mark.parametrize("undefined", [(-1, 5), (2, -1), (-1, -1)])
def test_a_log_that_knows_nothing_of_the_epoch_is_reset(undefined: tuple[int, int]) -> None:
    validating = Validating(T0, reset_to=LATEST)
    validating.answer(validating.one(ASKED), end((T0, *undefined)))
    assert (validating.phase(), validating.state().reset_to) == (Phase.RESETTING, LATEST)


@pytest.mark.parametrize(("answer", "divergent"), [((1, 6), 6), ((-1, -1), None)])
def test_without_a_policy_a_truncated_log_is_an_error_until_a_seek(answer: tuple[int, int], divergent: int | None) -> None:
    validating = Validating(T0, reset_to=None)
    validating.answer(validating.one(ASKED), end((T0, *answer)))
    problem = validating.state().problem
    assert isinstance(problem, LogTruncationError)
    assert (problem.topic, problem.partition, problem.offset, problem.divergent_offset) == ("t", 0, 10, divergent)
    assert validating.poll(60_000) == []
    assert not validating.state().fetchable
    validating.seek({T0: OffsetAndMetadata(6)})
    assert validating.poll() == []
    assert (validating.phase(), validating.state().problem) == (Phase.FETCHING, None)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
        ErrorCode.invalid_record,
    ],
)
def test_after_an_error_the_metadata_is_asked_and_then_the_leader(code: int) -> None:
    validating = Validating(T0)
    validating.answer(validating.one(ASKED), end((T0, -1, -1), code=code))
    assert validating.cluster.asked
    assert validating.poll(99) == []
    assert validating.wake_at == 100
    assert validating.state().problem is None
    validating.answer(validating.one(ASKED, 100), end((T0, 2, 10)))
    assert validating.phase() is Phase.FETCHING


def test_a_missing_permission_for_the_topic_is_reported() -> None:
    validating = Validating(T0)
    validating.answer(validating.one(ASKED), end((T0, -1, -1), code=ErrorCode.topic_authorization_failed))
    assert isinstance(validating.state().problem, TopicAuthorizationFailedError)
    validating.answer(validating.one(ASKED, 100), end((T0, 2, 10)))
    assert validating.state().problem is None


def test_what_an_answer_leaves_out_is_asked_again() -> None:
    validating = Validating(T0, T2)
    validating.answer(validating.one(ASKED), end((T2, 2, 10)))
    assert [validating.phase(tp) for tp in (T0, T2)] == [Phase.VALIDATING, Phase.FETCHING]
    assert about(validating.one(ASKED, 100)) == {T0: (3, 2)}


def test_without_an_answer_it_is_tried_again() -> None:
    validating = Validating(T0)
    validating.fail(validating.one(ASKED), DisconnectedError("broke"))
    assert validating.state().problem is None
    assert validating.poll(99) == []
    validating.fail(validating.one(ASKED, 100), ProtocolError("not Kafka"))
    assert isinstance(validating.state().problem, ProtocolError)
    validating.one(ASKED, 200)


def test_a_broker_that_is_too_old_to_be_asked_is_believed() -> None:
    validating = Validating(T0)
    validating.fail(validating.one(ASKED), UnsupportedApiError("too old"))
    assert validating.phase() is Phase.FETCHING


def test_a_recreated_topic_is_read_from_its_beginning_with_any_policy() -> None:
    validating = Validating(T0, reset_to=LATEST)
    validating.confirmed()
    validating.held.add(T0)
    validating.cluster.tell(topic_id=uuid.UUID(int=77), epoch=0)
    assert validating.poll() == []
    assert not validating.state().fetchable
    validating.held.clear()
    validating.poll()
    assert (validating.phase(), validating.state().reset_to) == (Phase.RESETTING, EARLIEST)


def test_a_recreated_topic_without_a_policy_is_an_error_until_a_seek() -> None:
    validating = Validating(T0, reset_to=None, leader_epoch=None)
    validating.poll()
    validating.cluster.tell(topic_id=uuid.UUID(int=77), epoch=0)
    validating.poll()
    with pytest.raises(LogTruncationError, match="deleted and recreated"):
        raise validating.state().problem
    validating.seek({T0: OffsetAndMetadata(0)})
    validating.poll()
    assert (validating.phase(), validating.state().problem) == (Phase.FETCHING, None)


def test_what_a_seek_names_is_of_the_topic_that_there_is_however_late_that_is_known() -> None:
    validating = Validating(T0, reset_to=LATEST)
    validating.seek({T0: OffsetAndMetadata(5)})
    validating.poll()
    validating.cluster.tell(topic_id=uuid.UUID(int=77), epoch=0)
    validating.poll()
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 5)


def test_a_topic_that_is_unknown_for_a_while_is_not_a_recreated_one() -> None:
    validating = Validating(T0)
    validating.confirmed()
    validating.cluster.tell(leaders={}, errors={"t": 3})
    validating.poll()
    validating.cluster.tell()
    validating.poll()
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 10)


def test_a_response_without_topic_ids_is_no_recreation_and_the_id_is_kept() -> None:
    """In a rolling upgrade an older broker may answer in between."""
    validating = Validating(T0)
    validating.confirmed()
    validating.cluster.tell(topic_id=None)
    validating.poll()
    assert (validating.phase(), validating.state().fetch) == (Phase.FETCHING, 10)
    validating.cluster.tell(topic_id=uuid.UUID(int=77), epoch=0)
    validating.poll()
    assert validating.phase() is Phase.RESETTING


def test_a_leader_without_a_known_epoch_needs_no_validation() -> None:
    validating = Validating(T0)
    validating.cluster.tell(epoch=-1)
    assert validating.poll() == []
    assert validating.phase() is Phase.FETCHING


def test_a_truncated_log_without_a_policy_is_reported_once_and_forgotten_with_its_partition() -> None:
    validating = Validating(T0, reset_to=None)
    validating.answer(validating.one(ASKED), end((T0, 2, 5)))
    validating.poll()
    version, problem = validating.subscription.version, validating.state().problem
    assert isinstance(problem, LogTruncationError)
    validating.poll()
    assert validating.subscription.version == version
    assert validating.state().problem is problem
    assert validating.manager.awaits_consumption
    validating.subscription.assign([T1])
    validating.poll()
    assert not validating.manager.awaits_consumption


def test_an_epoch_that_the_leader_never_learns_is_dropped_and_the_position_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    validating = Validating(T0, reset_to=EARLIEST, leader_epoch=1_000)
    validating.cluster.manager.observe_epoch(T0, 1_000)
    sends = validating.poll()
    while sends or validating.phase() is not Phase.FETCHING:
        for send in sends:
            assert about(send) == {T0: (1_000, 1_000)}
            validating.answer(send, end((T0, -1, -1), code=ErrorCode.unknown_leader_epoch))
            validating.cluster.tell(validating.mono)
        sends = validating.poll(validating.mono + 100)
    assert 2_000 <= validating.mono < 5_000
    assert (validating.state().fetch, validating.state().position) == (10, OffsetAndMetadata(10))
    assert len(caplog.messages) == 1
    # Named once more, it is passed over: no one is asked, nothing is logged.
    validating.cluster.manager.observe_epoch(T0, 1_000)
    validating.seek({T0: OffsetAndMetadata(7, leader_epoch=1_000)})
    assert validating.poll() == []
    assert (validating.phase(), validating.state().position) == (Phase.FETCHING, OffsetAndMetadata(7))
    assert len(caplog.messages) == 1


def test_a_leader_that_learns_its_epoch_in_time_still_finds_a_log_that_was_cut() -> None:
    validating = Validating(T0, leader_epoch=4)
    validating.cluster.manager.observe_epoch(T0, 4)
    for at in (0, 100):
        validating.answer(validating.one(ASKED, at), end((T0, -1, -1), code=ErrorCode.unknown_leader_epoch))
        validating.cluster.tell(at)
    validating.cluster.tell(200, epoch=4)
    send = validating.one(ASKED, 200)
    assert about(send) == {T0: (4, 4)}
    validating.answer(send, end((T0, 3, 6)))
    assert validating.state().position == OffsetAndMetadata(6, leader_epoch=3)


def test_metadata_that_is_behind_does_not_drop_an_epoch_that_another_leader_has() -> None:
    validating = Validating(T0, leader_epoch=4)
    validating.cluster.manager.observe_epoch(T0, 4)
    for at in range(0, 5_000, 100):
        # The former leader knows that it leads no more; the metadata does not for a long time.
        validating.answer(validating.one(ASKED, at), end((T0, -1, -1), code=ErrorCode.not_leader_or_follower))
        validating.cluster.tell(at)
    validating.cluster.tell(5_000, leaders={T0: 2}, epoch=4)
    send = validating.one(ASKED, 5_000)
    assert (send.target, about(send)) == (ToNode(2), {T0: (4, 4)})


def test_a_question_that_was_noted_as_sent_leaves_though_the_next_one_cannot_be_made() -> None:
    check = Validating(T0, T1)
    with unmade(offset_for_leader_epoch_request, "OffsetForLeaderEpochRequest", 2), pytest.raises(OSError, match="Too many"):
        check.poll()
    assert sorted(tp for send in check.poll() for tp in about(send)) == [T0, T1]


def test_positions_behind_one_whose_answer_fails_are_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Validating(T0, T2)
    send = check.one(ASKED)
    assert sorted(about(send)) == [T0, T2]

    def out_of_memory(code: int, message: str) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(validation, "broker_error", out_of_memory)
        with pytest.raises(MemoryError):
            check.answer(send, end((T0, -1, -1), (T2, -1, -1), code=6))
    assert sorted(about(check.one(ASKED))) == [T0, T2]
