"""``range`` and ``roundrobin`` of Kafka 0.8's consumers, which assign partitions to the threads of members.

Owns the order of threads and of partitions in them. Must not know ZooKeeper, nor who runs an assignor: each member does, and takes
its own share of the result. Invariant: the result depends only on the threads and partitions of each topic, and is what Java's
members of the same group compute.

Source: ``kafka.consumer.PartitionAssignor`` of Kafka 1.1.1. 0.8.2 differs in ``roundrobin``: it orders partitions by the hash code
of ``[topic,partition]`` instead of ``topic-partition``, so its members agree with newer ones only by chance; and it fails if two
topics have different threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread

Threads = Mapping[str, Collection[ConsumerThread]]
"""Topic -> the threads of all members that read it."""

Partitions = Mapping[str, Collection[int]]
"""Topic -> its partitions."""

Owners = dict[TopicPartition, ConsumerThread]

ThreadAssignor = Callable[[Threads, Partitions], Owners]
"""Returns the owner of each partition of a topic that has both threads and partitions."""


def assign_ranges(threads: Threads, partitions: Partitions) -> Owners:
    """Divide each topic into contiguous ranges: of ``p`` partitions and ``n`` threads, the first ``p % n`` get one more."""
    owners: Owners = {}
    for topic, readers in threads.items():
        numbers = iter(sorted(partitions.get(topic, ())))
        size, larger = divmod(len(partitions.get(topic, ())), max(1, len(readers)))
        for place, thread in enumerate(sorted(readers, key=_order)):
            owners |= {TopicPartition(topic, next(numbers)): thread for _ in range(size + (place < larger))}
    return owners


def assign_in_turn(threads: Threads, partitions: Partitions) -> Owners:
    """Assign the partitions of all topics, in the order of their hash codes, to all threads in turn.

    A thread that does not read a topic is skipped, and has its next turn when all others had theirs.
    """
    in_order = sorted({thread for readers in threads.values() for thread in readers}, key=_order)
    place_of = {thread: place for place, thread in enumerate(in_order)}
    places = {topic: sorted({place_of[thread] for thread in readers}) for topic, readers in threads.items() if readers}
    # Java leaves partitions with equal hash codes in the order of a hash table; here they are in the order of their topics.
    ordered = sorted((_hash_code(f"{topic}-{number}"), topic, number) for topic in places for number in partitions.get(topic, ()))
    owners: Owners = {}
    turn = 0
    for _, topic, number in ordered:
        readers = places[topic]
        place = readers[bisect_left(readers, turn) % len(readers)]  # the next reader, or after the last one the first
        owners[TopicPartition(topic, number)] = in_order[place]
        turn = place + 1
    return owners


THREAD_ASSIGNORS: Mapping[str, ThreadAssignor] = MappingProxyType({"range": assign_ranges, "roundrobin": assign_in_turn})
"""The value of ``partition.assignment.strategy`` -> the assignor."""


def _order(thread: ConsumerThread) -> bytes:
    """The order of Java's strings, by UTF-16 unit: thread 10 of a member comes before its thread 2."""
    return str(thread).encode("utf-16-be", "surrogatepass")


def _hash_code(text: str) -> int:
    """Java's ``String.hashCode()``: a signed number of 32 bits."""
    code = 0
    for character in text:  # names of topics are ASCII, so a character is a UTF-16 unit
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code
