"""A coordinator with a virtual clock and a log in memory, for tests.

It performs the effects: appends go into ``log`` at once, wait, or fail, according to ``appends``; timers fire when ``sleep``
reaches them; replies are kept by ticket. It also checks that no ticket is answered twice.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupState
from ottla.coordinator.consumer.regex import resolve_all
from ottla.coordinator.coordinator import GroupCoordinator, GroupCoordinatorEffect
from ottla.coordinator.effects import Append, CancelTimer, Reply, RequestContext, ResolveRegexes, SetTimer, TimerKey
from ottla.coordinator.events import GroupRecord, event_of, events_of
from ottla.protocol import ErrorCode, duration
from ottla.protocol.apis import Api, version_rules_of
from ottla.protocol.consumer_protocol import Subscription, encode_subscription
from ottla.protocol.messages import (
    consumer_group_describe_request,
    consumer_group_heartbeat_request,
    delete_groups_request,
    describe_groups_request,
    heartbeat_request,
    join_group_request,
    leave_group_request,
    list_groups_request,
    offset_commit_request,
    offset_delete_request,
    offset_fetch_request,
    sync_group_request,
    txn_offset_commit_request,
)
from ottla.simulation.clock import Clock, CountingIds
from ottla.types import Now
from tests.unit.coordinator.marked_log import Log, Marker, latest, marked

NEWEST = {
    Api.JOIN_GROUP: 9,
    Api.SYNC_GROUP: 5,
    Api.HEARTBEAT: 4,
    Api.LEAVE_GROUP: 5,
    Api.OFFSET_COMMIT: 9,
    Api.OFFSET_FETCH: 9,
    Api.DESCRIBE_GROUPS: 6,
    Api.LIST_GROUPS: 5,
    Api.DELETE_GROUPS: 2,
    Api.OFFSET_DELETE: 0,
    Api.TXN_OFFSET_COMMIT: 5,
    Api.CONSUMER_GROUP_HEARTBEAT: 1,
    Api.CONSUMER_GROUP_DESCRIBE: 1,
    Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT: 0,
    Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT: 0,
}
"""What the Java client's classic consumer and its tools send."""
WALL = 1_795_255_900_000
"""What the wall clock shows when the virtual clock starts."""

IMMEDIATE: Callable[[Append], ErrorCode | None] = lambda append: ErrorCode.none  # noqa: E731
DELAYED: Callable[[Append], ErrorCode | None] = lambda append: None  # noqa: E731


def failing(error: ErrorCode) -> Callable[[Append], ErrorCode | None]:
    """Return an answer to appends with which all of them fail."""
    return lambda append: error


