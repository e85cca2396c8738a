"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Owns the dispatch of inputs to their handlers, and the consequences of a step. Must not know sockets, threads, clocks or how files
are stored. Invariants: each handled request gets exactly one reply, or its connection is closed; acknowledged records are in the
log; nothing here blocks; an exception in one step loses no effect of earlier steps: these are in the outbox, and the next call
returns them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ottla.assignors import PartitionAssignor
from ottla.broker.api import HANDLERS, fetch, produce
from ottla.broker.catalog import SYNC_CATALOG, Endpoint
from ottla.broker.checkpoints import CHECKPOINT
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinator_log import LOADING
from ottla.broker.effects import (
    BrokerEffect,
    CancelTimer,
    CloseConnection,
    JobTag,
    Reply,
    RequestContext,
    SetTimer,
    Ticket,
    TimerKey,
)
from ottla.broker.faults.rules import AddFault, Command, ExpireMember, MoveCoordinator, RemoveFaults
from ottla.broker.faults.table import FAULT
from ottla.broker.log import PartitionLog
from ottla.broker.log_manager import EXPIRE, FLUSH_LOG, RESEAL, VERIFY_TIMESTAMPS
from ottla.broker.ports import DiskJob, Ids, Store
from ottla.broker.purgatory import DelayedFetch
from ottla.broker.slices import SLICE
from ottla.broker.state import BrokerState
from ottla.broker.transaction_coordinator_service import MARKERS
from ottla.coordinator.decision import COORDINATOR
from ottla.coordinator.transactions.decision import TRANSACTIONS
from ottla.protocol.codec import RequestHeader
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.cluster import TopicRegistration
    from ottla.broker.zookeeper.assembly import ZooKeeperAssembly
    from ottla.zookeeper.session import SessionReport

HandlerKey = tuple[Any, ...]
"""A timer's key or a job's tag without its first element, which selects the handler."""

Outcome = object
"""The result of a job, or the exception that it raised."""

CENTRAL = "central"
"""The first element of the keys and tags of the central coordinator, which only a broker with ZooKeeper imports."""

logger = logging.getLogger("ottla.broker")


