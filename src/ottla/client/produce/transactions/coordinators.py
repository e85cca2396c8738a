"""The requests of a transactional producer to the coordinators: one at a time, repeated while a retry may help.

Owns the look-up of the coordinators, the request in flight and the back-off. Must not know states, nor what a request is for.
Invariant: a response that comes after the phase in which its request was made has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager
from ottla.client.effects import AnySend, Poll, Send, ToCoordinator, Unreachable
from ottla.config.producer import ProducerConfig
from ottla.errors import OttlaError, timeout_error
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.rpcs import RequestT, ResponseT, Rpc
from ottla.types import Now

_SOON = 20
"""Milliseconds before a request is repeated that met the end of the transaction before it, which takes a few milliseconds. The time
doubles with each attempt."""


@dataclass(frozen=True, slots=True)
class CoordinatorRequest(Generic[RequestT, ResponseT]):
    """A request to a coordinator: that of group ``group_id``, or that of the transactional id. ``what`` it does, for errors."""

    rpc: Rpc[RequestT, ResponseT]
    message: RequestT
    on_response: Callable[[ResponseT, Now], None]
    what: str
    group_id: str | None = None
    requires: VersionRule | None = None
    excludes: VersionRule | None = None
    on_lost: Callable[[], None] | None = None
    """Called when no response comes to a request that was sent, so that it was executed or not."""


class CoordinatorRequests:
    """``coordinator_of`` makes the manager of a coordinator; ``features`` returns the features of the cluster, as a connection to a
    coordinator has them, or ``None`` without a connection. ``on_failure`` is called with each error that a retry does not fix, and
    with the id of the group that it is about.
    """

    def __init__(
        self,
        config: ProducerConfig,
        backoff: ExponentialBackoff,
        coordinator_of: Callable[[CoordinatorKind, str], CoordinatorManager],
        features: Callable[[ToCoordinator], Mapping[str, int] | None],
        unreachable: Unreachable,
        on_failure: Callable[[OttlaError, str | None, Now], None],
    ) -> None:
        assert config.transactional_id is not None
        self._config = config
        self._backoff = backoff
        self._coordinator_of = coordinator_of
        self._cluster_features = features
        self._unreachable = unreachable
        self._on_failure = on_failure
        self._coordinators: dict[str | None, CoordinatorManager] = {}
        self._add(None, coordinator_of(CoordinatorKind.TRANSACTION, config.transactional_id))
        self._phase: object = None
        self.is_in_flight = False
        """Whether a request has no outcome yet; it may still wait for a connection."""
        self._was_sent = False
        self._attempts = 0
        self._not_before = 0
        self._last_error: OttlaError | None = None
        self._unsent: list[AnySend] = []

    def _add(self, group_id: str | None, coordinator: CoordinatorManager) -> CoordinatorManager:
        coordinator.on_fatal(lambda error, now: self._on_failure(error, group_id, now))
        self._coordinators[group_id] = coordinator
        return coordinator

    def _coordinator(self, group_id: str | None) -> CoordinatorManager:
        found = self._coordinators.get(group_id)
        if found is None:
            assert group_id is not None
            found = self._add(group_id, self._coordinator_of(CoordinatorKind.GROUP, group_id))
        return found

    @property
    def features(self) -> Mapping[str, int] | None:
        """The features of the cluster; ``None`` without a connection to the coordinator of the transactional id."""
        node_id = self._coordinator(None).node_id
        return None if node_id is None else self._cluster_features(ToCoordinator(node_id))

    def is_ready(self, now: Now) -> bool:
        """Whether a request may be made now."""
        return not self.is_in_flight and self._not_before <= now.mono

    def enter(self, phase: object) -> None:
        """Begin another phase: no retry of the one before delays it."""
        self._phase, self._attempts, self._not_before, self._last_error = phase, 0, 0, None

    def ask(self, request: CoordinatorRequest[RequestT, ResponseT]) -> bool:
        """Make a request. Return ``False`` if the coordinator is unknown: then the look-up begins."""
        coordinator, phase = self._coordinator(request.group_id), self._phase
        target = coordinator.target()
        if target is None:
            return False

        def on_sent() -> None:
            self._was_sent = True

        def on_response(response: ResponseT, now: Now) -> None:
            self.is_in_flight = False
            if phase is self._phase:
                request.on_response(response, now)

        def on_failure(error: OttlaError, now: Now) -> None:
            self.is_in_flight = False
            coordinator.request_failed(error, now)
            if self._was_sent and request.on_lost is not None:
                request.on_lost()
            if phase is self._phase:
                self._failed(error, request, now)

        self.is_in_flight, self._was_sent = True, False
        timeout = self._config.request_timeout_ms
        self._unsent.append(
            Send(
                request.rpc, request.message, target, timeout, on_response, on_failure, request.requires, request.excludes, on_sent
            )
        )
        return True

    def _failed(self, error: OttlaError, request: CoordinatorRequest[RequestT, ResponseT], now: Now) -> None:
        self._retry(error, self._backoff.delay(self._attempts), now)
        if not error.retriable:
            what = OttlaError(f"{request.what}: {error.args[0]}", hint=error.hint, cause=error)
            self._on_failure(what, request.group_id, now)

    def succeeded(self) -> None:
        """Note that a request was executed."""
        self._attempts, self._last_error = 0, None

    def refused(self, code: int, error: OttlaError, group_id: str | None, now: Now, *, has_moved: bool) -> None:
        """Repeat a request that was refused; ``has_moved``: to another coordinator, which is looked up first."""
        if has_moved:
            self._coordinator(group_id).mark_moved(str(error))
        is_brief = code == ErrorCode.concurrent_transactions
        self._retry(error, _SOON << min(self._attempts, 5) if is_brief else self._backoff.delay(self._attempts), now)

    def _retry(self, error: OttlaError, delay: int, now: Now) -> None:
        self._last_error = error
        self._not_before = now.mono + delay
        self._attempts += 1

    def poll(self, now: Now) -> Poll:
        """Return the requests to send now, with those of the look-ups."""
        wake_at = [self._not_before] if not self.is_in_flight and now.mono < self._not_before else []
        for coordinator in self._coordinators.values():
            sends, at = coordinator.poll(now)
            self._unsent += [send for send in sends if isinstance(send, Send)]
            wake_at += [] if at is None else [at]
        unsent, self._unsent = tuple(self._unsent), []
        return Poll(unsent, min(wake_at, default=None))

    def late(self, what: str, group_id: str | None = None) -> OttlaError:
        """The error for ``what`` was not done within ``max.block.ms``, with the reason."""
        coordinator = self._coordinator(group_id)
        targets = () if coordinator.named is None else (ToCoordinator(coordinator.named),)
        reason = self._last_error or coordinator.failure or self._unreachable("the coordinator", targets)
        return timeout_error(f"{what} within {self._config.max_block_ms / 1000:g} s", reason, "the coordinator has not answered")
