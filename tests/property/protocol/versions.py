"""Every version of every API that is spoken."""

from __future__ import annotations

from ottla.protocol.apis import SPOKEN

EVERY = [(api, version) for api, (low, high) in SPOKEN.items() for version in range(low, high + 1)]
NAMES = [f"{api.name.lower()}-{version}" for api, version in EVERY]
