"""The operations that a manager wants performed: collected in callbacks, returned by its next poll.

Owns the queue, and the wait for the outcomes of several operations. Must not know why a node is read or written. Invariants: an
outcome that arrives after ``abandon`` calls nothing; ``ask_all`` calls its function after the last outcome; if a function raises,
the manager gets the exception as a failure of the operation, so that it does not wait for it for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar

from ottla.errors import KeeperCode, OttlaError, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.operations import Create, Operation
from ottla.zookeeper.session import AnyAsk, Ask

_ResultT = TypeVar("_ResultT")
_OutcomeT = TypeVar("_OutcomeT")

Outcome: TypeAlias = Any
"""The result of an operation, or its ``OttlaError``. The operations of one call have results of several types."""

MOST_SURPRISES = 3
"""How often a manager goes on at once after other clients have changed nodes under its hands. Then it fails, and backs off."""


class AskQueue:
    """See the module. ``timeout`` (milliseconds) is that of each operation."""

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._unsent: list[AnyAsk] = []
        self._round = 0

    def __repr__(self) -> str:
        return f"<AskQueue {len(self._unsent)} unsent>"

    def ask(
        self,
        operation: Operation[_ResultT],
        on_result: Callable[[_ResultT, Now], None],
        on_failure: Callable[[OttlaError, Now], None],
    ) -> None:
        """Perform an operation, and call one of the functions with its outcome.

        If that function raises, ``on_failure`` gets the exception, as an ``OttlaError``, and the exception goes on to the caller.
        """
        asked_in = self._round

        def guarded(handle: Callable[[_OutcomeT, Now], None]) -> Callable[[_OutcomeT, Now], None]:
            def handled(outcome: _OutcomeT, now: Now) -> None:
                if asked_in != self._round:
                    return
                try:
                    handle(outcome, now)
                except Exception as bug:
                    on_failure(_failure_of(operation, bug), now)
                    raise

            return handled

        self._unsent.append(Ask(operation, self._timeout, guarded(on_result), guarded(on_failure)))

    def ensure(self, path: str) -> None:
        """Create a node without data, unless it exists.

        The outcome is ignored: the operations of a session are executed in order, and one that needs the node says what is missing.
        """
        self.ask(Create(path), lambda result, now: None, lambda error, now: None)

    def ask_all(self, operations: Sequence[Operation[Any]], done: Callable[[list[Outcome], Now], None]) -> None:
        """Perform operations at once, and call ``done`` with the outcome of each, in order. There must be at least one.

        If ``done`` raises, it is called once more, with the exception as the outcome of the operation that was answered last.
        """
        outcomes: dict[int, Outcome] = {}

        def arrive_at(index: int) -> Callable[[Outcome, Now], None]:
            def arrived(outcome: Outcome, now: Now) -> None:
                outcomes[index] = outcome
                if len(outcomes) == len(operations):
                    done([outcomes[at] for at in range(len(operations))], now)

            return arrived

        for index, operation in enumerate(operations):
            self.ask(operation, arrive_at(index), arrive_at(index))

    def take(self) -> tuple[AnyAsk, ...]:
        """Return the operations since the last call."""
        unsent, self._unsent = self._unsent, []
        return tuple(unsent)

    def abandon(self) -> None:
        """Ignore the outcomes of all operations so far; those that were not taken are not performed."""
        self._round += 1
        self._unsent.clear()


def _failure_of(operation: Operation[Any], bug: Exception) -> OttlaError:
    if isinstance(bug, OttlaError):
        return bug
    return OttlaError(f"handling the outcome of {type(operation).__name__} at {operation.path} failed: {bug!r}", cause=bug)


def is_missing(outcome: Outcome) -> TypeGuard[ZooKeeperError]:
    """Whether the node does not exist."""
    return has_code(outcome, KeeperCode.NONODE)


def has_code(outcome: Outcome, *codes: KeeperCode) -> TypeGuard[ZooKeeperError]:
    """Whether the outcome is an error with one of these codes."""
    return isinstance(outcome, ZooKeeperError) and outcome.code in codes


def first_error(outcomes: Sequence[Outcome], *harmless: KeeperCode) -> OttlaError | None:
    """The first error that has none of these codes."""
    errors = (outcome for outcome in outcomes if isinstance(outcome, OttlaError))
    return next((error for error in errors if not has_code(error, *harmless)), None)
