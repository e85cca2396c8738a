"""The client's core: request managers, connections and the handlers of commands.

Owns the order of the steps in one pass, and the isolation of managers from each other. Must not know sockets, threads, or the task
of a manager. Invariant: after an exception of one manager, or of one handler, the others are polled as always; the exception is
logged and reported to the application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager, FindCoordinator, Question
from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.client.connections.connections import Connections
from ottla.client.effects import (
    Answer,
    Arrival,
    ChannelClosed,
    CompletedRequest,
    ConnectionEffect,
    PushedRequest,
    RequestManager,
    Send,
    ToChannel,
)
from ottla.client.events import ErrorNotification
from ottla.config import ClientConfig
from ottla.errors import OttlaError
from ottla.types import Node, Now

if TYPE_CHECKING:
    from ottla.protocol.connection import Pushed
    from ottla.zookeeper.session import Disconnect, Perform, Session, SessionChanged, WatchFired

_log = logging.getLogger(__name__)


class CorePoll(NamedTuple):
    """The effects for the shell to perform, and the time of the next poll (monotonic ms; ``None``: on the next event)."""

    effects: list[ConnectionEffect | Perform | Disconnect]
    wake_at: int | None
    deferrable: frozenset[type[object]] = frozenset()
    """The classes of commands that need not wake the shell before then, since they would have no effect."""


class ClientCore:
    """One pass of the shell: ``handle_command`` for each command, ``poll``, perform the effects, report to ``connections``."""

    def __init__(self, config: ClientConfig, random: RandomPort, *, allow_auto_create: bool = False) -> None:
        self.config = config
        self.random = random
        self.connections = Connections(config, random)
        self.metadata_manager = MetadataManager(config, random, self.notify, allow_auto_create=allow_auto_create)
        self.observe: Callable[[CompletedRequest, Now], None] = lambda completion, now: None
        """Called with every request that was answered or has failed."""
        self.deferrable_commands: Callable[[], frozenset[type[object]]] = frozenset
        """Returns the classes of commands that would have no effect now."""
        self.before_notifications: Callable[[], None] = lambda: None
        """Called before the notifications are taken, to add related ones."""
        self.session: Session | None = None
        """The session with ZooKeeper, if the client has one."""
        self._session_handlers: list[Callable[[WatchFired | SessionChanged, Now], None]] = []
        self._on_pushed: Callable[[ToChannel, Pushed, Now], None] = lambda target, pushed, now: None
        self._on_channel_closed: Callable[[ToChannel, str, Now], None] = lambda target, reason, now: None
        self._managers: list[RequestManager] = []
        self._watchers: list[RequestManager] = []
        self._handlers: dict[type[object], Callable[[Any, Now], None]] = {}
        self._ended: list[CompletedRequest] = []
        """Requests that were answered or have failed, for ``observe``."""
        self._notifications: list[object] = []
        self._suspended: dict[int, int] = {}
        """Manager (by identity) -> the time until which it is not polled, after an exception."""
        self._metadata: Metadata | None = None
        self._lost = 0

    @property
    def metadata(self) -> Metadata:
        """The latest snapshot of the cluster."""
        return self.metadata_manager.current

    def add_manager(self, manager: RequestManager) -> None:
        """Poll this manager in every pass, after those that were added before."""
        self._managers.append(manager)

    def add_watcher(self, manager: RequestManager) -> None:
        """Poll this one, which has no requests, after the connections: it depends on their state at the end of the pass."""
        self._watchers.append(manager)

    def coordinator_of(self, kind: CoordinatorKind, key: str, backoff: ExponentialBackoff) -> CoordinatorManager:
        """Return a manager that looks up a coordinator. The caller polls it."""
        question = FindCoordinator(kind, key, self.config.request_timeout_ms)
        return self.coordinator_by(question, question.name, backoff)

    def coordinator_by(self, question: Question, name: str, backoff: ExponentialBackoff) -> CoordinatorManager:
        """Return a manager that looks up the coordinator of ``name`` by this question. The caller polls it."""
        return CoordinatorManager(question, name, backoff, self.learn_node, self.connections.disconnect)

    def use_zookeeper(self, session: Session) -> None:
        """Perform each ``Ask`` of the managers in this session."""
        from ottla.zookeeper.session import SessionReport

        self.session = session
        self.register(SessionReport, lambda report, now: report.apply(session, now))

    def on_session_event(self, handler: Callable[[WatchFired | SessionChanged, Now], None]) -> None:
        """Pass the watches and states of the session to this handler as well."""
        self._session_handlers.append(handler)

    def on_pushed(self, handler: Callable[[ToChannel, Pushed, Now], None]) -> None:
        """Pass the requests of the central coordinator to this handler."""
        self._on_pushed = handler

    def on_channel_closed(self, handler: Callable[[ToChannel, str, Now], None]) -> None:
        """Call this handler, with the reason, when the channel of a member is closed, by whichever side."""
        self._on_channel_closed = handler

    def register(self, command: type[object], handler: Callable[[Any, Now], None]) -> None:
        """Register the handler of a class of commands. Raises ``ValueError`` for a second handler."""
        if command in self._handlers:
            raise ValueError(f"{command.__name__} has a handler already")
        self._handlers[command] = handler

    def handle_command(self, command: object, now: Now) -> None:
        """Pass a command of the application to the handler of its class."""
        try:
            self._handlers[type(command)](command, now)
        except Exception as error:
            self._surface(error, f"the command {type(command).__name__}")

    def notify(self, notification: object) -> None:
        """Add a notification to the application."""
        self._notifications.append(notification)

    def take_notifications(self) -> list[object]:
        """Remove and return the notifications, in order. They belong to one moment: pass them on together."""
        self.before_notifications()
        taken, self._notifications = self._notifications, []
        return taken

    def drop_notifications(self) -> None:
        """Drop the notifications, for a client whose application reads none. Errors in them are logged already."""
        self._notifications.clear()

    def learn_node(self, node: Node, now: Now) -> None:
        """Add a broker that a response contained before the metadata did (a coordinator, a new leader)."""
        self.connections.learn_node(node, now)

    def deliver(self, now: Now) -> None:
        """Pass responses to their managers. A shell may call this before ``poll``, so that the application gets them sooner."""
        if self.session is not None:
            self._deliver_from_zookeeper(self.session, now)
        for arrival in self.connections.take_completions():
            completion = arrival if isinstance(arrival, CompletedRequest) else None
            try:
                self._deliver(arrival, now)
            except Exception as bug:
                self._surface(bug, type(arrival if completion is None else completion.request.manager).__name__)
            if completion is not None:
                self._ended.append(completion)

    def poll(self, now: Now) -> CorePoll:
        """Run one pass: deliver responses, poll the managers (that of the metadata last, since others request it), then the
        connections."""
        self.deliver(now)
        self._report(now)
        self._follow_metadata(now)
        self._watch_losses()
        wake_at = self._ask((*self._managers, self.metadata_manager), now)
        effects: list[ConnectionEffect | Perform | Disconnect] = []
        if self.session is not None:
            performed, session_at, disconnect = self.session.poll(now)
            effects += (*disconnect, *performed)
            wake_at += [] if session_at is None else [session_at]
            wake_at += [now.mono] if self.session.has_completions else []
        connection_effects, next_at = self.connections.poll(now)
        effects += connection_effects
        if next_at is not None:
            wake_at.append(next_at)
        wake_at += self._ask(self._watchers, now)
        if self.connections.has_completions or self.connections.failures != self._lost:
            wake_at.append(now.mono)
        return CorePoll(effects, min(wake_at, default=None), self.deferrable_commands())

    def shut_down(self, error: OttlaError, now: Now) -> list[ConnectionEffect]:
        """Close all connections, and end the session: unanswered requests fail with ``error``."""
        self.connections.shut_down(error, now)
        if self.session is not None:
            self.session.close()
        self.deliver(now)
        return self.connections.poll(now).effects

    def _ask(self, managers: Iterable[RequestManager], now: Now) -> list[int]:
        """Poll these managers and take their requests; return the times at which they are due again."""
        times = []
        for manager in managers:
            # A manager that has raised is not polled for a while: it may raise in every pass, and would fill the log.
            if self._suspended and (suspended_until := self._suspended.get(id(manager), now.mono)) > now.mono:
                times.append(suspended_until)
                continue
            try:
                sends, wake_at = manager.poll(now)
            except Exception as error:
                self._surface(error, type(manager).__name__)
                sends, wake_at = (), now.mono + self.config.retry_backoff_max_ms
                self._suspended[id(manager)] = wake_at
            for send in sends:
                if isinstance(send, Send):
                    self.connections.enqueue(manager, send, now)
                elif isinstance(send, Answer):
                    self.connections.answer(send)
                else:
                    assert self.session is not None, "use_zookeeper() comes before the first Ask"
                    self.session.ask(manager, send, now)
            if wake_at is not None:
                times.append(wake_at)
        return times

    def _deliver(self, arrival: Arrival, now: Now) -> None:
        if isinstance(arrival, PushedRequest):
            self._on_pushed(arrival.target, arrival.pushed, now)
        elif isinstance(arrival, ChannelClosed):
            self._on_channel_closed(arrival.target, arrival.reason, now)
        elif arrival.error is not None:
            arrival.request.send.on_failure(arrival.error, now)
        else:
            arrival.request.send.on_response(arrival.message, now)

    def _deliver_from_zookeeper(self, session: Session, now: Now) -> None:
        """Pass the session's events to their handlers, then the outcomes to their managers.

        The events go first: the outcomes of a lost connection follow from it, and a manager that starts again because of an outcome
        must know the state of the session by then.
        """
        for event in session.take_events():
            for handler in self._session_handlers:
                try:
                    handler(event, now)
                except Exception as bug:
                    self._surface(bug, f"the event {type(event).__name__}")
        for manager, ask, result, error in session.take_completions():
            try:
                if error is not None:
                    ask.on_failure(error, now)
                else:
                    ask.on_result(result, now)
            except Exception as bug:
                self._surface(bug, type(manager).__name__)

    def _report(self, now: Now) -> None:
        ended, self._ended = self._ended, []
        for completion in ended:
            try:
                self.observe(completion, now)
            except Exception as bug:
                self._surface(bug, "counting requests")

    def _follow_metadata(self, now: Now) -> None:
        """Pass the nodes of new metadata to the connections, before the next requests."""
        if self.metadata_manager.rebootstrap_required(now):
            self.connections.rebootstrap("the cluster's metadata is lost: back to the bootstrap servers", now)
        current = self.metadata_manager.current
        if self._metadata is None or current.nodes is not self._metadata.nodes:
            self.connections.set_nodes(current.nodes, now)
        self._metadata = current

    def _watch_losses(self) -> None:
        """Request metadata after a connection has failed: the broker may have moved or stopped."""
        if self.connections.failures != self._lost:
            self._lost = self.connections.failures
            self.metadata_manager.request_update()

    def _surface(self, error: Exception, where: str) -> None:
        _log.error("%s failed", where, exc_info=error)
        wrapped = error if isinstance(error, OttlaError) else OttlaError(f"{where} failed: {error!r}", cause=error)
        self.notify(ErrorNotification(wrapped))
