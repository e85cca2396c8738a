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
    """Partitions of ``__transaction_state``. Do not change it for an existing log: ids would be looked up in other partitions."""
    max_timeout_ms: int = 900_000
    """The largest ``transaction.timeout.ms`` that a producer may set."""
    id_expiration_ms: int = 604_800_000
    """The time after which an unused transactional id is deleted."""
    append_retry_backoff_ms: int = 500
    """The delay before an internal step is retried whose record could not be appended. Failed requests are retried by clients."""
