"""The public calls of a consumer, on the application thread, as generators that yield what they wait for.

Owns the steps of a poll and their order, subscribing, closing, and the ``processing()`` block that may be running. The other calls
are those of its parts ``commits`` and ``positions``. Must not know how a call waits: a driver runs the generators (``Consumer`` on
a thread, tests under a virtual clock). Invariants: user code runs only inside a call; ``poll()`` raises inside a ``processing()``
block, so the records of that block do not count as processed.

A generator yields ``Wait(for_, until)``; the driver sends it the time once a notification has arrived or ``until`` has passed. It
returns the result of the call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ottla.client import events
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.commits import STEP_TIME, CommitCalls, step_deadline
from ottla.client.calls.delivery import Delivery
from ottla.client.calls.listeners import Listeners, Rebalancing
from ottla.client.calls.mailbox import Call, CallErrors, Mailbox, News, log_others
from ottla.client.calls.positions import PositionCalls
from ottla.client.calls.shared_state import SharedState
from ottla.client.cluster import patterns
from ottla.client.cluster.metadata import TopicMetadata
from ottla.client.events import (
    AssignmentNeeded,
    AssignmentReceived,
    ErrorNotification,
    Fetched,
    Published,
    RebalanceNeeded,
    TopicErrorNotification,
)
from ottla.client.groups.membership import DEFAULT
from ottla.client.health.metrics import PollMetrics
from ottla.client.subscription import Mode, Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import ClosedError, IllegalStateError, OttlaTimeoutError
from ottla.records import Records
from ottla.types import ConsumerGroupMetadata, FrozenMapping, GroupMembershipOperation, Now, TopicPartition

_log = logging.getLogger(__name__)

POST_INTERVAL = 50
"""Milliseconds between two ``Polled`` commands, unless the subscription has changed meanwhile. Each one wakes the network thread,
which costs more than a poll that returns a few records."""

LEAVE_TIME = 5_000
"""Milliseconds that ``unsubscribe()`` waits for the coordinator, as long as ``close()`` does by default. Java's consumer waits only
until the request is sent, since the answer changes nothing."""


class ConsumerCalls:
    """See the module. ``submit`` sends a command to the network thread, ``news`` returns its unhandled notifications.

    The parts share one consumer's state, and each state has one writer: the collector writes positions and deliveries, ``errors``
    the errors to be raised, ``commits`` the unanswered commits, the rebalancing the owned partitions. Other threads read
    ``shared`` and nothing else of this.
    """

    def __init__(self, config: ConsumerConfig, submit: Callable[[object], None], news: Callable[[], News]) -> None:
        self.shared = shared = SharedState()
        handlers: dict[type[object], Callable[[Any], None]] = {
            Fetched: lambda item: self.collector.on_fetched(item.response, self._mailbox.now),
            Published: lambda item: self._on_published(item.snapshot),
            RebalanceNeeded: lambda item: self._rebalancing.needed(item),
            AssignmentReceived: lambda item: self._rebalancing.received(item),
            AssignmentNeeded: lambda item: self._rebalancing.asked(item),
            ErrorNotification: lambda item: self._errors.report(item.error),
            TopicErrorNotification: lambda item: self._errors.on_topic_error(item),
        }
        self.interrupted = False
        """Set by a driver if a call was interrupted at an unknown point, by an exception of a signal handler for example."""
        self._config = config
        self._mailbox = mailbox = Mailbox(submit, news, handlers, config.default_api_timeout_ms)
        self.collector = collector = FetchCollector(config, shared)
        self.jobs = Processing(submit, shared)
        self._poll_metrics = metrics = shared.poll_metrics = PollMetrics()
        self._errors = errors = CallErrors(config, mailbox, collector)
        self.commits = CommitCalls(config, mailbox, collector, errors, metrics)
        self.positions = PositionCalls(mailbox, collector, errors)
        self._rebalancing = Rebalancing(config, mailbox, collector, metrics, errors.add)
        self._polled_at: int | None = None
        """When ``Polled`` was last sent; ``None``: the subscription has changed since, so the next poll sends it at once."""
        self._leaves_at_end = False
        """``close()`` has begun to leave the group."""

    @property
    def mailbox(self) -> Mailbox:
        """The application's end of the two queues."""
        return self._mailbox

    @property
    def snapshot(self) -> Snapshot:
        """The subscription as the network thread last published it."""
        return self.shared.snapshot

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that ``on_assign`` got and that are not given up yet."""
        return self._rebalancing.owned

    def check_not_in_listener(self) -> None:
        """Raise if a listener is running: an iteration inside it would never end, and the rebalance waits for the listener."""
        if self._rebalancing.is_listening:
            raise IllegalStateError(
                "a rebalance listener iterates over its consumer, while the rebalance waits for the listener to return",
                hint="read the records after poll() has returned; position(), seek(), pause() and commit() work in a listener",
            )

    # -- records ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout: int, now: Now) -> Call[Records[Any, Any]]:
        """Return records as soon as there are any; none after ``timeout`` ms. See ``Consumer.poll``."""
        delivery = yield from self.deliver(timeout, now)
        if delivery is None:
            return Records.empty()
        delivery.whole = True
        return delivery.records()

    def deliver(self, timeout: int, now: Now) -> Call[Delivery | None]:
        """As ``poll``, but no record counts as returned: the caller marks the delivery when it returns the records."""
        self.check_no_streams("poll()")
        return (yield from self.deliver_to_streams(timeout, now, lambda: False))

    def deliver_to_streams(self, timeout: int, now: Now, is_over: Callable[[], bool]) -> Call[Delivery | None]:
        """As ``deliver``, but it also ends, without records, as soon as ``is_over`` returns true."""
        self.jobs.check_idle()
        self._begin_poll(now)
        try:
            return (yield from self._delivery(now.mono + timeout, is_over))
        finally:
            self._poll_metrics.poll_ended(self._mailbox.now)

    def check_no_streams(self, what: str) -> None:
        """Raise ``IllegalStateError`` if streams get the records."""
        if self.collector.streams is not None:
            raise IllegalStateError(f"{what}: this consumer has streams", hint="iterate over them, or create another consumer")

    def _delivery(self, deadline: int, is_over: Callable[[], bool]) -> Call[Delivery | None]:
        self.collector.acknowledge()
        while True:
            ready = yield from self._ready()
            if ready and self.shared.may_return_records(self._mailbox.now):
                delivery = self.collector.collect(self._config.max_poll_records)
                if delivery is not None:
                    self._count(delivery)
                    return delivery
                self._post()
            if self._mailbox.now.mono >= deadline:
                if ready:
                    self._errors.explain_nothing()
                return None
            if is_over():
                return None
            yield from self._mailbox.wait_in_poll("records", min(deadline, self._look_again_at()))

    def _begin_poll(self, now: Now) -> None:
        self._mailbox.now = now
        self._poll_metrics.poll_began(now)
        self.shared.consumption.mark_when_due(now)

    def _count(self, delivery: Delivery) -> None:
        """Note the progress, once for each poll and partition, never for each record."""
        for part in delivery.parts:
            self.shared.progress_at[part.tp] = self._mailbox.now.mono

    def service(self, now: Now) -> Call[None]:
        """Do what a poll does besides returning records, in the middle of an iteration: heartbeat, rebalance, commit."""
        self._begin_poll(now)
        self.collector.on_next_record()
        while not (yield from self._ready()):
            yield from self._mailbox.wait_in_poll("a turn of the network thread, or a commit", self._look_again_at())

    def _ready(self) -> Call[bool]:
        """Do everything that a poll does except returning records; return whether records may be returned now.

        It waits for user code only. The next round, or the next poll, checks again whatever else takes longer, so that deadlines,
        wake-ups and cancellation have an effect at every moment.
        """
        self.jobs.check_idle()
        self._mailbox.take()
        if self.interrupted and self._mailbox.settled():
            self._start_over()
        if not self._mailbox.settled() or self._errors.awaits_leaving:
            self._mailbox.raise_wakeup()
            return False  # the network thread has not executed the earlier commands yet
        if self._rebalancing.pending or self.commits.has_callback:
            # ``Polled`` goes first: listeners and callbacks run inside this poll, so their time is not time between two polls.
            self._mailbox.submit(events.Polled({}, self._busy_since()))
            yield from self.commits.run_callbacks()
            if self._rebalancing.pending:
                self._polled_at = None
                yield from self._rebalancing.serve()
        self._post()
        self._errors.raise_reported()
        if self.snapshot.mode is Mode.NONE:
            raise IllegalStateError(
                "nothing to poll: the consumer is neither subscribed nor assigned", hint="call subscribe() or assign()"
            )
        self._mailbox.raise_wakeup()
        return self._rebalancing.hold_until <= self._mailbox.now.mono

    def _start_over(self) -> None:
        """Fetch again from the positions after the returned records: a call was interrupted at an unknown point."""
        positions = self.collector.start_over()
        if positions:
            self._mailbox.submit_change(events.Rewind(positions))
        self.interrupted = False

    def _post(self) -> None:
        """Report drained responses and, at intervals, that the application polls and which positions may be committed."""
        if moved := self.collector.buffer.take_moved():
            self._mailbox.submit(events.MovedToStreams(moved))
        if self.collector.buffer.has_drained:
            self.collector.report_drained(lambda numbers: self._mailbox.submit(events.Drained(numbers)), self._mailbox.now)
        now = self._mailbox.now.mono
        if self._polled_at is None or now - self._polled_at >= POST_INTERVAL:
            self._polled_at = now
            positions = self.collector.positions_to_commit(with_current=False) if self._config.enable_auto_commit else {}
            self._mailbox.submit(events.Polled(positions, self._busy_since()))

    def _busy_since(self) -> int | None:
        return None if self.collector.streams is None else self.collector.streams.busy_since(self._mailbox.now)

    def _longest_wait(self) -> int:
        """Milliseconds after which a waiting poll sends ``Polled`` again: it counts as polling while it waits.

        Besides, only a ``Polled`` commits automatically, and says since when a stream has been busy.
        """
        longest = self._config.max_poll_interval_ms // 3
        if self._config.enable_auto_commit or self.collector.streams is not None:
            longest = min(longest, self._config.auto_commit_interval_ms or 1_000, 1_000)
        return max(1, longest)

    def _look_again_at(self) -> int:
        now, hold_until = self._mailbox.now.mono, self._rebalancing.hold_until
        at = now + self._longest_wait()
        return min(at, hold_until) if hold_until > now else at

    # -- notifications ----------------------------------------------------------------------------------------------------

    def take_news(self) -> None:
        """Handle the notifications outside of any call."""
        self._mailbox.take()

    def _on_published(self, snapshot: Snapshot) -> None:
        self._polled_at = None
        self._mailbox.rewind(self.collector.on_snapshot(snapshot))
        self._errors.on_published(snapshot)
        progress_at = self.shared.progress_at
        for tp in progress_at.keys() - snapshot.partitions.keys():
            del progress_at[tp]

    # -- what is read -----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str],
        listeners: Listeners,
        now: Now,
        pattern: str | None = None,
        *,
        is_black_list: bool = False,
        streams: Mapping[str, int] | int | None = None,
    ) -> Call[None]:
        """See ``Consumer.subscribe``. Topics by name, or those that ``pattern`` matches (``is_black_list``: does not match).

        ``streams``: the number of streams of each topic, or of the pattern; only ``streams()`` passes it.
        """
        if streams is None:
            self.check_no_streams("subscribe()")
        wanted = frozenset(topics)
        if not wanted and pattern is None:
            yield from self.unsubscribe(now)
            return
        self._mailbox.now = now
        self._mailbox.take()
        if self._config.group_id is None:
            raise IllegalStateError("subscribe() needs a group", hint="set group_id, or choose partitions yourself with assign()")
        if self.snapshot.mode is Mode.MANUAL:
            raise IllegalStateError("the partitions were assigned by hand", hint="call unsubscribe() before subscribe()")
        if self.snapshot.mode is Mode.TOPICS and (self.snapshot.pattern is None) is not (pattern is None):
            before, after = ("names", "a pattern") if pattern is not None else ("a pattern", "names")
            hint = "call unsubscribe() between the two"
            raise IllegalStateError(f"topics are subscribed to by {before}, which does not mix with {after}", hint=hint)
        if pattern is not None:
            pattern = patterns.checked(pattern, self._config.group_protocol)
        counts = {pattern: streams} if isinstance(streams, int) and pattern is not None else streams
        frozen = FrozenMapping(counts if isinstance(counts, Mapping) else {})
        command = events.Subscribe(wanted, pattern, is_black_list, frozen)
        self._rebalancing.subscribe(command, listeners)
        yield from self._begin(command, "subscribe()")

    def assign(
        self, partitions: Iterable[TopicPartition], now: Now, last_processed: Callable[[], bool] = lambda: True
    ) -> Call[None]:
        """See ``Consumer.assign``. ``last_processed``: whether the records of the last poll count as processed."""
        self.check_no_streams("assign()")
        wanted = frozenset(partitions)
        if not wanted:
            yield from self.unsubscribe(now)
            return
        self._mailbox.now = now
        yield from self._mailbox.require_caught_up("assign()", self._mailbox.default_deadline)
        if self.snapshot.mode is Mode.TOPICS:
            raise IllegalStateError("the partitions come from the group", hint="call unsubscribe() before assign()")
        processed = True
        if self._config.enable_auto_commit:
            processed = last_processed()
            self.commits.commit_in_background(last_processed=processed)
        if processed:  # otherwise close() would commit the positions that are left out here
            self.collector.acknowledge()
        yield from self._begin(events.Assign(wanted), "assign()")

    def _begin(self, command: events.Command, what: str) -> Call[None]:
        """Send a ``Subscribe`` or ``Assign`` and wait for it. Errors of an earlier membership are void once it is done."""
        self._errors.beginning(command)
        yield from self._mailbox.ask(command, what, self._mailbox.default_deadline)

    # -- the cluster and the group ----------------------------------------------------------------------------------------

    def describe_topics(self, topics: Iterable[str] | None, timeout: int, now: Now) -> Call[Mapping[str, TopicMetadata]]:
        """The cluster's description of topics; ``None``: of all."""
        self._mailbox.now = now
        command = events.DescribeTopics(None if topics is None else frozenset(topics), now.mono + timeout)
        topics_by_name: Mapping[str, TopicMetadata]
        topics_by_name = yield from self._mailbox.ask(command, "describing topics", command.deadline, wakeable=True)
        return topics_by_name

    def group_metadata(self) -> ConsumerGroupMetadata:
        """See ``Consumer.group_metadata``. The snapshot has it, so no broker is asked."""
        self._errors.require_group("group_metadata()")
        unknown = ConsumerGroupMetadata(self._config.group_id or "", group_instance_id=self._config.group_instance_id)
        return self.snapshot.group or unknown

    # -- the end ----------------------------------------------------------------------------------------------------------

    def unsubscribe(self, now: Now, reason: str = "the consumer unsubscribed from all topics") -> Call[None]:
        """See ``Consumer.unsubscribe``."""
        self.check_no_streams("unsubscribe()")
        self._mailbox.now = now
        yield from self._leave(reason)

    def _leave(self, reason: str, deadline: int | None = None, operation: GroupMembershipOperation = DEFAULT) -> Call[None]:
        """Call the listener, then leave the group. If the coordinator does not answer by ``deadline``, that is only logged.

        Without a ``deadline`` the coordinator has ``LEAVE_TIME`` from the end of the listener on.
        """
        self._mailbox.take()
        failure: Exception | None = None
        try:
            yield from self._rebalancing.leave()
        except Exception as error:
            failure = error
        finally:
            command = events.Unsubscribe(reason, self._rebalancing.given_up, operation)
            self._mailbox.submit(command)
            self._errors.leaving(command)
        if deadline is None:
            deadline = self._mailbox.now.mono + min(LEAVE_TIME, self._config.default_api_timeout_ms)
        try:
            yield from self._mailbox.settle(command, reason, deadline, wakeable=False, grace=0)
        except OttlaTimeoutError:
            if self._config.group_id is not None:
                _log.warning("leaving group %r was not answered in time", self._config.group_id)
        if failure is not None:
            raise failure

    def close(
        self, timeout: int, now: Now, operation: GroupMembershipOperation = DEFAULT, *, last_processed: bool = True
    ) -> Call[None]:
        """Make the automatic commit, call the listener, leave the group, and end the fetches. See ``Consumer.close``.

        ``last_processed``: whether the records of the last poll count as processed. If not, a commit that a listener makes leaves
        them out, too. Even without answers each step begins, and the last one ends within ``timeout`` ms: only listeners and
        callbacks may take longer.
        """
        self._mailbox.now = now
        if not last_processed:
            self.collector.mark_unprocessed()
        deadline = now.mono + timeout
        self._mailbox.disable_wakeups()
        self._mailbox.take()
        if self._config.enable_auto_commit and not self._rebalancing.lost and self.snapshot.failure is None:
            yield from self.commits.commit_on_close(deadline)
        failures = yield from self.commits.end(step_deadline(deadline, self._mailbox.now))
        unfinished = self.commits.unanswered()
        if self.snapshot.mode is not Mode.NONE:
            self._leaves_at_end = True
            try:
                yield from self._leave("the consumer is being closed", step_deadline(deadline, self._mailbox.now), operation)
            except Exception as error:
                failures.append(error)
            yield from self._end_fetches(deadline)
        if failures:
            log_others(failures[1:])
            raise failures[0]
        if unfinished:
            raise OttlaTimeoutError(f"{unfinished} asynchronous commits were not answered before the consumer was closed")

    def leave_at_once(self, operation: GroupMembershipOperation) -> None:
        """Leave the group without waiting and without calling the listener, unless ``close()`` has begun to leave.

        1. A cancellation, or Ctrl-C, ends ``close()`` early. 2. Without this, the member would keep its partitions until its
        session expires.
        """
        if self._leaves_at_end or self.snapshot.mode is Mode.NONE:
            return
        self._leaves_at_end = True
        given_up = events.GivenUp(self._rebalancing.owned, self._rebalancing.lost, 0)
        self._mailbox.submit(events.Unsubscribe("the consumer is being closed", given_up, operation))

    def _end_fetches(self, deadline: int) -> Call[None]:
        """End the fetch sessions: brokers cache a limited number of them (KIP-227).

        A broker answers requests of a connection in order, so after the current fetch, which may wait for records.
        """
        command = events.EndFetches()
        self._mailbox.submit(command)
        patience = self._config.fetch_max_wait_ms + STEP_TIME
        until = min(step_deadline(deadline, self._mailbox.now), self._mailbox.now.mono + patience)
        while not command.completion.done and self._mailbox.now.mono < until:
            yield from self._mailbox.wait(command.completion, until)
            self._mailbox.take()


