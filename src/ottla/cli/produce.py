"""``ottla produce``: produces the lines of stdin as records.

Owns the split of a line into key and value. Must not know the protocol: confluent-kafka produces. Invariant: exit code 0 means that
the broker has acknowledged every line.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.clients import check_reachable
from ottla.cli.librdkafka_settings import split_settings, to_librdkafka, use_given_name
from ottla.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Settings, check_name, client_settings, parse_pair
from ottla.cli.output import CommandFailed, pluralize
from ottla.cli.record_format import BadFormat, unescape
from ottla.errors import InvalidRecordError, MessageTooLargeError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

DELIVERY_TIMEOUT_MS = 30_000
"""The default of ``-X message.timeout.ms``: the time for the acknowledgement of a line."""

_MSG_TIMED_OUT = -192
"""librdkafka's local error ``RD_KAFKA_RESP_ERR__MSG_TIMED_OUT``."""

HINTS = {
    MessageTooLargeError.code: "increase -X message.max.bytes, and max.message.bytes of the topic",
    InvalidRecordError.code: "a topic with cleanup.policy=compact rejects records without a key: see -K",
    _MSG_TIMED_OUT: "the broker did not acknowledge in time: see -X message.timeout.ms",
}
"""Error code -> hint. librdkafka provides only the code of a broker's error, not its message."""

FLUSH_INTERVAL = 0.5
"""Seconds between two checks for Ctrl-C during ``flush()``, which a signal cannot interrupt inside librdkafka."""

COMPRESSION = {"compression.type", "compression.codec"}


class Codec(enum.StrEnum):
    """Kafka's compression types."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class LineProducer:
    """Produces lines, and counts the records that failed."""

    def __init__(self, client: Any, settings: dict[str, Any], topic: str, headers: list[tuple[str, bytes]]) -> None:
        try:
            self._producer = client.Producer(settings)
        except client.KafkaException as error:
            raise CommandFailed(use_given_name(str(error.args[0].str()), settings)) from error
        self._errors = client.KafkaException
        self._topic, self._headers = topic, headers
        self._lines = self._failed = 0
        self._reason: KafkaError | None = None
        """The error of the first failed record."""

    def produce(self, key: bytes | None, value: bytes) -> None:
        """Queue one record; waits while the queue is full. Raises ``CommandFailed`` if it, or an earlier record, failed.

        Errors of earlier records are not left to ``finish()``, because the input may be endless.
        """
        self._lines += 1
        while not self._failed:
            try:
                self._producer.produce(self._topic, key=key, value=value, headers=[*self._headers], on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
            except self._errors as error:
                self._flush()
                reason = self._produce_error(error.args[0], value)
                raise CommandFailed(f"topic {self._topic}, line {self._lines}: {reason}") from error
        self._producer.poll(0)
        if self._failed:
            self._flush()
            raise CommandFailed(f"{self._failure_message()}; stopped after line {self._lines}")

    def finish(self) -> None:
        """Wait for all acknowledgements. Raises ``CommandFailed`` if a record failed."""
        self._flush()
        if self._failed:
            raise CommandFailed(self._failure_message())

    def _produce_error(self, error: KafkaError, value: bytes) -> str:
        """Return why ``produce()`` failed. For a record that is too large, librdkafka uses the text of the broker's error, which
        hides that its own limit applies."""
        if error.code() == MessageTooLargeError.code:
            hint = HINTS[MessageTooLargeError.code]
            return f"its {len(value)} bytes exceed message.max.bytes of this client ({hint})"
        return _with_hint(error).removeprefix("Unable to produce message: ")

    def _failure_message(self) -> str:
        assert self._reason is not None
        return f"{pluralize(self._failed, 'record')} not produced to {self._topic}: {_with_hint(self._reason)}"

    def _flush(self) -> None:
        while self._producer.flush(FLUSH_INTERVAL):
            pass

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failed += 1
            self._reason = self._reason or error


def _with_hint(error: KafkaError) -> str:
    """Return librdkafka's message, and the hint for its code."""
    text, hint = error.str(), HINTS.get(error.code())
    return f"{text} ({hint})" if hint else text


def _delimiter(value: str | None) -> str | None:
    if value == "":
        raise typer.BadParameter("the delimiter is empty; omit -K to produce records without a key")
    try:
        if b"\n" in unescape(value or ""):
            raise typer.BadParameter("the delimiter contains a newline, which ends a line")
    except BadFormat as error:
        raise typer.BadParameter(str(error)) from error
    return value


def _headers(given: list[str] | None) -> list[tuple[str, bytes]]:
    """Return the headers in the order given. Names may repeat, and values may have any bytes."""
    return [(name, os.fsencode(value)) for name, value in (parse_pair(each, "-H") for each in given or ())]


def produce(
    topic: Annotated[str, typer.Option("-t", "--topic", callback=check_name, help="Topic to produce to.")],
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "-K",
            "--key-delimiter",
            callback=_delimiter,
            help="Delimiter between key and value, with escapes such as \\t; a line without it becomes a record without a key.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", metavar="NAME=VALUE", help="Header of each record; may be repeated."),
    ] = None,
    codec: Annotated[Codec | None, typer.Option("-z", "--compression", show_default="none", help="Compression type.")] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Produce each line of stdin as one record."""
    sent_headers = _headers(headers)
    own, others = split_settings(client_settings(bootstrap_servers, settings))
    if codec is not None and (twice := others.keys() & COMPRESSION):
        raise typer.BadParameter(f"{min(twice)} is also set with -X", param_hint="-z")
    wanted: dict[str, Any] = {
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        **({} if codec is None else {"compression.type": codec.value}),
        "log_level": 0,  # errors are reported by the delivery callback instead
        **to_librdkafka(own),
        **others,
    }
    client = _confluent_kafka()
    check_reachable(own)
    lines = LineProducer(client, wanted, topic, sent_headers)
    try:
        for key, value in split_lines(sys.stdin.buffer, None if key_delimiter is None else unescape(key_delimiter)):
            lines.produce(key, value)
    except OSError as error:
        lines.finish()
        raise CommandFailed(f"cannot read stdin: {error.strerror}") from error
    lines.finish()


def _confluent_kafka() -> Any:
    """Import lazily: other commands start faster without it."""
    import confluent_kafka

    return confluent_kafka


def split_lines(lines: Iterable[bytes], delimiter: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield key and value of each line, without its newline, split at the first ``delimiter``; the key is ``None`` without one."""
    for line in lines:
        text = line.removesuffix(b"\n")
        key, found, value = text.partition(delimiter) if delimiter is not None else (b"", b"", text)
        yield (key, value) if found else (None, text)
