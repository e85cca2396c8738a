"""The steps of a call, taken one after the other as ZooKeeper answers.

Owns the passage between a generator of operations and the queue of a manager. Must not know what the steps do. Invariant: ``ended``
is called once with the result or the error of the call, unless the manager abandons its operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ottla.types import Now
from ottla.zookeeper.ask_queue import AskQueue, Outcome
from ottla.zookeeper.calls import Steps

T = TypeVar("T")

Ended = Callable[[T | None, Exception | None, Now], None]


def take_steps(asks: AskQueue, steps: Steps[T], ended: Ended[T], now: Now, check: Callable[[Now], None] = lambda now: None) -> None:
    """Take the steps of a call. ``check`` raises what ends it before its next step."""

    def advance(take: Callable[[], Sequence[Any]], now: Now) -> None:
        try:
            check(now)
            operations = take()
        except StopIteration as end:
            ended(end.value, None, now)
        except Exception as error:
            ended(None, error, now)
        else:
            asks.ask_all(operations, arrived)

    def arrived(outcomes: list[Outcome], now: Now) -> None:
        advance(partial(steps.send, outcomes), now)

    advance(partial(next, steps), now)
