"""Kafka for PySpark without a JAR: ``format("ottla")``, a source and a sink on Spark's Python Data Source API.

Spark discovers it through the top-level module ``pyspark_ottla``; users import and register nothing.

::

    options.py     pure    option names and values -> frozen ``SourceOptions``
    client_settings.py     the options ``kafka.*``
    offsets.py     pure    offsets <-> the JSON in Spark's checkpoint
    planning.py    pure    rate limits, and the division of offset ranges between tasks
    data_loss.py   pure    detection of records that are gone before they were read
    columns.py             the schema of the rows, and the columns that a query selects
    source.py      driver  the data source: options and schema in, readers out
    batch.py       driver  the batch reader
    stream.py      driver  the micro-batch reader
    cluster.py     driver  partitions, offsets and commits, with retries
    watch.py       driver  the wait of an idle stream for new records
    ends.py        driver  offsets, timestamps and committed offsets in options -> offsets in a cluster
    batch_bounds.py        the first and end offset of a batch in each partition
    planner.py     driver  the planner process: the bounds of each execution of a batch
    planner_client.py      starts the planner process on the driver; requests bounds in tasks
    signed_messages.py     the messages between tasks and planner process
    offset_checks.py       checks offsets in options against the ends of the logs
    progress.py    driver  commits a stream's progress to a consumer group
    tracking.py    driver  ``track_progress``: the progress of any query, by a listener
    checkpoint.py          the offsets in a checkpoint directory: shown and converted, without Spark
    locations.py           where a checkpoint is: on a local disk, or not
    sink_options.py        the options and columns of the sink
    sink.py      executor  the batch sink, and what it shares with that of streams
    stream_sink.py         the sink of streams
    arrow_rows.py executor Arrow batches -> records
    exactly_once/          transactions that tasks prepare and the driver commits
    reading.py   executor  ranges of offsets -> Arrow batches
    client_pool.py         the idle clients of a process, for later tasks and batches
    executors.py           the pickled form of the objects above, which names the host where Ottla is missing
    worker_logs.py         the log handler of a worker process
    runner_environment.py  what the runner of jobs asks of planners
    jobs/          driver  ``ottla pipeline``: runs, watches, checks and tests jobs

Must not know anything below ``Consumer``, ``Producer`` and ``Admin``. Invariant: no constructor does I/O, because Spark creates and
pickles these objects repeatedly, in several processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.spark.tracking import OffsetsBehindLatest, ProgressTracker, track_progress

__all__ = ["OffsetsBehindLatest", "ProgressTracker", "track_progress"]


def __getattr__(name: str) -> Any:
    # Not imported above: Spark imports this package in many processes, which need none of this.
    if name in __all__:
        from ottla.spark import tracking

        return getattr(tracking, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
