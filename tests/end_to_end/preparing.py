"""A process that prepares a transaction and is killed, and a reader of what was committed.

Owns the program of that process. Must not know how transactions end. Invariant: when ``prepared_by_a_killed_process`` returns, the
process is gone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ottla import Consumer, Prepared, TopicPartition

_PROGRAM = """
import sys, time
import ottla
servers, transactional_id, timeout, topic, *values = sys.argv[1:]
producer = ottla.Producer(bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout=float(timeout))
transaction = producer.transaction()
transaction.begin()
for value in values:
    producer.send(topic, value, partition=0)
transaction.commit_offsets(ottla.ConsumerGroupMetadata("group-of-" + topic), {ottla.TopicPartition(topic, 0): 42})
print(transaction.prepare().dumps(), flush=True)
time.sleep(600)
"""


def prepared_by_killed_processes(servers: str, topic: str, *ids: str, timeout: float = 60) -> list[Prepared]:
    """What processes prepared before they were killed: a record with the transactional id as value, and offset 42 of a group."""
    with ExitStack() as stack:
        running = [stack.enter_context(_process(servers, who, str(timeout), topic, who)) for who in ids]
        found = []
        for one in running:
            assert one.stdout is not None
            found.append(Prepared.loads(one.stdout.readline()))
    return found


def prepared_by_a_killed_process(servers: str, topic: str, transactional_id: str, timeout: float = 60) -> Prepared:
    """See ``prepared_by_killed_processes``."""
    (prepared,) = prepared_by_killed_processes(servers, topic, transactional_id, timeout=timeout)
    return prepared


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def committed(servers: str, topic: str) -> list[str]:
    """The records of partition 0 that a consumer with ``isolation_level="read_committed"`` reads."""
    tp, found = TopicPartition(topic, 0), []
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            found += [(record.value or b"").decode() for record in consumer.poll(1.0)]
    return found
