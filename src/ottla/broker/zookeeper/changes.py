"""The changes of topics in ZooKeeper: those that clients request of this broker, and the removal of deleted topics.

Owns the changes under way, each a call of ``topic_calls``, and their time-outs. Must not know requests, nor the nodes of a topic.
Invariants: a change that has succeeded is in the catalog before its client learns of it; each change ends, at the latest when its
time is over; of the registered brokers, the one with the lowest id removes deleted topics.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.cluster import TopicRegistration
from ottla.broker.ports import Ids
from ottla.broker.topic_changes import TopicChange
from ottla.broker.topics import Topic, alike_name, internal_configs
from ottla.broker.zookeeper import topic_calls
from ottla.broker.zookeeper.backlog import Backlog
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.broker.zookeeper.steps import take_steps
from ottla.broker.zookeeper.topics import TopicRegistry
from ottla.coordinator.effects import ApiError
from ottla.errors import KeeperCode, OttlaError, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, is_missing
from ottla.zookeeper.calls import Steps
from ottla.zookeeper.operations import Delete, Exists, Stat
from ottla.zookeeper.session import SessionChanged, SessionState, WatchFired, WatchType

log = logging.getLogger("ottla.broker")

T = TypeVar("T")

MOST_REMOVED_AT_ONCE = 50

_DISABLED = "delete.topic.enable=false"


class ZooKeeperTopicChanges:
    """See the module. It implements ``TopicChanges`` and ``ZooKeeperManager``."""

    def __init__(self, catalog: BrokerCatalog, registry: TopicRegistry, ids: Ids) -> None:
        self._catalog = catalog
        self._registry = registry
        self._ids = ids
        self._timeout = catalog.static_config.zookeeper_connection_timeout_ms
        self._asks = AskQueue(self._timeout)
        self._unbegun: list[Callable[[Now], None]] = []
        """Calls that wait for the next poll, which knows the time."""
        self._creating: dict[str, str] = {}
        """The names of topics that are being created, by what two of them must not have in common."""
        self._expected: Counter[int] = Counter()
        """Broker -> its partitions in the topics that are being created."""
        self._deleting: dict[str, list[tuple[TopicChange, Topic]]] = {}
        """Topic -> the changes that end with its removal."""
        self._deadlines: deque[tuple[int, TopicChange, str]] = deque()
        """The deadlines of these changes, in order."""
        self._is_connected = False
        self._removals: Backlog[str] = Backlog(MOST_REMOVED_AT_ONCE)
        """The topics that this broker removes."""
        self._marks: tuple[int, bool] = (0, False)
        """The version of the marked topics that were added to ``_removals``, and whether this broker removed them then."""
        self._causes: dict[str, KeeperCode | str] = {}
        """Topic -> why it is not removed yet, as it was logged."""

    def __repr__(self) -> str:
        return f"<ZooKeeperTopicChanges {len(self._creating)} created, {len(self._deleting)} deleted>"

    # -- requests of clients ----------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, configs: Mapping[str, str], replicas: Sequence[int] | None = None) -> TopicChange:
        """Create a topic."""
        alike = alike_name(name)
        if self._creating.get(alike) == name:
            raise ApiError(ErrorCode.topic_already_exists, f"Topic '{name}' is being created.")
        if alike in self._creating:
            raise ApiError(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with topic: {self._creating[alike]}")
        self._check_known()
        places = tuple(replicas) if replicas is not None else self._place(partitions)
        all_configs = {**internal_configs(name, self._catalog.config), **configs}
        registration = TopicRegistration(name, self._ids.new_uuid(), places, all_configs)
        change = TopicChange()
        self._creating[alike] = name
        self._expected.update(places)

        def ended(_: None, error: Exception | None, now: Now) -> None:
            self._creating.pop(alike, None)
            self._expected.subtract(places)
            self._end(change, error, lambda: self._apply_new(registration))

        self._begin(lambda: topic_calls.create_topic(registration), ended)
        return change

    def create_missing(self, name: str) -> Topic:
        """Begin to create a topic with the broker's defaults. Raises ``ApiError``: LEADER_NOT_AVAILABLE while it is created."""
        if self._creating.get(alike_name(name)) != name:
            partitions = self._catalog.initial_partition_count(name)
            self._catalog.topics.check_new(name, partitions, {})
            if self._catalog.cluster.is_known:
                self.create(name, partitions, {})
        raise ApiError(ErrorCode.leader_not_available, f"Topic '{name}' is being created.")

    def extend(self, topic: Topic, replicas: Sequence[int] | None = None) -> TopicChange:
        """Give a topic more partitions."""
        self._check_known()
        change, count = TopicChange(), topic.partition_count
        placed: list[int] = []

        def place(partitions: int) -> tuple[int, ...]:
            self._expected.subtract(placed)  # of an attempt that has failed
            placed[:] = self._place(partitions)
            self._expected.update(placed)
            return tuple(placed)

        def ended(places: tuple[int, ...] | None, error: Exception | None, now: Now) -> None:
            self._expected.subtract(placed)
            self._end(change, error, lambda: self._apply_to(topic, lambda found: found._replace(replicas=places or found.replicas)))

        self._begin(lambda: topic_calls.extend_topic(topic.name, topic.topic_id, count, replicas, place), ended)
        return change

    def alter(self, topic: Topic) -> TopicChange:
        """Give a topic other settings."""
        change, configs = TopicChange(), topic.stored().configs

        def ended(_: None, error: Exception | None, now: Now) -> None:
            self._end(change, error, lambda: self._apply_to(topic, lambda found: found._replace(configs=configs)))

        self._begin(lambda: topic_calls.alter_topic(topic.name, topic.topic_id, configs), ended)
        return change

    def delete(self, topic: Topic) -> TopicChange:
        """Delete a topic. The change ends when its nodes are removed, so that its name can be used again."""
        change = TopicChange()

        def ended(_: None, error: Exception | None, now: Now) -> None:
            if error is not None:
                return change.fail(_api_error(error))
            known = self._catalog.topics.by_id(topic.topic_id)
            try:
                if known is not None:
                    self._catalog.delete_topic(known)
            except ApiError as failure:  # of this broker's disk; the registry tries again
                log.warning("topic %s is not deleted here yet: %s", topic.name, failure.message)
            self._deleting.setdefault(topic.name, []).append((change, topic))
            self._deadlines.append((now.mono + self._timeout, change, topic.name))
            return self._watch_marker(topic.name)

        self._begin(lambda: topic_calls.mark_deleted(topic.name, topic.topic_id), ended)
        return change

    def _apply_new(self, registration: TopicRegistration) -> Topic:
        """Add a topic that this broker has created. If the registry has read it meanwhile, it may have changed since."""
        known = self._catalog.topics.by_id(registration.topic_id)
        return self._catalog.apply_registration(registration) if known is None else known

    def _apply_to(self, topic: Topic, apply: Callable[[TopicRegistration], TopicRegistration]) -> Topic:
        """Change a topic that is still the same. Raises ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION if it was deleted meanwhile."""
        known = self._catalog.topic(topic.name)
        if known.topic_id != topic.topic_id:
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"Topic '{topic.name}' was deleted, and created again.")
        found = TopicRegistration(known.name, known.topic_id, known.replicas, known.stored().configs)
        return self._catalog.apply_registration(apply(found))

    def _check_known(self) -> None:
        """Raise ``ApiError`` while the other brokers are not known: this one would get all partitions. The client asks again.

        Also while another broker has the id of this one.
        """
        if self._catalog.cluster.is_displaced:
            raise ApiError(ErrorCode.not_controller, "Another broker is registered with the id of this one.")
        if not self._catalog.cluster.is_known:
            raise ApiError(ErrorCode.not_controller, "This broker has just been started, and does not know the others yet.")

    def _place(self, partitions: int) -> tuple[int, ...]:
        return self._catalog.cluster.place(partitions, self._expected)

    # -- the manager ------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a change waits to be begun."""
        return bool(self._unbegun)

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Look again at the topics that are being deleted: a watch has fired, or a disconnection has dropped all."""
        if isinstance(event, SessionChanged):
            self._is_connected = event.state is SessionState.CONNECTED
            names = list(self._deleting) if self._is_connected else []
        else:
            is_marker = event.watch is WatchType.EXIST and event.path.startswith(f"{paths.DELETED_TOPICS}/")
            names = [event.path.rpartition("/")[2]] if is_marker else []
        for name in names:
            if name in self._deleting:
                self._watch_marker(name)

    def poll(self, now: Now) -> ManagerPoll:
        """Begin the changes that wait, and the removals that are this broker's part."""
        unbegun, self._unbegun = self._unbegun, []
        for begin in unbegun:
            begin(now)
        wake_at = [at for at in (self._expire(now), self._remove_marked(now)) if at is not None]
        return ManagerPoll(self._asks.take(), min(wake_at, default=None))

    def _remove_marked(self, now: Now) -> int | None:
        """Begin removals that are this broker's part, a few at a time; return when to try again.

        None begins without a connection: it would fail after its time-out, and the next connection reads again what is marked.
        """
        cluster = self._catalog.cluster
        is_mine = cluster.controller_id == self._catalog.node_id and not cluster.is_displaced
        marks = self._registry.marks, is_mine
        if marks != self._marks:
            self._marks = marks
            if not is_mine:
                self._removals.clear()
                self._causes.clear()
            for name in sorted(self._registry.deleted) if is_mine else ():
                self._removals.add(name)
        if not is_mine or not self._is_connected:
            return None
        for name in self._removals.take(now):
            self._remove(name, now)
        return self._removals.wake_at

    def _remove(self, name: str, now: Now) -> None:
        def ended(_: None, error: Exception | None, now: Now) -> None:
            if error is None:
                self._removals.done(name)
                self._causes.pop(name, None)
                return
            self._removals.fail(name, now)
            cause = error.code if isinstance(error, ZooKeeperError) else str(error)
            if self._is_connected and self._causes.get(name) != cause:  # that ZooKeeper is away is logged elsewhere
                log.warning("topic %s is not removed from ZooKeeper yet: %s", name, error)
                self._causes[name] = cause

        removal = topic_calls.remove_topic(name)
        if not self._catalog.static_config.delete_topic_enable:
            removal = _unmark(name)
            log.info("topic %s is not deleted, although a node in %s asks for it: %s", name, paths.DELETED_TOPICS, _DISABLED)
        self._run(removal, now.mono + self._timeout, ended, now)

    def _watch_marker(self, name: str) -> None:
        """Learn when a topic is removed."""

        def found(stat: Stat | None, now: Now) -> None:
            if stat is None:
                for change, topic in self._deleting.pop(name, ()):
                    change.succeed(topic)

        # After a failure the next connection looks again.
        self._asks.ask(Exists(paths.deleted_topic(name), watch=True), found, lambda error, now: None)

    def _expire(self, now: Now) -> int | None:
        """Fail the deletions that are overdue; return when the next one will be."""
        while self._deadlines and (self._deadlines[0][1].is_done or now.mono >= self._deadlines[0][0]):
            _, change, name = self._deadlines.popleft()
            change.fail(ApiError(ErrorCode.request_timed_out, f"Topic '{name}' is not removed yet; it will be."))
        return self._deadlines[0][0] if self._deadlines else None

    # -- calls ------------------------------------------------------------------------------------------------------------

    def _begin(self, call: Callable[[], Steps[T]], ended: Callable[[T | None, Exception | None, Now], None]) -> None:
        """Begin a call with the next poll."""
        self._unbegun.append(lambda now: self._run(call(), now.mono + self._timeout, ended, now))

    def _run(self, steps: Steps[T], deadline: int, ended: Callable[[T | None, Exception | None, Now], None], now: Now) -> None:
        """Take the steps of a call, and call ``ended`` once with its result or its error."""

        def check(now: Now) -> None:
            if now.mono >= deadline:
                raise ApiError(ErrorCode.request_timed_out, "ZooKeeper did not answer in time; the change may be made later.")

        take_steps(self._asks, steps, ended, now, check)

    def _end(self, change: TopicChange, error: Exception | None, apply: Callable[[], Topic]) -> None:
        """End a change that is made in ZooKeeper or has failed."""
        if error is None:
            try:
                return change.succeed(apply())
            except (ApiError, OttlaError) as failure:
                error = failure
        return change.fail(_api_error(error))


def _unmark(name: str) -> Steps[None]:
    """Take back what asks for the deletion of a topic, as the controller of Kafka does."""
    (outcome,) = yield (Delete(paths.deleted_topic(name)),)
    if isinstance(outcome, OttlaError) and not is_missing(outcome):
        raise outcome


def _api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OttlaError):
        code = ErrorCode.request_timed_out if error.retriable else ErrorCode.unknown_server_error
        return ApiError(code, str(error))
    log.error("a change of topics failed", exc_info=error)
    return ApiError(ErrorCode.unknown_server_error, f"The change failed: {error!r}")
