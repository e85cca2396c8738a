"""Two members share a topic until one leaves; listeners print each member's partitions.

Listeners run inside ``poll()`` and ``close()``, on the calling thread.
"""

from __future__ import annotations

import threading

from _cluster import cluster

from ottla import Admin, Consumer, TopicPartition


def numbers(partitions: list[TopicPartition]) -> str:
    return ", ".join(str(each.partition) for each in sorted(partitions)) or "none"


def member(name: str, bootstrap_servers: str, leave: threading.Event, owns: threading.Event) -> None:
    """Run a member of the group until ``leave`` is set."""

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        print(f"{name} was given {numbers(partitions)}")
        owns.set()

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        print(f"{name} gives back {numbers(partitions)}")
        owns.clear()

    # In a classic group the client sets the heartbeat interval. A short one makes the example faster.
    settings = {"group_id": "waiters", "group_protocol": "classic", "heartbeat_interval": 0.2}
    with Consumer(settings, bootstrap_servers=bootstrap_servers, client_id=name) as consumer:
        consumer.subscribe(["tables"], on_assign=assigned, on_revoke=revoked)
        while not leave.is_set():
            consumer.poll(timeout=0.1)


with cluster() as bootstrap_servers:
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        if "tables" not in admin.list_topics():
            admin.create_topics({"tables": 4})
    threads, leaves, owning = [], [], []
    for name in ("ada", "bea"):
        leave, owns = threading.Event(), threading.Event()
        thread = threading.Thread(target=member, args=(name, bootstrap_servers, leave, owns))
        thread.start()
        owns.wait(30)
        threads.append(thread)
        leaves.append(leave)
        owning.append(owns)
    owning[0].wait(30)  # when bea joined, ada's partitions were revoked; now both own partitions
    print("bea leaves")
    owning[0].clear()
    leaves[1].set()
    threads[1].join()
    owning[0].wait(30)
    leaves[0].set()
    threads[0].join()
