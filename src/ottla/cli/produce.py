"""``ottla produce``: lines from stdin become records.

Owns how a line is split into key and value. Must not know the wire: confluent-kafka produces. Invariant: exit code 0
means that the broker has acknowledged every line.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connecting import check_reachable
from ottla.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Settings, client_settings, pairs
from ottla.cli.output import CommandFailed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

DELIVERY_TIMEOUT_MS = 30_000
"""How long the broker has to acknowledge a line, unless ``-X message.timeout.ms=`` says otherwise."""


class Codec(enum.StrEnum):
    """Kafka's compression types."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class LineProducer:
    """Hands lines to a producer and remembers what was refused."""

    def __init__(self, settings: dict[str, Any], topic: str, headers: dict[str, str]) -> None:
        from confluent_kafka import KafkaException, Producer

        try:
            self._producer = Producer(settings)
        except KafkaException as error:
            raise CommandFailed(str(error.args[0].str())) from error
        self._errors = KafkaException
        self._topic, self._headers = topic, list(headers.items())
        self._refused: list[KafkaError] = []

    def produce(self, key: bytes | None, value: bytes) -> None:
        """Queue one record; waits while the queue is full."""
        while True:
            try:
                self._producer.produce(self._topic, key=key, value=value, headers=[*self._headers], on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
            except self._errors as error:
                raise CommandFailed(f"topic {self._topic}: {error.args[0].str()}") from error
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait for all acknowledgements. Raises ``CommandFailed`` if a record was refused."""
        self._producer.flush()
        if self._refused:
            raise CommandFailed(f"{len(self._refused)} records were not produced to {self._topic}: {self._refused[0].str()}")

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._refused.append(error)


def produce(
    topic: Annotated[str, typer.Option("-t", "--topic", help="Where the records go.")],
    key_delimiter: Annotated[
        str | None, typer.Option("-K", "--key-delimiter", help="The separator between key and value; a line without it has no key.")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header of each record; may be repeated.")
    ] = None,
    codec: Annotated[Codec, typer.Option("-z", "--compression", help="How batches are compressed.")] = Codec.NONE,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Produce each line of stdin as one record."""
    wanted: dict[str, Any] = {
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "compression.type": codec.value,
        "log_level": 0,  # what goes wrong comes as an error
        **client_settings(bootstrap_servers, settings),
    }
    lines = LineProducer(wanted, topic, pairs(headers, "-H"))
    check_reachable(wanted)
    for key, value in split_lines(sys.stdin.buffer, key_delimiter):
        lines.produce(key, value)
    lines.finish()


def split_lines(lines: Iterable[bytes], delimiter: str | None) -> Iterable[tuple[bytes | None, bytes]]:
    """Key and value of each line without its newline. The first ``delimiter`` counts; without one there is no key."""
    mark = delimiter.encode() if delimiter else None
    for line in lines:
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if mark is not None and mark in text:
            key, _, value = text.partition(mark)
            yield key, value
        else:
            yield None, text
