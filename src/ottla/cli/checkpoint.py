"""``ottla checkpoint``: shows the offsets in a checkpoint of Spark, and converts one for Spark's own Kafka connector.

Owns the output. Must not know the format of the files. Invariant: a checkpoint is never changed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ottla import TopicPartition
from ottla.admin import Admin
from ottla.cli.clients import connected_admin
from ottla.cli.lag import lag_behind
from ottla.cli.options import Format, OutputFormat, Settings, SingleValueCommand, compared_with
from ottla.cli.output import CommandFailed, print_line, print_rows, print_warning
from ottla.errors import OttlaError, UnknownTopicOrPartitionError
from ottla.spark.checkpoint import LoggedBatch, TopicProgress, convert as convert_checkpoint, progress_of, read_batches
from ottla.spark.jobs.state_file import job_of
from ottla.spark.locations import is_url
from ottla.types import uuid_text

app = typer.Typer(help="Show or convert the checkpoint of a streaming query in Spark.", no_args_is_help=True, add_completion=False)

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The checkpointLocation of the query, a local directory."),
]

COLUMNS = ("batch", "state", "time", "source", "topic", "offsets", "records", "lag", "note")


@app.command(cls=SingleValueCommand)
def inspect(
    folder: Folder,
    batches: Annotated[int, typer.Option("-n", "--batches", min=1, help="Show the latest so many batches.")] = 10,
    bootstrap_servers: Annotated[str | None, compared_with("the lag, and topics that were recreated")] = None,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the offsets of each batch, and what has changed between them."""
    logged = read_batches(folder)
    shown = [each for each in progress_of(logged) if each.batch.number > logged[-1].number - batches] if logged else []
    rows = [_row(each) for each in shown]
    if bootstrap_servers is not None and logged:
        with connected_admin(bootstrap_servers, settings) as admin:
            try:
                _compare(admin, logged[-1], shown, rows)
            except OttlaError as error:  # -b can be set for other commands, in the environment, and the files are read
                print_warning(f"the lag is not known: {error}")
    print_rows(rows, COLUMNS, output)


@app.command(cls=SingleValueCommand)
def convert(
    folder: Folder,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The directory of the copy, which must not exist.")],
) -> None:
    """Write a copy of a checkpoint that Spark's own Kafka connector can continue: without the keys that only Ottla has."""
    if is_url(str(target)):
        raise CommandFailed(f"{target} is a URL: a copy is written to a local directory, without file:")
    if (job := job_of(folder)) is not None:
        raise CommandFailed(f"the job with the checkpoints {job} runs: stop it first")
    changed = convert_checkpoint(folder, target)
    print_line(f"copied {folder} to {target}, and changed the offsets of {changed} {'batch' if changed == 1 else 'batches'}")


def _row(each: TopicProgress) -> dict[str, object]:
    at = each.batch.written_at
    return {
        "batch": each.batch.number,
        "state": "processed" if each.batch.is_committed else "planned",
        "time": None if at is None else datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "source": each.source,
        "topic": each.topic,
        "offsets": " ".join(f"{partition}:{offset}" for partition, offset in sorted(each.offsets.items())),
        "records": each.records,
        "lag": None,
        "note": each.note,
    }


def _compare(admin: Admin, last: LoggedBatch, shown: list[TopicProgress], rows: list[dict[str, object]]) -> None:
    """Add the lag after the last batch to its rows, and notes on topics that are other ones by now."""
    for each, row in zip(shown, rows, strict=True):
        stored = last.sources[each.source] if each.source < len(last.sources) else None
        if each.batch is not last or stored is None or not each.offsets:
            continue
        try:
            description = admin.describe_topics([each.topic])[each.topic]
        except UnknownTopicOrPartitionError:
            row["note"] = _joined(each.note, "the topic does not exist now")
            continue
        topic_id = stored.topic_ids.get(each.topic)
        if topic_id is not None and description.topic_id is not None and uuid_text(description.topic_id) != topic_id:
            row["note"] = _joined(each.note, "the topic was recreated since then")
            continue
        row["lag"] = lag_behind(
            admin, {TopicPartition(each.topic, partition): offset for partition, offset in each.offsets.items()}
        )


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
