"""What a client may do, as the bits that responses carry when they are asked for (KIP-430).

Owns the bits of topics and of the cluster. Must not know requests. Invariant: there is no authorizer, so every client may do
everything, which is what Kafka says without one.
"""

from __future__ import annotations

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in range(3, 13)
)

TOPIC_OPERATIONS = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
CLUSTER_OPERATIONS = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE
NOT_ASKED = -(2**31)
"""The value in place of the bits if they are not requested."""
