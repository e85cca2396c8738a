"""``ottla produce``: lines from stdin become records.

Owns how a line is split into key and value. Must not know the wire: confluent-kafka produces. Invariant: exit code 0
means that the broker has acknowledged every line.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connecting import check_reachable
from ottla.cli.escapes import BadFormat, unescaped
from ottla.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Settings, client_settings, named, pair
from ottla.cli.output import CommandFailed, counted
from ottla.cli.producing import as_given, of_librdkafka, separated
from ottla.errors import InvalidRecordError, MessageTooLargeError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

DELIVERY_TIMEOUT_MS = 30_000
"""How long the broker has to acknowledge a line, unless ``-X message.timeout.ms=`` says otherwise."""

_MSG_TIMED_OUT = -192
"""A code of librdkafka's own."""

HINTS = {
    MessageTooLargeError.code: "allow more with -X message.max.bytes, and with the setting max.message.bytes of the topic",
    InvalidRecordError.code: "a topic with cleanup.policy=compact refuses records without a key: see -K",
    _MSG_TIMED_OUT: "the broker did not acknowledge in time: see -X message.timeout.ms",
}
"""What to do about an error, by its code; librdkafka passes on no more of a broker's answer."""

FLUSH = 0.5
"""Seconds after which a wait for acknowledgements looks for Ctrl-C, which cannot interrupt librdkafka."""

COMPRESSION = {"compression.type", "compression.codec"}


class Codec(enum.StrEnum):
    """Kafka's compression types."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class LineProducer:
    """Hands lines to a producer and remembers what was refused."""

    def __init__(self, client: Any, settings: dict[str, Any], topic: str, headers: list[tuple[str, bytes]]) -> None:
        try:
            self._producer = client.Producer(settings)
        except client.KafkaException as error:
            raise CommandFailed(as_given(str(error.args[0].str()), settings)) from error
        self._errors = client.KafkaException
        self._topic, self._headers = topic, headers
        self._lines = self._refused = 0
        self._reason: KafkaError | None = None
        """Why the first of the refused records was refused."""

    def produce(self, key: bytes | None, value: bytes) -> None:
        """Queue one record; waits while the queue is full. Raises ``CommandFailed`` for one that cannot be produced.

        It does so, too, once any record was refused: there may be no end of the input to report it at.
        """
        self._lines += 1
        while not self._refused:
            try:
                self._producer.produce(self._topic, key=key, value=value, headers=[*self._headers], on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
            except self._errors as error:
                self._flush()
                reason = self._why(error.args[0], value)
                raise CommandFailed(f"topic {self._topic}, line {self._lines}: {reason}") from error
        self._producer.poll(0)
        if self._refused:
            self._flush()
            raise CommandFailed(f"{self._failures()}; stopped after line {self._lines}")

    def finish(self) -> None:
        """Wait for all acknowledgements. Raises ``CommandFailed`` if a record was refused."""
        self._flush()
        if self._refused:
            raise CommandFailed(self._failures())

    def _why(self, error: KafkaError, value: bytes) -> str:
        """Why librdkafka did not take a record; its text is that of the broker's error, though it has not asked the broker."""
        if error.code() == MessageTooLargeError.code:
            hint = HINTS[MessageTooLargeError.code]
            return f"with {len(value)} bytes it is larger than message.max.bytes of this client ({hint})"
        return _explained(error).removeprefix("Unable to produce message: ")

    def _failures(self) -> str:
        assert self._reason is not None
        return f"{counted(self._refused, 'record')} not produced to {self._topic}: {_explained(self._reason)}"

    def _flush(self) -> None:
        while self._producer.flush(FLUSH):
            pass

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._refused += 1
            self._reason = self._reason or error


def _explained(error: KafkaError) -> str:
    """What librdkafka says, and what to do about it."""
    text, hint = error.str(), HINTS.get(error.code())
    return f"{text} ({hint})" if hint else text


def _delimiter(value: str | None) -> str | None:
    if value == "":
        raise typer.BadParameter("the separator is empty; without -K lines have no key")
    try:
        if b"\n" in unescaped(value or ""):
            raise typer.BadParameter("the separator contains a newline, which ends a line")
    except BadFormat as error:
        raise typer.BadParameter(str(error)) from error
    return value


def _headers(given: list[str] | None) -> list[tuple[str, bytes]]:
    """Headers as they were given: in their order, names more than once, values of any bytes."""
    return [(name, os.fsencode(value)) for name, value in (pair(each, "-H") for each in given or ())]


def produce(
    topic: Annotated[str, typer.Option("-t", "--topic", callback=named, help="Where the records go.")],
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "-K",
            "--key-delimiter",
            callback=_delimiter,
            help="The separator between key and value, with escapes such as \\t; a line without it has no key.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header of each record; may be repeated.")
    ] = None,
    codec: Annotated[
        Codec | None, typer.Option("-z", "--compression", show_default="none", help="How batches are compressed.")
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Produce each line of stdin as one record."""
    sent_headers = _headers(headers)
    own, others = separated(client_settings(bootstrap_servers, settings))
    if codec is not None and (twice := others.keys() & COMPRESSION):
        raise typer.BadParameter(f"{min(twice)} is given with -X as well", param_hint="-z")
    wanted: dict[str, Any] = {
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        **({} if codec is None else {"compression.type": codec.value}),
        "log_level": 0,  # what goes wrong comes as an error
        **of_librdkafka(own),
        **others,
    }
    client = _confluent_kafka()
    check_reachable(own)
    lines = LineProducer(client, wanted, topic, sent_headers)
    try:
        for key, value in split_lines(sys.stdin.buffer, None if key_delimiter is None else unescaped(key_delimiter)):
            lines.produce(key, value)
    except OSError as error:
        lines.finish()
        raise CommandFailed(f"cannot read stdin: {error.strerror}") from error
    lines.finish()


def _confluent_kafka() -> Any:
    """The client that produces, which takes a moment to load."""
    import confluent_kafka

    return confluent_kafka


def split_lines(lines: Iterable[bytes], delimiter: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    """Key and value of each line without its newline. The first ``delimiter`` counts; without one there is no key."""
    for line in lines:
        text = line.removesuffix(b"\n")
        key, found, value = text.partition(delimiter) if delimiter is not None else (b"", b"", text)
        yield (key, value) if found else (None, text)
