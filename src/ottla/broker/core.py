"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Owns the order of things: who handles what has happened, and what follows from it. Must not know sockets, threads, clocks or how
files are kept. Invariants: each request that was handled gets exactly one reply, or its connection is closed; what was
acknowledged is in the log; nothing here waits; an exception in one step loses no effect of earlier steps: they are already in
the outbox and go out with the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ottla.assignors import PartitionAssignor
from ottla.broker.api import HANDLERS, fetch, produce
from ottla.broker.catalog import SYNC_CATALOG, Endpoint
from ottla.broker.checkpoints import CHECKPOINT
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinator_partitions import LOADING
from ottla.broker.delayed import Parked
from ottla.broker.effects import (
    CancelTimer,
    CloseConnection,
    Effect,
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
from ottla.broker.logs import CHECK_TIMES, EXPIRE, FLUSH_LOG, RESEAL
from ottla.broker.ports import Ids, Job, Store
from ottla.broker.slices import SLICE
from ottla.broker.state import BrokerState
from ottla.broker.transactions import MARKERS
from ottla.coordinator.timers import COORDINATOR
from ottla.coordinator.transactions.decision import TRANSACTIONS
from ottla.protocol.codec import RequestHeader
from ottla.types import Now

Key = tuple[Any, ...]
"""The rest of a timer's key or of a job's tag, after the word that says whose it is."""

Outcome = object
"""The result of a job, or the exception that it raised."""

logger = logging.getLogger("ottla.broker")


class BrokerCore:
    """One broker. ``start`` first; then ``handle``, ``on_timer``, ``on_job`` and ``on_disconnect`` as things happen, and
    ``write_decided`` whenever all pending input has been passed in: only then are the decisions of groups written and answered.

    If one of these raises, ``write_decided`` returns the effects that were decided before.
    """

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        store: Store,
        ids: Ids,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
    ) -> None:
        """``assignors``: those of the user's own for consumer groups. Raises ``ConfigError``."""
        self.state = BrokerState(config, endpoint, store, ids, assignors, HANDLERS)
        self.catalog = self.state.catalog

    # What happens to a broker.

    def start(self, now: Now) -> tuple[list[str], list[Effect]]:
        """Bring back topics, logs and groups; also returns, in words, what was cut from logs that were damaged.

        Raises ``ConfigError`` or ``OSError`` where the data cannot be used.
        """
        warnings = self.catalog.load(now)
        for kind in _PERIODIC:
            self._set_again(kind, now)
        self.state.groups.start(now)
        self.state.transactions.start(now)
        return warnings, self.catalog.outbox.take()

    def handle(self, header: RequestHeader, message: Any, ticket: Ticket, connection: int, host: str, now: Now) -> list[Effect]:
        """One request. ``host`` is its client's address."""
        context = RequestContext(ticket, header.api, connection, header.client_id or "", f"/{host}", header.version_rules)
        self._serve(context, message, now)
        return self._out(now)

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """A timer that was set has come."""
        if self.catalog.faults.active and self.catalog.faults.frozen and key[0] != FAULT:
            self.catalog.faults.hold_timer(key)
            return []
        self._fire(key, now)
        return self._out(now)

    def on_job(self, tag: JobTag, outcome: Outcome, now: Now) -> list[Effect]:
        """A job is done. One that failed has no more to say than the shell's log line, unless a table row knows better."""
        kind, *rest = tag
        react = _ON_JOB.get(kind)
        if react is not None:
            react(self, tuple(rest), outcome, now)
        return self._out(now)

    def write_decided(self, now: Now) -> list[Effect]:
        """Nothing else is at hand: what groups have decided since the last time is written, together, and answered."""
        while self.state.groups.has_decided:
            self.state.groups.write_decided(now)
            self._aftermath(now)
        return self._out(now)

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection was closed: the answers to its requests are no longer needed."""
        for parked in self.state.delayed.of_connection(connection):
            self.state.delayed.take(parked.context.ticket)
        self.catalog.faults.on_disconnect(connection)
        self.state.groups.on_disconnect(connection, now)
        return self._out(now)

    def on_command(self, command: Command, now: Now) -> tuple[int, list[Effect]]:
        """A fault is set or ended; for ``ExpireMember`` also how many members it concerned."""
        count = 0
        match command:
            case AddFault(rule):
                self.catalog.outbox.put(*self.catalog.faults.add(rule, now))
                self.state.fetch_sessions.clear()
                if isinstance(rule.action, MoveCoordinator):
                    self._move_away(rule.number, rule.action, now)
            case RemoveFaults(number):
                self._end_faults(self.catalog.faults.known() if number is None else [number], now)
            case ExpireMember(group):
                count = self.state.groups.expire_members(group, command.fits, now)
        return count, self._out(now)

    def close(self) -> Iterator[list[Job]]:
        """What must be done so that the next start finds everything in place. The jobs of a list may be done at the same time, on
        several threads; all of them must be done before the next list is asked for."""
        yield self.catalog.close_catalog()
        yield from self.catalog.logs.close()

    # Timers and jobs.

    def _serve(self, context: RequestContext, message: Any, now: Now) -> None:
        if self.catalog.faults.active:
            if self.catalog.faults.frozen:
                self.catalog.outbox.put(*self.catalog.faults.hold_request(context, message))
                return
            message, before = self.catalog.faults.meet(context, message)
            self.catalog.outbox.put(*before)
            if message is None:
                return
        handler = HANDLERS.get(context.api)
        if handler is not None:
            self.catalog.outbox.put(*handler(self.state, context, message, now))
        elif context.api in self.state.transactions.served:
            self.state.transactions.handle(context, message, now)
        else:
            self.state.groups.handle(context, message, now)

    def _serve_each(self, requests: Iterable[tuple[RequestContext, Any]], now: Now) -> None:
        """Serve requests that had to wait. A failure closes the connection of the request, and drops what that has sent since."""
        failed: set[int] = set()
        for context, message in requests:
            if context.connection in failed or self.state.sliced.put_behind((context, message)):
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

    def _fire(self, key: TimerKey, now: Now) -> None:
        kind, *rest = key
        if kind in _PERIODIC:
            self._set_again(kind, now)
        _ON_TIMER[kind](self, tuple(rest), now)

    def _set_again(self, kind: Any, now: Now) -> None:
        self.catalog.outbox.put(SetTimer((kind,), now.mono + _PERIODIC[kind](self.catalog.config)))

    def _out(self, now: Now) -> list[Effect]:
        """What goes to the shell: what was done and what follows from it, as far as no fault has hold of it."""
        self._aftermath(now)
        effects = self.catalog.outbox.take()
        return self.catalog.faults.outgoing(effects, now) if self.catalog.faults.active else effects

    def _move_away(self, fault: int, moved: MoveCoordinator, now: Now) -> None:
        if moved.of_groups:
            self.state.groups.move_away(fault, moved.group, moved.to, now)
        if moved.of_transactions:
            self.state.transactions.move_away(fault, moved.transactional_id, moved.to, now)

    def _end_faults(self, numbers: list[int], now: Now) -> None:
        for number in numbers:
            rule = self.catalog.faults.remove(number)
            self.catalog.outbox.put(*self.catalog.faults.let_go(number))
            if rule is not None and isinstance(rule.action, MoveCoordinator):
                self.state.groups.come_back(number, now)
                self.state.transactions.come_back(number, now)
        if not self.catalog.faults.frozen:
            requests, timers, answers = self.catalog.faults.thawed()
            self.catalog.outbox.put(*answers)
            # Otherwise a timer that fails here would keep later ones from ever firing.
            self.catalog.outbox.put(*[SetTimer(key, now.mono) for key in timers])
            self._serve_each(requests, now)

    def _fault(self, key: Key, now: Now) -> None:
        match key:
            case ("over", int(number)):
                self._end_faults([number], now)
            case ("late", int(ticket)):
                self.catalog.outbox.put(*self.catalog.faults.on_late(ticket))
            case _:
                raise AssertionError(f"no such timer: {key}")

    def _aftermath(self, now: Now) -> None:
        """The consequences of a step: news for groups, work for the disk thread, answers to requests that wait for a log."""
        self.catalog.begin_catalog_sync()
        if changed := self.catalog.take_changed_topics():
            self.state.groups.on_topics_changed(changed, now)
        if touched := self.catalog.take_touched():
            for parked in self.state.delayed.waiting_on(touched):
                self._retry_fetch(parked, touched, now, last=False)

    def _retry_fetch(self, parked: Parked, changed: Container[PartitionLog], now: Now, *, last: bool) -> None:
        """Look at a parked request again. A failure only closes the connection of the request."""
        try:
            self.catalog.outbox.put(*fetch.retry(self.state, parked, changed, now, last=last))
        except Exception:
            ticket = parked.context.ticket
            self.state.delayed.take(ticket)
            self.catalog.outbox.put(CancelTimer(("fetch", ticket)))
            self._fail(parked.context)

    def _fetch_expired(self, key: Key, now: Now) -> None:
        parked = self.state.delayed.take(key[0])
        if parked is not None:
            self._retry_fetch(parked, (), now, last=True)

    def _expire(self, key: Key, now: Now) -> None:
        self.catalog.logs.expire(now, self.catalog.config.producer_id_expiration_ms)

    def _times_checked(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_times_checked((CHECK_TIMES, *tag), outcome, now)

    def _go_on_expiring(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.go_on_expiring(now, self.catalog.config.producer_id_expiration_ms)

    def _go_on_resealing(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.go_on_resealing()

    def _flush_log(self, key: Key, now: Now) -> None:
        self.catalog.logs.flush(key[0])

    def _log_flushed(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_flushed(outcome, now)

    def _checkpoint(self, key: Key, now: Now) -> None:
        self.catalog.retry_catalog_sync()
        self.catalog.logs.checkpoint()

    def _clean(self, key: Key, now: Now) -> None:
        self.catalog.logs.clean(self.catalog.config.log_cleaner_dedupe_buffer_size, now)

    def _cleaned(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_clean_step(outcome, self.catalog.config.log_cleaner_dedupe_buffer_size, now)

    def _remove_files(self, key: Key, now: Now) -> None:
        self.catalog.logs.remove_set_aside(key[0])

    def _load_again(self, key: Key, now: Now) -> None:
        coordinator, partition = key
        (self.state.groups if coordinator == "group" else self.state.transactions).load_again(partition, now)

    def _removed(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_removed(tag[0], outcome, now)

    def _sealed(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_sealed(("seal", *tag), outcome)

    def _set_aside(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.logs.on_set_aside(("set-aside", *tag), outcome, now)

    def _flushed(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.outbox.put(*produce.flushed(self.state.flushing.pop(tag[0]), outcome))

    def _catalog_synced(self, tag: Key, outcome: Outcome, now: Now) -> None:
        self.catalog.on_catalog_synced(outcome)

    def _go_on_slice(self, key: Key, now: Now) -> None:
        effects, behind = self.state.sliced.go_on(key[0], now)
        self.catalog.outbox.put(*effects)
        self._serve_each(behind, now)

    def _answered(self, tag: Key, outcome: Outcome, now: Now) -> None:
        response, failure = self.state.answers.pop(tag[0])
        self.catalog.outbox.put(Reply(tag[0], failure if isinstance(outcome, Exception) else response))


_PERIODIC: dict[Any, Callable[[BrokerConfig], int]] = {
    "retention": lambda config: config.log_retention_check_interval_ms,
    "checkpoint": lambda config: config.log_flush_offset_checkpoint_interval_ms,
    "clean": lambda config: config.log_cleaner_backoff_ms,
}
"""The periodic work, and its interval in milliseconds. The next timer is set before the work, which may fail."""

_ON_TIMER: dict[Any, Callable[[BrokerCore, Key, Now], None]] = {
    FAULT: BrokerCore._fault,
    "fetch": BrokerCore._fetch_expired,
    SLICE: BrokerCore._go_on_slice,
    "retention": BrokerCore._expire,
    "checkpoint": BrokerCore._checkpoint,
    "clean": BrokerCore._clean,
    "remove-files": BrokerCore._remove_files,
    FLUSH_LOG: BrokerCore._flush_log,
    LOADING: BrokerCore._load_again,
    COORDINATOR: lambda core, key, now: core.state.groups.on_timer((COORDINATOR, *key), now),
    TRANSACTIONS: lambda core, key, now: core.state.transactions.on_timer((TRANSACTIONS, *key), now),
    MARKERS: lambda core, key, now: core.state.transactions.retry_markers(key, now),
}

_ON_JOB: dict[Any, Callable[[BrokerCore, Key, Outcome, Now], None]] = {
    "seal": BrokerCore._sealed,
    "flush": BrokerCore._flushed,
    "answer": BrokerCore._answered,
    SYNC_CATALOG[0]: BrokerCore._catalog_synced,
    "clean": BrokerCore._cleaned,
    CHECKPOINT: lambda core, tag, outcome, now: core.catalog.logs.on_checkpoint(tag[0], tag[1], outcome),
    "set-aside": BrokerCore._set_aside,
    EXPIRE: BrokerCore._go_on_expiring,
    CHECK_TIMES: BrokerCore._times_checked,
    RESEAL: BrokerCore._go_on_resealing,
    FLUSH_LOG: BrokerCore._log_flushed,
    "remove-files": BrokerCore._removed,
    "group": lambda core, tag, outcome, now: core.state.groups.on_job(tag, outcome, now),
    "transactions": lambda core, tag, outcome, now: core.state.transactions.on_job(tag, outcome, now),
}
