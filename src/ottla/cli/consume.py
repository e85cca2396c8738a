"""``ottla consume``: records of a topic on stdout.

Owns where reading begins and ends. Must not know how a record is rendered. Invariant: with a group, an offset is
committed only after its record has been written and flushed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Annotated, Any

import typer

import ottla
from ottla import OffsetAndMetadata, TopicPartition
from ottla.cli.connecting import patient
from ottla.cli.escapes import BadFormat, Piece, compiled
from ottla.cli.options import DEFAULT_BOOTSTRAP, EDGES, Bootstrap, Settings, client_settings, is_offset, named
from ottla.cli.output import CommandFailed
from ottla.cli.streams import end_writes_on
from ottla.errors import WakeupError
from ottla.health import serve
from ottla.signals import Interrupted, stop_on_signals

POLL = 1.0
"""Seconds; how late the end of a topic may be noticed."""

DEFAULTS = {"enable.auto.commit": "false", "allow.auto.create.topics": "false"}
"""To create a topic by reading it would also bring back one that was deleted while it was read."""


class Reading:
    """One run of the command: which records are wanted, and when there are enough."""

    def __init__(self, consumer: ottla.Consumer, out: IO[bytes], render: Piece, count: int | None, until_end: bool) -> None:
        self._consumer, self._out, self._render = consumer, out, render
        self._left = count
        self._until_end = until_end
        self._ends: dict[TopicPartition, int] = {}
        self._in_group = False
        self._joined = False

    def assign(self, partitions: list[TopicPartition], offset: str) -> None:
        """Read these partitions from ``offset``, outside any group."""
        self._consumer.assign(partitions)
        self._note_ends(partitions)
        if offset == "beginning":
            self._consumer.seek_to_beginning(*partitions)
        elif offset == "end":
            self._consumer.seek_to_end(*partitions)
        else:
            first, end = self._consumer.beginning_offsets(partitions), self._consumer.end_offsets(partitions)
            for partition in partitions:
                self._consumer.seek(partition, min(max(int(offset), first[partition]), end[partition]))

    def subscribe(self, topic: str, partitions: list[TopicPartition]) -> None:
        """Read what the group gives us."""
        self._in_group = True
        self._note_ends(partitions)
        self._consumer.subscribe([topic], on_assign=self._assigned)

    def run(self) -> None:
        """Write records until there are enough."""
        while not self._done():
            written = self._write(self._consumer.poll(timeout=POLL))
            if written and self._in_group:
                self._commit(written)
        if self._in_group and self._left != 0:
            self._warn_of_others()

    def _warn_of_others(self) -> None:
        """A member that was killed keeps its partitions, and their records, until its session expires."""
        elsewhere = sorted(self._ends.keys() - self._consumer.assignment())
        committed = self._consumer.committed(elsewhere) if elsewhere else {}
        behind = [each for each in elsewhere if (at := committed.get(each)) is None or at.offset < self._ends[each]]
        names = ", ".join(f"{each.topic}-{each.partition}" for each in behind if self._ends[each])
        if names:
            typer.echo(f"not read to the end, since other members of the group have them: {names}", err=True)

    def _assigned(self, consumer: ottla.Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True

    def _note_ends(self, partitions: list[TopicPartition]) -> None:
        if self._until_end:
            self._ends = self._consumer.end_offsets(partitions)

    def _write(self, records: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Write and flush what is wanted of these records; where that ends in each partition."""
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
        except WakeupError:  # a signal came just now: what was written is committed all the same
            self._consumer.commit(done)
            raise

    def _done(self) -> bool:
        if self._left == 0:
            return True
        if not self._until_end or (self._in_group and not self._joined):
            return False
        return all(self._consumer.position(partition) >= self._ends.get(partition, 0) for partition in self._consumer.assignment())


def _offset(value: str) -> str:
    if value not in EDGES and not is_offset(value):
        raise typer.BadParameter(f"{value!r} is not beginning, end or an offset")
    return value


def _format(value: str) -> str:
    try:
        compiled(value)
    except BadFormat as error:
        raise typer.BadParameter(str(error)) from error
    return value


def consume(
    topic: Annotated[str, typer.Option("-t", "--topic", callback=named, help="What to read.")],
    group: Annotated[
        str | None,
        typer.Option("-g", "--group", callback=named, help="Share the partitions with this group and commit what was written."),
    ] = None,
    offset: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="beginning|end|N",
            callback=_offset,
            help="Where to begin; with -g only where the group has no committed offset.",
        ),
    ] = "beginning",
    until_end: Annotated[bool, typer.Option("-e", "--exit", help="Stop at the current end of the topic.")] = False,
    count: Annotated[int | None, typer.Option("-c", "--count", min=1, help="Stop after this many records.")] = None,
    text: Annotated[
        str,
        typer.Option(
            "-f",
            callback=_format,
            help="How a record is written: %s value, %k key, %t topic, %p partition, %o offset, %T timestamp, %h headers, "
            "%S and %K lengths, \\n, \\t.",
        ),
    ] = "%s\\n",
    health_port: Annotated[
        int | None,
        typer.Option("--health-port", min=0, max=65535, help="Answer probes at /live, /ready, /health and /metrics. 0: any port."),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Write the records of a topic to stdout."""
    if group is not None and offset not in EDGES:
        raise typer.BadParameter("an offset cannot be combined with -g: the group has its own", param_hint="-o")
    config: dict[str, Any] = {**DEFAULTS, "auto.offset.reset": EDGES.get(offset, "earliest")}
    config |= client_settings(bootstrap_servers, settings)
    if "group.id" in config:
        raise typer.BadParameter("group.id: name the group with -g", param_hint="-X")
    if config["enable.auto.commit"].lower() != "false":
        # It would cover whole polls, also where -c or a full disk has ended the writing in the middle of one.
        raise typer.BadParameter("enable.auto.commit: with -g what was written is committed, and nothing else", param_hint="-X")
    if group is not None:
        config["group.id"] = group
    try:
        with ottla.Consumer(patient(config)) as consumer, _probed(consumer, health_port), stop_on_signals(consumer) as stop:
            end_writes_on(stop)
            reading = Reading(consumer, sys.stdout.buffer, compiled(text), count, until_end)
            partitions = _partitions(consumer, topic)
            if group is None:
                reading.assign(partitions, offset)
            else:
                reading.subscribe(topic, partitions)
            reading.run()
    except Interrupted as interrupted:  # in the middle of the output: not all that was read has been written
        raise typer.Exit(interrupted.exit_code) from None


def _partitions(consumer: ottla.Consumer, topic: str) -> list[TopicPartition]:
    return sorted(TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic))


@contextlib.contextmanager
def _probed(consumer: ottla.Consumer, port: int | None) -> Iterator[None]:
    """Answer probes meanwhile, if that is wanted."""
    if port is None:
        yield
        return
    try:
        server = serve(consumer, port)
    except OSError as error:
        raise CommandFailed(f"--health-port: port {port} cannot be used: {error.strerror}") from error
    with server:
        typer.echo(f"health: http://localhost:{server.port}/health", err=True)
        yield
