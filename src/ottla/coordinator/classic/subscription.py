"""What the members of a classic group read, as far as the coordinator can tell.

Owns the look into the members' metadata, which are the members' own business otherwise. Must not know what follows from it.
Invariant: a blob that cannot be read makes the answer "not known", never an error.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup
from ottla.errors import ProtocolError
from ottla.protocol.consumer_protocol import decode_subscription


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics of the last generation; ``None`` where they cannot be known: another type, no generation yet, odd bytes."""
    if group.protocol_type != "consumer" or group.subscriptions is None:
        return None
    try:
        return frozenset(topic for blob in group.subscriptions for topic in decode_subscription(blob).topics)
    except ProtocolError:
        return None
