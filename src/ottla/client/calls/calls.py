"""The application's half of a consumer: each public call as a generator that says what it waits for.

Owns what a poll does and in which order, what it raises when, subscribing, and the end; the other calls are in ``commits``,
``positions`` and ``lookups``, a rebalance in ``rebalancing``. Must not know how a call waits: a driver runs the
generators (``Consumer`` on a thread, tests under a virtual clock). Invariant: user code runs only inside a call.

A generator yields ``Wait(for_, until)`` and is sent the time when something has arrived or ``until`` has come; it returns the
result.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ottla.client import commands
from ottla.client.calls.assigning import Assigning
from ottla.client.calls.collector import Collector, Delivery
from ottla.client.calls.commits import STEP_TIME, CommitCalls
from ottla.client.calls.lookups import LookupCalls
from ottla.client.calls.mailbox import Call, Mailbox, News
from ottla.client.calls.processing import Processing
from ottla.client.calls.rebalancing import Listeners, Rebalancing
from ottla.client.cluster import patterns
from ottla.client.fetched import FetchedResponse
from ottla.client.groups.membership import DEFAULT
from ottla.client.health.metrics import MetricName
from ottla.client.health.verdicts import Consumed
from ottla.client.notifications import (
    AssignmentNeeded,
    AssignmentReceived,
    ErrorNotification,
    Fetched,
    Published,
    RebalanceNeeded,
    TopicErrorNotification,
)
from ottla.client.subscription import Mode, Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import (
    ConnectionFailedError,
    DisconnectedError,
    IllegalStateError,
    OttlaError,
    OttlaTimeoutError,
    error_class,
)
from ottla.records import Records
from ottla.types import GroupMembershipOperation, Now, TopicPartition

_log = logging.getLogger(__name__)

POST_INTERVAL = 50
"""Milliseconds between two signs of life, unless the network thread has told news: each wakes it, and a poll of few records must
not cost that."""

PROBLEM_GRACE = 3_000
"""Milliseconds before a problem that may pass (a topic that is just being created) is raised by an empty poll."""

LEAVE_TIME = 5_000
"""Milliseconds that ``unsubscribe()`` waits for the coordinator, as long as ``close()`` does by default. Java's consumer waits only
until the request has left: what the coordinator says changes nothing."""

UNREACHABLE_GRACE = 500
"""Milliseconds before an empty poll says that no broker can be reached: less than the second that most polls wait."""

_OF_A_RESTART: tuple[type[OttlaError], ...] = (DisconnectedError, OttlaTimeoutError, *map(error_class, (5, 14, 15, 16)))
"""No news while a broker restarts: no leader, a coordinator that loads its groups, is not there or is another one."""


class ConsumerCalls(CommitCalls, LookupCalls):
    """See the module. ``submit`` sends a command to the network thread, ``news`` returns its unhandled notifications."""

    def __init__(self, config: ConsumerConfig, submit: Callable[[object], None], news: Callable[[], News]) -> None:
        handlers: dict[type[Any], Callable[[Any], None]] = {
            Fetched: lambda item: self._on_fetched(item.response),
            Published: lambda item: self._on_published(item.snapshot),
            RebalanceNeeded: lambda item: self._rebalancing.needed(item),
            AssignmentReceived: lambda item: self._rebalancing.received(item),
            AssignmentNeeded: lambda item: self._rebalancing.asked(item),
            ErrorNotification: lambda item: self._on_error(item.error),
            TopicErrorNotification: self._on_topic_error,
        }
        super().__init__(config, Mailbox(submit, news, handlers), Collector(config))
        self.interrupted = False
        """Set by a driver: the handler of a signal has raised, or something else from outside, in the middle of a call."""
        self.jobs = Processing(submit)
        self._errors: deque[OttlaError] = deque()
        self._assigning = Assigning(config, self._errors.append)
        self._rebalancing = Rebalancing(config, self._mailbox, self.collector, self._assigning, self.pace)
        self._polled_at: int | None = None
        """When the last sign of life was sent to the network thread; ``None``: it waits for one."""
        self._progress_at: dict[TopicPartition, int] = {}
        """When the application was last handed records of a partition."""
        self._problems: list[OttlaError] = []
        """Everything that keeps records from coming, what concerns all partitions first."""
        self._void_until: tuple[commands.Command, ...] = ()
        """After a request to leave: errors reported before one of these is done concern the membership that was left."""
        self._leaves_at_end = False
        """``close()`` has begun to leave the group."""
        self._problem_since: dict[type[OttlaError], int] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that ``on_assign`` got and that are not given up yet."""
        return self._rebalancing.owned

    def check_not_in_listener(self) -> None:
        """Raise if a listener is running: an iteration inside it would go on for ever, and the rebalance waits for its end."""
        if self._rebalancing.is_listening:
            raise IllegalStateError(
                "a rebalance listener iterates over its consumer, while the rebalance waits for the listener to return",
                hint="read the records after poll() has returned; position(), seek(), pause() and commit() work in a listener",
            )

    # -- records ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout: int, now: Now) -> Call[Records[Any, Any]]:
        """Records, as soon as there are any; none when ``timeout`` (ms) is over. See ``Consumer.poll``."""
        delivery = yield from self.deliver(timeout, now)
        if delivery is None:
            return Records.empty()
        delivery.whole = True
        return delivery.records()

    def deliver(self, timeout: int, now: Now) -> Call[Delivery | None]:
        """As ``poll``, but nothing of it counts as handed out: that is for who hands it out to say."""
        self.jobs.check_idle()
        self._begin_poll(now)
        try:
            return (yield from self._delivery(now.mono + timeout))
        finally:
            self.pace.poll_ended(self._mailbox.now)

    def _delivery(self, deadline: int) -> Call[Delivery | None]:
        self.collector.acknowledge()
        while True:
            ready = yield from self._ready()
            if ready:
                delivery = self.collector.collect(self._config.max_poll_records)
                if delivery is not None:
                    self._count(delivery)
                    return delivery
                self._post()
            if self._mailbox.now.mono >= deadline:
                if ready:
                    self._explain_nothing()
                return None
            yield from self._mailbox.wait_in_poll("records", min(deadline, self._look_again_at()))

    def _begin_poll(self, now: Now) -> None:
        self._mailbox.now = now
        self.pace.poll_began(now)
        self.collector.consumption.look_at_the_clock(now)

    def _count(self, delivery: Delivery) -> None:
        """Once a poll and partition, never once a record."""
        for part in delivery.parts:
            self._progress_at[part.tp] = self._mailbox.now.mono

    def consumed(self) -> dict[TopicPartition, Consumed]:
        """How far the application is. Any thread may ask; each value is whole, and they are of about the same moment."""
        collector, progress_at = self.collector, self._progress_at
        return {
            tp: Consumed(collector.handed_out(tp), collector.end(tp), progress_at.get(tp), collector.begin(tp))
            for tp in collector.snapshot.partitions
        }

    def metrics(self, now: Now) -> dict[MetricName, float]:
        """What the application does, in numbers. Any thread may ask."""
        return {**self.pace.metrics(now), **self.collector.consumption.metrics(self.consumed(), now)}

    def service(self, now: Now) -> Call[None]:
        """In the middle of walking records one by one: stay alive, and take part in a rebalance."""
        self._begin_poll(now)
        self.collector.came_back()
        while not (yield from self._ready()):
            yield from self._mailbox.wait_in_poll("a turn of the network thread, or a commit", self._look_again_at())

    def _ready(self) -> Call[bool]:
        """Do everything that a poll does except returning records; return whether records may be returned now.

        It waits only for user code: the next round, or the next poll, looks again at anything else that takes longer, so deadlines,
        wake-ups and cancellation hold at every moment.
        """
        self.jobs.check_idle()
        self._mailbox.take()
        if self.interrupted and self._mailbox.settled():
            self._start_over()
        if not self._mailbox.settled() or (self._void_until and self._is_leaving()):
            self._mailbox.raise_wakeup()
            return False  # the network thread has not done yet what it was asked before
        if self._rebalancing.pending or self._has_commit_callback:
            # The application's code is about to run inside this poll: its time does not count as time before the poll.
            self._mailbox.submit(commands.Polled({}))
            yield from self._run_commit_callbacks()
            if self._rebalancing.pending:
                self._polled_at = None
                yield from self._rebalancing.serve()
        self._post()
        self._raise_errors()
        if self.snapshot.mode is Mode.NONE:
            raise IllegalStateError(
                "nothing to poll: the consumer is neither subscribed nor assigned", hint="call subscribe() or assign()"
            )
        self._mailbox.raise_wakeup()
        return self._rebalancing.hold_until <= self._mailbox.now.mono

    def _start_over(self) -> None:
        """A call was interrupted anywhere: whatever it had in its hands is fetched again, from behind what the application has."""
        positions = self.collector.start_over()
        if positions:
            self._mailbox.submit_unattended(commands.Rewind(positions))
        self.interrupted = False

    def _post(self) -> None:
        """Tell the network thread what memory is free; now and then, that the application is alive and what it is done with."""
        if self.collector.buffer.has_drained:
            self.collector.consumption.settle(self.collector.buffer.holds, self._mailbox.now)
            self.collector.buffer.report_drained(lambda numbers: self._mailbox.submit(commands.Drained(numbers)))
        now = self._mailbox.now.mono
        if self._polled_at is None or now - self._polled_at >= POST_INTERVAL:
            self._polled_at = now
            positions = self.collector.to_commit(with_current=False) if self._config.enable_auto_commit else {}
            self._mailbox.submit(commands.Polled(positions))

    def _longest_wait(self) -> int:
        """A poll that waits is a sign of life too, to be given in time."""
        return max(1, min(self._config.max_poll_interval_ms // 3, self._config.auto_commit_interval_ms or 1_000, 1_000))

    def _look_again_at(self) -> int:
        now, hold_until = self._mailbox.now.mono, self._rebalancing.hold_until
        at = now + self._longest_wait()
        return min(at, hold_until) if hold_until > now else at

    def _explain_nothing(self) -> None:
        """Nothing came within the time: if that is not for want of records, say why."""
        for problem in self._problems:
            since = self._problem_since.get(type(problem), self._mailbox.now.mono)
            if self._mailbox.now.mono - since >= self._grace(problem):
                self._raise_problem(problem)
                return

    def _grace(self, problem: OttlaError) -> int:
        if isinstance(problem, ConnectionFailedError):
            known_to_work = self.snapshot.was_connected
            return self._config.default_api_timeout_ms if known_to_work else UNREACHABLE_GRACE
        if isinstance(problem, _OF_A_RESTART):
            return self._config.default_api_timeout_ms
        return PROBLEM_GRACE if problem.retriable else 0

    # -- notifications ----------------------------------------------------------------------------------------------------

    def take_news(self) -> None:
        """Handle the notifications of the network thread, outside of any call."""
        self._mailbox.take()

    def _on_fetched(self, response: FetchedResponse) -> None:
        self.collector.on_fetched(response)
        self.collector.consumption.arrived(response, self.collector.handed_out, self._mailbox.now)

    def _on_published(self, snapshot: Snapshot) -> None:
        self._polled_at = None
        self.collector.on_snapshot(snapshot)
        general = [snapshot.problem] if snapshot.problem is not None else []
        self._problems = [*general, *snapshot.problems.values()]
        kinds = {type(problem) for problem in self._problems}
        self._problem_since = {kind: self._problem_since.get(kind, self._mailbox.now.mono) for kind in kinds}
        for tp in self._progress_at.keys() - snapshot.partitions.keys():
            del self._progress_at[tp]

    def _on_error(self, error: OttlaError) -> None:
        """Have the next poll raise it. A retry may fail again before that: the same error is raised once."""
        if not self._is_void() and all((type(error), str(error)) != (type(known), str(known)) for known in self._errors):
            self._errors.append(error)

    def _on_topic_error(self, item: TopicErrorNotification) -> None:
        if item.topic in self.snapshot.topics and not self._is_void():
            self._errors.append(item.error)

    def _is_void(self) -> bool:
        """Whether an error reported now concerns a membership that is over."""
        if any(command.completion.done for command in self._void_until):
            self._void_until = ()
        return bool(self._void_until)

    def _is_leaving(self) -> bool:
        """Whether what is known is still that of the membership that was left. Only a call that was cancelled leaves it so."""
        return self._is_void() and self.snapshot.mode is not Mode.NONE

    def _raise_errors(self) -> None:
        """The first error is raised, the others are logged; an error that does not go away is raised each time."""
        if self._errors:
            first, *others = self._errors
            self._errors.clear()
            _log_others(others)
            raise first.afresh()
        self._raise_failure()
        for problem in self._problems:
            if not problem.retriable and not self.collector.has_waiting:
                self._raise_problem(problem)
                return

    # -- what is read -----------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], listeners: Listeners, now: Now, pattern: str | None = None) -> Call[None]:
        """See ``Consumer.subscribe``. Topics by name, or those that ``pattern`` matches."""
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
        if pattern is not None and self._config.group_protocol != "consumer":
            patterns.check(pattern)
        for protocol in ("classic", "consumer"):
            self._mailbox.submit(self._assigning.user_data(wanted, protocol))
        command = commands.Subscribe(wanted, pattern)
        self._rebalancing.subscribe(command, listeners)
        yield from self._begin(command, "subscribe()")

    def assign(
        self, partitions: Iterable[TopicPartition], now: Now, done_with_last: Callable[[], bool] = lambda: True
    ) -> Call[None]:
        """See ``Consumer.assign``. ``done_with_last``: whether the records of the last poll count as processed."""
        wanted = frozenset(partitions)
        if not wanted:
            yield from self.unsubscribe(now)
            return
        self._mailbox.now = now
        yield from self._catch_up("assign()", self._deadline())
        if self.snapshot.mode is Mode.TOPICS:
            raise IllegalStateError("the partitions come from the group", hint="call unsubscribe() before assign()")
        is_done = True
        if self._config.enable_auto_commit:
            is_done = done_with_last()
            self._commit_in_background(done_with_last=is_done)
        if is_done:  # otherwise close() would commit what is left out here
            self.collector.acknowledge()
        yield from self._begin(commands.Assign(wanted), "assign()")

    def _begin(self, command: commands.Command, what: str) -> Call[None]:
        """Send what says what to read from now on. Once it is done, no error concerns what was left before."""
        if self._void_until:
            self._void_until += (command,)
        yield from self._mailbox.ask(command, what, self._deadline())

    def unsubscribe(self, now: Now, reason: str = "the consumer unsubscribed from all topics") -> Call[None]:
        """See ``Consumer.unsubscribe``."""
        self._mailbox.now = now
        yield from self._leave(reason)

    def _leave(self, reason: str, deadline: int | None = None, operation: GroupMembershipOperation = DEFAULT) -> Call[None]:
        """Tell the listener, then leave; that the coordinator does not answer in time is no error.

        Without a ``deadline`` it has ``LEAVE_TIME`` from the end of the listener on.
        """
        self._mailbox.take()
        failure: Exception | None = None
        try:
            yield from self._rebalancing.leave()
        except Exception as error:
            failure = error
        finally:
            command = commands.Unsubscribe(reason, self._rebalancing.given_up, operation)
            self._mailbox.submit(command)
            self._errors.clear()
            self._void_until = (command,)
        if deadline is None:
            deadline = self._mailbox.now.mono + min(LEAVE_TIME, self._config.default_api_timeout_ms)
        try:
            yield from self._mailbox.settle(command, reason, deadline, wakeable=False, grace=0)
        except OttlaTimeoutError:
            _log.warning("leaving group %r was not answered in time", self._config.group_id)
        if failure is not None:
            raise failure

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(
        self, timeout: int, now: Now, operation: GroupMembershipOperation = DEFAULT, *, done_with_last: bool = True
    ) -> Call[None]:
        """Commit, if that is automatic, tell the listener, leave the group, end the fetches. See ``Consumer.close``.

        ``done_with_last``: whether the records of the last poll count as processed. If not, a commit that a listener makes leaves
        them out, too. Even without answers each step is begun, and the last one ends by ``timeout`` (ms): only listeners and
        callbacks may take longer.
        """
        self._mailbox.now = now
        if not done_with_last:
            self.collector.take_back()
        deadline = now.mono + timeout
        self._mailbox.disable_wakeups()
        self._mailbox.take()
        if self._config.enable_auto_commit and not self._rebalancing.lost and self.snapshot.failure is None:
            yield from self._commit_on_close(deadline)
        failures = yield from self._end_async_commits(self._before(deadline))
        unfinished = self._unanswered_commits()
        if self.snapshot.mode is not Mode.NONE:
            self._leaves_at_end = True
            try:
                yield from self._leave("the consumer is being closed", self._before(deadline), operation)
            except Exception as error:
                failures.append(error)
            yield from self._end_fetches(deadline)
        if failures:
            _log_others(failures[1:])
            raise failures[0]
        if unfinished:
            raise OttlaTimeoutError(f"{unfinished} asynchronous commits were not answered before the consumer was closed")

    def leave_at_once(self, operation: GroupMembershipOperation) -> None:
        """Leave the group without waiting and without calling the listener, unless ``close()`` came as far as that.

        A cancellation, or Ctrl-C, has ended ``close()`` early. A member that did not leave would keep its partitions until its
        session expires.
        """
        if self._leaves_at_end or self.snapshot.mode is Mode.NONE:
            return
        self._leaves_at_end = True
        given_up = commands.GivenUp(self._rebalancing.owned, self._rebalancing.lost, 0)
        self._mailbox.submit(commands.Unsubscribe("the consumer is being closed", given_up, operation))

    def _end_fetches(self, deadline: int) -> Call[None]:
        """Brokers keep a session for each consumer that fetches; closing it makes space for another's (KIP-227).

        A broker answers in turn, so after the fetch that it has, which may wait for records for a while.
        """
        command = commands.EndFetches()
        self._mailbox.submit(command)
        patience = self._config.fetch_max_wait_ms + STEP_TIME
        until = min(self._before(deadline), self._mailbox.now.mono + patience)
        while not command.completion.done and self._mailbox.now.mono < until:
            yield from self._mailbox.wait(command.completion, until)
            self._mailbox.take()


def _log_others(errors: Iterable[Exception]) -> None:
    """A call can raise only one error."""
    for error in errors:
        _log.error("another error besides the one raised: %s", error)
