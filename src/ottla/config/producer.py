"""The settings of ``Producer``.

Owns ``ProducerConfig``; each field is one row of the table of settings, as in ``ottla.config``. Must not know the use of a setting.
Invariant: an idempotent producer has the settings that idempotence needs. Source of names, defaults, bounds and rules: the producer
configuration of Apache Kafka 4.3.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.config import ClientConfig, warn
from ottla.config.rows import INT_MAX, boolean, count, integer, milliseconds, one_of, row, short_text
from ottla.config.spelling import dotted
from ottla.errors import ConfigError
from ottla.types import as_integer

Serializer = Callable[..., Any]
"""Converts a user's key or value to bytes, text or ``None``."""

SERIALIZER = "Callable[[Any], bytes | bytearray | memoryview | str | None]"
"""The type for type checkers."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_LONG_MAX = 2**63 - 1

_MOST_IN_FLIGHT = 5
"""As many batches of a producer a broker remembers, to recognize those that it has written already."""

_NOT_IDEMPOTENT = "with enable.idempotence=false, retries may write records twice or in another order"

_GZIP_DEFAULT = -1

_PARTITIONERS = {
    "murmur2_random": "no value: Kafka's own partitioner, which librdkafka calls murmur2_random, is the default",
    "random": "partitioner_ignore_keys=True in its place",
    **dict.fromkeys(
        ("consistent", "consistent_random", "murmur2", "fnv1a", "fnv1a_random"),
        "a callable, such as lambda topic, key, partitions: zlib.crc32(key or b'') % partitions, which librdkafka calls consistent",
    ),
}
"""A word of librdkafka -> what is expected in its place."""

_OF_KAFKAS_PARTITIONER = (
    "partitioner_adaptive_partitioning_enable",
    "partitioner_availability_timeout_ms",
    "partitioner_ignore_keys",
)


def _long_milliseconds(default: int, low: int = 0) -> Any:
    """A duration that Kafka stores in 64 bits: people give the largest number for "forever". It is at most 24 days here."""
    parse = integer(low, _LONG_MAX)
    return row(default, lambda value: min(parse(value), INT_MAX), duration=True)


class Acks(enum.IntEnum):
    """Who has to have a record before it counts as written. The values are Kafka's, on the wire."""

    LEADER = 1
    ALL = -1


def _acks(value: Any) -> Acks:
    number = as_integer(value)
    word = str(number) if number is not None else value.strip().lower() if isinstance(value, str) else ""
    if word == "0":
        raise ValueError("all or 1: without acknowledgements nothing is known of a record, not even that it was refused")
    if word not in ("all", "-1", "1"):
        raise ValueError("all or 1")
    return Acks.LEADER if word == "1" else Acks.ALL


def _gzip_level(value: Any) -> int:
    try:
        level = integer(_GZIP_DEFAULT, 9)(value)
    except ValueError:
        level = 0
    if level == 0:
        raise ValueError("a whole number from 1 to 9, or -1")
    return level


