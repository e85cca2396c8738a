"""Effects that were decided and have not left the core yet.

Owns their order. Must not know what an effect means or which code carries it out. Invariant: each effect is taken out once, even if
an exception ends the call that put it in: it then goes out with the next call, at the end of the turn at the latest.
"""

from __future__ import annotations

from ottla.broker.effects import Effect


class Outbox:
    """The effects of one broker, in the order in which they were decided.

    Code that changes a state puts in the effects of that change at once, before the next step, which may raise.
    """

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def put(self, *effects: Effect) -> None:
        """Add effects after the others."""
        self._effects += effects

    def take(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
