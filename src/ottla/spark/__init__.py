"""Kafka for PySpark without a JAR: ``format("ottla")``, a batch and micro-batch source on Spark's Python Data Source API.

Spark finds it by itself, through the top-level module ``pyspark_ottla``; nothing has to be imported or registered.

::

    options.py     pure    option names and values -> frozen ``SourceOptions``
    client_settings.py     the options ``kafka.*``
    table_options.py       the options of a table in Spark's catalog
    offsets.py     pure    offsets <-> the JSON that Spark keeps in its checkpoint
    planning.py    pure    which records a batch takes, and how tasks share them
    data_loss.py   pure    records that were asked for and are no longer there
    columns.py             the rows' schema, and which columns a query wants
    source.py      driver  the data source: options and schema in, readers out
    batch.py       driver  the batch reader
    stream.py      driver  the micro-batch reader
    refusal.py     driver  a stream's reader that refuses
    cluster.py     driver  what a planner asks of a Kafka cluster
    bounds.py      driver  where a batch begins and ends in each partition
    planner.py     driver  the planner process: the bounds of each execution of a batch
    launch.py        both  how the driver starts the planner process, and tasks reach it
    signed.py        both  the messages between them
    named_offsets.py       offsets that options name, compared with the logs
    progress.py    driver  a stream's progress, committed to a group
    reading.py   executor  ranges of offsets -> Arrow batches
    workers.py   executor  what a worker process keeps from task to task
    worker_logs.py         what a log line looks like in a worker process

Must not know anything below ``Consumer``. Invariant: nothing does I/O in a constructor, since Spark makes, pickles and makes
again all of these objects in several processes.
"""
