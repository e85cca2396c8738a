"""Every supported version of every API, and the strategy for records in their messages."""

from __future__ import annotations

from hypothesis import strategies as st
from kio.static.primitive import Records

from ottla.protocol.apis import SPOKEN

EVERY = [(api, version) for api, (low, high) in SPOKEN.items() for version in range(low, high + 1)]
NAMES = [f"{api.name.lower()}-{version}" for api, version in EVERY]

st.register_type_strategy(Records, st.binary())
