"""The delay before the next attempt: exponential, with jitter from an injected source of randomness.

Owns the formula ``min(max, base * 2^attempts) * U(0.8, 1.2)`` of Kafka's clients (KIP-144, KIP-580). Must not know what
is retried, nor the time. Invariant: a delay never exceeds ``1.2 * max``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RandomPort(Protocol):
    """A core's source of randomness; ``random.Random`` is one."""

    def random(self) -> float:
        """Return a float in [0, 1)."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays in whole milliseconds. ``base >= maximum`` gives a constant ``maximum`` without jitter."""

    base: int
    maximum: int
    random: RandomPort
    jitter: float = 0.2

    def delay(self, attempts: int) -> int:
        """Return the delay after ``attempts`` failures in a row, not counting the latest: the first delay is ``delay(0)``."""
        if self.base >= self.maximum:
            return self.maximum
        exponential = min(float(self.maximum), self.base * 2.0 ** min(attempts, 62))
        return round(exponential * (1 - self.jitter + 2 * self.jitter * self.random.random()))
