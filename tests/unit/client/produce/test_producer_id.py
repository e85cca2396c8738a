"""The look-up of a producer id: when it is requested, retried and given up."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.effects import AnyNode
from ottla.client.produce.producer_id import ProducerIdManager
from ottla.client.produce.sequences import ProducerIdAndEpoch, Sequences
from ottla.config.producer import ProducerConfig
from ottla.errors import ClusterAuthorizationFailedError, DisconnectedError, OttlaError, UnsupportedApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import init_producer_id_request, init_producer_id_response
from ottla.types import Now
from tests.unit.client.managers import NO_THROTTLE, Asked, backoff, unmade


class Ids(Asked):
    manager: ProducerIdManager

    def __init__(self) -> None:
        self.sequences = Sequences()
        self.has_batches = True
        self.refusals: list[OttlaError] = []
        config = ProducerConfig.parse(bootstrap_servers="one:9092")
        super().__init__(ProducerIdManager(config, self.sequences, backoff(), lambda: self.has_batches, self._refused))

    def _refused(self, error: OttlaError, now: Now) -> None:
        assert now == self.now
        self.refusals.append(error)


def answer(code: int = 0) -> Any:
    return init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode(code), producer_id=-1 if code else 7, producer_epoch=-1 if code else 2
    )


def test_an_id_is_requested_once_when_there_are_batches() -> None:
    ids = Ids()
    ids.has_batches = False
    assert ids.poll() == []
    ids.has_batches = True
    send = ids.one(Api.INIT_PRODUCER_ID)
    assert send.target == AnyNode()
    assert send.message.transactional_id is None
    assert ids.poll() == []
    ids.answer(send, answer())
    assert ids.sequences.current == ProducerIdAndEpoch(7, 2)
    assert ids.poll() == []


@pytest.mark.parametrize("code", [ErrorCode.coordinator_load_in_progress, ErrorCode.request_timed_out, None])
def test_it_is_requested_again_after_the_back_off(code: int | None) -> None:
    ids = Ids()
    for at, wait in ((0, 100), (100, 200), (300, 400)):
        send = ids.one(Api.INIT_PRODUCER_ID, at)
        if code is None:
            ids.fail(send, DisconnectedError("lost"))
        else:
            ids.answer(send, answer(code))
        assert ids.manager.failure is not None
        assert ids.poll() == []
        assert ids.wake_at == at + wait
    assert ids.refusals == []
    ids.answer(ids.one(Api.INIT_PRODUCER_ID, 700), answer())
    assert ids.manager.failure is None
    assert ids.sequences.current is not None


def test_a_refusal_fails_the_batches_and_the_next_ones_cause_another_request() -> None:
    ids = Ids()
    ids.answer(ids.one(Api.INIT_PRODUCER_ID), answer(ErrorCode.cluster_authorization_failed))
    (refusal,) = ids.refusals
    assert isinstance(refusal, ClusterAuthorizationFailedError)
    assert "enable_idempotence=False" in str(refusal)
    ids.has_batches = False
    assert ids.poll(1_000) == []
    ids.has_batches = True
    ids.answer(ids.one(Api.INIT_PRODUCER_ID), answer())
    assert ids.sequences.current is not None


def test_a_broker_that_is_too_old_is_a_refusal() -> None:
    ids = Ids()
    ids.fail(ids.one(Api.INIT_PRODUCER_ID), UnsupportedApiError("no InitProducerId"))
    assert len(ids.refusals) == 1


def test_a_request_that_cannot_be_made_is_made_in_the_next_poll() -> None:
    ids = Ids()
    with unmade(init_producer_id_request, "InitProducerIdRequest", 1), pytest.raises(OSError, match="Too many open files"):
        ids.poll()
    ids.one(Api.INIT_PRODUCER_ID)
