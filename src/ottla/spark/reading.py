"""Offset ranges to Arrow batches, on an executor.

Owns the loop from ``poll()`` to Spark, the consumers of tasks, the detection of data loss, and the freeze of the worker's heap.
Must not know how the ranges were planned. The consumer's network thread continues to fetch while Spark processes a batch.
Invariants: each row is returned once; a range ends when the consumer's *position* reaches its end, because the last offsets may be
gaps of compaction or transaction markers; a range without progress ends in a timeout or, if its records were deleted, according to
``failOnDataLoss``.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ottla import errors
from ottla.consumer import Consumer
from ottla.errors import OttlaError, OttlaTimeoutError
from ottla.records import Records
from ottla.spark import worker_logs
from ottla.spark.client_pool import ClientPool
from ottla.spark.client_settings import with_option_names
from ottla.spark.cluster import MISSING_TIMEOUT, RETRY_PAUSE, describe_topics
from ottla.spark.columns import names_of
from ottla.spark.data_loss import Loss, LossKind, losses_in_range, report
from ottla.spark.options import SourceOptions
from ottla.spark.planning import OffsetRange
from ottla.types import OffsetAndMetadata, TopicPartition, uuid_text

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.cluster.metadata import TopicMetadata

MAX_ROWS = 6_000
"""Rows of a batch. Spark reaches its full speed with 1,000. More do not fit into a processor's cache: 20,000 are 6 % slower."""

MAX_BYTES = 64 * 2**20
"""Approximate bytes of a batch."""

POLL_TIMEOUT = 0.1
"""Seconds of one poll, and so the delay until a position that advanced without a record is noticed."""

STALL_CHECK_INTERVAL = 3.0
"""Seconds without progress after which a range is compared with its log. Not sooner: offsets that a broker returns while it takes
over from another one may be temporary."""


EXECUTOR_SETTINGS = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "allow.auto.create.topics": "false",
    "max.poll.records": "100000",
    "max.partition.fetch.bytes": str(4 * 2**20),
    "fetch.max.wait.ms": "20",
}
"""Defaults of an executor's consumer that the user's settings override. Fetches and polls are large, as Spark takes large batches.
``fetch.max.wait.ms`` is short: the planned records exist already, and a fetch of the next task would queue behind one that
waits."""

_CLOSE_TIMEOUT = 1.0
"""Seconds; closing a consumer without a group does not wait for a coordinator."""

consumers = ClientPool(
    lambda settings: Consumer({**EXECUTOR_SETTINGS, **dict(settings)}),
    lambda consumer: consumer.close(timeout=_CLOSE_TIMEOUT),
    max_idle=4,
    reset=Consumer.unsubscribe,
)
"""The consumers of tasks in this process."""

FREEZE_AT = frozenset({1, 2, 4, 8, 64})
"""The numbers of tasks after which a process freezes its heap."""

_tasks = 0


