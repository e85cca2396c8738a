"""The calls about commits: ``commit``, ``commit_async`` and its callbacks, ``committed``, and the commit of ``close``.

Owns the asynchronous commits that are not answered yet. Must not know how a commit is sent. Invariants: callbacks are called in the
order of their commits, on the application's thread, inside a call; those of earlier commits before a later ``commit()`` returns.

A call that has called a callback waits for the awaitable that it returned. Calls of other tasks do not wait: like a listener, a
callback may itself wait for a task that commits, for example for a lock that this task holds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ottla.client import events
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.mailbox import Call, CallErrors, Mailbox
from ottla.client.events import Completion, Offsets
from ottla.client.health.metrics import PollMetrics
from ottla.client.subscription import Mode
from ottla.config import ConsumerConfig
from ottla.errors import CommitFailedError, IllegalStateError, OttlaError, WakeupError
from ottla.types import Now, OffsetAndMetadata, TopicPartition

_log = logging.getLogger(__name__)

CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], object]

STEP_TIME = 1_000
"""Milliseconds that a step of ``close()`` leaves for the next ones, if there is enough time."""

SEND_TIME = 100
"""Milliseconds that the network thread has to send the last commit, even if ``close()`` does not wait that long: it sends no commit
whose deadline has passed."""

BACKGROUND_TIME = 5_000
"""Milliseconds for finding the coordinator for the commit of ``assign()``. Another process may already read these partitions, and a
late commit would overwrite its newer ones: no member epoch protects them."""


class _AsyncCommit(NamedTuple):
    offsets: Offsets
    completion: Completion
    callback: CommitCallback | None
    what: str = "an asynchronous commit"
    """The name in the log, if it fails and there is no callback."""
    automatic: bool = False
    """Whether the commit is automatic: then no call raises its error."""


class CommitCalls:
    """See the module. It reads positions from the collector and reports explicit commits to it; it raises through ``errors``."""

    def __init__(
        self, config: ConsumerConfig, mailbox: Mailbox, collector: FetchCollector, errors: CallErrors, metrics: PollMetrics
    ) -> None:
        self._config = config
        self._mailbox = mailbox
        self._collector = collector
        self._errors = errors
        self._metrics = metrics
        self._async_commits: deque[_AsyncCommit] = deque()

    def commit(
        self, offsets: Offsets | None, timeout: int, now: Now, thread: object = None
    ) -> Call[dict[TopicPartition, OffsetAndMetadata]]:
        """See ``Consumer.commit``. ``thread`` calls it: without offsets this includes what it has in hand of its streams."""
        self._mailbox.now = now
        self._errors.require_group("commit()")
        deadline = now.mono + timeout
        yield from self._mailbox.require_caught_up("commit()", deadline)
        self._errors.raise_failure()
        if offsets is None:
            offsets = self._collector.returned_positions(thread)
        command = events.Commit(dict(offsets), deadline)
        self._mailbox.submit(command)
        self._collector.on_commit(offsets)
        awaited = False
        try:
            yield from self._await_async_commits(deadline)
            awaited = True
            committed = yield from self._mailbox.settle(command, "commit()", deadline)
        except BaseException as error:
            if not awaited or not isinstance(error, OttlaError) or isinstance(error, WakeupError):
                # Cancelled, woken up, or ended by the callback of an earlier commit: the commit goes on, and a failure is logged.
                self._async_commits.append(_AsyncCommit(command.offsets, command.completion, None, "an interrupted commit()"))
            raise
        finally:
            self._metrics.in_commit += self._mailbox.now.mono - now.mono
        return dict(committed)

    def offsets_for_transaction(
        self, given: Offsets | None, timeout: int, now: Now, thread: object = None
    ) -> Call[dict[TopicPartition, OffsetAndMetadata]]:
        """The positions that ``commit()`` would commit, for a producer's transaction; ``thread`` as for ``commit``.

        Raises ``CommitFailedError`` for a consumer that is no member of its group: the coordinator would accept offsets without a
        member, although another one may have the partitions.
        """
        self._mailbox.now = now
        self._errors.require_group("commit_offsets()")
        if self._config.group_protocol in ("zookeeper", "central"):
            whose = "a ZooKeeper group's" if self._config.group_protocol == "zookeeper" else "a central group's"
            raise IllegalStateError(f"{whose} offsets cannot be part of a transaction", hint="see ottla group migrate")
        if self._config.enable_auto_commit:
            text = "the consumer commits by itself, so its offsets cannot be part of a transaction"
            raise IllegalStateError(text, hint="set enable_auto_commit=False")
        yield from self._mailbox.require_caught_up("commit_offsets()", now.mono + timeout)
        self._errors.raise_failure()
        offsets = self._collector.returned_positions(thread) if given is None else given
        snapshot = self._collector.snapshot
        if snapshot.mode is not Mode.MANUAL:
            gone = sorted(offsets.keys() - snapshot.partitions.keys())
            if snapshot.group is None or not snapshot.group.member_id or gone:
                what = f"{gone[0]} is not assigned to it" if gone else f"it is no member of group {self._config.group_id!r} now"
                raise CommitFailedError(f"the consumer commits no offsets in a transaction: {what}")
        return dict(offsets)

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None, now: Now, thread: object = None) -> Call[None]:
        """See ``Consumer.commit_async``; ``thread`` as for ``commit``."""
        self._mailbox.now = now
        self._errors.require_group("commit_async()")
        yield from self._mailbox.require_caught_up("commit_async()", self._mailbox.default_deadline)
        self._errors.raise_failure()
        yield from self.run_callbacks()
        if offsets is None:
            offsets = self._collector.returned_positions(thread)
        command = events.Commit(dict(offsets), now.mono + self._config.default_api_timeout_ms, retry=False)
        # In this order: if ``submit`` raises, there will be no answer, and a later commit() would wait for it.
        self._mailbox.submit(command)
        self._async_commits.append(_AsyncCommit(command.offsets, command.completion, callback))
        self._collector.on_commit(offsets)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: int, now: Now
    ) -> Call[dict[TopicPartition, OffsetAndMetadata | None]]:
        """See ``Consumer.committed``."""
        self._mailbox.now = now
        self._errors.require_group("committed()")
        command = events.FetchCommitted(frozenset(partitions), now.mono + timeout)
        try:
            committed = yield from self._mailbox.ask(command, "committed()", command.deadline, wakeable=True)
        finally:
            self._metrics.in_committed += self._mailbox.now.mono - now.mono
        return dict(committed)

    def commit_in_background(self, *, last_processed: bool) -> None:
        """Commit the processed positions in one attempt, as Java's consumer does.

        ``close()`` and a later ``commit()`` wait for it.
        """
        offsets = self._collector.positions_to_commit(with_current=last_processed, with_last=last_processed)
        if offsets:
            command = events.Commit(offsets, self._mailbox.now.mono + BACKGROUND_TIME, retry=False)
            self._mailbox.submit(command)
            self._async_commits.append(_AsyncCommit(offsets, command.completion, None, automatic=True))

    def _await_async_commits(self, deadline: int, *, wakeable: bool = True) -> Call[None]:
        """Wait for the answers of asynchronous commits, and run their callbacks in order."""
        while self._async_commits and self._mailbox.now.mono < deadline:
            self._mailbox.take()
            yield from self.run_callbacks()
            if self._async_commits:
                if wakeable:
                    self._mailbox.raise_wakeup()
                yield from self._mailbox.wait(self._async_commits[0].completion, deadline)

    def end(self, deadline: int) -> Call[list[Exception]]:
        """Wait for the asynchronous commits at ``close()``; return the exceptions of callbacks, since ``close()`` has to go on."""
        raised: list[Exception] = []
        for _ in range(len(self._async_commits)):  # each failure ends one
            try:
                yield from self._await_async_commits(deadline, wakeable=False)
                break
            except Exception as error:
                raised.append(error)
        return raised

    @property
    def has_callback(self) -> bool:
        """Whether an asynchronous commit was answered and its callback has not run yet."""
        return bool(self._async_commits) and self._async_commits[0].completion.done

    def run_callbacks(self) -> Call[None]:
        """Run the callbacks of answered commits, in the order of the commits."""
        while self.has_callback:
            offsets, completion, callback, what, _ = self._async_commits[0]
            del self._async_commits[0]
            if callback is not None:
                yield from self._mailbox.outcome(callback(offsets, completion.error))
            elif completion.error is not None:
                _log.warning("%s of group %r failed: %s", what, self._config.group_id, completion.error)

    def unanswered(self) -> int:
        """Return how many asynchronous commits of the application were not answered. Automatic ones are only logged."""
        automatic = sum(commit.automatic for commit in self._async_commits)
        if automatic:
            _log.warning("an automatic commit of group %r was not answered before the end", self._config.group_id)
        return len(self._async_commits) - automatic

    def commit_on_close(self, deadline: int) -> Call[None]:
        """Make the automatic commit of ``close()``. A failure is only logged, since ``close()`` has to go on."""
        if not (yield from self._mailbox.catch_up(step_deadline(deadline, self._mailbox.now))):
            _log.warning("the last commit of group %r failed: a seek() before it was not done in time", self._config.group_id)
            return
        offsets = self._collector.positions_to_commit(with_current=True)
        if not offsets:
            return
        mine = step_deadline(deadline, self._mailbox.now)
        # If a topic was deleted, the other partitions are committed, without waiting for an answer that may never come.
        command = events.Commit(offsets, max(mine, self._mailbox.now.mono + SEND_TIME), revoking=True)
        self._mailbox.submit(command)
        try:
            yield from self._mailbox.settle(command, "the last commit", mine, wakeable=False, grace=max(0, deadline - mine) // 2)
        except OttlaError as error:
            _log.warning("the last commit of group %r failed: %s", self._config.group_id, error)


def step_deadline(deadline: int, now: Now) -> int:
    """A deadline for one step of ``close()``, which leaves ``STEP_TIME`` for the others, or half of the time if less remains."""
    return deadline - min(STEP_TIME, max(0, deadline - now.mono) // 2)