@dataclass
class Topics:
    """Topics with their numbers of partitions. A test can give a recreated topic another id."""

    counts: dict[str, int] = field(default_factory=lambda: {"orders": 4, "bills": 2})
    version: int = 1

    def names(self) -> list[str]:
        return list(self.counts)

    generations: Counter[str] = field(default_factory=Counter)

    def topic_id(self, name: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{name}{self.generations[name] or ''}") if name in self.counts else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def partition_count(self, name: str) -> int | None:
        return self.counts.get(name)


class Telling(NamedTuple):
    """One call of a coordinator, and the topics at that time."""

    what: str
    args: tuple[Any, ...]
    now: Now
    topics: Topics

    def to(self, coordinator: GroupCoordinator) -> list[GroupCoordinatorEffect]:
        """Make the call on a coordinator."""
        now = () if self.what == "unload" else (self.now,)
        effects: list[GroupCoordinatorEffect] = getattr(coordinator, self.what)(*self.args, *now)
        return effects


class Harness:
    """See the module."""

    def __init__(self, topics: Topics | None = None, load: bool = True, **config: Any) -> None:
        self.config = GroupConfig(**{"offsets_topic_partitions": 5, "group_initial_rebalance_delay_ms": 500, **config})
        self.topics = topics or Topics()
        self.ids = CountingIds()
        self.clock = Clock(Now(0, WALL))
        self.log: dict[int, Log] = {n: [] for n in range(self.config.offsets_topic_partitions)}
        self.appends: Callable[[Append], ErrorCode | None] = IMMEDIATE
        self.open: dict[tuple[int, int], Append] = {}
        self.replies: dict[int, Any] = {}
        self.asked: set[int] = set()
        self.requests: dict[int, tuple[Any, int]] = {}
        """Ticket -> the request and its time."""
        self.all_timers: dict[TimerKey, int] = {}
        self.trace: list[GroupCoordinatorEffect] = []
        self.told: list[Telling | None] = []
        """All calls of coordinators; ``None``: another one was started."""
        self.said: list[list[GroupCoordinatorEffect]] = []
        """The effects of each call."""
        self.jobs: list[tuple[str, ResolveRegexes]] = []
        self._tickets = itertools.count(1)
        self._markers: list[tuple[int, Marker]] = []
        self.coordinator = GroupCoordinator(self.config, self.topics, self.ids)
        if load:
            self.load_all()

    @property
    def timers(self) -> dict[TimerKey, int]:
        """The timers of groups, without the retention timers of partitions."""
        return {key: at for key, at in self.all_timers.items() if isinstance(key[1], str)}

    @property
    def now(self) -> Now:
        return self.clock.now

    @property
    def mono(self) -> int:
        return self.clock.now.mono

    def load_all(self) -> None:
        for partition, log in self.log.items():
            self.tell("load", partition, events_of(latest(log)))

    def restart(self) -> None:
        """Start another coordinator with the log alone; requests that wait at the old one get no response."""
        self.asked &= self.replies.keys()
        self.open.clear()
        self.all_timers.clear()
        self.jobs.clear()
        self.coordinator = GroupCoordinator(self.config, self.topics, self.ids)
        self.told.append(None)
        self.load_all()

    def ask(self, api: Api, request: Any, version: int | None = None, client: str = "A") -> int:
        """Send a request; return its ticket."""
        ticket = next(self._tickets)
        version_rules = version_rules_of(api, NEWEST[api] if version is None else version)
        context = RequestContext(ticket, api, 1, client, "/127.0.0.1", version_rules)
        self.asked.add(ticket)
        self.requests[ticket] = (request, self.mono)
        self.tell("handle", context, request)
        return ticket

    def tell(self, what: str, *args: Any) -> None:
        """Make a call on the coordinator, and perform the effects."""
        telling = Telling(what, args, self.now, replace(self.topics, generations=Counter(self.topics.generations)))
        self.told.append(telling)
        self.said.append(telling.to(self.coordinator))
        self.perform(self.said[-1])

    def repeat_calls(self) -> list[list[GroupCoordinatorEffect]]:
        """The effects that other coordinators return for the same calls."""
        topics, ids = Topics(), CountingIds()
        coordinator = GroupCoordinator(self.config, topics, ids)
        said = []
        for telling in self.told:
            if telling is None:
                coordinator = GroupCoordinator(self.config, topics, ids)
                continue
            topics.counts, topics.version = telling.topics.counts, telling.topics.version
            topics.generations = telling.topics.generations
            said.append(telling.to(coordinator))
        return said

    def answer(self, ticket: int) -> Any:
        """Return the reply to a ticket; it must have been sent."""
        assert ticket in self.replies, "the request is parked"
        return self.replies[ticket]

    def waits(self, ticket: int) -> bool:
        return ticket not in self.replies

    def perform(self, effects: Iterable[GroupCoordinatorEffect]) -> None:
        for effect in effects:
            self.trace.append(effect)
            match effect:
                case Reply(ticket, response):
                    assert ticket in self.asked, "a reply to an unknown ticket"
                    assert ticket not in self.replies, "a second reply"
                    self.replies[ticket] = response
                case SetTimer(key, at):
                    self.all_timers[key] = at
                case CancelTimer(key):
                    self.all_timers.pop(key, None)
                case Append():
                    self._append(effect)
                case ResolveRegexes(group_id):
                    self.jobs.append((group_id, effect))
                case _:
                    raise AssertionError(f"unexpected {effect}")

    def _append(self, append: Append) -> None:
        error = self.appends(append)
        self.open[append.partition, append.batch] = append
        if error is not None:
            self.settle((append.partition, append.batch), error)

    def settle(self, key: tuple[int, int] | None = None, error: ErrorCode = ErrorCode.none) -> None:
        """Complete open appends: the given one, or all in order."""
        for open_key in [key] if key is not None else list(self.open):
            append = self.open.pop(open_key)
            if error is ErrorCode.none:
                stamp = () if append.producer is None else (append.producer,)
                self.log[append.partition].extend((*record, *stamp) for record in append.records)
                self._write_markers()
                self.tell("on_appended", append.partition, append.batch)
            else:
                self.tell("on_append_failed", append.partition, append.batch, error)

    def sleep(self, milliseconds: int) -> None:
        """Advance the clock, and fire every timer at its time."""
        until = self.mono + milliseconds
        while due := sorted((at, str(key), key) for key, at in self.all_timers.items() if at <= until):
            at, _, key = due[0]
            self.clock.move_to(max(self.mono, at))
            del self.all_timers[key]
            self.tell("on_timer", key)
        self.clock.move_to(until)

    def run_jobs(self) -> None:
        """Run the jobs (resolutions of regular expressions)."""
        while self.jobs:
            group_id, job = self.jobs.pop(0)
            self.tell("on_regexes_resolved", group_id, resolve_all(job))

    # Queries.

    @property
    def deadlines(self) -> dict[TimerKey, int]:
        """When the coordinator's timers are due; the shell's timer may be earlier."""
        return {key: at for key, at in self.coordinator.armed_timers().items() if isinstance(key[1], str)}

    def group(self, group_id: str = "g") -> ClassicGroup:
        group = self.coordinator.groups()[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    def state(self, group_id: str = "g") -> ClassicGroupState | ConsumerGroupState:
        group = self.coordinator.groups().get(group_id)
        return ClassicGroupState.DEAD if group is None else group.state

    def events(self) -> list[Any]:
        """The records of all partitions, decoded."""
        return [event_of(*record) for log in self.log.values() for record in log if not isinstance(record, Marker)]

    def replayed(self) -> dict[str, Any]:
        """Return the durable state according to the log alone."""
        return self.reloaded({partition: marked(log) for partition, log in self.log.items()}).durable_state()

    def reloaded(self, records: Mapping[int, list[GroupRecord]]) -> GroupCoordinator:
        """Return another coordinator that has loaded these records of each partition."""
        other = GroupCoordinator(self.config, self.topics, self.ids)
        for partition, of_partition in records.items():
            other.load(partition, events_of(of_partition), self.now)
        return other

    # Requests.

    def join(self, member_id: str = "", *, group: str = "g", client: str = "A", version: int = 9, **fields: Any) -> int:
        protocols = fields.pop("protocols", {"range": subscription("orders")})
        request = join_group_request.JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            session_timeout=duration(fields.pop("session", 6_000)),
            rebalance_timeout=duration(fields.pop("rebalance", 300_000)),
            group_instance_id=fields.pop("instance", None),
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=tuple(
                join_group_request.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols.items()
            ),
        )
        assert not fields
        return self.ask(Api.JOIN_GROUP, request, version, client)

    def sync(self, member_id: str, generation: int, given: dict[str, bytes] | None = None, **fields: Any) -> int:
        request = sync_group_request.SyncGroupRequest(
            group_id=fields.pop("group", "g"),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=fields.pop("instance", None),
            protocol_type=fields.pop("protocol_type", None),
            protocol_name=fields.pop("protocol_name", None),
            assignments=tuple(
                sync_group_request.SyncGroupRequestAssignment(member_id=one, assignment=assignment)
                for one, assignment in (given or {}).items()
            ),
        )
        assert not fields
        named = None not in (request.protocol_type, request.protocol_name)
        return self.ask(Api.SYNC_GROUP, request, 5 if named else 4)

    def beat(self, member_id: str, generation: int, group: str = "g", instance: str | None = None) -> int:
        request = heartbeat_request.HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.ask(Api.HEARTBEAT, request)

    def heartbeat(self, member_id: str, generation: int, group: str = "g", instance: str | None = None) -> ErrorCode:
        answer = self.answer(self.beat(member_id, generation, group, instance))
        assert isinstance(answer.error_code, ErrorCode)
        return answer.error_code

    def leave(self, *members: str | tuple[str, str | None], group: str = "g", version: int = 5) -> int:
        identities = [(one, None) if isinstance(one, str) else one for one in members]
        request = leave_group_request.LeaveGroupRequest(
            group_id=group,
            members=tuple(
                leave_group_request.MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in identities
            ),
        )
        return self.ask(Api.LEAVE_GROUP, request, version)

    def commit(
        self, offsets: dict[tuple[str, int], int], member_id: str = "", generation: int = -1, group: str = "g", **fields: Any
    ) -> int:
        metadata = fields.pop("metadata", {})
        version = fields.pop("version", 9)
        retention = fields.pop("retention", -1)
        by_topic: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            by_topic.setdefault(topic, []).append(
                offset_commit_request.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_metadata=metadata.get((topic, partition), ""),
                )
            )
        request = offset_commit_request.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=fields.pop("instance", None),
            retention_time_ms=retention,
            topics=tuple(
                offset_commit_request.OffsetCommitRequestTopic(
                    name="" if version >= 10 else topic,
                    topic_id=self.topics.topic_id(topic) if version >= 10 else None,
                    partitions=tuple(partitions),
                )
                for topic, partitions in by_topic.items()
            ),
        )
        assert not fields
        return self.ask(Api.OFFSET_COMMIT, request, version)

    def commit_in_transaction(
        self, offsets: dict[tuple[str, int], int], producer_id: int, member_id: str = "", generation: int = -1, **fields: Any
    ) -> int:
        """Send a TxnOffsetCommit in a transaction that was verified."""
        request = txn_offset_commit_request.TxnOffsetCommitRequest(
            transactional_id=f"t{producer_id}",
            producer_id=producer_id,
            producer_epoch=0,
            group_id=fields.pop("group", "g"),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=fields.pop("instance", None),
            topics=tuple(
                txn_offset_commit_request.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=(
                        txn_offset_commit_request.TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        ),
                    ),
                )
                for (topic, partition), offset in offsets.items()
            ),
        )
        assert not fields
        return self.ask(Api.TXN_OFFSET_COMMIT, request)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Write the markers of a transaction behind its records; the coordinator may learn about those records later."""
        for partition in self.log:
            self._markers.append((partition, Marker(producer_id, commit)))
            self._write_markers()
            self.tell("end_transaction", partition, producer_id, commit)

    def _write_markers(self) -> None:
        writing = {(append.partition, append.producer.producer_id) for append in self.open.values() if append.producer is not None}
        for partition, marker in [one for one in self._markers if (one[0], one[1].producer_id) not in writing]:
            self._markers.remove((partition, marker))
            self.log[partition].append(marker)

    def unstable(self, group: str, *partitions: tuple[str, int]) -> list[bool]:
        """For each partition, whether an OffsetFetch with ``require_stable`` gets no offset."""
        topics = tuple(
            offset_fetch_request.OffsetFetchRequestTopics(name=topic, partition_indexes=(number,)) for topic, number in partitions
        )
        wanted = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=topics)
        request = offset_fetch_request.OffsetFetchRequest(groups=(wanted,), require_stable=True)
        (told,) = self.answer(self.ask(Api.OFFSET_FETCH, request)).groups
        errors = [one.error_code for topic in told.topics for one in topic.partitions]
        assert set(errors) <= {ErrorCode.none, ErrorCode.unstable_offset_commit}
        return [error is ErrorCode.unstable_offset_commit for error in errors]

    def committed(self, group: str = "g", *partitions: tuple[str, int], version: int = 9) -> dict[tuple[str, int], int]:
        """Return the committed offsets of the given partitions, or of all."""
        topics = tuple(
            offset_fetch_request.OffsetFetchRequestTopics(name=topic, partition_indexes=(number,)) for topic, number in partitions
        )
        wanted = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=topics or None)
        response = self.answer(self.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(wanted,)), version))
        (told,) = response.groups
        assert told.error_code is ErrorCode.none
        return {(topic.name, one.partition_index): one.committed_offset for topic in told.topics for one in topic.partitions}

    def describe(self, *groups: str, version: int = 6, operations: bool = False) -> Any:
        request = describe_groups_request.DescribeGroupsRequest(groups=groups, include_authorized_operations=operations)
        return self.answer(self.ask(Api.DESCRIBE_GROUPS, request, version)).groups

    def list_groups(self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> Any:
        request = list_groups_request.ListGroupsRequest(states_filter=states, types_filter=types)
        return self.answer(self.ask(Api.LIST_GROUPS, request))

    def delete(self, *groups: str) -> int:
        return self.ask(Api.DELETE_GROUPS, delete_groups_request.DeleteGroupsRequest(groups_names=groups))

    def delete_offsets(self, *partitions: tuple[str, int], group: str = "g") -> int:
        topics = tuple(
            offset_delete_request.OffsetDeleteRequestTopic(
                name=topic, partitions=(offset_delete_request.OffsetDeleteRequestPartition(partition_index=number),)
            )
            for topic, number in partitions
        )
        return self.ask(Api.OFFSET_DELETE, offset_delete_request.OffsetDeleteRequest(group_id=group, topics=topics))

    def change_topics(self, **counts: int) -> None:
        """Change the number of partitions of topics; 0 deletes one."""
        self.topics.counts = {name: count for name, count in {**self.topics.counts, **counts}.items() if count}
        self.topics.version += 1
        self.tell("on_topics_changed", counts)

    # Requests about consumer groups.

    def cg_beat(self, member_id: str, epoch: int, *, group: str = "c", version: int = 1, client: str = "A", **fields: Any) -> int:
        """Send a ConsumerGroupHeartbeat. ``owned`` is by topic name, or by uuid for unknown topics."""
        owned = fields.pop("owned", None)
        topics = fields.pop("topics", None)
        request = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=fields.pop("instance", None),
            rack_id=fields.pop("rack", None),
            rebalance_timeout=duration(fields.pop("rebalance", -1)),
            subscribed_topic_names=None if topics is None else tuple(topics),
            subscribed_topic_regex=fields.pop("regex", None),
            server_assignor=fields.pop("assignor", None),
            client_assignors=fields.pop("offers", None),
            topic_partitions=None
            if owned is None
            else tuple(
                consumer_group_heartbeat_request.TopicPartitions(
                    topic_id=self.topics.topic_id(topic) if isinstance(topic, str) else topic, partitions=tuple(numbers)
                )
                for topic, numbers in owned.items()
            ),
        )
        assert not fields
        return self.ask(Api.CONSUMER_GROUP_HEARTBEAT, request, version, client)

    def cg_heartbeat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        """Send a ConsumerGroupHeartbeat and return its response."""
        return self.answer(self.cg_beat(member_id, epoch, **fields))

    def cg_join(self, member_id: str, topics: tuple[str, ...] | None = ("orders",), **fields: Any) -> Any:
        """Send the first heartbeat of a member and return its response."""
        return self.cg_heartbeat(member_id, 0, topics=topics, owned={}, **{"rebalance": 300_000, **fields})

    def share_of(self, answer: Any) -> dict[str, list[int]] | None:
        """Return the assignment in a response by topic name; ``None`` if it has none."""
        if answer.assignment is None:
            return None
        return {self.topics.name_of(one.topic_id) or "?": sorted(one.partitions) for one in answer.assignment.topic_partitions}

    def cg_describe(self, *groups: str, version: int = 1) -> Any:
        request = consumer_group_describe_request.ConsumerGroupDescribeRequest(
            group_ids=groups, include_authorized_operations=False
        )
        return self.answer(self.ask(Api.CONSUMER_GROUP_DESCRIBE, request, version)).groups

    def consumer_group(self, group_id: str = "c") -> ConsumerGroup:
        group = self.coordinator.groups()[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    # Shortcuts.

    def member_id(self, client: str = "A", group: str = "g") -> str:
        """Request a member id as a new dynamic member does."""
        response = self.answer(self.join(group=group, client=client))
        assert response.error_code is ErrorCode.member_id_required
        return str(response.member_id)

    def joined(self, *clients: str, group: str = "g", **fields: Any) -> list[str]:
        """Make a group of dynamic members that have joined and wait for the leader, the first; return their ids."""
        ids = [self.member_id(client, group) for client in clients]
        tickets = [self.join(one, group=group, client=client, **fields) for one, client in zip(ids, clients, strict=True)]
        self.wait_for(*tickets)
        assert self.state(group) is ClassicGroupState.COMPLETING_REBALANCE
        return ids

    def stable(self, *clients: str, group: str = "g", **fields: Any) -> list[str]:
        """Make a stable group of dynamic members, with the first as the leader; return their ids."""
        ids = self.joined(*clients, group=group, **fields)
        for one in (*ids[1:], ids[0]):
            self.sync(one, self.group(group).generation, {name: share(name) for name in ids}, group=group)
        assert self.state(group) is ClassicGroupState.STABLE
        return ids

    def wait_for(self, *tickets: int) -> None:
        """Advance the clock until all of these are answered."""
        for _ in range(100):
            if all(ticket in self.replies for ticket in tickets):
                return
            self.sleep(100)
        raise AssertionError("parked for too long")


def share(member_id: str) -> bytes:
    """Return the bytes that the leader assigns to a member in tests."""
    return b"for " + member_id.encode()


def subscription(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics))
