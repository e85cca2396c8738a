"""The settings of the transaction coordinator, by Kafka's names.

Owns defaults and meaning; parsing settings and checking their bounds is the broker's.
Source: the transaction coordinator's configuration of Apache Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Times are milliseconds."""

    state_topic_partitions: int = 50
    """Partitions of ``__transaction_state``; another number in an existing log hides the transactional ids that are in it."""
    max_timeout_ms: int = 900_000
    """The longest transaction that a producer may ask for."""
    id_expiration_ms: int = 604_800_000
    """How long a transactional id is remembered that begins no transaction."""
    append_retry_backoff_ms: int = 500
    """How long until a step whose record could not be appended is retried, if no client will repeat the request."""
