"""Two brokers that are asked the same: a real Kafka, and ours.

Owns the comparison. Must not know what is asked. Invariant: what a real Kafka answers is right, and a test fails at the first
answer of ours that is another, with what was said before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

S = TypeVar("S")


class Both(Generic[S]):
    """The two of them, each behind a side that leaves out of its answers what may differ: ids, and the order of sets."""

    def __init__(self, kafka: S, ours: S) -> None:
        self.kafka, self.ours = kafka, ours
        self.said: list[str] = []

    def ask(self, what: str, *args: Any, **fields: Any) -> Any:
        """The answer of both; fails the test where there are two."""
        expected, got = (getattr(side, what)(*args, **fields) for side in (self.kafka, self.ours))
        self._note(what, args, fields, expected)
        assert got == expected, self._story(got)
        return expected

    def tell(self, what: str, *args: Any, **fields: Any) -> None:
        """Let both do something; what comes of it will be asked."""
        for side in (self.kafka, self.ours):
            getattr(side, what)(*args, **fields)
        self._note(what, args, fields, "...")

    def ask_until_same(self, what: str, *args: Any, unless: Callable[[], bool] = lambda: False, seconds: float = 30.0) -> Any:
        """The answer of both where one side may know it a little later than the other; ``None`` where ``unless`` holds."""
        until = time.monotonic() + seconds
        while True:
            expected, got = (getattr(side, what)(*args) for side in (self.kafka, self.ours))
            if unless():
                return None
            if got == expected or time.monotonic() > until:
                break
            time.sleep(0.01)
        self._note(what, args, {}, expected)
        assert got == expected, self._story(got)
        return expected

    def _note(self, what: str, args: tuple[Any, ...], fields: dict[str, Any], answer: Any) -> None:
        self.said.append(f"{what} {args[1:]} {fields or ''} -> {answer}")

    def _story(self, got: Any) -> str:
        return "\n".join((*self.said[-14:], f"and ours: {got}"))
