"""What is stored about the batches that a sink has written exactly once, and what a repeated batch has to agree with.

Owns the marker of a task, the record of a batch, the report of a task, and the judgement of a repeated batch. Must not do I/O.
Invariant: a batch about which there is a ``Conflict`` may have rows twice or miss some if it is committed.

A sink of a query is a ``SinkName``. Its names in Kafka are ``ottla.<query>.<sink>.<task>`` for the transactional id of a task and
for the group with its marker, and ``ottla.<query>.<sink>`` for the group with the record of the latest batch.

1. A task writes its rows and its marker in one transaction, so either both are committed or none. A task without rows has a marker
   as well.
2. The driver records the batch, and only then commits the transactions, that of the first task before all others.

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
from ottla.types import short_list, short_repr

PREFIX = "ottla."
"""Begins the names of all sinks in Kafka."""


class SinkName(NamedTuple):
    """One sink of one query."""

    query: str
    """The id of a streaming query, which its checkpoint keeps; of a batch job, an id of its own."""
    sink: str
    """The option ``sinkId``."""

    @property
    def group(self) -> str:
        """The group with the record of the latest batch."""
        return f"{PREFIX}{self.query}.{self.sink}"

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

    @property
    def order(self) -> tuple[int, int]:
        """Compares two of them: that of the later batch is greater."""
        return self.batch, 0

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
    at: int
    """When it was recorded, in seconds since 1970."""

    @property
    def order(self) -> tuple[int, int]:
        """Compares two of them: that of the later batch is greater, or that of the later attempt."""
        return self.batch, self.at

    def dumps(self) -> str:
        """The text for the metadata of an offset."""
        return json.dumps({"batch": self.batch, "tasks": self.tasks, "run": self.run, "at": self.at})

    @classmethod
    def loads(cls, text: str, group: str) -> BatchRecord:
        """Decode the text of ``dumps``. Raises ``OttlaError``, which names the group, for any other text."""
        try:
            content = json.loads(text)
            return cls(int(content["batch"]), int(content["tasks"]), str(content["run"]), int(content["at"]))
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
    which is ``None`` if ``marker`` does not allow it, or if there are neither rows nor a topic for a marker."""

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
    """The topic of the marker, which the task may have written to."""
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


class Batch(NamedTuple):
    """What the driver knows of a batch before it commits it."""

    number: int
    run: str
    reports: Sequence[TaskReport]
    record: BatchRecord | None
    """The record of the latest batch."""
    surplus: Sequence[tuple[int, Marker]]
    """The markers of the tasks that the recorded attempt of this batch had and this one does not."""
    now: float
    """Seconds since 1970."""

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier attempt was recorded."""
        return self.record is not None and self.record.batch == self.number

    @property
    def markers(self) -> dict[int, Marker]:
        """Task -> its marker, of the tasks that an earlier attempt has committed."""
        mine = [(report.task, report.marker) for report in self.reports]
        return {task: marker for task, marker in (*mine, *self.surplus) if marker is not None and marker.batch == self.number}

    @property
    def committed(self) -> list[int]:
        """The tasks that an earlier attempt has committed."""
        return sorted(self.markers)

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has committed all of its tasks, and there are no more rows now. (In one run Spark repeats no
        batch; two sinks may have one id.)

        More rows mean that the batch has another end: 1. A batch is committed. 2. The checkpoint is restored from a copy without
        that batch. 3. Spark plans it again, with the records that have arrived meanwhile.
        """
        record = self.record
        if record is None or not self.is_repeated or self.committed != list(range(record.tasks)):
            return False
        if record.run == self.run or self.run.startswith(UNKNOWN_RUN):
            return False
        return sum(report.rows for report in self.reports) <= sum(marker.rows for marker in self.markers.values())


UNKNOWN_RUN = "unknown-"
"""The beginning of a run's id where a function in ``foreachBatch`` has set a job group of its own, which hides the run. The rest is
another one for each write."""

MAX_AGE = 6 * 86_400.0
"""Seconds. Brokers keep the markers of a batch for 7 days by default, and its record for longer."""

_COPY = (
    "the checkpoint is an older copy, or two queries use copies of one; see 'When a batch is refused' in docs/spark-exactly-once.md"
)
_REPEAT = "onReplayMismatch=repeat writes the whole batch again, for one run; rows that are committed are then twice in the topic"
_SKIP = (
    "onReplayMismatch=skip goes on without writing it: all of its tasks are committed. Use it only if the checkpoint is the "
    "current one: a batch that is planned again may have other records"
)


def conflicts(batch: Batch, *, least_record: int | None) -> list[Conflict]:
    """Return the reasons not to commit a batch. ``least_record``: the record of the latest batch must have at least this number,
    unless this is the first batch; ``None``: there may be no record."""
    found = [conflict for report in batch.reports if (conflict := _conflict_of_task(report, batch)) is not None]
    record, number, count = batch.record, batch.number, len(batch.reports)
    if record is not None and record.batch > number:
        found.append(Conflict(f"batch {record.batch} was committed before, and Spark now writes batch {number}", _COPY))
    if record is not None and batch.is_repeated and record.tasks != count and batch.committed:
        text = f"batch {number} had {_tasks(record.tasks)}, of which {_listed(batch.committed)} committed, and now has {count}"
        hint = "its rows are divided differently: restore the number of partitions, and settings that change it. Otherwise, "
        found.append(Conflict(text, hint + (_SKIP if batch.is_complete else _REPEAT)))
    if record is not None and batch.is_repeated and record.run != batch.run and batch.now - record.at > MAX_AGE:
        days = (batch.now - record.at) / 86_400
        text = f"an earlier run began to commit batch {number} {days:.0f} days ago: brokers may have forgotten what is committed"
        found.append(Conflict(text, _REPEAT))
    if number > 0 and least_record is not None and (record is None or record.batch < least_record):
        known = "no batch" if record is None else f"batch {record.batch}, and of none after it"
        hint = f"exactlyOnce is new for this checkpoint, its sinkId or cluster is another one, or its topic was deleted. {_REPEAT}"
        found.append(Conflict(f"Spark now writes batch {number}, and the sink has a record of {known}", hint))
    return found


def _conflict_of_task(report: TaskReport, batch: Batch) -> Conflict | None:
    marker = report.marker
    if marker is None or report.is_committed:
        return None
    if marker.batch > batch.number:
        return Conflict(f"task {report.task} has committed batch {marker.batch}, and Spark now writes batch {batch.number}", _COPY)
    counts = (
        f"{marker.rows} committed, {report.rows} now"
        if marker.rows != report.rows
        else f"as many, {report.rows}, with other content"
    )
    text = f"the rows of task {report.task} in batch {batch.number} are not those that an earlier attempt has committed: {counts}"
    if batch.record is not None and batch.record.run == batch.run:
        return Conflict(text, "two sinks of one query have the same sinkId: give each its own")
    hint = "the query is not deterministic, it was changed, or options of the source were"
    hint += ", or two of its sinks have the same sinkId" if batch.run.startswith(UNKNOWN_RUN) else ""
    hint += ". Undo that, and start it again. Otherwise, "
    return Conflict(text, hint + (_SKIP if batch.is_complete else _REPEAT))


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _listed(tasks: Sequence[int], most: int = 5) -> str:
    return f"{short_list(tasks, most)} {'is' if len(tasks) == 1 else 'are'}"
