"""The sink with ``exactlyOnce``: tasks prepare transactions, and the driver commits them.

::

    tasks.py      executor  a task: rows and marker in one transaction, prepared
    driver.py     driver    the batch: checked, recorded, committed
    replay.py     pure      repeated batches: what the sink remembers, and when it refuses
    stored.py               markers and records in Kafka
    transactions.py         open transactions, and their end

Why a row is there once:

1. At most one attempt of a task commits a batch. Initializing the producer fences every earlier attempt: if that had committed, the
   marker says so, and the rows are only compared; if not, its transaction is aborted.
2. Spark logs a batch as done after ``commit_batch`` has returned, which is when all transactions are committed. So a batch whose
   transactions time out fails, and is repeated.
3. If the driver dies between the first and the last commit, the repeated batch skips the tasks that are committed. That is right if
   each task has the same rows as before, which is checked before anything else is committed.
"""
