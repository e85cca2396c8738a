"""Jobs: files with ``def queries(spark) -> dict[str, DataStreamWriter]``, and what ``ottla pipeline`` does with them.

::

    job_file.py            loads a file, and checks what ``queries()`` returns
    writers.py             what a ``DataStreamWriter`` that is not started has been set to
    locations.py    pure   paths and URLs of checkpoints
    session.py             what is set before the JVM starts, and the session
    supervision.py  pure   when a query is started again, and when it has failed for good
    causes.py       pure   Spark's error texts -> the cause in Python
    reports.py      pure   Spark's progress -> rows per second, lag, batch time; the lines of a run
    runner.py              starts the queries, watches them, and ends them
    stopping.py            SIGTERM and Ctrl-C
    state_file.py          the state of a run, for ``status``; one run at a time in a directory
    metrics.py             the same for Prometheus

Must not know the command line. Invariant: a job file needs nothing of this package, and runs without it.
"""
