"""Runs the calls of an ``Admin``: requests, retries and timeouts.

Owns the open calls and their deadlines. Must not know the meaning of a call. Invariant: each call ends with exactly one
``CallEnded``, at its deadline at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ottla.client.admin.calls import AdminRequest, Call, CallAttempt, PermanentFailure
from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.effects import AnyNode, AnySend, Poll, Send, ToNode
from ottla.config import ClientConfig
from ottla.errors import ConnectionFailedError, OttlaError, OttlaTimeoutError
from ottla.types import Node, Now


@dataclass(frozen=True, slots=True)
class BeginCall:
    """A command: start a call that ends at ``deadline`` (monotonic ms; a point in time, since the command itself may be delayed).

    For the error of a call that times out: its ``name``, its whole ``timeout``, and the part of that which it has ``waited`` for
    calls of other threads, in milliseconds.
    """

    call_id: int
    name: str
    call: Call[Any]
    deadline: int
    timeout: int
    waited: int = 0


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A notification: the result or the error of a call."""

    call_id: int
    value: Any = None
    error: OttlaError | None = None


@dataclass(eq=False, slots=True)
class _OpenCall:
    """A call that has not ended: its current attempt, if one is running, and the responses to the requests that it waits for."""

    command: BeginCall
    attempt: CallAttempt[Any] | None = None
    answers: list[Any] = field(default_factory=list)
    missing: int = 0
    attempts: int = 0
    begin_at: int = 0
    last_error: OttlaError | None = None


class AdminManager:
    """A ``RequestManager``; ``learn_node`` is called with each broker before a request to it."""

    def __init__(
        self,
        config: ClientConfig,
        random: RandomPort,
        notify: Callable[[object], None],
        learn_node: Callable[[Node, Now], None],
    ) -> None:
        self._config = config
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._notify = notify
        self._learn_node = learn_node
        self._open: list[_OpenCall] = []
        self._sends: list[AnySend] = []

    def begin(self, command: BeginCall, now: Now) -> None:
        """Handle a command."""
        self._open.append(_OpenCall(command, begin_at=now.mono))

    def poll(self, now: Now) -> Poll:
        """Start the attempts that are due, and end calls past their deadline. Requests in flight end at the deadline themselves."""
        for call in list(self._open):
            if call.attempt is None and call.begin_at <= now.mono:
                call.attempt = call.command.call()
                self._continue(call, None, now)
            elif call.attempt is None and call.command.deadline <= now.mono:
                self._time_out(call)
        sends, self._sends = tuple(self._sends), []
        deadlines = ((call, call.command.deadline) for call in self._open)
        wake_at = [min(call.begin_at, deadline) if call.attempt is None else deadline for call, deadline in deadlines]
        return Poll(sends, min((at for at in wake_at if at > now.mono), default=None))

    def _on_response(self, call: _OpenCall, attempt: CallAttempt[Any], index: int, response: object, now: Now) -> None:
        """Add one response; the last one continues the attempt.

        1. An attempt sends requests to three brokers, and the first fails: the next attempt starts.
        2. The response of the second broker to the first attempt arrives. It belongs to that attempt, so it is dropped.
        """
        if call.attempt is not attempt:
            return
        call.answers[index] = response
        call.missing -= 1
        if not call.missing:
            self._continue(call, call.answers, now)

    def _on_failure(self, call: _OpenCall, attempt: CallAttempt[Any], error: OttlaError, now: Now) -> None:
        """End the attempt, since one of its requests has failed."""
        if call.attempt is attempt:
            attempt.close()
            self._failed(call, error, now)

    def _continue(self, call: _OpenCall, answers: list[Any] | None, now: Now) -> None:
        attempt = call.attempt
        assert attempt is not None
        try:
            requests = next(attempt) if answers is None else attempt.send(answers)
            while not requests:
                requests = attempt.send([])
        except StopIteration as done:
            self._end(call, value=done.value)
        except PermanentFailure as failure:
            self._end(call, error=failure.error)
        except OttlaError as error:
            self._failed(call, error, now)
        except Exception as bug:
            self._end(call, error=OttlaError(f"{call.command.name} failed: {bug!r}", cause=bug))
        else:
            call.answers, call.missing = [None] * len(requests), len(requests)
            timeout = max(min(self._config.request_timeout_ms, call.command.deadline - now.mono), 1)
            for index, request in enumerate(requests):
                if request.node is not None:
                    self._learn_node(request.node, now)
                self._sends.append(self._send(call, attempt, index, request, timeout))

    def _send(self, call: _OpenCall, attempt: CallAttempt[Any], index: int, request: AdminRequest, timeout: int) -> AnySend:
        def on_failure(error: OttlaError, now: Now) -> None:
            if request.may_fail:
                self._on_response(call, attempt, index, error, now)
            else:
                self._on_failure(call, attempt, error, now)

        return Send(
            request.rpc,
            request.message,
            AnyNode() if request.node is None else ToNode(request.node.node_id),
            timeout,
            lambda response, now: self._on_response(call, attempt, index, response, now),
            on_failure,
            request.requires,
            request.excludes,
            request.on_sent,
        )

    def _failed(self, call: _OpenCall, error: OttlaError, now: Now) -> None:
        call.attempt, call.missing, call.last_error = None, 0, error
        if not error.retriable:
            return self._end(call, error=error)
        if now.mono >= call.command.deadline:
            return self._time_out(call)
        call.begin_at = now.mono + self._backoff.delay(call.attempts)
        call.attempts += 1
        return None

    def _time_out(self, call: _OpenCall) -> None:
        cause, timeout, waited = call.last_error, call.command.timeout, call.command.waited
        if isinstance(cause, ConnectionFailedError):
            message = f"no broker could be reached within {timeout / 1000:g} s"
            return self._end(call, error=ConnectionFailedError(message, cause.attempts, hint=cause.hint))
        within = f"{call.command.name} did not finish within {timeout / 1000:g} s"
        if waited > timeout / 2:
            within += f", of which it waited {waited / 1000:g} s for calls of other threads"
        return self._end(call, error=OttlaTimeoutError(f"{within}: {cause}" if cause else within, cause=cause))

    def _end(self, call: _OpenCall, value: object = None, error: OttlaError | None = None) -> None:
        self._open.remove(call)
        call.attempt = None
        self._notify(CallEnded(call.command.call_id, value, error))
