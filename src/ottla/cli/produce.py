"""``ottla produce``: writes the lines of stdin, or the rows of Arrow data, as records.

Owns the options, and the split of a line into key and value. Must not know the protocol. Invariant: exit code 0 means that the
brokers have acknowledged every record.
"""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer

import ottla
from ottla.cli.arrow_file import ArrowInput
from ottla.cli.clients import check_reachable, value_of, with_producer_defaults
from ottla.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Settings, SingleValueCommand, check_name, client_settings, parse_pair
from ottla.cli.output import CommandFailed
from ottla.cli.record_format import BadFormat, unescape
from ottla.cli.sending import Sending, produce_all
from ottla.config.producer import Acks, ProducerConfig
from ottla.config.spelling import table
from ottla.errors import MessageTooLargeError

app = typer.Typer(add_completion=False)

COMPRESSION, ACKS, IDEMPOTENCE, TRANSACTIONAL_ID = "compression.type", "acks", "enable.idempotence", "transactional.id"


class Codec(enum.StrEnum):
    """Kafka's compression types."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class LineInput:
    """The lines of stdin, as an ``Input``. No more than the beginning is read of a line of more than ``longest`` bytes."""

    total = None

    def __init__(self, delimiter: bytes | None, longest: int) -> None:
        # Not sys.stdin: when the command ends, the thread that reads may still hold the lock of the buffer.
        self._file = io.BufferedReader(io.FileIO(0, closefd=False))
        self._delimiter, self._longest = delimiter, longest

    def send_to(self, sending: Sending) -> None:
        """Send all lines. Raises ``CommandFailed`` if stdin cannot be read, or a line is too long."""
        try:
            for key, value in self._records():
                if sending.is_over:
                    return
                sending.send(value, key)
                sending.accepted += 1
        except MessageTooLargeError as error:
            raise CommandFailed(f"topic {sending.topic}, line {sending.accepted + 1}: {error}") from error

    def place(self, sending: Sending) -> str:
        """The last line that was sent."""
        return f"line {sending.accepted}"

    def _records(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each line, without its newline, split at the first delimiter; the key is ``None`` without one."""
        delimiter = self._delimiter
        try:
            for line in iter(partial(self._file.readline, self._longest + 2), b""):
                if len(line) > self._longest + 1:
                    text = f"it has more than the {self._longest} bytes of max.request.size"
                    raise MessageTooLargeError(text, hint="increase that with -X, and max.message.bytes of the topic")
                record = line.removesuffix(b"\n")
                if delimiter is None:
                    yield None, record
                else:
                    key, found, value = record.partition(delimiter)
                    yield (key, value) if found else (None, record)
        except OSError as error:
            raise CommandFailed(f"cannot read stdin: {error.strerror}") from error


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


def _acks(value: str | None) -> str | None:
    if value is not None:
        try:
            table(ProducerConfig)[ACKS].parse(value)
        except ValueError as error:
            raise typer.BadParameter(f"{value!r} is not {error}") from error
    return value


@app.command(cls=SingleValueCommand)
def produce(
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", callback=check_name, help="Topic to produce to; with --arrow by default the column topic."),
    ] = None,
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
    arrow: Annotated[
        str | None,
        typer.Option(
            "--arrow",
            metavar="FILE|-",
            callback=check_name,
            help="Produce the rows of a Parquet file or an Arrow IPC file or stream, or of a stream on stdin: columns value, key, "
            "topic, partition, headers, timestamp.",
        ),
    ] = None,
    codec: Annotated[
        Codec | None, typer.Option("-z", "--codec", "--compression", show_default="none", help="Compression type.")
    ] = None,
    acks: Annotated[
        str | None,
        typer.Option(
            "--acks",
            metavar="all|1",
            callback=_acks,
            show_default="all",
            help="Who has to have a record: all in-sync replicas, or only the leader: retries may double and reorder records then.",
        ),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Produce each line of stdin, or each row of Arrow data, as one record."""
    sent_headers = _headers(headers)
    if arrow is None and topic is None:
        raise typer.BadParameter("the topic is missing", param_hint="-t")
    if arrow is not None and (key_delimiter is not None or sent_headers):
        raise typer.BadParameter("rows have columns for keys and headers: -K and -H are for lines", param_hint="--arrow")
    given = _client_settings(bootstrap_servers, settings, codec, acks)
    config = with_producer_defaults(given)
    longest = value_of(ProducerConfig, "max_request_size", config)
    source = ArrowInput(arrow) if arrow is not None else LineInput(_unescaped(key_delimiter), longest)
    with ottla.Producer(config) as producer:
        check_reachable(given)
        is_typed = arrow is None and os.isatty(0)
        produce_all(source, Sending(producer, topic, sent_headers), producer, shows_progress=not is_typed)


def _unescaped(delimiter: str | None) -> bytes | None:
    return None if delimiter is None else unescape(delimiter)


def _client_settings(servers: str, given: list[str] | None, codec: Codec | None, acks: str | None) -> dict[str, Any]:
    """Return the settings of the options. Raises ``typer.BadParameter`` for doubles."""
    settings: dict[str, Any] = dict(client_settings(servers, given))
    if TRANSACTIONAL_ID in settings:
        raise CommandFailed(f"{TRANSACTIONAL_ID} cannot be set: ottla produce does not use transactions")
    for name, flag, value in ((COMPRESSION, "-z", codec), (ACKS, "--acks", acks)):
        if value is not None:
            if name in settings:
                raise typer.BadParameter(f"{name} is also set with -X", param_hint=flag)
            settings[name] = str(value)
    if acks is not None and table(ProducerConfig)[ACKS].parse(acks) is Acks.LEADER:
        settings.setdefault(IDEMPOTENCE, False)  # otherwise the producer warns: the help of the option says it
    return settings
