"""The topics that a classic group subscribes to.

Owns the decoding of members' metadata, which is opaque to the rest of the coordinator. Must not know how callers use the topics.
Invariant: metadata that cannot be decoded means "unknown", never an error.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup
from ottla.errors import ProtocolError
from ottla.protocol.consumer_protocol import decode_subscription


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics of the last generation; ``None`` if they are unknown.

    They are unknown for another protocol type, before the first generation, and if metadata cannot be decoded.
    """
    if group.protocol_type != "consumer" or group.subscriptions is None:
        return None
    try:
        return frozenset(topic for blob in group.subscriptions for topic in decode_subscription(blob).topics)
    except ProtocolError:
        return None