class BrokerCore:
    """One broker. Call ``start`` first, then ``handle``, ``on_timer``, ``on_job`` and ``on_disconnect`` for each input, and
    ``write_batches`` when there is no more input for now: it writes the appends of groups, and returns their replies.

    If one of these calls raises, ``write_batches`` returns the effects that were decided before.
    """

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        store: Store,
        ids: Ids,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
    ) -> None:
        """``assignors``: the user's own assignors for consumer groups. Raises ``ConfigError``."""
        self.state = BrokerState(config, endpoint, store, ids, assignors, HANDLERS)
        self.catalog = self.state.catalog
        self._was_displaced = False
        """Whether another broker had the id of this one in the last step: the coordinators then give up their partitions."""
        self.zookeeper: ZooKeeperAssembly | None = None
        """Its part in ZooKeeper; ``None``: this broker is its whole cluster."""
        if config.zookeeper_connect:
            from ottla.broker.zookeeper.assembly import ZooKeeperAssembly

            self.zookeeper = ZooKeeperAssembly(self.state, ids)

    # Inputs

    def start(
        self, now: Now, registered: Sequence[TopicRegistration] | None = None, first_producer_id: int | None = None
    ) -> tuple[list[str], list[BrokerEffect]]:
        """Load topics, logs and groups; also return a message for each damage. ``registered`` and ``first_producer_id``: the topics
        in ZooKeeper, and the first producer id that it leaves to this process, if the broker has one.

        Raises ``ConfigError`` or ``OSError`` if the data cannot be used.
        """
        warnings = self.catalog.load(now, registered, first_producer_id)
        for kind in _PERIODIC:
            self._reschedule(kind, now)
        self.state.groups.start(now)
        self.state.transactions.start(now)
        if self.zookeeper is not None:
            self.zookeeper.step(now, self.catalog.outbox)
        return warnings, self.catalog.outbox.take()

    def handle(
        self, header: RequestHeader, message: Any, ticket: Ticket, connection: int, host: str, now: Now
    ) -> list[BrokerEffect]:
        """Serve one request. ``host`` is the client's address."""
        context = RequestContext(
            ticket, header.api, connection, header.client_id or "", f"/{host}", header.version_rules, header.correlation_id
        )
        self._serve(context, message, now)
        return self._take_effects(now)

    def on_timer(self, key: TimerKey, now: Now) -> list[BrokerEffect]:
        """Handle a timer that is due."""
        if self.catalog.faults.active and self.catalog.faults.frozen and key[0] != FAULT:
            self.catalog.faults.hold_timer(key)
            return []
        self._dispatch_timer(key, now)
        return self._take_effects(now)

    def on_job(self, tag: JobTag, outcome: Outcome, now: Now) -> list[BrokerEffect]:
        """Handle the outcome of a job. One without a row in ``_ON_JOB`` needs nothing more: the shell has logged a failure."""
        kind, *rest = tag
        handler = _ON_JOB.get(kind)
        if handler is not None:
            handler(self, tuple(rest), outcome, now)
        return self._take_effects(now)

    def on_session_report(self, report: SessionReport, now: Now) -> list[BrokerEffect]:
        """Handle a report of the ZooKeeper client."""
        if self.zookeeper is not None:
            self.zookeeper.apply(report, now)
            self._step_in_zookeeper(now)
        return self._take_effects(now)

    def write_batches(self, now: Now) -> list[BrokerEffect]:
        """Write the appends that groups have queued since the last call, one batch per partition, and return the replies."""
        while self.state.groups.has_pending_writes:
            self.state.groups.write_batches(now)
            self._add_consequences(now)
        return self._take_effects(now)

    def on_disconnect(self, connection: int, now: Now) -> list[BrokerEffect]:
        """Drop the pending fetches of a closed connection. A JoinGroup or SyncGroup stays pending: its member remains in the group,
        and may join again with its member id until its session expires."""
        for parked in self.state.fetch_purgatory.of_connection(connection):
            self.state.fetch_purgatory.take(parked.context.ticket)
        self.catalog.faults.on_disconnect(connection)
        if self.state.central is not None:
            self.state.central.on_disconnect(connection, now)
        return self._take_effects(now)

    def on_command(self, command: Command, now: Now) -> tuple[int, list[BrokerEffect]]:
        """Carry out a command; also return the number of expired members, 0 for other commands than ``ExpireMember``."""
        count = 0
        match command:
            case AddFault(rule):
                self.catalog.outbox.put(*self.catalog.faults.add(rule, now))
                self.state.fetch_sessions.clear()
                if isinstance(rule.action, MoveCoordinator):
                    self._resign(rule.number, rule.action, now)
            case RemoveFaults(number):
                self._end_faults(self.catalog.faults.numbers() if number is None else [number], now)
            case ExpireMember(group):
                count = self.state.groups.expire_members(group, command.fits, now)
        return count, self._take_effects(now)

    def close(self) -> Iterator[list[DiskJob]]:
        """Yield lists of jobs that complete a clean shutdown. The jobs of one list may run at the same time, on several threads;
        run all of them before requesting the next list."""
        yield self.catalog.close_catalog()
        yield from self.catalog.logs.close()

    # Dispatch

    def _serve(self, context: RequestContext, message: Any, now: Now) -> None:
        if self.catalog.faults.active:
            if self.catalog.faults.frozen:
                self.catalog.outbox.put(*self.catalog.faults.hold_request(context, message))
                return
            message, before = self.catalog.faults.apply(context, message)
            self.catalog.outbox.put(*before)
            if message is None:
                return
        handler = HANDLERS.get(context.api)
        if handler is not None:
            self.catalog.outbox.put(*handler(self.state, context, message, now))
        elif context.api in self.state.transactions.served:
            self.state.transactions.handle(context, message, now)
        elif self.state.central is not None:
            self.state.central.handle(context, message, now)
        else:
            self.state.groups.handle(context, message, now)

    def _serve_each(self, requests: Iterable[tuple[RequestContext, Any]], now: Now) -> None:
        """Serve requests that had to wait. A failure closes the connection of the request, and drops the later requests of that
        connection."""
        failed: set[int] = set()
        for context, message in requests:
            if context.connection in failed or self.state.sliced_requests.queue_if_busy((context, message)):
                continue
            try:
                self._serve(context, message, now)
            except Exception:
                failed.add(context.connection)
                self._fail(context)

    def _fail(self, context: RequestContext) -> None:
        """Close the connection of a request because of the current exception."""
        logger.exception("closing the connection from %s: the broker failed to serve it", context.client_host)
        self.catalog.outbox.put(CloseConnection(context.ticket, "the broker failed to serve it"))

    def _dispatch_timer(self, key: TimerKey, now: Now) -> None:
        kind, *rest = key
        if kind in _PERIODIC:
            self._reschedule(kind, now)
        _ON_TIMER[kind](self, tuple(rest), now)

    def _reschedule(self, kind: Any, now: Now) -> None:
        self.catalog.outbox.put(SetTimer((kind,), now.mono + _PERIODIC[kind](self.catalog.config)))

    def _take_effects(self, now: Now) -> list[BrokerEffect]:
        """Return the effects of a step and of its consequences, except those that a scripted fault holds back."""
        self._add_consequences(now)
        effects = self.catalog.outbox.take()
        if self.state.central is not None:
            effects = self.state.central.joined(effects)
        return self.catalog.faults.outgoing(effects, now) if self.catalog.faults.active else effects

    def _resign(self, fault: int, moved: MoveCoordinator, now: Now) -> None:
        if moved.of_groups:
            self.state.groups.resign(fault, moved.group, moved.to, now)
        if moved.of_transactions:
            self.state.transactions.resign(fault, moved.transactional_id, moved.to, now)

    def _end_faults(self, numbers: list[int], now: Now) -> None:
        for number in numbers:
            rule = self.catalog.faults.remove(number)
            self.catalog.outbox.put(*self.catalog.faults.let_go(number))
            if rule is not None and isinstance(rule.action, MoveCoordinator):
                self.state.groups.reclaim(number, now)
                self.state.transactions.reclaim(number, now)
        if not self.catalog.faults.frozen:
            requests, timers, answers = self.catalog.faults.take_held()
            self.catalog.outbox.put(*answers)
            # As new timers, not by direct calls: if one raised, the later ones would be lost.
            self.catalog.outbox.put(*[SetTimer(key, now.mono) for key in timers])
            self._serve_each(requests, now)

    def _fault(self, key: HandlerKey, now: Now) -> None:
        match key:
            case ("over", int(number)):
                self._end_faults([number], now)
            case ("late", int(ticket)):
                self.catalog.outbox.put(*self.catalog.faults.on_late(ticket))
            case _:
                raise AssertionError(f"no such timer: {key}")

    def _add_consequences(self, now: Now) -> None:
        """Add the consequences of a step: changed topics for groups, a sync of the catalog, replies to fetches that wait for a
        log."""
        self.catalog.begin_catalog_sync()
        changed, is_displaced = self.catalog.take_changed_topics(), self.catalog.cluster.is_displaced
        if changed or is_displaced is not self._was_displaced:
            self._was_displaced = is_displaced
            self.state.groups.on_topics_changed(changed, now)
            self.state.transactions.on_topics_changed(now)
            if self.state.central is not None:
                self.state.central.on_topics_changed(changed, now)
        if self.zookeeper is not None and self.zookeeper.is_due:  # a request has begun a change, or topics have changed
            self._step_in_zookeeper(now)
        if touched := self.catalog.take_changed_logs():
            for parked in self.state.fetch_purgatory.waiting_on(touched):
                self._retry_fetch(parked, touched, now, last=False)

    def _retry_fetch(self, parked: DelayedFetch, changed: Container[PartitionLog], now: Now, *, last: bool) -> None:
        """Retry a delayed fetch. A failure closes only the connection of the request."""
        try:
            self.catalog.outbox.put(*fetch.retry(self.state, parked, changed, now, last=last))
        except Exception:
            ticket = parked.context.ticket
            self.state.fetch_purgatory.take(ticket)
            self.catalog.outbox.put(CancelTimer(("fetch", ticket)))
            self._fail(parked.context)

    def _step_in_zookeeper(self, now: Now) -> None:
        """Let the managers go on, and after them the requests that wait for them."""
        assert self.zookeeper is not None
        self.zookeeper.step(now, self.catalog.outbox)
        self.catalog.outbox.put(*self.state.sliced_requests.wake(now))

    def _fetch_expired(self, key: HandlerKey, now: Now) -> None:
        parked = self.state.fetch_purgatory.take(key[0])
        if parked is not None:
            self._retry_fetch(parked, (), now, last=True)

    def _start_retention(self, key: HandlerKey, now: Now) -> None:
        self.catalog.logs.start_retention(now, self.catalog.config.producer_id_expiration_ms)

    def _timestamps_verified(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_timestamps_verified((VERIFY_TIMESTAMPS, *tag), outcome, now)

    def _continue_retention(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.continue_retention(now, self.catalog.config.producer_id_expiration_ms)

    def _continue_resealing(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.continue_resealing()

    def _flush_log(self, key: HandlerKey, now: Now) -> None:
        self.catalog.logs.flush(key[0])

    def _log_flushed(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_flushed(outcome, now)

    def _checkpoint(self, key: HandlerKey, now: Now) -> None:
        self.catalog.retry_catalog_sync()
        self.catalog.logs.checkpoint()

    def _clean(self, key: HandlerKey, now: Now) -> None:
        self.catalog.logs.clean(self.catalog.config.log_cleaner_dedupe_buffer_size, now)

    def _cleaned(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_clean_step(outcome, self.catalog.config.log_cleaner_dedupe_buffer_size, now)

    def _remove_files(self, key: HandlerKey, now: Now) -> None:
        self.catalog.logs.remove_deleted(key[0])

    def _retry_load(self, key: HandlerKey, now: Now) -> None:
        coordinator, partition = key
        (self.state.groups if coordinator == "group" else self.state.transactions).retry_load(partition, now)

    def _central_timer(self, key: HandlerKey, now: Now) -> None:
        if self.state.central is not None:
            self.state.central.on_timer((CENTRAL, *key), now)

    def _central_job(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        if self.state.central is not None:
            self.state.central.on_job(tag, outcome, now)

    def _removed(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_removed(tag[0], outcome, now)

    def _sealed(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_sealed(("seal", *tag), outcome)

    def _marked_deleted(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_marked_deleted(("mark-deleted", *tag), outcome, now)

    def _flushed(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.outbox.put(*produce.flushed(self.state.delayed_produces.pop(tag[0]), outcome))

    def _catalog_synced(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        self.catalog.on_catalog_synced(outcome)

    def _go_on_slice(self, key: HandlerKey, now: Now) -> None:
        effects, behind = self.state.sliced_requests.go_on(key[0], now)
        self.catalog.outbox.put(*effects)
        self._serve_each(behind, now)

    def _answered(self, tag: HandlerKey, outcome: Outcome, now: Now) -> None:
        response, failure = self.state.responses_after_jobs.pop(tag[0])
        self.catalog.outbox.put(Reply(tag[0], failure if isinstance(outcome, Exception) else response))


_PERIODIC: dict[Any, Callable[[BrokerConfig], int]] = {
    "retention": lambda config: config.log_retention_check_interval_ms,
    "checkpoint": lambda config: config.log_flush_offset_checkpoint_interval_ms,
    "clean": lambda config: config.log_cleaner_backoff_ms,
}
"""Periodic work and its interval in milliseconds. The next timer is set before the work, which may fail."""

_ON_TIMER: dict[Any, Callable[[BrokerCore, HandlerKey, Now], None]] = {
    FAULT: BrokerCore._fault,
    "fetch": BrokerCore._fetch_expired,
    SLICE: BrokerCore._go_on_slice,
    "retention": BrokerCore._start_retention,
    "checkpoint": BrokerCore._checkpoint,
    "clean": BrokerCore._clean,
    "remove-files": BrokerCore._remove_files,
    FLUSH_LOG: BrokerCore._flush_log,
    LOADING: BrokerCore._retry_load,
    "zookeeper": lambda core, key, now: core._step_in_zookeeper(now),
    CENTRAL: BrokerCore._central_timer,
    COORDINATOR: lambda core, key, now: core.state.groups.on_timer((COORDINATOR, *key), now),
    TRANSACTIONS: lambda core, key, now: core.state.transactions.on_timer((TRANSACTIONS, *key), now),
    MARKERS: lambda core, key, now: core.state.transactions.retry_markers(key, now),
}

_ON_JOB: dict[Any, Callable[[BrokerCore, HandlerKey, Outcome, Now], None]] = {
    "seal": BrokerCore._sealed,
    "flush": BrokerCore._flushed,
    "answer": BrokerCore._answered,
    SYNC_CATALOG[0]: BrokerCore._catalog_synced,
    "clean": BrokerCore._cleaned,
    CHECKPOINT: lambda core, tag, outcome, now: core.catalog.logs.on_checkpoint(tag[0], tag[1], outcome),
    "mark-deleted": BrokerCore._marked_deleted,
    EXPIRE: BrokerCore._continue_retention,
    VERIFY_TIMESTAMPS: BrokerCore._timestamps_verified,
    RESEAL: BrokerCore._continue_resealing,
    FLUSH_LOG: BrokerCore._log_flushed,
    "remove-files": BrokerCore._removed,
    "group": lambda core, tag, outcome, now: core.state.groups.on_job(tag, outcome, now),
    CENTRAL: BrokerCore._central_job,
    "transactions": lambda core, tag, outcome, now: core.state.transactions.on_job(tag, outcome, now),
}
