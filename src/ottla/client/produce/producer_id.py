"""The look-up of the producer id of an idempotent producer without transactions.

Owns InitProducerId. Must not know batches. Invariant: at most one request is in flight, and none unless an id is needed.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import AnyNode, Poll, Send
from ottla.client.produce.sequences import ProducerIdAndEpoch, Sequences
from ottla.config.producer import ProducerConfig
from ottla.errors import OttlaError, broker_error
from ottla.protocol import ErrorCode, duration, rpcs
from ottla.protocol.messages import init_producer_id_request, init_producer_id_response
from ottla.types import Now

_MOST = 2**31 - 1
_AUTHORIZATION = (
    "an administrator has to allow this principal to WRITE to a topic, before Kafka 2.8 to IDEMPOTENT_WRITE to the cluster;"
    " or set enable_idempotence=False"
)


class ProducerIdManager:
    """A ``RequestManager``. ``is_needed`` tells whether there are batches; ``on_refused`` is called with an error that a retry does
    not fix, such as a missing authorization. The next batch causes another attempt.
    """

    def __init__(
        self,
        config: ProducerConfig,
        sequences: Sequences,
        backoff: ExponentialBackoff,
        is_needed: Callable[[], bool],
        on_refused: Callable[[OttlaError, Now], None],
    ) -> None:
        self.failure: OttlaError | None = None
        """The error of the latest request; ``None`` after a success."""
        self._config = config
        self._sequences = sequences
        self._backoff = backoff
        self._is_needed = is_needed
        self._on_refused = on_refused
        self._in_flight = False
        self._attempts = 0
        self._not_before = 0

    def poll(self, now: Now) -> Poll:
        """Return an InitProducerId if an id is needed."""
        if self._in_flight or self._sequences.current is not None or not self._is_needed():
            return Poll()
        if now.mono < self._not_before:
            return Poll(wake_at=self._not_before)
        message = init_producer_id_request.InitProducerIdRequest(transactional_id=None, transaction_timeout=duration(_MOST))
        timeout = self._config.request_timeout_ms
        send = Send(rpcs.INIT_PRODUCER_ID, message, AnyNode(), timeout, self._on_response, self._on_failure)
        self._in_flight = True
        return Poll((send,))

    def _on_response(self, response: init_producer_id_response.InitProducerIdResponse, now: Now) -> None:
        self._in_flight = False
        if response.error_code:
            error = broker_error(int(response.error_code), "the broker refused to assign a producer id")
            if response.error_code == ErrorCode.cluster_authorization_failed:
                error.hint = _AUTHORIZATION
            return self._failed(error, now)
        self.failure, self._attempts = None, 0
        self._sequences.assigned(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        return None

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        self._in_flight = False
        self._failed(error, now)

    def _failed(self, error: OttlaError, now: Now) -> None:
        self.failure = error
        self._not_before = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1
        if not error.retriable:
            self._on_refused(error, now)
