"""The application's half of a consumer: each public call as a generator that says what it waits for.

Owns what happens on the application thread: the order of commits, listeners and acknowledgements in a rebalance, callbacks,
wake-ups, what is raised when. Must not know how anybody waits: a driver runs the generators (``Consumer`` on a thread, tests
under a virtual clock). Invariants: user code runs only in here, inside a call; every partition that ``on_assign`` was told of is
told of exactly once more, by ``on_revoke`` or ``on_lost``, before it goes; whatever a listener raises, the rebalance goes on and
the error comes out of the call.

A generator yields ``Wait(for_, until)`` and is sent the time when something has arrived or ``until`` has come; it returns the
result.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.client import commands
from ottla.client.collector import Collector
from ottla.client.commands import Completion, Offsets
from ottla.client.fetch_buffer import FetchedResponse
from ottla.client.mailbox import ANSWER_GRACE, Call, Mailbox
from ottla.client.notifications import (
    AssignmentReceived,
    ErrorNotification,
    Fetched,
    Published,
    RebalanceNeeded,
    TopicErrorNotification,
)
from ottla.client.subscription import EARLIEST, LATEST, Mode, Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import ConnectionFailedError, IllegalStateError, OttlaError, OttlaTimeoutError, error_class
from ottla.records import Records
from ottla.types import Now, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

_log = logging.getLogger(__name__)

POST_INTERVAL = 50
"""Milliseconds between two signs of life while polls find records without waiting: a poll of few records must not cost a round
trip."""

PROBLEM_GRACE = 3_000
"""Milliseconds before a problem that may pass (a topic that is just being created) is raised by an empty poll."""

UNREACHABLE_GRACE = 500
"""Milliseconds before an empty poll says that no broker can be reached: less than the second that most polls wait."""

_REBALANCE_IN_PROGRESS = 27

Partitions = list[TopicPartition]
Listener = Callable[[Partitions], None]
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], None]


@dataclass(frozen=True, slots=True)
class Listeners:
    """What the application wants to be told in a rebalance, on its own thread."""

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions have come."""
        if self.on_assign is not None:
            self.on_assign(sorted(partitions))

    def gone(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Partitions go, or are lost already; who has no ``on_lost`` hears of that through ``on_revoke``, as in Kafka."""
        listener = (self.on_lost or self.on_revoke) if lost else self.on_revoke
        if listener is not None:
            listener(sorted(partitions))


class _AsyncCommit(NamedTuple):
    offsets: Offsets
    completion: Completion
    callback: CommitCallback | None


class ConsumerCalls:
    """See the module. ``submit`` sends a command to the network thread, ``drain`` takes what it has told."""

    def __init__(self, config: ConsumerConfig, submit: Callable[[object], None], drain: Callable[[], list[Any]]) -> None:
        self.collector = Collector(config)
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions that ``on_assign`` was told of and that are not given up yet."""
        self._config = config
        self._listeners = Listeners()
        self._errors: deque[OttlaError] = deque()
        self._rebalance: RebalanceNeeded | None = None
        self._assignment: AssignmentReceived | None = None
        self._async_commits: deque[_AsyncCommit] = deque()
        self._posted_at: int | None = None
        self._problems: list[OttlaError] = []
        """Everything that keeps records from coming, what concerns all partitions first."""
        self._problem_since: dict[type[OttlaError], int] = {}
        handlers: dict[type[Any], Callable[[Any], None]] = {
            Fetched: lambda item: self._on_fetched(item.response),
            Published: lambda item: self._on_published(item.snapshot),
            RebalanceNeeded: self._on_rebalance_needed,
            AssignmentReceived: self._on_assignment,
            ErrorNotification: lambda item: self._errors.append(item.error),
            TopicErrorNotification: self._on_topic_error,
        }
        self._mailbox = Mailbox(submit, drain, handlers)

    @property
    def snapshot(self) -> Snapshot:
        """The subscription as it was last told."""
        return self.collector.snapshot

    # -- records ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout: int, now: Now) -> Call[Records]:
        """Records, as soon as there are any; none when ``timeout`` (ms) is over. See ``Consumer.poll``."""
        self._mailbox.now = now
        deadline = now.mono + timeout
        self.collector.acknowledge()
        while True:
            yield from self._serve()
            self._mailbox.raise_wakeup()
            delivery = self.collector.collect(self._config.max_poll_records)
            if delivery is not None:
                return Records(part.records for part in delivery.parts)
            self._post(waiting=True)
            if self._mailbox.now.mono >= deadline:
                self._explain_nothing()
                return Records.empty()
            yield from self._mailbox.wait("records", min(deadline, self._mailbox.now.mono + self._longest_wait()))

    def service(self, now: Now) -> Call[None]:
        """In the middle of walking records one by one: stay alive, and take part in a rebalance."""
        self._mailbox.now = now
        yield from self._serve()
        self._mailbox.raise_wakeup()

    def _serve(self) -> Call[None]:
        """Everything that a poll does besides handing out records."""
        self._mailbox.take()
        self._run_commit_callbacks()
        while self._rebalance is not None or self._assignment is not None:
            if self._rebalance is not None:
                yield from self._give_up(self._rebalance)
            elif self._assignment is not None:
                self._accept(self._assignment)
            self._mailbox.take()
        self._post(waiting=False)
        self._raise_errors()
        if self.snapshot.mode is Mode.NONE:
            raise IllegalStateError(
                "nothing to poll: the consumer is neither subscribed nor assigned", hint="call subscribe() or assign()"
            )

    def _post(self, *, waiting: bool) -> None:
        """Tell the network thread that the application is alive, what it is done with, and what memory is free.

        Not at every poll that finds records waiting; but before every wait, and whenever a response was drained.
        """
        due = self._posted_at is None or self._mailbox.now.mono - self._posted_at >= POST_INTERVAL
        if due or self.collector.buffer.has_drained or (waiting and self._mailbox.now.mono != self._posted_at):
            self._posted_at = self._mailbox.now.mono
            positions = self.collector.positions(with_current=False) if self._config.enable_auto_commit else {}
            self._mailbox.submit(commands.Polled(positions, self.collector.buffer.take_drained()))

    def _longest_wait(self) -> int:
        """A poll that waits is a sign of life too, to be given in time."""
        return max(1, min(self._config.max_poll_interval_ms // 3, self._config.auto_commit_interval_ms or 1_000, 1_000))

    def _explain_nothing(self) -> None:
        """Nothing came within the time: if that is not for want of records, say why."""
        for problem in self._problems:
            since = self._problem_since.get(type(problem), self._mailbox.now.mono)
            if self._mailbox.now.mono - since >= self._grace(problem):
                raise problem

    def _grace(self, problem: OttlaError) -> int:
        if isinstance(problem, ConnectionFailedError):
            known_to_work = self.snapshot.was_connected
            return self._config.default_api_timeout_ms if known_to_work else UNREACHABLE_GRACE
        return PROBLEM_GRACE if problem.retriable else 0

    # -- notifications ----------------------------------------------------------------------------------------------------

    def _on_fetched(self, response: FetchedResponse) -> None:
        self.collector.on_fetched(response)

    def _on_published(self, snapshot: Snapshot) -> None:
        self.collector.on_snapshot(snapshot)
        general = [snapshot.problem] if snapshot.problem is not None else []
        self._problems = [*general, *snapshot.problems.values()]
        kinds = {type(problem) for problem in self._problems}
        self._problem_since = {kind: self._problem_since.get(kind, self._mailbox.now.mono) for kind in kinds}

    def _on_rebalance_needed(self, item: RebalanceNeeded) -> None:
        """An assignment that was not accepted yet is void; of two rebalances only the later one is still asked about."""
        self._rebalance, self._assignment = item, None

    def _on_assignment(self, item: AssignmentReceived) -> None:
        self._assignment = item

    def _on_topic_error(self, item: TopicErrorNotification) -> None:
        if item.topic in self.snapshot.topics:
            self._errors.append(item.error)

    def _raise_errors(self) -> None:
        """The first error is raised, the others are logged; an error that does not go away is raised each time."""
        if self._errors:
            first, *others = self._errors
            self._errors.clear()
            for other in others:
                _log.error("another error besides the one raised: %s", other)
            raise first
        self._raise_failure()
        for problem in self._problems:
            if not problem.retriable and not len(self.collector.buffer):
                raise problem

    def _raise_failure(self) -> None:
        if self.snapshot.failure is not None:
            raise self.snapshot.failure

    # -- rebalances -------------------------------------------------------------------------------------------------------

    def _give_up(self, rebalance: RebalanceNeeded) -> Call[None]:
        """Commit, tell the listener, and let the partitions go."""
        going = self.owned & rebalance.partitions
        if going and not rebalance.lost and self._config.enable_auto_commit:
            yield from self._commit_before_revocation(rebalance)
            if self._rebalance is not rebalance:
                return
        self._rebalance = None
        self._posted_at = None
        try:
            if going:
                self._listeners.gone(going, lost=rebalance.lost)
        finally:
            self.owned -= rebalance.partitions
            self._mailbox.submit(commands.RebalancePrepared(rebalance.token))

    def _commit_before_revocation(self, rebalance: RebalanceNeeded) -> Call[None]:
        """As far as the application is done with the records: a failure costs repetitions, never records, so it is only logged."""
        offsets = self.collector.positions(with_current=False)
        deadline = min(rebalance.deadline, self._mailbox.now.mono + self._config.default_api_timeout_ms)
        commit = commands.Commit({tp: offsets[tp] for tp in offsets if tp in self.owned}, deadline)
        self._mailbox.submit(commit)
        while not commit.completion.done and self._rebalance is rebalance and self._mailbox.now.mono < deadline + ANSWER_GRACE:
            yield from self._mailbox.wait(commit.completion, deadline + ANSWER_GRACE)
            self._mailbox.take()
        if commit.completion.error is not None:
            _log.warning("the commit before a rebalance of group %r failed: %s", self._config.group_id, commit.completion.error)

    def _accept(self, assignment: AssignmentReceived) -> None:
        self._assignment = None
        self._posted_at = None
        self.owned |= assignment.added
        try:
            self._listeners.assigned(assignment.added)
        finally:
            self._mailbox.submit(commands.AssignmentAccepted(assignment.token))

    # -- what is read -----------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], listeners: Listeners, now: Now) -> Call[None]:
        """See ``Consumer.subscribe``."""
        wanted = frozenset(topics)
        if not wanted:
            yield from self.unsubscribe(now)
            return
        self._mailbox.now = now
        if self._config.group_id is None:
            raise IllegalStateError("subscribe() needs a group", hint="set group_id, or choose partitions yourself with assign()")
        if self.snapshot.mode is Mode.MANUAL:
            raise IllegalStateError("the partitions were assigned by hand", hint="call unsubscribe() before subscribe()")
        self._listeners = listeners
        yield from self._mailbox.ask(commands.Subscribe(wanted), "subscribe()", self._deadline())

    def assign(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.assign``."""
        wanted = frozenset(partitions)
        if not wanted:
            yield from self.unsubscribe(now)
            return
        self._mailbox.now = now
        if self.snapshot.mode is Mode.TOPICS:
            raise IllegalStateError("the partitions come from the group", hint="call unsubscribe() before assign()")
        self.collector.acknowledge()
        positions = self.collector.positions(with_current=False)
        yield from self._mailbox.ask(commands.Assign(wanted, positions), "assign()", self._deadline())

    def unsubscribe(self, now: Now, reason: str = "the consumer unsubscribed from all topics") -> Call[None]:
        """See ``Consumer.unsubscribe``."""
        self._mailbox.now = now
        yield from self._leave(reason, now.mono + self._config.default_api_timeout_ms)

    def _leave(self, reason: str, deadline: int) -> Call[None]:
        """Tell the listener, then leave; that the coordinator does not answer in time is no error."""
        self._mailbox.take()
        lost = self._rebalance is not None and self._rebalance.lost
        going, self.owned = self.owned, frozenset()
        self._rebalance = self._assignment = None
        try:
            if going:
                self._listeners.gone(going, lost=lost)
        finally:
            command = commands.Unsubscribe(reason)
            self._mailbox.submit(command)
            try:
                yield from self._mailbox.settle(command, reason, deadline, wakeable=False)
            except OttlaTimeoutError as error:
                _log.warning("leaving group %r was not answered in time: %s", self._config.group_id, error)
            self._listeners = Listeners()
            self._errors.clear()

    def seek(self, positions: Offsets, now: Now) -> Call[None]:
        """See ``Consumer.seek``."""
        self._mailbox.now = now
        self._mailbox.take()
        self._require_assigned(positions)
        yield from self._mailbox.ask(commands.Seek(dict(positions)), "seek()", self._deadline())

    def seek_to_beginning(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.seek_to_beginning``."""
        yield from self._reset(partitions, EARLIEST, now)

    def seek_to_end(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.seek_to_end``."""
        yield from self._reset(partitions, LATEST, now)

    def _reset(self, partitions: Iterable[TopicPartition], timestamp: int, now: Now) -> Call[None]:
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions) or frozenset(self.snapshot.partitions)
        self._require_assigned(wanted)
        yield from self._mailbox.ask(commands.ResetPositions(wanted, timestamp), "seek()", self._deadline())

    def pause(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.pause``."""
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions)
        self._require_assigned(wanted)
        positions = self.collector.positions(with_current=True)
        yield from self._mailbox.ask(
            commands.Pause(wanted, {tp: positions[tp] for tp in wanted if tp in positions}), "pause()", self._deadline()
        )

    def resume(self, partitions: Iterable[TopicPartition], now: Now) -> Call[None]:
        """See ``Consumer.resume``."""
        self._mailbox.now = now
        self._mailbox.take()
        wanted = frozenset(partitions)
        self._require_assigned(wanted)
        yield from self._mailbox.ask(commands.Resume(wanted), "resume()", self._deadline())

    def position(self, tp: TopicPartition, timeout: int, now: Now) -> Call[int]:
        """See ``Consumer.position``."""
        self._mailbox.now = now
        deadline = now.mono + timeout
        while True:
            self._mailbox.take()
            self._require_assigned((tp,))
            position = self.collector.position(tp)
            if position is not None:
                return position.offset
            self._raise_failure()
            problem = self.snapshot.partitions[tp].problem or self.snapshot.problem
            if problem is not None and (not problem.retriable or self._mailbox.now.mono >= deadline):
                raise problem
            if self._mailbox.now.mono >= deadline:
                raise OttlaTimeoutError(f"the position of {tp} is not known yet", hint="poll(), or give it more time")
            self._mailbox.raise_wakeup()
            yield from self._mailbox.wait("a position", deadline)

    # -- offsets ----------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None, timeout: int, now: Now) -> Call[dict[TopicPartition, OffsetAndMetadata]]:
        """See ``Consumer.commit``."""
        self._mailbox.now = now
        self._require_group("commit()")
        deadline = now.mono + timeout
        self._mailbox.take()
        self._raise_failure()
        if offsets is None:
            offsets = self.collector.positions(with_current=True)
        command = commands.Commit(dict(offsets), deadline)
        self._mailbox.submit(command)
        yield from self._await_async_commits(deadline)
        committed = yield from self._mailbox.settle(command, "commit()", deadline)
        return dict(committed)

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None, now: Now) -> None:
        """See ``Consumer.commit_async``."""
        self._mailbox.now = now
        self._require_group("commit_async()")
        self._mailbox.take()
        self._raise_failure()
        self._run_commit_callbacks()
        if offsets is None:
            offsets = self.collector.positions(with_current=True)
        command = commands.Commit(dict(offsets), now.mono + self._config.default_api_timeout_ms, retry=False)
        self._async_commits.append(_AsyncCommit(command.offsets, command.completion, callback))
        self._mailbox.submit(command)

    def _await_async_commits(self, deadline: int, *, wakeable: bool = True) -> Call[None]:
        """Callbacks come in the order of their commits, and before a later ``commit()`` returns."""
        while self._async_commits and self._mailbox.now.mono < deadline + ANSWER_GRACE:
            self._mailbox.take()
            self._run_commit_callbacks()
            if self._async_commits:
                if wakeable:
                    self._mailbox.raise_wakeup()
                yield from self._mailbox.wait(self._async_commits[0].completion, deadline + ANSWER_GRACE)

    def _run_commit_callbacks(self) -> None:
        while self._async_commits and self._async_commits[0].completion.done:
            offsets, completion, callback = self._async_commits.popleft()
            if callback is not None:
                callback(offsets, completion.error)
            elif completion.error is not None:
                _log.warning("an asynchronous commit of group %r failed: %s", self._config.group_id, completion.error)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: int, now: Now
    ) -> Call[dict[TopicPartition, OffsetAndMetadata | None]]:
        """See ``Consumer.committed``."""
        self._mailbox.now = now
        self._require_group("committed()")
        command = commands.FetchCommitted(frozenset(partitions), now.mono + timeout)
        found = yield from self._mailbox.ask(command, "committed()", command.deadline, wakeable=True)
        return dict(found)

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: int, now: Now
    ) -> Call[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """The offsets of timestamps; see ``Consumer.offsets_for_times``."""
        self._mailbox.now = now
        command = commands.ListOffsets(dict(timestamps), now.mono + timeout)
        found = yield from self._mailbox.ask(command, "looking offsets up", command.deadline, wakeable=True)
        return {tp: found.get(tp) for tp in timestamps}

    def lag(self, tp: TopicPartition, timeout: int, now: Now) -> Call[int]:
        """See ``Consumer.lag``."""
        deadline = now.mono + timeout
        position = yield from self.position(tp, timeout, now)
        end = self.collector.end(tp)
        if end is None:
            found = yield from self.list_offsets({tp: LATEST}, max(0, deadline - self._mailbox.now.mono), self._mailbox.now)
            answer = found[tp]
            end = position if answer is None else answer.offset
        return max(0, end - position)

    def describe_topics(self, topics: Iterable[str] | None, timeout: int, now: Now) -> Call[Mapping[str, Any]]:
        """What the cluster says of topics, ``None`` being all."""
        self._mailbox.now = now
        command = commands.DescribeTopics(None if topics is None else frozenset(topics), now.mono + timeout)
        found: Mapping[str, Any] = yield from self._mailbox.ask(command, "describing topics", command.deadline, wakeable=True)
        return found

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self, timeout: int, now: Now, *, done_with_last: bool = True) -> Call[None]:
        """Commit, if that is automatic, tell the listener, leave the group. See ``Consumer.close``.

        ``done_with_last``: what was handed out last, and not come back for, counts as done with.
        """
        self._mailbox.now = now
        deadline = now.mono + timeout
        self._mailbox.disable_wakeups()
        self._mailbox.take()
        lost = self._rebalance is not None and self._rebalance.lost
        if self._config.enable_auto_commit and not lost and self.snapshot.failure is None:
            yield from self._commit_on_close(deadline, done_with_last)
        yield from self._await_async_commits(self._before(deadline), wakeable=False)
        unfinished = len(self._async_commits)
        if self.snapshot.mode is not Mode.NONE:
            yield from self._leave("the consumer is being closed", self._before(deadline))
        if unfinished:
            raise OttlaTimeoutError(f"{unfinished} asynchronous commits were not answered before the consumer was closed")

    def _commit_on_close(self, deadline: int, done_with_last: bool) -> Call[None]:
        collector = self.collector
        offsets = collector.positions(with_current=True) if done_with_last else collector.positions_before_delivery()
        if not offsets:
            return
        try:
            yield from self._mailbox.ask(
                commands.Commit(offsets, self._before(deadline)), "the last commit", self._before(deadline)
            )
        except OttlaError as error:
            _log.warning("the last commit of group %r failed: %s", self._config.group_id, error)

    # -- what has to hold -------------------------------------------------------------------------------------------------

    def _before(self, deadline: int) -> int:
        """A deadline for the network thread that leaves it some time to answer; half of what there is, if that is little."""
        return deadline - min(ANSWER_GRACE, max(0, deadline - self._mailbox.now.mono) // 2)

    def _deadline(self) -> int:
        return self._mailbox.now.mono + self._config.default_api_timeout_ms

    def _require_group(self, what: str) -> None:
        if self._config.group_id is None:
            raise error_class(24)(f"{what} needs a group", hint="set group_id")

    def _require_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = sorted(tp for tp in partitions if tp not in self.snapshot.partitions)
        if missing:
            listed = ", ".join(map(str, missing))
            raise IllegalStateError(f"not assigned to this consumer: {listed}", hint="only assigned partitions have a position")