def _transactional_id(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    return short_text(value)


def _partitioner(value: Any) -> Any:
    if isinstance(value, str) and value.strip().lower() in _PARTITIONERS:
        raise ValueError(_PARTITIONERS[value.strip().lower()])
    if not callable(value):
        raise ValueError("a callable that returns a partition (Java classes cannot be used here)")
    return value


def _serializer(value: Any) -> Any:
    if not callable(value):
        raise ValueError("a callable that returns bytes, text or None (Java classes cannot be used here)")
    return value


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The settings of ``Producer``."""

    acks: Acks = row(Acks.ALL, _acks, accepts='Literal["all", "-1", "1", -1, 1]')  # noqa: RUF009 - a field
    """When a record counts as written: ``all`` in-sync replicas have it (-1), or the leader has it (1)."""
    enable_idempotence: bool = row(True, boolean)
    """Whether brokers recognize a batch that is sent again, so that no retry doubles or reorders records. It needs ``acks=all``,
    ``retries`` and ``max.in.flight.requests.per.connection`` up to 5. The default is false with ``acks=1`` or ``retries=0``, and a
    warning says so."""
    linger_ms: int = _long_milliseconds(5)
    """How long a record waits for others to share a batch with."""
    batch_size: int = count(16_384)
    """The size of a batch in bytes, before compression; a single larger record is sent alone. Large batches are much cheaper. 0:
    each record is sent alone."""
    buffer_memory: int = count(33_554_432, 1, _LONG_MAX)
    """How much memory, in bytes, the records may take that are not acknowledged yet. ``send`` waits when it is used up."""
    max_block_ms: int = _long_milliseconds(60_000)
    """How long ``send`` waits for memory, or for the metadata of a topic."""
    max_request_size: int = count(1_048_576, 1)
    """The maximum size of a request, and of a record before compression, in bytes; a single larger batch is sent alone."""
    delivery_timeout_ms: int = milliseconds(120_000, 1)
    """How long after ``send`` a record is written or has failed, retries included. At least ``linger.ms`` and
    ``request.timeout.ms`` together, and that by default if it is longer."""
    max_in_flight_requests_per_connection: int = count(5, 1)
    """How many requests to a broker may be without a response; an idempotent producer may have 5."""
    retries: int = count(INT_MAX)
    """How often a batch is sent again, within ``delivery.timeout.ms``."""
    compression_type: str = row("none", one_of(*CODECS))
    """The codec of the batches."""
    compression_gzip_level: int = row(_GZIP_DEFAULT, _gzip_level)
    """The level of gzip; -1: its default."""
    compression_lz4_level: int = row(9, integer(1, 17))
    """The level of lz4. As in Kafka's own clients, the default is its fast compressor; any other level from 2 is slower and
    compresses more."""
    compression_zstd_level: int = row(3, integer(-131_072, 22))
    """The level of zstd."""
    transactional_id: str | None = row(None, _transactional_id)
    """The name of the producer in transactions. A producer ends the transaction of an earlier one with its name, and fences that
    one: so each running process needs its own."""
    transaction_timeout_ms: int = milliseconds(60_000, 1)
    """How long a transaction may last before the coordinator aborts it and fences the producer. Brokers allow 15 minutes
    (``transaction.max.timeout.ms``)."""
    partitioner: Callable[[str, bytes | None, int], int] | None = row(None, _partitioner)  # noqa: RUF009 - a field
    """A callable that gets the topic, the key's bytes and the number of partitions, and returns a partition. None: as Kafka's own
    producer, by the key, and without a key one partition for each batch."""
    partitioner_ignore_keys: bool = row(False, boolean)
    """Whether records with a key are distributed as those without."""
    partitioner_adaptive_partitioning_enable: bool = row(True, boolean)
    """Whether records without a key rather go to partitions whose brokers are fast."""
    partitioner_availability_timeout_ms: int = _long_milliseconds(0)
    """A partition whose broker takes no request for this long gets no records without a key; 0: it does."""
    metadata_max_idle_ms: int = _long_milliseconds(300_000, 5_000)
    """How long the metadata of a topic is refreshed after its last record."""
    key_serializer: Serializer | None = row(None, _serializer, accepts=SERIALIZER)  # noqa: RUF009 - a field
    """A callable that turns a key into bytes, text or ``None``. None: keys are that already."""
    value_serializer: Serializer | None = row(None, _serializer, accepts=SERIALIZER)  # noqa: RUF009 - a field
    """The same for values."""

    @property
    def compression_level(self) -> int | None:
        """The level of the codec; ``None``: its default, or it has none."""
        levels = {
            "gzip": None if self.compression_gzip_level == _GZIP_DEFAULT else self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @classmethod
    def _implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        implied = dict(super()._implied(given))
        if given.get("acks", cls.acks) is not Acks.ALL or given.get("retries", cls.retries) == 0:
            implied["enable_idempotence"] = False
        least = given.get("linger_ms", cls.linger_ms) + given.get("request_timeout_ms", cls.request_timeout_ms)
        implied["delivery_timeout_ms"] = max(cls.delivery_timeout_ms, min(least, INT_MAX))
        return implied

    def _check(self, given: frozenset[str]) -> None:
        super()._check(given)
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError(
                f"transactional.id is {self.transactional_id!r}: transactions need an idempotent producer",
                hint="leave out enable.idempotence=false, acks=1 and retries=0",
            )
        if self.enable_idempotence or "enable_idempotence" not in given:
            self._check_idempotence()
        if not self.enable_idempotence and "enable_idempotence" not in given:
            lost = "retries=0 excludes idempotence: the first lost connection or moved leader fails a record"
            doubled = "acks=1 excludes idempotence: a retry may write records twice or in another order"
            warn(f"{doubled if self.retries else lost}; enable.idempotence=false says that this is intended")
        least = min(self.linger_ms + self.request_timeout_ms, INT_MAX)
        if self.delivery_timeout_ms < least:
            below = f"below linger.ms + request.timeout.ms, which is {least}"
            raise ConfigError(f"delivery.timeout.ms is {self.delivery_timeout_ms}, {below}")
        self._warn_of_ignored(given)

    def _check_idempotence(self) -> None:
        """As Kafka, which counts the requests in flight even where ``acks`` or ``retries`` have turned idempotence off."""
        most = self.max_in_flight_requests_per_connection
        if self.enable_idempotence and self.acks is not Acks.ALL:
            raise ConfigError(f"acks is {self.acks}: an idempotent producer needs acks=all", hint=_NOT_IDEMPOTENT)
        if self.enable_idempotence and self.retries == 0:
            raise ConfigError("retries is 0: an idempotent producer needs retries", hint=_NOT_IDEMPOTENT)
        if most > _MOST_IN_FLIGHT:
            text = f"max.in.flight.requests.per.connection is {most}: an idempotent producer may have {_MOST_IN_FLIGHT}"
            raise ConfigError(text, hint=_NOT_IDEMPOTENT)

    def _warn_of_ignored(self, given: frozenset[str]) -> None:
        levels = {f"compression_{codec}_level" for codec in CODECS} - {f"compression_{self.compression_type}_level"}
        ignored = {f"compression.type={self.compression_type}": levels}
        if self.partitioner is not None:
            ignored["a partitioner of your own"] = set(_OF_KAFKAS_PARTITIONER)
        elif not self.partitioner_adaptive_partitioning_enable:
            ignored["partitioner.adaptive.partitioning.enable=false"] = {"partitioner_availability_timeout_ms"}
        for what, names in ignored.items():
            if names & given:
                warn(f"{what} ignores {', '.join(map(dotted, sorted(names & given)))}")