class ProcessingJob:
    """See ``Consumer.processing``. ``progress`` and ``rebalancing`` may be used by any thread."""

    def __init__(self, processing: Processing, limit: int) -> None:
        self._processing = processing
        self._limit = limit

    def __enter__(self) -> Self:
        self._processing.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._processing.end(self)

    @property
    def limit_ms(self) -> int:
        """Milliseconds between two reports of progress, at most."""
        return self._limit

    @property
    def rebalancing(self) -> bool:
        """Whether the group waits for this member to give up partitions: end early if you can, commit, and ``poll()``."""
        return self._processing.rebalancing

    def progress(self) -> None:
        """Report progress: the limit counts from now."""
        self._processing.progress(self)


class Processing:
    """The ``processing()`` block that may be running, in which the limit of the job replaces ``max_poll_interval``.

    However the block ends, ``max_poll_interval`` applies again. ``submit`` sends a command to the network thread.
    """

    def __init__(self, submit: Callable[[object], None], shared: SharedState) -> None:
        self._submit = submit
        self._shared = shared

    @property
    def rebalancing(self) -> bool:
        """Whether the member is in a rebalance."""
        return self._shared.rebalancing

    def job(self, limit: int) -> ProcessingJob:
        """A job that reports progress at least every ``limit`` ms. It begins when its block is entered."""
        return ProcessingJob(self, limit)

    def check_idle(self) -> None:
        """Raise ``IllegalStateError`` while a job is running."""
        if self._shared.job is not None:
            raise IllegalStateError(
                "a processing() block is open: poll() would count its records as processed",
                hint="leave the processing() block first",
            )

    def begin(self, job: ProcessingJob) -> None:
        """Begin a job. Raises ``IllegalStateError`` if another one is running."""
        self.check_idle()
        try:
            self._shared.job = job
            self._submit(events.ProcessingBegan(job.limit_ms))
        except BaseException:
            # 1. The network thread cannot be started, or a signal handler raises. 2. A ``with`` statement does not call
            # ``__exit__`` after an error of ``__enter__``. So the job is ended here; otherwise every later poll would raise.
            with contextlib.suppress(Exception):
                self.end(job)
            raise

    def progress(self, job: ProcessingJob) -> None:
        """A job reports progress, from any thread. A report after the end of the job has no effect."""
        if self._shared.job is job:
            # 1. A thread reports progress. 2. The application ends the block and closes the consumer. 3. The report is submitted.
            with contextlib.suppress(ClosedError):
                self._submit(events.ProcessingProgressed())

    def end(self, job: ProcessingJob) -> None:
        """End a job, if it is the running one."""
        if self._shared.job is job:
            self._shared.job = None
            try:
                self._submit(events.ProcessingEnded())
            except ClosedError:
                # A signal handler has closed the consumer: no deadline is left, and the block may raise its own error.
                return
            except BaseException:
                # A signal handler has raised. The command may not have been sent; if it was, a second one has no effect.
                with contextlib.suppress(Exception):
                    self._submit(events.ProcessingEnded())
                raise