def read_ranges(ranges: Iterable[OffsetRange], columns: tuple[str, ...], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Return the rows of ``ranges``, which are of different partitions, with ``columns`` in that spelling.

    Raises ``DataLossError``; ``OttlaTimeoutError`` without progress for ``kafkaConsumer.pollTimeoutMs``; and any error of the
    client that is not retriable.
    """
    worker_logs.configure()
    freeze_heap()
    wanted = tuple(ranges)
    if not wanted:
        return
    try:
        with consumers.borrow(options.client) as consumer:
            yield from _RangeReader(consumer, wanted, columns, options).batches()
    except OttlaError as error:
        with_option_names(error)
        raise


def freeze_heap() -> None:
    """Freeze the heap in the first few tasks. Called at the beginning of each task.

    Spark's worker runs a full garbage collection after every task: 24 to 38 ms with pyarrow and pandas loaded. Modules that are
    loaded by the first few tasks stay in memory, so ``gc.freeze()`` excludes them from these collections.
    """
    global _tasks
    _tasks += 1
    if _tasks in FREEZE_AT:
        gc.collect()
        gc.freeze()


class _RangeReader:
    """The state of one task: the rest of each range."""

    def __init__(
        self, consumer: Consumer, ranges: tuple[OffsetRange, ...], columns: tuple[str, ...], options: SourceOptions
    ) -> None:
        self._consumer = consumer
        self._columns = names_of(columns)
        self._output_names = None if columns == self._columns else list(columns)
        self._options = options
        self._remaining = {each.topic_partition: each for each in ranges}
        self._unconfirmed: dict[TopicPartition, str] = {}
        """The id of the planned topic of each partition that may be one of a later topic of the same name."""
        self._waiting_since = time.monotonic()
        self._checked_at = self._waiting_since
        self._last_error: OttlaError | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Poll until all ranges are read."""
        self._consumer.assign(list(self._remaining))
        self._seek(self._remaining)
        while self._remaining:
            records = self._poll()
            if records and self._unconfirmed:
                records = self._of_planned_topics(records)
            if records:
                for batch in self._to_batches(records):
                    yield batch if self._output_names is None else batch.rename_columns(self._output_names)
            if self._advance():
                self._waiting_since = self._checked_at = time.monotonic()
            elif not records:
                self._check_stall()

    def _poll(self) -> Records | None:
        try:
            return self._consumer.poll(timeout=POLL_TIMEOUT)
        except errors.OffsetOutOfRangeError as error:
            self._last_error = error
            self._compare_with_logs()
        except errors.LogTruncationError as error:
            # The client raises it also for a topic that was recreated while it is read.
            self._compare_topic_ids()
            self._truncated(error)
        except OttlaError as error:
            if not error.retriable:
                raise
            self._last_error = error
        return None

    def _truncated(self, error: errors.LogTruncationError) -> None:
        """Report what the log of another leader does not have, or has in place of what was read before the position (KIP-320)."""
        tp = TopicPartition(error.topic, error.partition)
        if tp not in self._remaining:
            return
        lost = Loss(LossKind.LOG_ENDS_EARLIER, *tp, error.divergent_offset or 0, error.offset, error.divergent_offset)
        if error.divergent_offset is None:  # It is another log: a recreated topic that was planned without an id, for example.
            lost = lost._replace(start=error.offset, end=self._remaining[tp].end, bound=0)
            self._finish([tp])
        report([lost], fail=self._options.fail_on_data_loss)
        self._compare_with_logs()

    def _advance(self) -> bool:
        """Update the ranges to the consumer's positions, and finish those that are complete. Return whether any position
        advanced."""
        moved = False
        done: list[TopicPartition] = []
        for tp, each in list(self._remaining.items()):
            position = self._consumer.position(tp)
            if position >= each.end:
                done.append(tp)
            elif position > each.start:
                self._remaining[tp] = each._replace(start=position)
            moved = moved or position > each.start
        self._confirm(done)  # those without any record
        self._finish([tp for tp in done if tp in self._remaining])
        return moved

    def _seek(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Seek to the starts of ``ranges``, all with one call: a thousand calls take seconds."""
        if ranges:
            starts = {tp: OffsetAndMetadata(each.start) for tp, each in ranges.items()}
            self._unconfirmed |= {tp: each.topic_id for tp, each in ranges.items() if each.topic_id is not None}
            self._consumer._seek_all(starts, {tp: each.end for tp, each in ranges.items()})

    def _finish(self, done: list[TopicPartition]) -> None:
        """Stop reading these partitions, all with one call."""
        for tp in done:
            del self._remaining[tp]
            self._unconfirmed.pop(tp, None)
        if done and self._remaining:
            self._consumer.pause(*done)

    def _check_stall(self) -> None:
        """Without progress: compare the ranges with their logs from time to time. Raises ``OttlaTimeoutError`` at the timeout."""
        now = time.monotonic()
        if now - self._waiting_since >= self._options.poll_timeout:
            raise self._timeout_error()
        if now - self._checked_at >= STALL_CHECK_INTERVAL:
            self._checked_at = now
            self._compare_with_logs()

    def _timeout_error(self) -> OttlaTimeoutError:
        remaining = ", ".join(map(str, self._remaining.values()))
        hint = "check whether the brokers are up; option kafkaConsumer.pollTimeoutMs sets how long a task waits"
        if opened := self._open_transactions():
            begins = ", ".join(f"{tp} from offset {offset} on" for tp, offset in sorted(opened.items()))
            hint = f"a transaction is open in {begins}: with kafka.isolation.level=read_committed a task waits for its end; "
            hint += "option kafkaConsumer.pollTimeoutMs sets how long"
        text = f"no record arrived for {self._options.poll_timeout:g} s; still to read: {remaining}"
        return OttlaTimeoutError(text, hint=hint, cause=self._last_error)

    def _open_transactions(self) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition where an open transaction begins before the end of the range."""
        if not self._options.read_committed:
            return {}
        with contextlib.suppress(OttlaError):
            stable = self._consumer.end_offsets(list(self._remaining), timeout=STALL_CHECK_INTERVAL)
            return {tp: offset for tp, offset in stable.items() if offset < self._remaining[tp].end}
        return {}

    def _compare_with_logs(self) -> None:
        """Report losses in the remaining ranges and seek behind them; without losses, try the same offsets again."""
        topics = self._compare_topic_ids()
        partitions = list(self._remaining)
        if not partitions:
            return
        begins, ends = self._bounds(partitions, topics)
        losses: list[Loss] = []
        done: list[TopicPartition] = []
        for tp in partitions:
            lost, left = losses_in_range(self._remaining[tp], begins.get(tp), ends.get(tp))
            losses += lost
            if left is None:
                done.append(tp)
            else:
                self._remaining[tp] = left
        self._finish(done)
        self._seek(self._remaining)
        report(losses, fail=self._options.fail_on_data_loss)
        if not losses:
            time.sleep(POLL_TIMEOUT)

    def _of_planned_topics(self, records: Records) -> Records:
        """Leave out the records of topics that were recreated since they were planned."""
        self._confirm(records.partitions())
        if all(tp in self._remaining for tp in records.partitions()):
            return records
        return Records(part for part in records.parts if part.topic_partition in self._remaining)

    def _confirm(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that these partitions, which were fetched, are of the topics that were planned.

        Kafka 3.1 and later compare the id in each Fetch (KIP-516), which saves each task a request for metadata.
        """
        unconfirmed = [tp for tp in partitions if tp in self._unconfirmed]
        for tp in unconfirmed:
            topic_id = self._consumer._shared.fetched_topic_id(tp)
            if topic_id is not None and uuid_text(topic_id) == self._unconfirmed[tp]:
                del self._unconfirmed[tp]
        if any(tp in self._unconfirmed for tp in unconfirmed):
            self._compare_topic_ids()

    def _compare_topic_ids(self) -> Mapping[str, TopicMetadata]:
        """Report the ranges of topics that were recreated since they were planned, and do not read them. Return the topics that
        exist."""
        planned = {each.topic: each.topic_id for each in self._remaining.values()}
        found = self._topics(planned)
        current = {name: uuid_text(topic.topic_id) for name, topic in found.items() if topic.topic_id is not None}
        recreated = {name for name, topic_id in current.items() if planned[name] not in (None, topic_id)}
        self._unconfirmed = {tp: topic_id for tp, topic_id in self._unconfirmed.items() if tp.topic not in found}
        ranges = [each for each in self._remaining.values() if each.topic in recreated]
        self._finish([each.topic_partition for each in ranges])
        losses = [Loss(LossKind.TOPIC_RECREATED, each.topic, each.partition, each.start, each.end) for each in ranges]
        report(losses, fail=self._options.fail_on_data_loss)
        return found

    def _topics(self, names: Collection[str]) -> dict[str, TopicMetadata]:
        """Return the metadata of the topics that exist, after ``MISSING_TIMEOUT`` if one is missing."""
        deadline = time.monotonic() + MISSING_TIMEOUT
        found: dict[str, TopicMetadata] = {}
        while True:
            missing = [name for name in names if name not in found]
            found |= describe_topics(self._consumer, missing, self._options.poll_timeout)
            if all(name in found for name in names) or time.monotonic() + RETRY_PAUSE >= deadline:
                return {name: found[name] for name in names if name in found}
            time.sleep(RETRY_PAUSE)

    def _bounds(
        self, partitions: list[TopicPartition], topics: Mapping[str, TopicMetadata]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the first offsets and the high watermarks of the logs, without partitions that are deleted. ``topics``: those that
        exist."""
        existing = {TopicPartition(info.topic, info.partition) for topic in topics.values() for info in topic.partitions}
        wanted = [tp for tp in partitions if tp in existing]
        begins = self._consumer.beginning_offsets(wanted, timeout=self._options.poll_timeout)
        if not self._options.read_committed:
            return begins, self._consumer.end_offsets(wanted, timeout=self._options.poll_timeout)
        # Offsets after the last stable offset are not lost: the task can read them when the open transaction has ended.
        settings = {**dict(self._options.client), "isolation.level": "read_uncommitted"}
        with consumers.borrow(tuple(sorted(settings.items()))) as of_logs:
            return begins, of_logs.end_offsets(wanted, timeout=self._options.poll_timeout)

    def _to_batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        beyond = [tp for tp, after in records.next_offsets().items() if after.offset > self._remaining[tp].end]
        if not beyond:
            for batch in records.to_batches(MAX_ROWS, self._columns):
                yield from _split(batch)
            return
        for tp, of_partition in records.by_partition().items():
            end = self._remaining[tp].end
            for batch in of_partition.to_batches(MAX_ROWS, (*self._columns, *({"offset"} - {*self._columns}))):
                yield from _split(_rows_before(batch, end).select(self._columns))


def _rows_before(batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Return the rows before offset ``end``. Offsets are in ascending order."""
    import pyarrow.compute as pc

    offsets = batch.column("offset")
    if offsets[-1].as_py() < end:
        return batch
    return batch.slice(0, pc.sum(pc.less(offsets, end)).as_py())


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the batch into non-empty pieces of about ``MAX_BYTES``."""
    count = max(1, -(-batch.nbytes // MAX_BYTES))
    rows = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, max(1, rows)):
        yield batch.slice(start, rows)
