"""Carries the calls of an ``Admin`` through: asks, waits, begins again, gives up in time.

Owns the calls that are open and their deadlines. Must not know what a call is about. Invariant: each call that was
begun ends with exactly one ``CallEnded``, at its deadline at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ottla.client.admin.calls import Ask, Call, Dialogue, Refused
from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.effects import AnyNode, AnySend, Poll, Send, ToNode
from ottla.config import ClientConfig
from ottla.errors import ConnectionFailedError, OttlaError, OttlaTimeoutError
from ottla.types import Node, Now


@dataclass(frozen=True, slots=True)
class BeginCall:
    """A command: begin a call, which ends at ``deadline``, monotonic milliseconds: this command itself may take a moment to arrive.

    For the error of a call that takes longer: its ``name``, its whole ``timeout``, and how much of that it has already ``waited``
    for its turn, in milliseconds.
    """

    call_id: int
    name: str
    call: Call[Any]
    deadline: int
    timeout: int
    waited: int = 0


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A notification: what became of a call."""

    call_id: int
    value: Any = None
    error: OttlaError | None = None


@dataclass(eq=False, slots=True)
class _Open:
    """A call that has not ended: its dialogue if one is going on, and the answers of the present round of it."""

    command: BeginCall
    dialogue: Dialogue[Any] | None = None
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
        self._open: list[_Open] = []
        self._sends: list[AnySend] = []

    def begin(self, command: BeginCall, now: Now) -> None:
        """Handle a command."""
        self._open.append(_Open(command, begin_at=now.mono))

    def poll(self, now: Now) -> Poll:
        """Begin what is due, give up what is late; questions that are under way end at the deadline by themselves."""
        for call in list(self._open):
            if call.dialogue is None and call.begin_at <= now.mono:
                call.dialogue = call.command.call()
                self._go_on(call, None, now)
            elif call.dialogue is None and call.command.deadline <= now.mono:
                self._give_up(call)
        sends, self._sends = tuple(self._sends), []
        deadlines = ((call, call.command.deadline) for call in self._open)
        wake_at = [min(call.begin_at, deadline) if call.dialogue is None else deadline for call, deadline in deadlines]
        return Poll(sends, min((at for at in wake_at if at > now.mono), default=None))

    def _on_response(self, call: _Open, dialogue: Dialogue[Any], index: int, response: object, now: Now) -> None:
        """One answer; the last of a round lets the dialogue go on. An answer to an earlier dialogue is of no use."""
        if call.dialogue is not dialogue:
            return
        call.answers[index] = response
        call.missing -= 1
        if not call.missing:
            self._go_on(call, call.answers, now)

    def _on_failure(self, call: _Open, dialogue: Dialogue[Any], error: OttlaError, now: Now) -> None:
        """One question without an answer: the dialogue is over."""
        if call.dialogue is dialogue:
            dialogue.close()
            self._failed(call, error, now)

    def _go_on(self, call: _Open, answers: list[Any] | None, now: Now) -> None:
        dialogue = call.dialogue
        assert dialogue is not None
        try:
            asks = next(dialogue) if answers is None else dialogue.send(answers)
            while not asks:
                asks = dialogue.send([])
        except StopIteration as done:
            self._end(call, value=done.value)
        except Refused as refused:
            self._end(call, error=refused.error)
        except OttlaError as error:
            self._failed(call, error, now)
        except Exception as bug:
            self._end(call, error=OttlaError(f"{call.command.name} failed: {bug!r}", cause=bug))
        else:
            call.answers, call.missing = [None] * len(asks), len(asks)
            timeout = max(min(self._config.request_timeout_ms, call.command.deadline - now.mono), 1)
            for index, ask in enumerate(asks):
                if ask.node is not None:
                    self._learn_node(ask.node, now)
                self._sends.append(self._send(call, dialogue, index, ask, timeout))

    def _send(self, call: _Open, dialogue: Dialogue[Any], index: int, ask: Ask, timeout: int) -> AnySend:
        return Send(
            ask.rpc,
            ask.message,
            AnyNode() if ask.node is None else ToNode(ask.node.node_id),
            timeout,
            lambda response, now: self._on_response(call, dialogue, index, response, now),
            lambda error, now: self._on_failure(call, dialogue, error, now),
        )

    def _failed(self, call: _Open, error: OttlaError, now: Now) -> None:
        call.dialogue, call.missing, call.last_error = None, 0, error
        if not error.retriable:
            return self._end(call, error=error)
        if now.mono >= call.command.deadline:
            return self._give_up(call)
        call.begin_at = now.mono + self._backoff.delay(call.attempts)
        call.attempts += 1
        return None

    def _give_up(self, call: _Open) -> None:
        cause, timeout, waited = call.last_error, call.command.timeout, call.command.waited
        if isinstance(cause, ConnectionFailedError):
            message = f"no broker could be reached within {timeout / 1000:g} s"
            return self._end(call, error=ConnectionFailedError(message, cause.attempts, hint=cause.hint))
        within = f"{call.command.name} did not finish within {timeout / 1000:g} s"
        if waited > timeout / 2:
            within += f", of which it waited {waited / 1000:g} s for calls of other threads"
        return self._end(call, error=OttlaTimeoutError(f"{within}: {cause}" if cause else within, cause=cause))

    def _end(self, call: _Open, value: object = None, error: OttlaError | None = None) -> None:
        self._open.remove(call)
        call.dialogue = None
        self._notify(CallEnded(call.command.call_id, value, error))
