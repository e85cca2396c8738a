"""``Consumer``: the public API of a consumer for an application thread.

Owns the signatures, the iteration over records, and the order of ``close()``. Must not know what a call does, nor how it waits:
``ThreadDriver`` runs the calls. Invariant: no call returns records before the driver has run it to its end.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from ottla import arguments
from ottla.arguments import Offset, Partitions, Timeout
from ottla.client.calls.calls import POST_INTERVAL
from ottla.client.calls.commits import CommitCallback
from ottla.client.calls.listeners import Listener, Listeners
from ottla.client.events import Offsets
from ottla.client.subscription import EARLIEST, LATEST
from ottla.consumer_base import CLOSE_TIMEOUT, Caller, ConsumerBase, OffsetsOfMember
from ottla.errors import IllegalStateError, OttlaError
from ottla.records import Record, Records, Walk
from ottla.runtime import clock
from ottla.thread_driver import ThreadDriver
from ottla.types import (
    GroupMembershipOperation,
    K_co,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
    V_co,
)

if TYPE_CHECKING:
    from ottla.client.cluster.metadata import TopicMetadata
    from ottla.streams import Stream, StreamsDriver

RebalanceListener = Callable[["Consumer[Any, Any]", list[TopicPartition]], None] | None
"""``listener(consumer, partitions)``, or none."""

SERVICE_INTERVAL = POST_INTERVAL / 1000
"""Seconds between two calls of ``service`` while iterating over records."""


class Consumer(ConsumerBase[K_co, V_co]):
    """Reads records, alone or as a member of a group. See ``ottla.config.ConsumerConfig`` for the settings.

    ::

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                handle(record)

    An offset is always that of the next record to read. With ``enable_auto_commit`` (the default) only records that the application
    has processed are committed: those of *previous* polls, or, in ``for record in consumer``, those before the current record. The
    next records are fetched meanwhile: at most two responses and ``fetch_max_bytes`` are buffered per broker. A consumer belongs to
    one thread; other threads may use only ``wakeup()``, ``health()``, ``metrics()`` and ``rebalances``. If a signal handler
    interrupts a call (Ctrl-C), the consumer remains usable and loses nothing; an interrupted ``close()`` closes it. All calls raise
    ``OttlaError``s; an invalid argument raises a ``TypeError`` or a ``ValueError``.
    """

    _streams: StreamsDriver | None = None

    def _prepare(self) -> None:
        self._thread_driver = ThreadDriver(
            self._calls, self._network_thread, self._check_open, self._check_running, self._last_poll.on_interrupted
        )
        self._driver: ThreadDriver | StreamsDriver = self._thread_driver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close. After an exception the records of the last poll do not count as processed, so they are delivered again."""
        if kind is None:
            self.close()
            return
        try:
            self._close(CLOSE_TIMEOUT, GroupMembershipOperation.DEFAULT, error)
        except OttlaError as closing:
            closing.__context__ = None
            assert error is not None
            error.add_note(f"closing the consumer failed, too: {closing}")

    # -- subscriptions -----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        blacklist: str | None = None,
        on_assign: RebalanceListener = None,
        on_revoke: RebalanceListener = None,
        on_lost: RebalanceListener = None,
    ) -> None:
        """Share these topics with the other members of the group, or all topics that ``pattern`` matches as a whole.

        Without topics and pattern, this is ``unsubscribe()``. Matching topics that are created later are found when the metadata is
        refreshed, every ``metadata_max_age`` and before each join. In a ``classic`` group patterns are Python's (``re.fullmatch``),
        in a ``consumer`` group RE2, evaluated by the broker; internal topics are skipped (``exclude_internal_topics``). In a
        ``zookeeper`` group they are Java's, new topics are found at once, and ``blacklist`` is a pattern of the topics *not* to
        read. Raises ``ConfigError`` for an invalid pattern, ``IllegalStateError`` for names after a pattern without
        ``unsubscribe()``.

        The listeners are called as ``listener(consumer, partitions)`` on this thread, inside ``poll()`` or ``close()``:
        ``on_assign`` with new partitions, ``on_revoke`` before partitions go to other members, ``on_lost`` (or, without it,
        ``on_revoke``) when they are lost already.
        """
        wanted, regex = arguments.subscription(topics, pattern, blacklist, self._config.group_protocol)
        listeners = self._listeners(on_assign, on_revoke, on_lost)
        is_black_list = blacklist is not None
        self._driver.run(lambda now: self._calls.subscribe(wanted, listeners, now, regex, is_black_list=is_black_list))

    def unsubscribe(self) -> None:
        """Stop reading and leave the group; ``on_revoke`` is called first. Nothing is committed.

        Raises what the listener raises. If the coordinator does not answer within 5 s, the log says so.
        """
        self._driver.run(self._calls.unsubscribe)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, independently of any group. Partitions that were read before keep their positions.

        With ``enable_auto_commit`` the progress so far is committed. This call does not wait for that commit, but ``close()`` and a
        later ``commit()`` do; it is tried once, and a failure is logged. The records of the last poll count as processed if they
        would for ``close()``.

        Without partitions, this is ``unsubscribe()``. With a ``group_id`` reading starts at the group's committed offsets, and
        commits work, without a membership. Raises ``IllegalStateError`` after ``subscribe()``.
        """
        wanted = arguments.partitions((partitions,))
        self._driver.run(lambda now: self._calls.assign(wanted, now, self._last_poll.is_processed))

    # -- records ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | timedelta = 0.0) -> Records[K_co, V_co]:
        """Return records as soon as there are any, at most ``max_poll_records``; an empty ``Records`` after ``timeout`` (seconds).

        Everything else also happens in this call: rebalances and their listeners, commit callbacks, automatic commits. Only these
        listeners and callbacks can make it take longer than ``timeout``: the next call continues to wait for a commit before a
        rebalance. It must be called again within ``max_poll_interval``.

        With ``enable_auto_commit`` (the default) this call says that the records of the previous ``poll()`` are processed, and they
        are committed. So records that other threads or tasks are still working on are lost if the process dies: a thread pool needs
        ``enable_auto_commit=False`` and explicit commits, see "Records for other threads and tasks" in docs/consumer.md.

        Raises ``WakeupError``; ``ConnectionFailedError`` when no broker can be reached; ``OffsetOutOfRangeError`` and
        ``NoOffsetForPartitionError`` with ``auto_offset_reset="none"``; ``CorruptRecordError``; ``IllegalStateError`` without a
        subscription; what a listener raises; and anything else that keeps records from arriving (a refused login, a topic that does
        not exist: see docs/errors.md).
        """
        wait = self._poll_timeout(timeout)
        delivery = self._driver.run(lambda now: self._calls.deliver(wait, now))
        if delivery is None:
            return Records.empty()
        records = delivery.records()
        delivery.caller = Caller()
        # At the very end: if a signal handler raises before this, the records do not count as returned.
        delivery.whole = True
        return records

    def __iter__(self) -> Iterator[Record[K_co, V_co]]:
        """Records one by one, for ever.

        A record counts as processed when the next one is requested; ``commit()`` in the body includes it.
        """
        return Walk(self._go_on, clock.monotonic)

    def _go_on(self, walk: Walk) -> bool:
        """Prepare an iteration's next record: service the group if it is due, and poll if no record is left."""
        collector = self._calls.collector
        try:
            # The application may take long for each record, so the group is serviced between two records, but not each time.
            if walk.has_more and clock.monotonic() >= walk.ask_at:
                self._driver.run(self._calls.service)
            while not collector.continue_walk(walk):
                self._calls.check_not_in_listener()
                delivery = self._driver.run(lambda now: self._calls.deliver(1_000, now))
                if delivery is not None:
                    collector.walk(delivery, walk)
            walk.ask_at = clock.monotonic() + SERVICE_INTERVAL
            assert collector.delivery is not None
            collector.delivery.caller = Caller()
            return True
        except OttlaError:
            raise
        except BaseException:
            self._calls.interrupted = True
            raise

    # -- streams ----------------------------------------------------------------------------------------------------------

    @overload
    def streams(
        self,
        topics: Mapping[str, int],
        *,
        on_assign: RebalanceListener = None,
        on_revoke: RebalanceListener = None,
        on_lost: RebalanceListener = None,
    ) -> dict[str, list[Stream[K_co, V_co]]]: ...

    @overload
    def streams(
        self,
        *,
        pattern: str | None = None,
        blacklist: str | None = None,
        n: int = 1,
        on_assign: RebalanceListener = None,
        on_revoke: RebalanceListener = None,
        on_lost: RebalanceListener = None,
    ) -> list[Stream[K_co, V_co]]: ...

    def streams(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        pattern: str | None = None,
        blacklist: str | None = None,
        n: int | None = None,
        on_assign: RebalanceListener = None,
        on_revoke: RebalanceListener = None,
        on_lost: RebalanceListener = None,
    ) -> dict[str, list[Stream[K_co, V_co]]] | list[Stream[K_co, V_co]]:
        """Subscribe, and return iterators over the records, each for a thread of its own.

        ::

            for stream in consumer.streams({"orders": 4})["orders"]:
                threading.Thread(target=handle_all, args=(stream,)).start()

        ``topics``: the number of streams of each topic; or ``n``: the number of streams of all topics that ``pattern`` matches, or
        ``blacklist`` does not, as for ``subscribe()``. A partition belongs to one stream. Only finished records are committed:
        those after which a stream has requested another one. A thread of the consumer polls, and calls the listeners, which are
        those of ``subscribe()``. All threads may call the consumer then, but nothing else may read or subscribe. ``close()`` ends
        the iterators. See docs/streams.md.

        Raises ``IllegalStateError`` without a group, for a second call, and after another subscription.
        """
        self._check_open()
        listeners = self._listeners(on_assign, on_revoke, on_lost)
        # Imported here, since few consumers have streams.
        from ottla.streams import Stream, StreamsDriver

        wanted, regex = arguments.streams(topics, pattern, blacklist, n, self._config.group_protocol)
        if self._config.group_id is None:
            raise IllegalStateError("streams() needs a group", hint="set group_id")
        self._calls.check_no_streams("streams()")
        driver = StreamsDriver(self._config, self._calls, self._thread_driver, self._network_thread(), self._check_open, wanted)
        driver.begin(regex, listeners, is_black_list=blacklist is not None)
        self._driver = self._streams = driver
        streams = {topic: [Stream[K_co, V_co](reader, self) for reader in readers] for topic, readers in driver.readers.items()}
        return streams[""] if isinstance(wanted, int) else streams

    def wakeup(self) -> None:
        """Make the waiting call of the consumer, or its next one, raise ``WakeupError``. With streams, each of them raises it once.

        May be called from any thread, and from a signal handler.
        """
        if self._streams is None:
            super().wakeup()
        else:
            self._check_process()
            self._streams.wakeup()

    # -- positions --------------------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Read a partition from ``offset`` on, with the next ``poll()``. This does not check that the offset exists.

        With the ``leader_epoch`` of an ``OffsetAndMetadata`` the consumer checks that the log still has the preceding records
        (KIP-320).
        After a ``seek()`` that Ctrl-C interrupted, ``position()`` returns the new position or the old one, and ``commit()`` and
        ``close()`` commit that one. Raises ``IllegalStateError`` if the partition is not assigned.
        """
        self._seek_all({arguments.partition(partition): arguments.position(offset)})

    def _seek_all(self, positions: Offsets, ends: Mapping[TopicPartition, int] | None = None) -> None:
        """Seek in many partitions with one command: a thousand calls of ``seek()`` would take seconds. See ``events.Seek``."""
        self._driver.run(lambda now: self._calls.positions.seek(positions, now, ends))

    def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Read these partitions, or all, from their first record on.

        The offset is requested in the background; ``position()`` waits for it. Raises ``IllegalStateError`` for a partition that is
        not assigned.
        """
        wanted = arguments.partitions(partitions)
        self._driver.run(lambda now: self._calls.positions.seek_to_beginning(wanted, now))

    def seek_to_end(self, *partitions: Partitions) -> None:
        """Read these partitions, or all, from their end on; with ``read_committed``, from the last stable offset on.

        The offset is requested in the background; ``position()`` waits for it. Raises ``IllegalStateError`` for a partition that is
        not assigned.
        """
        wanted = arguments.partitions(partitions)
        self._driver.run(lambda now: self._calls.positions.seek_to_end(wanted, now))

    def position(self, partition: TopicPartition, timeout: Timeout = None) -> int:
        """The offset of the next record of a partition, after all records that were returned.

        Raises ``OttlaTimeoutError`` if it is not known within ``timeout`` (seconds), ``IllegalStateError`` if the partition
        is not assigned, and with ``auto_offset_reset="none"`` ``NoOffsetForPartitionError``.
        """
        wanted, wait = arguments.partition(partition), self._timeout(timeout)
        return self._driver.run(lambda now: self._calls.positions.position(wanted, wait, now))

    def pause(self, *partitions: Partitions) -> None:
        """Deliver no more records of these partitions until ``resume()``, or until a rebalance assigns them to another member.

        Without partitions, this does nothing (``pause(consumer.assignment())`` pauses all). Fetched records of these partitions are
        dropped and fetched again after ``resume()``. Raises ``IllegalStateError`` for a partition that is not assigned.
        """
        wanted = arguments.partitions(partitions)
        self._driver.run(lambda now: self._calls.positions.pause(wanted, now))

    def resume(self, *partitions: Partitions) -> None:
        """Deliver these partitions again. Raises ``IllegalStateError`` for a partition that is not assigned."""
        wanted = arguments.partitions(partitions)
        self._driver.run(lambda now: self._calls.positions.resume(wanted, now))

    # -- commits ----------------------------------------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[TopicPartition, Offset] | None = None, timeout: Timeout = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit ``offsets``, or the positions after all records that were returned; return what was committed.

        An offset is that of the *next* record to read. Retries until ``timeout`` (seconds). Raises ``CommitFailedError`` when the
        partitions may belong to another member by now, ``RebalanceInProgressError`` when a ``poll()`` is needed first,
        ``OttlaTimeoutError``, ``WakeupError``. A commit that ``wakeup()`` or Ctrl-C interrupts is made nevertheless; if it fails,
        the log says so.

        Offsets of a topic that was deleted and recreated raise ``UnknownTopicIdError`` until the consumer reads the new topic. From
        then on they count for the new topic: an offset does not say which topic it belongs to.
        """
        wanted, wait, thread = arguments.offsets(offsets), self._timeout(timeout), threading.current_thread()
        return self._driver.run(lambda now: self._calls.commits.commit(wanted, wait, now, thread))

    def commit_async(self, offsets: Mapping[TopicPartition, Offset] | None = None, callback: CommitCallback | None = None) -> None:
        """Commit ``offsets``, or the positions after all records that were returned, without waiting or retrying.

        ``callback(offsets, error)`` runs on this thread, in a later call, in the order of the commits; ``error`` is ``None`` on
        success. Without a callback an error is logged.
        """
        arguments.callback(callback, "callback")
        wanted, thread = arguments.offsets(offsets), threading.current_thread()
        self._driver.run(lambda now: self._calls.commits.commit_async(wanted, callback, now, thread))

    def _offsets_for_transaction(self, given: Offsets | None) -> OffsetsOfMember:
        """This member of the group, and the offsets that ``Transaction.commit_offsets`` commits."""
        wait, thread = self._timeout(None), threading.current_thread()
        offsets = self._driver.run(lambda now: self._calls.commits.offsets_for_transaction(given, wait, now, thread))
        return self.group_metadata(), offsets

    def committed(self, *partitions: Partitions, timeout: Timeout = None) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of these partitions, or of all assigned ones; ``None`` if there is no commit.

        Waits for the pending commit of an open transaction (KIP-447). Raises ``OttlaTimeoutError`` after ``timeout``
        (seconds), and ``InvalidGroupIdError`` without a group.
        """
        wanted = arguments.partitions(partitions) if partitions else sorted(self.assignment())
        wait = self._timeout(timeout)
        return self._driver.run(lambda now: self._calls.commits.committed(wanted, wait, now))

    # -- queries --------------------------------------------------------------------------------------------------------

    def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout: Timeout = None) -> dict[TopicPartition, int]:
        """The first offset of each partition: that of its oldest record.

        Raises as ``end_offsets()`` does.
        """
        return self._offsets(partitions, EARLIEST, timeout)

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout: Timeout = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition; with ``read_committed``, after the last one that can be read.

        Raises the error of a broker that refuses (``TopicAuthorizationFailedError``, ``AuthenticationError``), and after
        ``timeout`` (seconds) ``OttlaTimeoutError``, or the error that kept the brokers from answering.
        """
        return self._offsets(partitions, LATEST, timeout)

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: Timeout = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record with a timestamp at or after a time (milliseconds since 1970), or ``None``.

        Raises as ``end_offsets()`` does, also for ``timeout=0``: ``None`` always means that there is none.
        """
        wanted, wait = arguments.timestamps(timestamps), self._timeout(timeout)
        return self._driver.run(lambda now: self._calls.positions.list_offsets(wanted, wait, now))

    def lag(self, partition: TopicPartition, timeout: Timeout = None) -> int:
        """The number of records that remain to be read in a partition. Asks a broker only if the end of the log is not known.

        It is the distance from the position to the end, so it includes records that compaction removed. Raises as ``position()``
        does.
        """
        wanted, wait = arguments.partition(partition), self._timeout(timeout)
        return self._driver.run(lambda now: self._calls.positions.lag(wanted, wait, now))

    def partitions_for(self, topic: str, timeout: Timeout = None) -> list[PartitionInfo]:
        """The partitions of a topic, as a broker describes them now; this does not create the topic.

        Raises ``UnknownTopicOrPartitionError`` if there is no such topic, and otherwise as ``end_offsets()`` does.
        """
        return list(self._describe_topics((arguments.topic(topic),), timeout)[topic].partitions)

    def list_topics(self, timeout: Timeout = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this consumer may see, with their partitions. Raises as ``end_offsets()`` does."""
        topics = self._describe_topics(None, timeout)
        return {name: list(topics[name].partitions) for name in sorted(topics)}

    def _describe_topics(self, topics: Iterable[str] | None, timeout: Timeout = None) -> Mapping[str, TopicMetadata]:
        """The metadata of topics; ``None``: of all. Raises ``UnknownTopicOrPartitionError`` if one of ``topics`` does not exist."""
        wait = self._timeout(timeout)
        return self._driver.run(lambda now: self._calls.describe_topics(topics, wait, now))

    # -- closing ----------------------------------------------------------------------------------------------------------

    def close(
        self,
        timeout: float | timedelta = CLOSE_TIMEOUT,
        *,
        group_membership: GroupMembershipOperation | str = GroupMembershipOperation.DEFAULT,
    ) -> None:
        """Commit, if commits are automatic, leave the group, and stop the network thread, within ``timeout`` (seconds).

        Only listeners and commit callbacks can make it take longer. If brokers do not answer it takes up to the whole ``timeout``:
        set a longer one for a slow coordinator. Even ``close(0)`` sends the last commit and leaves the group, if there is a
        connection to the coordinator.

        The records of the last poll count as processed unless an exception that came after the poll is being handled, or another
        thread polled and no ``commit()`` was called since. docs/consumer.md has the complete rule, as a table.

        ``group_membership`` says whether the member leaves (KIP-1092): ``"default"`` (a static member remains), ``"leave_group"``
        or ``"remain_in_group"``; ``on_revoke`` is called in any case. Closing may take as long as a broker's current fetch, up to
        ``fetch_max_wait``. A second call does nothing. Raises what a listener raises, and ``OttlaTimeoutError`` if an asynchronous
        commit was not answered; the consumer is closed nevertheless.
        """
        operation = arguments.group_membership(group_membership)
        self._close(arguments.duration(timeout) / 1000, operation)

    def _close(self, timeout: float, operation: GroupMembershipOperation, error: BaseException | None = None) -> None:
        """``error``: the exception that left the ``with`` block."""
        self._check_process()
        if self._shared.closed:
            if self._network is not None:
                self._network.close(timeout)  # nothing to do, unless the first close was interrupted
            return
        if self._streams is not None:
            self._streams.close(timeout, operation, error)
        else:
            self._thread_driver.close(timeout, operation, self._network, lambda: self._last_poll.is_processed(error))

    def _offsets(self, partitions: Iterable[TopicPartition], timestamp: int, timeout: Timeout) -> dict[TopicPartition, int]:
        wanted, wait = dict.fromkeys(arguments.partitions((partitions,)), timestamp), self._timeout(timeout)
        offsets = self._driver.run(lambda now: self._calls.positions.list_offsets(wanted, wait, now))
        return {tp: 0 if position is None else position.offset for tp, position in offsets.items()}

    def _listeners(self, on_assign: RebalanceListener, on_revoke: RebalanceListener, on_lost: RebalanceListener) -> Listeners:
        for name, listener in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            arguments.callback(listener, name)
        return Listeners(self._bind(on_assign), self._bind(on_revoke), self._bind(on_lost))

    def _bind(self, listener: RebalanceListener) -> Listener | None:
        if inspect.iscoroutinefunction(listener):
            raise TypeError(f"{listener!r} is a coroutine function, and a Consumer has no event loop: see AsyncConsumer")
        return self._bound(listener)
