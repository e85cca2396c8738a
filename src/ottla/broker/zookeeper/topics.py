"""The topics in ZooKeeper, to which the broker's catalog is kept equal.

Owns the reading of topics, their settings and the requests for their deletion, and the ids of topics that another tool has created
without one. Must not know requests, partition states or brokers. Invariants: ZooKeeper is the truth, and a node that cannot be
understood changes nothing here; each outcome is applied when it arrives, or never; a topic is read together with its settings, in
one pass, so that no change is applied half old and half new.

Another manager of the same session may create, extend or delete a topic and apply that to the catalog at once. A session's
operations are answered in their order, so what was read before that change is applied before it:

1. This manager asks for the list of topics. 2. The other one asks for the creation of a topic. 3. The list arrives, without the
topic, and what it lacks is deleted. 4. The creation succeeds, and the catalog gets the topic. If step 3 were put off until after
step 4, the new topic would be deleted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.cluster import TopicRegistration
from ottla.broker.ports import Ids
from ottla.broker.topics import Topic, check_name
from ottla.broker.zookeeper.backlog import Backlog
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.coordinator.effects import ApiError
from ottla.errors import ConfigError, KeeperCode, OttlaError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, first_error, has_code, is_missing
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.nodes import TopicNode, copied_topic, decode_configs, decode_topic_node, encode_topic
from ottla.zookeeper.operations import Children, Exists, GetChildren, GetData, SetData, Stat
from ottla.zookeeper.session import SessionChanged, SessionState, WatchFired

_log = logging.getLogger(__name__)

MOST_READ_AT_ONCE = 250
"""Topics, each with two reads."""


class TopicRegistry:
    """See the module."""

    def __init__(self, catalog: BrokerCatalog, ids: Ids) -> None:
        self._catalog = catalog
        self._ids = ids
        self._asks = AskQueue(catalog.config.zookeeper_connection_timeout_ms)
        self._is_connected = False
        self._backlog: Backlog[str] = Backlog(MOST_READ_AT_ONCE)
        """What is to be read: names of topics, and the paths of the two lists."""
        self._listed: set[str] = set()
        """The topics that have a node. One that was read after the list, and had none, is not among them."""
        self._unread: set[str] | None = None
        """The topics of the first list since the session was connected that were not read yet; ``None``: there is no list yet."""
        self._marks = 0
        """How often ``_marked`` has changed."""
        self._marked: set[str] = set()
        """The topics that are to be deleted, by the last list or a later read."""
        self._has_marks = False
        """Whether there was a list of them since the session was connected."""
        self._czxids: dict[str, int] = {}
        """Topic of the catalog -> the transaction that has created its node."""
        self._copies: dict[uuid.UUID, set[str]] = {}
        """Id -> topics whose nodes have it although it is that of another topic. They are read again when that one is deleted."""
        catalog.cluster.listeners.append(self._on_change)
        self._malformed = MalformedNodes("the topic stays as it was last known, if it was")
        self._complaints: dict[str, set[str]] = {}
        """Path -> what was logged about its content."""

    def __repr__(self) -> str:
        return f"<TopicRegistry {len(self._listed)} topics, {self._backlog}>"

    @property
    def is_ready(self) -> bool:
        """Whether all topics were read since the session was last connected."""
        return self._unread is not None and not self._unread and self._has_marks

    @property
    def marks(self) -> int:
        """Changes with ``deleted``."""
        return self._marks

    @property
    def deleted(self) -> Collection[str]:
        """The topics that are to be deleted, or whose deletion is asked for although it is disabled: some of their nodes are still
        there."""
        return self._marked

    def _is_deleted(self, name: str) -> bool:
        return name in self._marked and self._catalog.static_config.delete_topic_enable

    @property
    def is_due(self) -> bool:
        """Only ZooKeeper makes something due here."""
        return False

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Read again what has changed; everything after each connection, since a disconnection drops the watches."""
        if isinstance(event, WatchFired):
            key = self._key_of(event.path)
            if key is not None:
                self._backlog.add(key)
            return
        self._asks.abandon()
        self._backlog.clear()
        self._is_connected = event.state is SessionState.CONNECTED
        if self._is_connected:
            self._listed.clear()
            self._marked.clear()
            self._marks += 1
            self._unread, self._has_marks = None, False
            self._backlog.add(paths.DELETED_TOPICS)
            self._backlog.add(paths.TOPICS)

    def _key_of(self, path: str) -> str | None:
        if path in (paths.TOPICS, paths.DELETED_TOPICS):
            return path
        parent, _, name = path.rpartition("/")
        # A watch of a topic that is not listed comes with its deletion; if it is there again, the next list says so.
        return name if parent in (paths.TOPICS, paths.TOPIC_CONFIGS) and name in self._listed else None

    def poll(self, now: Now) -> ManagerPoll:
        """Return the reads that are due."""
        for key in self._backlog.take(now) if self._is_connected else ():
            if key == paths.TOPICS:
                self._list(key, self._on_topics)
            elif key == paths.DELETED_TOPICS:
                self._list(key, self._on_deleted_topics)
            else:
                self._read(key)
        return ManagerPoll(self._asks.take(), self._backlog.wake_at)

    # -- the lists --------------------------------------------------------------------------------------------------------

    def _list(self, path: str, on_result: Callable[[Children, Now], None]) -> None:
        self._asks.ask(GetChildren(path, watch=True), on_result, lambda error, now: self._fail(path, error, now))

    def _on_topics(self, children: Children, now: Now) -> None:
        names = set(children.names)
        for name in self._listed - names:
            self._forget(name)
        new = [name for name in sorted(names - self._listed) if self._is_legal(name)]
        self._listed.update(new)
        if self._unread is None:
            self._unread = set(new)
        for name in new:
            self._backlog.add(name)
        gone = [topic for topic in self._catalog.topics if topic.name not in names]
        self._delete_all(gone, paths.TOPICS, now)

    def _on_deleted_topics(self, children: Children, now: Now) -> None:
        before, self._marked, self._has_marks = self._marked, set(children.names), True
        self._marks += 1
        for name in sorted((before - self._marked) & self._listed):
            self._backlog.add(name)  # it was not applied while it was marked, and may be another topic by now
        deleted = filter(self._is_deleted, sorted(self._marked))
        marked = [topic for name in deleted if (topic := self._catalog.topics.get(name)) is not None]
        self._delete_all(marked, paths.DELETED_TOPICS, now)

    def _delete_all(self, topics: list[Topic], key: str, now: Now) -> None:
        """Delete topics because of a list. If that fails, the list is read again: it says what is to be deleted then."""
        failure: ApiError | None = None
        for topic in topics:
            try:
                self._delete(topic)
            except ApiError as error:
                failure = failure or error
        if failure is None:
            self._backlog.done(key)
        else:
            self._fail(key, failure, now)

    def _delete(self, topic: Topic) -> None:
        self._catalog.delete_topic(topic)
        _log.info("topic %s was deleted in ZooKeeper", topic.name)

    def _on_change(self, before: Topic | None, after: Topic | None) -> None:
        """Forget the node of a topic that was deleted, here or by another manager."""
        if after is None and before is not None:
            self._czxids.pop(before.name, None)
            for name in sorted(self._copies.pop(before.topic_id, set()) & self._listed):
                self._backlog.add(name)

    def _forget(self, name: str) -> None:
        """Note that a topic has no node."""
        self._listed.discard(name)
        self._backlog.drop(name)
        self._was_read(name)
        for path in (paths.topic(name), paths.topic_config(name)):
            self._malformed.errors.pop(path, None)
            self._complaints.pop(path, None)

    def _is_legal(self, name: str) -> bool:
        try:
            check_name(name)
        except ApiError as error:
            self._complain(f"{paths.TOPICS}/{name}", f"{error.message} It is skipped.")
            return False
        return True

    # -- a topic ----------------------------------------------------------------------------------------------------------

    def _read(self, name: str) -> None:
        """Read a topic with its settings; if it is unknown, also whether it is to be deleted.

        1. Another manager of this session marks a topic, and removes it from the catalog at once. 2. The topic is read, before the
        watch of the marks is reported. 3. Its node still exists, but it must not come back.
        """
        reads = GetData(paths.topic(name), watch=True), GetData(paths.topic_config(name), watch=True)
        mark = (Exists(paths.deleted_topic(name)),) if self._catalog.topics.get(name) is None else ()
        self._asks.ask_all((*reads, *mark), lambda outcomes, now: self._on_topic(name, outcomes, now))

    def _on_topic(self, name: str, outcomes: Sequence[Outcome], now: Now) -> None:
        error = first_error(outcomes, KeeperCode.NONODE)
        if error is not None:
            return self._fail(name, error, now)
        topic, configs, *mark = outcomes
        if mark and mark[0] is not None:
            self._marked.add(name)
            self._marks += 1
        node = self._malformed.decoded(paths.topic(name), topic, decode_topic_node)
        own_configs = {} if is_missing(configs) else self._malformed.decoded(paths.topic_config(name), configs, decode_configs)
        try:
            if is_missing(topic):
                self._vanish(name)
            elif node is not None and not self._is_deleted(name):
                if not mark and self._catalog.topics.get(name) is None:
                    return self._read_again(name)  # it was deleted here meanwhile
                self._note_replicas(name, node)
                if node.topic_id is None:
                    return self._identify(name, node, topic.stat)
                self._apply(TopicRegistration(name, node.topic_id, node.replicas, {}), own_configs, topic.stat)
        except ApiError as refusal:
            return self._fail(name, refusal, now)
        if is_missing(configs) and name in self._listed:
            return self._watch_for_configs(name)
        return self._done(name)

    def _watch_for_configs(self, name: str) -> None:
        """Learn of the settings if they come later: 1. A tool creates the topic. 2. It is read here. 3. The tool writes the
        settings."""

        def looked(stat: Stat | None, now: Now) -> None:
            if stat is None:
                self._done(name)
            else:
                self._read_again(name)

        self._asks.ask(Exists(paths.topic_config(name), watch=True), looked, lambda error, now: self._fail(name, error, now))

    def _vanish(self, name: str) -> None:
        topic = self._catalog.topics.get(name)
        if topic is not None:
            self._delete(topic)
        # Not listed any more, so that the next list makes it due if it has been created again meanwhile.
        self._forget(name)

    def _identify(self, name: str, node: TopicNode, stat: Stat) -> None:
        """Give a topic without an id one, if that is the part of this broker.

        A tool of Kafka 1.1.1 that adds partitions writes the whole node, and so removes the id. Then the topic keeps it, and every
        broker that knows it may write it: the broker of partition 0 may be down, and its next process could not know that this is
        still the same topic. A topic that was deleted and created again has another node.
        """
        known = self._catalog.topics.get(name)
        if known is not None and self._czxids.get(name, stat.czxid) != stat.czxid:
            self._delete(known)
            known = None
        if known is None and node.replicas[0] != self._catalog.node_id:
            return self._done(name)  # the broker of partition 0 writes the id, which fires the watch
        topic_id = known.topic_id if known is not None else self._ids.new_uuid()

        def written(stat: Stat, now: Now) -> None:
            _log.info("topic %s had no id in ZooKeeper; it has %s now", name, topic_id)
            self._read_again(name)

        def failed(error: OttlaError, now: Now) -> None:
            if has_code(error, KeeperCode.BADVERSION, KeeperCode.NONODE):
                self._read_again(name)
            else:
                self._fail(name, error, now)

        return self._asks.ask(SetData(paths.topic(name), encode_topic(node.replicas, topic_id), stat.version), written, failed)

    def _apply(self, found: TopicRegistration, configs: Mapping[str, str] | None, stat: Stat) -> None:
        """Change the catalog. ``configs``: the settings; ``None``: they cannot be understood."""
        name, config_path = found.name, paths.topic_config(found.name)
        other = self._catalog.topics.by_id(found.topic_id)
        if other is not None and other.name != name:
            self._copies.setdefault(found.topic_id, set()).add(name)
            error = copied_topic(paths.topic(name), other.name)
            return self._complain(paths.topic(name), f"{error}; the topic stays as it was last known, if it was")
        known = self._catalog.topics.get(name)
        if known is not None and known.topic_id != found.topic_id:
            known = None
        if known is not None and len(found.replicas) < known.partition_count:
            text = f"{paths.topic(name)} of ZooKeeper has {len(found.replicas)} partition(s), and the topic {known.partition_count}"
            return self._complain(paths.topic(name), f"{text}; partitions cannot be removed, so it stays as it is")
        last_known = self._catalog.with_last_known_configs(found)
        try:
            self._catalog.apply_registration(last_known if configs is None else found._replace(configs=configs))
            self._complaints.pop(config_path, None)
        except ConfigError as error:
            self._complain(config_path, f"the settings in {config_path} of ZooKeeper cannot be used: {error}")
            self._catalog.apply_registration(last_known)
        self._czxids[name] = stat.czxid
        return None

    def _note_replicas(self, name: str, node: TopicNode) -> None:
        if node.has_more_replicas:
            text = f"topic {name} has partitions with several replicas in ZooKeeper; only the first broker of each has it"
            self._complain(paths.topic(name), text)

    # -- the end of a read ------------------------------------------------------------------------------------------------

    def _was_read(self, name: str) -> None:
        if self._unread is not None:
            self._unread.discard(name)

    def _done(self, name: str) -> None:
        self._was_read(name)
        self._backlog.done(name)

    def _read_again(self, name: str) -> None:
        self._backlog.add(name)
        self._backlog.done(name)

    def _fail(self, key: str, error: OttlaError | ApiError, now: Now) -> None:
        """Read something again later. A topic that was refused counts as read: the others do not wait for it."""
        is_passing = isinstance(error, OttlaError) and error.retriable
        if not is_passing:
            self._was_read(key)
        if self._backlog.fail(key, now):
            where = key if key.startswith("/") else paths.topic(key)
            level = logging.INFO if is_passing else logging.WARNING
            _log.log(level, "%s of ZooKeeper could not be read and applied: %s; trying again", where, error)

    def _complain(self, path: str, text: str) -> None:
        """Log something about a node, once."""
        texts = self._complaints.setdefault(path, set())
        if text not in texts:
            _log.warning("%s", text)
        texts.add(text)
