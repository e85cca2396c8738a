"""Random numbers for the clients: back-off jitter, member ids.

Owns the choice of the generator; must not know what the numbers are for. Invariant: two clients never share a sequence, not even
after a fork.
"""

from __future__ import annotations

import random

from ottla.client.backoff import RandomPort


def random_source() -> RandomPort:
    """Return a new generator, seeded by the operating system."""
    return random.Random()
