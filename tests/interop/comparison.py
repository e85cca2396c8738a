"""The comparison of Ottla's broker with Apache Kafka: both get the same requests.

Owns the comparison. Must not know the requests. Invariant: the responses of Apache Kafka are correct; a test fails at Ottla's first
response that differs, and shows the exchange before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

S = TypeVar("S")


class Comparison(Generic[S]):
    """The two brokers, each behind an adapter that removes from responses what may differ: ids, and the order of sets."""

    def __init__(self, kafka: S, ours: S) -> None:
        self.kafka, self.ours = kafka, ours
        self.said: list[str] = []

    def ask(self, what: str, *args: Any, **fields: Any) -> Any:
        """Send a request to both and return the response. Fails the test if they differ."""
        expected, got = (getattr(side, what)(*args, **fields) for side in (self.kafka, self.ours))
        self._note(what, args, fields, expected)
        assert got == expected, self._story(got)
        return expected

    def tell(self, what: str, *args: Any, **fields: Any) -> None:
        """Send to both without a comparison; later requests compare the effects."""
        for side in (self.kafka, self.ours):
            getattr(side, what)(*args, **fields)
        self._note(what, args, fields, "...")

    def ask_until_same(self, what: str, *args: Any, unless: Callable[[], bool] = lambda: False, seconds: float = 30.0) -> Any:
        """Repeat a request until both responses are the same, as one broker may be slower; ``None`` if ``unless`` holds."""
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
