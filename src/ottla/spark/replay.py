"""What is stored about the batches that a sink has written exactly once, and what a repeated batch has to agree with.

Owns the marker of a task, the record of a batch, the report of a task, and the judgement of a repeated batch. Must not do I/O.
Invariant: a batch about which there is a ``Conflict`` may have rows twice or miss some if it is committed.

A sink of a query is a ``SinkName``. Its names in Kafka are ``ottla.<query>.<sink>.<task>`` for the transactional id of a task and
for the group with its marker, and ``ottla.<query>.<sink>`` for the group with the record of the latest batch.

1. A task writes its rows and its marker in one transaction, so either both are committed or none.
2. The driver records the batch, and only then commits the transactions.

So if a marker of a batch is committed, the batch was recorded before; and which tasks are committed already, their markers tell.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from ottla.client.produce.transactions.prepared import Prepared
from ottla.errors import OttlaError
from ottla.types import short_repr


class SinkName(NamedTuple):
    """One sink of one query."""

    query: str
    """The id of a streaming query, which its checkpoint keeps; of a batch job, an id of its own."""
    sink: str
    """The option ``sinkId``."""

    @property
    def group(self) -> str:
        """The group with the record of the latest batch."""
        return f"ottla.{self.query}.{self.sink}"

    def of_task(self, number: int) -> str:
        """The transactional id of a task, and the group with its marker."""
        return f"{self.group}.{number}"

    def task_of(self, transactional_id: str) -> int | None:
        """The number of the task with this transactional id; ``None`` if it is not one of this sink."""
        number = transactional_id.removeprefix(f"{self.group}.")
        return int(number) if number != transactional_id and number.isascii() and number.isdigit() else None


@dataclass(frozen=True)
class Marker:
    """What a task has written in a batch."""

    batch: int
    rows: int
    fingerprint: int

    def dumps(self) -> str:
        """The text for the metadata of an offset."""
        return json.dumps({"batch": self.batch, "rows": self.rows, "fingerprint": f"{self.fingerprint:016x}"})

    @classmethod
    def loads(cls, text: str, group: str) -> Marker:
        """Decode the text of ``dumps``. Raises ``OttlaError``, which names the group, for any other text."""
        try:
            content = json.loads(text)
            return cls(int(content["batch"]), int(content["rows"]), int(content["fingerprint"], 16))
        except (ValueError, TypeError, KeyError) as error:
            raise _foreign(group, text) from error


@dataclass(frozen=True)
class BatchRecord:
    """A batch that the driver has begun to commit."""

    batch: int
    tasks: int
    run: str
    """The run of the query, which is another one after each start."""

    def dumps(self) -> str:
        """The text for the metadata of an offset."""
        return json.dumps({"batch": self.batch, "tasks": self.tasks, "run": self.run})

    @classmethod
    def loads(cls, text: str, group: str) -> BatchRecord:
        """Decode the text of ``dumps``. Raises ``OttlaError``, which names the group, for any other text."""
        try:
            content = json.loads(text)
            return cls(int(content["batch"]), int(content["tasks"]), str(content["run"]))
        except (ValueError, TypeError, KeyError) as error:
            raise _foreign(group, text) from error


def _foreign(group: str, text: str) -> OttlaError:
    hint = "the group belongs to the sink: no other program may commit offsets for it; delete the group, or set another sinkId"
    return OttlaError(
        f"the group {group!r} has an offset that the sink has not stored: its metadata is {short_repr(text)}", hint=hint
    )


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What a task has done. Its rows are committed by an earlier attempt of the batch if ``is_committed``, else by ``prepared``,
    which is ``None`` if there are no rows, or if ``marker`` does not allow it."""

    name: SinkName
    batch: int | None
    """``None`` in a batch job."""
    run: str
    task: int
    rows: int
    fingerprint: int
    marker: Marker | None
    """The marker of an earlier attempt of the batch, or of a later batch."""
    prepared: Prepared | None
    topic: str | None
    """A topic that the task has written to."""
    began_at: float
    """When the first row was written, in seconds since 1970."""

    @property
    def is_committed(self) -> bool:
        """Whether the same rows are committed already."""
        return self.marker == Marker(self.batch if self.batch is not None else -1, self.rows, self.fingerprint)


class Conflict(NamedTuple):
    """A reason not to commit a batch."""

    text: str
    hint: str


_COPY = (
    "the checkpoint was restored from a copy, or two queries use it: see 'When a batch is refused' in the documentation of the sink"
)
_REPEAT = "onReplayMismatch=repeat writes the batch again, for one run; some rows are then twice in the topic"


def conflicts(
    reports: Sequence[TaskReport],
    batch: int,
    record: BatchRecord | None,
    surplus: Sequence[tuple[int, Marker]],
    *,
    is_every_batch: bool,
) -> list[Conflict]:
    """Return the reasons not to commit ``batch``.

    ``surplus`` are the markers of tasks that the recorded attempt had and this one does not. ``is_every_batch``: whether Spark
    calls the sink in each batch, as it does unless the program does so in ``foreachBatch``.
    """
    found = [conflict for report in reports if (conflict := _conflict_of_task(report, batch)) is not None]
    if record is not None and record.batch > batch:
        found.append(Conflict(f"batch {record.batch} was committed before, and Spark now writes batch {batch}", _COPY))
    if record is not None and record.batch == batch and record.tasks != len(reports):
        committed = [report.task for report in reports if report.marker is not None and report.marker.batch == batch]
        committed += [task for task, marker in surplus if marker.batch == batch]
        if committed:
            text = f"batch {batch} had {record.tasks} tasks, of which {_listed(committed)} committed, and now has {len(reports)}"
            hint = "its rows are divided differently: restore the number of partitions, and settings that change it, or "
            found.append(Conflict(text, hint + _REPEAT))
    if batch > 0 and (record is None or (is_every_batch and record.batch < batch - 1)):
        known = "no batch" if record is None else f"batch {record.batch} as the latest"
        text = f"the sink has a record of {known}, and Spark now writes batch {batch}"
        hint = (
            "exactlyOnce is new for this checkpoint, or the record has expired (offsets.retention.minutes of the brokers), or its"
            f" topic was deleted. {_REPEAT}"
        )
        found.append(Conflict(text, hint))
    return found


def _conflict_of_task(report: TaskReport, batch: int) -> Conflict | None:
    marker = report.marker
    if marker is None or report.is_committed:
        return None
    if marker.batch > batch:
        return Conflict(f"task {report.task} has committed batch {marker.batch}, and Spark now writes batch {batch}", _COPY)
    counts = f"{marker.rows} committed, {report.rows} now" if marker.rows != report.rows else f"{marker.rows} with other content"
    text = f"the rows of task {report.task} in batch {batch} are not those that an earlier attempt has committed: {counts}"
    hint = (
        "the query is not deterministic, it was changed, the options of the source were, or two sinks of one query have the same"
        f" sinkId. {_REPEAT}"
    )
    return Conflict(text, hint)


def _listed(tasks: Sequence[int], most: int = 5) -> str:
    shown = ", ".join(map(str, sorted(tasks)[:most]))
    return f"{shown} and {len(tasks) - most} more" if len(tasks) > most else f"{shown} {'is' if len(tasks) == 1 else 'are'}"
