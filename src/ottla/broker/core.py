"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Owns the order of things: who handles what has happened, and what follows from it. Must not know sockets, threads, clocks or how
files are kept. Invariants: each request that was handled gets exactly one reply, or its connection is closed; what was
acknowledged is in the log; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ottla.assignors import PartitionAssignor
from ottla.broker.api import HANDLERS, fetch, produce
from ottla.broker.config import BrokerConfig
from ottla.broker.effects import Effect, JobTag, Reply, RequestContext, SetTimer, Ticket, TimerKey
from ottla.broker.faults.rules import AddFault, Command, ExpireMember, MoveCoordinator, RemoveFaults
from ottla.broker.faults.table import FAULT
from ottla.broker.holdings import SYNC_CATALOG, Endpoint
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
"""What a job returned, or the ``OSError`` that it raised."""


class BrokerCore(BrokerState):
    """One broker. ``start`` first; then ``handle``, ``on_timer``, ``on_job`` and ``on_disconnect`` as things happen, and
    ``write_decided`` whenever all that is at hand has been told: what groups decide is written and answered only then."""

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        store: Store,
        ids: Ids,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
    ) -> None:
        """``assignors``: those of the user's own for consumer groups. Raises ``ConfigError``."""
        super().__init__(config, endpoint, store, ids, assignors, HANDLERS)

    # What happens to a broker.

    def start(self, now: Now) -> tuple[list[str], list[Effect]]:
        """Bring back topics, logs and groups; also returns, in words, what was cut from logs that were damaged.

        Raises ``ConfigError`` or ``OSError`` where the data can not be used.
        """
        warnings = self.load(now)
        every = [effect for kind in ("retention", "checkpoint", "clean") for effect in self._every(now, kind)]
        return warnings, [*every, *self.groups.start(now), *self.transactions.start(now)]

    def handle(self, header: RequestHeader, message: Any, ticket: Ticket, connection: int, host: str, now: Now) -> list[Effect]:
        """One request. ``host`` is its client's address."""
        context = RequestContext(ticket, header.api, connection, header.client_id or "", f"/{host}", header.facts)
        return self._out(self._serve(context, message, now), now)

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """A timer that was set has come."""
        kind, *rest = key
        if self.faults.active and self.faults.frozen and kind != FAULT:
            self.faults.hold_timer(key)
            return []
        return self._out(_ON_TIMER[kind](self, tuple(rest), now), now)

    def on_job(self, tag: JobTag, outcome: Outcome, now: Now) -> list[Effect]:
        """A job is done. One that failed has no more to say than the shell's log line, unless a table row knows better."""
        kind, *rest = tag
        react = _ON_JOB.get(kind)
        return self._out(react(self, tuple(rest), outcome, now), now) if react is not None else []

    def write_decided(self, now: Now) -> list[Effect]:
        """Nothing else is at hand: what groups have decided since the last time is written, together, and answered."""
        effects: list[Effect] = []
        while self.groups.has_decided:
            effects += self._out(self.groups.write_decided(now), now)
        return effects

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection is gone: nobody reads the answers to what it asked."""
        for parked in self.delayed.of_connection(connection):
            self.delayed.take(parked.context.ticket)
        self.faults.on_disconnect(connection)
        return self._out(self.groups.on_disconnect(connection, now), now)

    def on_command(self, command: Command, now: Now) -> tuple[int, list[Effect]]:
        """A fault is set or ended; for ``ExpireMember`` also how many members it concerned."""
        match command:
            case AddFault(rule):
                effects = self.faults.add(rule, now)
                self.fetch_sessions.clear()
                if isinstance(rule.action, MoveCoordinator):
                    effects += self._move_away(rule.number, rule.action, now)
                return 0, self._out(effects, now)
            case RemoveFaults(number):
                return 0, self._end_faults(self.faults.known() if number is None else [number], now)
            case ExpireMember(group):
                count, effects = self.groups.expire_members(group, command.fits, now)
                return count, self._out(effects, now)

    def close(self) -> Iterator[Job]:
        """What must be done, one after the other, so that the next start finds everything in place."""
        yield from self.close_catalog()
        yield from self.logs.close()

    # Timers and jobs.

    def _serve(self, context: RequestContext, message: Any, now: Now) -> list[Effect]:
        before: list[Effect] = []
        if self.faults.active:
            if self.faults.frozen:
                return self.faults.hold_request(context, message)
            message, before = self.faults.meet(context, message)
            if message is None:
                return before
        handler = HANDLERS.get(context.api)
        if handler is not None:
            return before + handler(self, context, message, now)
        coordinator = self.transactions if context.api in self.transactions.served else self.groups
        return before + coordinator.handle(context, message, now)

    def _out(self, effects: list[Effect], now: Now) -> list[Effect]:
        """What goes to the shell: what was done and what follows from it, as far as no fault has hold of it."""
        effects += self._aftermath(now)
        return self.faults.outgoing(effects, now) if self.faults.active else effects

    def _move_away(self, fault: int, moved: MoveCoordinator, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        if moved.of_groups:
            effects += self.groups.move_away(fault, moved.group, moved.to, now)
        if moved.of_transactions:
            effects += self.transactions.move_away(fault, moved.transactional_id, moved.to, now)
        return effects

    def _end_faults(self, numbers: list[int], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for number in numbers:
            rule = self.faults.remove(number)
            effects += self.faults.let_go(number)
            if rule is not None and isinstance(rule.action, MoveCoordinator):
                effects += self.groups.come_back(number, now) + self.transactions.come_back(number, now)
        if not self.faults.frozen:
            requests, timers, answers = self.faults.thawed()
            effects += answers
            for context, request in requests:
                effects += self._serve(context, request, now)
            for key in timers:
                effects += _ON_TIMER[key[0]](self, key[1:], now)
        return self._out(effects, now)

    def _fault(self, key: Key, now: Now) -> list[Effect]:
        match key:
            case ("over", int(number)):
                return self._end_faults([number], now)
            case ("late", int(ticket)):
                return self.faults.on_late(ticket)
        raise AssertionError(f"no such timer: {key}")

    def _aftermath(self, now: Now) -> list[Effect]:
        """What follows from what was done: news for groups, work for the disk thread, answers to whoever waits for a log."""
        effects: list[Effect] = []
        if changed := self.take_changed_topics():
            effects += self.groups.on_topics_changed(changed, now)
        effects += self.take_background()
        if touched := self.take_touched():
            for parked in self.delayed.waiting_on(touched):
                effects += fetch.retry(self, parked, touched, now, last=False)
        return effects

    def _every(self, now: Now, kind: str) -> list[Effect]:
        intervals = {
            "retention": self.config.log_retention_check_interval_ms,
            "checkpoint": self.config.log_flush_offset_checkpoint_interval_ms,
            "clean": self.config.log_cleaner_backoff_ms,
        }
        return [SetTimer((kind,), now.mono + intervals[kind])]

    def _fetch_expired(self, key: Key, now: Now) -> list[Effect]:
        parked = self.delayed.take(key[0])
        return fetch.retry(self, parked, (), now, last=True) if parked is not None else []

    def _expire(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.expire(now, self.config.producer_id_expiration_ms), *self._every(now, "retention")]

    def _checkpoint(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.checkpoint(), *self._every(now, "checkpoint")]

    def _clean(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.clean(self.config.log_cleaner_dedupe_buffer_size, now), *self._every(now, "clean")]

    def _cleaned(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        return self.logs.on_clean_step(outcome, self.config.log_cleaner_dedupe_buffer_size, now)

    def _remove_files(self, key: Key, now: Now) -> list[Effect]:
        return self.logs.remove_set_aside(key[0])

    def _sealed(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        self.logs.on_sealed(("seal", *tag), outcome if isinstance(outcome, OSError) else None)
        return []

    def _flushed(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        return produce.flushed(self.flushing.pop(tag[0]), outcome if isinstance(outcome, OSError) else None)

    def _catalog_synced(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        self.on_catalog_synced()
        return []

    def _answered(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        response, failure = self.answers.pop(tag[0])
        return [Reply(tag[0], failure if isinstance(outcome, Exception) else response)]


_ON_TIMER: dict[Any, Callable[[BrokerCore, Key, Now], list[Effect]]] = {
    FAULT: BrokerCore._fault,
    "fetch": BrokerCore._fetch_expired,
    SLICE: lambda core, key, now: core.sliced.go_on(key[0], now),
    "retention": BrokerCore._expire,
    "checkpoint": BrokerCore._checkpoint,
    "clean": BrokerCore._clean,
    "remove-files": BrokerCore._remove_files,
    COORDINATOR: lambda core, key, now: core.groups.on_timer((COORDINATOR, *key), now),
    TRANSACTIONS: lambda core, key, now: core.transactions.on_timer((TRANSACTIONS, *key), now),
    MARKERS: lambda core, key, now: core.transactions.retry_markers(key, now),
}

_ON_JOB: dict[Any, Callable[[BrokerCore, Key, Outcome, Now], list[Effect]]] = {
    "seal": BrokerCore._sealed,
    "flush": BrokerCore._flushed,
    "answer": BrokerCore._answered,
    SYNC_CATALOG[0]: BrokerCore._catalog_synced,
    "clean": BrokerCore._cleaned,
    "group": lambda core, tag, outcome, now: core.groups.on_job(tag, outcome, now),
    "transactions": lambda core, tag, outcome, now: core.transactions.on_job(tag, outcome, now),
}
