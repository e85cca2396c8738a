"""``ottla consume``: writes the records of a topic to stdout.

Owns the start and the end of reading. Must not know how a record is rendered. Invariants: with a group, an offset is committed only
after its record has been written and flushed; ``zookeeper.connect`` disables the default of ``-b``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Annotated, Any

import typer

import ottla
from ottla import OffsetAndMetadata, TopicPartition
from ottla.cli.clients import with_default_timeouts
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    OFFSET_RESETS,
    Bootstrap,
    Settings,
    SingleValueCommand,
    check_name,
    given_settings,
    is_offset,
    is_on_command_line,
)
from ottla.cli.output import CommandFailed
from ottla.cli.record_format import BadFormat, Renderer, compile_format
from ottla.cli.standard_streams import interrupt_writes_on
from ottla.errors import WakeupError
from ottla.health import serve
from ottla.signals import Interrupted, stop_on_signals

app = typer.Typer(add_completion=False)

POLL = 1.0
"""Seconds of one poll, and so the delay until ``-e`` notices the end of the topic."""

AUTO_COMMIT = ("enable.auto.commit", "auto.commit.enable")
"""The setting that the command needs for itself, and its name in Kafka 0.8."""


class ConsoleConsumer:
    """One run of the command."""

    def __init__(self, consumer: ottla.Consumer, out: IO[bytes], render: Renderer, count: int | None, until_end: bool) -> None:
        self._consumer, self._out, self._render = consumer, out, render
        self._left = count
        self._until_end = until_end
        self._ends: dict[TopicPartition, int] = {}
        self._in_group = False
        self._has_assignment = False

    def assign(self, partitions: list[TopicPartition], offset: str) -> None:
        """Read these partitions from ``offset``, without a group."""
        self._consumer.assign(partitions)
        self._store_ends(partitions)
        if offset == "beginning":
            self._consumer.seek_to_beginning(*partitions)
        elif offset == "end":
            self._consumer.seek_to_end(*partitions)
        else:
            first, end = self._consumer.beginning_offsets(partitions), self._consumer.end_offsets(partitions)
            for partition in partitions:
                self._consumer.seek(partition, min(max(int(offset), first[partition]), end[partition]))

    def subscribe(self, topic: str, partitions: list[TopicPartition]) -> None:
        """Read the partitions that the group assigns."""
        self._in_group = True
        self._store_ends(partitions)
        self._consumer.subscribe([topic], on_assign=self._assigned)

    def run(self) -> None:
        """Write records until ``-c`` or ``-e`` ends the command."""
        while not self._done():
            written = self._write(self._consumer.poll(timeout=POLL))
            if written and self._in_group:
                self._commit(written)
        if self._in_group and self._left != 0:
            self._warn_of_unread_partitions()

    def _warn_of_unread_partitions(self) -> None:
        """Name the partitions that ``-e`` has not read because other members own them: a killed member owns its partitions until
        its session expires."""
        elsewhere = sorted(self._ends.keys() - self._consumer.assignment())
        committed = self._consumer.committed(elsewhere) if elsewhere else {}
        behind = [each for each in elsewhere if (at := committed.get(each)) is None or at.offset < self._ends[each]]
        names = ", ".join(f"{each.topic}-{each.partition}" for each in behind if self._ends[each])
        if names:
            typer.echo(f"not read to the end, because other members of the group own them: {names}", err=True)

    def _assigned(self, consumer: ottla.Consumer, partitions: list[TopicPartition]) -> None:
        self._has_assignment = True

    def _store_ends(self, partitions: list[TopicPartition]) -> None:
        if self._until_end:
            self._ends = self._consumer.end_offsets(partitions)

    def _write(self, records: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Write and flush the records, at most the remaining count. Return the offsets to commit."""
        done: dict[TopicPartition, OffsetAndMetadata] = {}
        for record in records:
            if self._left == 0:
                break
            self._out.write(self._render(record))
            done[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(record.offset + 1)
            if self._left is not None:
                self._left -= 1
        if done:
            self._out.flush()
        return done

    def _commit(self, done: dict[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            self._consumer.commit(done)
        except WakeupError:  # by a signal: the records are written, so commit them before the command ends
            self._consumer.commit(done)
            raise

    def _done(self) -> bool:
        if self._left == 0:
            return True
        if not self._until_end or (self._in_group and not self._has_assignment):
            return False
        return all(self._consumer.position(partition) >= self._ends.get(partition, 0) for partition in self._consumer.assignment())


def _offset(value: str) -> str:
    if value not in OFFSET_RESETS and not is_offset(value):
        raise typer.BadParameter(f"{value!r} is neither beginning nor end nor an offset")
    return value


def _format(value: str) -> str:
    try:
        compile_format(value)
    except BadFormat as error:
        raise typer.BadParameter(str(error)) from error
    return value


@app.command(cls=SingleValueCommand)
def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Option("-t", "--topic", callback=check_name, help="Topic to consume from.")],
    group: Annotated[
        str | None,
        typer.Option("-g", "--group", callback=check_name, help="Consumer group to join; commits the offsets of written records."),
    ] = None,
    offset: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="beginning|end|N",
            callback=_offset,
            help="Offset to start at; with -g only for partitions without a committed offset.",
        ),
    ] = "beginning",
    until_end: Annotated[bool, typer.Option("-e", "--exit", help="Exit at the current end of the topic.")] = False,
    count: Annotated[int | None, typer.Option("-c", "--count", min=1, help="Exit after this many records.")] = None,
    text: Annotated[
        str,
        typer.Option(
            "-f",
            callback=_format,
            help="Output format: %s value, %k key, %t topic, %p partition, %o offset, %T timestamp in ms, %h headers, "
            "%S length of the value, %K length of the key, \\n, \\t.",
        ),
    ] = "%s\\n",
    health_port: Annotated[
        int | None,
        typer.Option("--health-port", min=0, max=65535, help="HTTP port of /live, /ready, /health and /metrics; 0: any free one."),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Write the records of a topic to stdout."""
    if group is not None and offset not in OFFSET_RESETS:
        raise typer.BadParameter("an offset cannot be combined with -g: a group has committed offsets", param_hint="-o")
    config: dict[str, Any] = {"auto.offset.reset": OFFSET_RESETS.get(offset, "earliest")}
    config |= _client_settings(context, bootstrap_servers, settings)
    if group is not None:
        config["group.id"] = group
    config = with_default_timeouts(config)
    try:
        with ottla.Consumer(config) as consumer, _serve_health(consumer, health_port), stop_on_signals(consumer) as stop:
            interrupt_writes_on(stop)
            reading = ConsoleConsumer(consumer, sys.stdout.buffer, compile_format(text), count, until_end)
            partitions = _partitions(consumer, topic)
            if group is None:
                reading.assign(partitions, offset)
            else:
                reading.subscribe(topic, partitions)
            reading.run()
    except Interrupted as interrupted:  # during a write, so some records of the last poll were not written
        raise typer.Exit(interrupted.exit_code) from None


def _client_settings(context: typer.Context, bootstrap_servers: str, given: list[str] | None) -> dict[str, str]:
    """Return the settings of ``-b`` and ``-X``, and the command's defaults for others. Raises ``typer.BadParameter``."""
    settings = given_settings(given)
    if "group.id" in settings:
        raise typer.BadParameter("group.id cannot be set: use -g", param_hint="-X")
    for name in AUTO_COMMIT:
        if settings.get(name, "false").lower() != "false":
            # Auto-commit commits all records of a poll, but -c or a full disk may end the command before all are written.
            raise typer.BadParameter(f"{name} cannot be set: -g commits the records that were written", param_hint="-X")
    # Auto-creation would also recreate a topic that is deleted while the command reads it.
    defaults = {"allow.auto.create.topics": "false"}
    if not settings.keys() & set(AUTO_COMMIT):
        defaults["enable.auto.commit"] = "false"
    if "zookeeper.connect" not in settings or is_on_command_line(context, "bootstrap_servers"):
        # Otherwise ZooKeeper names the brokers. The default of -b, also that of the environment, may be another cluster.
        defaults["bootstrap.servers"] = bootstrap_servers
    return {**defaults, **settings}


def _partitions(consumer: ottla.Consumer, topic: str) -> list[TopicPartition]:
    return sorted(TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic))


@contextlib.contextmanager
def _serve_health(consumer: ottla.Consumer, port: int | None) -> Iterator[None]:
    """Serve health probes, unless ``port`` is ``None``."""
    if port is None:
        yield
        return
    try:
        server = serve(consumer, port)
    except OSError as error:
        raise CommandFailed(f"--health-port: cannot bind port {port}: {error.strerror}") from error
    with server:
        typer.echo(f"health: http://localhost:{server.port}/health", err=True)
        yield
