"""Where randomness comes from.

Owns the choice of the generator; must not know what is drawn. Invariant: two clients never share a sequence, also not
after a fork.
"""

from __future__ import annotations

import random

from ottla.client.backoff import RandomPort


def random_source() -> RandomPort:
    """A generator of its own, seeded by the operating system."""
    return random.Random()
