"""A central coordinator with a virtual clock, ZooKeeper's nodes in memory, and members that tests direct.

It performs the effects: appends are stored at once, wait, or fail, according to ``appends``; timers fire when ``sleep`` reaches
them; requests to members wait in their channels until a test lets the members obey. It also checks that no request is answered
twice, and that a closed connection gets nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ottla.coordinator.central.coordinator import CentralCoordinator, CentralCoordinatorEffect
from ottla.coordinator.central.decision import CentralConfig
from ottla.coordinator.central.group import CentralGroup, CommittedOffset, StoredGroup
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.consumer.regex import resolve_all
from ottla.coordinator.effects import (
    Append,
    CancelTimer,
    HangUp,
    NoReply,
    Push,
    Reply,
    RequestContext,
    ResolveRegexes,
    SetTimer,
    TimerKey,
)
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, version_rules_of
from ottla.protocol.messages import (
    delete_groups_request,
    describe_groups_request,
    leave_request,
    list_groups_request,
    offset_commit_request,
    offset_delete_request,
    offset_fetch_request,
    ping_response,
    register_request,
    start_response,
    stop_response,
)
from ottla.simulation.clock import Clock
from ottla.types import Now, TopicPartition
from ottla.zookeeper.nodes import GenerationNode
from tests.unit.coordinator.harness import DELAYED, IMMEDIATE, NEWEST, WALL, Topics, failing

__all__ = ["DELAYED", "IMMEDIATE", "Central", "Member", "Topics", "failing"]

ANSWERS: Mapping[Api, Callable[..., Any]] = {
    Api.PING: lambda **fields: ping_response.PingResponse(**fields),
    Api.STOP: lambda **fields: stop_response.StopResponse(**fields),
    Api.START: lambda **fields: start_response.StartResponse(**fields),
}
"""API of a push -> the class of its answer."""


@dataclass
class Member:
    """A consumer: what it knows and holds, and its channel."""

    member_id: str
    group_id: str = "g"
    connection: int | None = None
    epoch: int = -1
    generation: int = -1
    own: int = -1
    held: dict[TopicPartition, int] = field(default_factory=dict)
    incarnation: str = "one"
    inbox: list[Push] = field(default_factory=list)


class Central:
    """See the module."""

    def __init__(self, topics: Topics | None = None, *, epoch: int = 1, **config: Any) -> None:
        self.config = CentralConfig(**config)
        self.topics = topics or Topics()
        self.clock = Clock(Now(0, WALL))
        self.epoch = epoch
        self.nodes: dict[str, bytes] = {}
        """What is stored: path below ``/consumers`` -> data."""
        self.written_for: dict[str, UUID | None] = {}
        """Path of an offset -> the id of the topic when it was written."""
        self.appends: Callable[[Append], ErrorCode | None] = IMMEDIATE
        self.open: dict[int, Append] = {}
        self.replies: dict[int, Any] = {}
        self.silent: set[int] = set()
        """The tickets of answers, which get no response."""
        self.asked: set[int] = set()
        self.timers: dict[TimerKey, int] = {}
        self.jobs: list[ResolveRegexes] = []
        self.members: dict[str, Member] = {}
        self.hung_up: list[int] = []
        self.trace: list[CentralCoordinatorEffect] = []
        self._tickets = itertools.count(1)
        self._connections = itertools.count(100)
        self.coordinator = CentralCoordinator(self.config, self.topics)
        self.tell("load", (), epoch)

    @property
    def now(self) -> Now:
        return self.clock.now

    @property
    def mono(self) -> int:
        return self.clock.now.mono

    # The coordinator.

    def tell(self, what: str, *args: Any) -> list[CentralCoordinatorEffect]:
        """Make a call on the coordinator, and perform the effects."""
        effects: list[CentralCoordinatorEffect] = getattr(self.coordinator, what)(*args, self.now)
        self.perform(effects)
        return effects

    def ask(self, api: Api, message: Any, *, connection: int = 1, correlation_id: int = 0) -> int:
        """Send a request, or an answer; return its ticket."""
        ticket = next(self._tickets)
        rules = version_rules_of(api, NEWEST.get(api, 0))
        context = RequestContext(ticket, api, connection, "client", "/127.0.0.1", rules, correlation_id)
        self.asked.add(ticket)
        self.tell("handle", context, message)
        return ticket

    def perform(self, effects: Iterable[CentralCoordinatorEffect]) -> None:
        for effect in effects:
            self.trace.append(effect)
            match effect:
                case Reply(ticket, response):
                    assert ticket in self.asked - self.replies.keys() - self.silent, "a second reply, or one to nothing"
                    self.replies[ticket] = response
                case NoReply(ticket):
                    assert ticket in self.asked - self.replies.keys() - self.silent
                    self.silent.add(ticket)
                case SetTimer(key, at):
                    self.timers[key] = at
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Append():
                    self._append(effect)
                case ResolveRegexes():
                    self.jobs.append(effect)
                case Push(connection):
                    for member in self._on(connection):
                        if (member.group_id, member.member_id) == (effect.message.group_id, effect.message.member_id):
                            member.inbox.append(effect)
                case HangUp(connection):
                    self.hung_up.append(connection)
                    self._close(connection)
                case _:
                    raise AssertionError(f"unexpected {effect}")

    def _append(self, append: Append) -> None:
        assert append.records
        self.open[append.batch] = append
        error = self.appends(append)
        if error is not None:
            self.settle(append.batch, error)

    def settle(self, batch: int | None = None, error: ErrorCode = ErrorCode.none) -> None:
        """Complete open appends: the given one, or all in order."""
        for number in [batch] if batch is not None else list(self.open):
            append = self.open.pop(number)
            if error is not ErrorCode.none:
                self.tell("on_append_failed", 0, number, error)
                continue
            for key, value in append.records:
                self.write(key, value)
            self.tell("on_appended", 0, number)

    def write(self, key: bytes, value: bytes | None) -> None:
        """Store a record."""
        if value is None:
            self.nodes.pop(key.decode(), None)
        else:
            self.nodes[key.decode()] = value
            if b"/offsets/" in key:
                self.written_for[key.decode()] = self.topics.topic_id(key.decode().split("/")[2])

    def sleep(self, milliseconds: int) -> None:
        """Advance the clock, and fire every timer at its time."""
        until = self.mono + milliseconds
        while due := sorted((at, str(key), key) for key, at in self.timers.items() if at <= until):
            at, _, key = due[0]
            self.clock.move_to(max(self.mono, at))
            del self.timers[key]
            self.tell("on_timer", key)
        self.clock.move_to(until)

    def run_jobs(self) -> None:
        """Match patterns, as they are requested."""
        while self.jobs:
            job = self.jobs.pop(0)
            self.tell("on_regexes_resolved", job.group_id, resolve_all(job))

    def change_topics(self, **counts: int) -> None:
        """Set the partitions of topics; 0 deletes a topic."""
        for name, count in counts.items():
            if count:
                self.topics.counts[name] = count
            else:
                self.topics.counts.pop(name, None)
                self.topics.generations[name] += 1
        self.topics.version += 1
        self.tell("on_topics_changed", tuple(counts))

    def fail_over(self) -> None:
        """Depose the coordinator, and elect another, which finds the nodes."""
        self.tell("unload")
        assert not any(member.connection for member in self.members.values()), "it has not hung up all channels"
        self.open.clear()
        self.timers.clear()
        self.jobs.clear()
        self.epoch += 1
        self.coordinator = CentralCoordinator(self.config, self.topics)
        self.tell("load", self.stored_groups(), self.epoch)

    def stored_groups(self) -> list[StoredGroup]:
        """The groups that a new coordinator finds: of the offsets it knows whether they were written for the present topics."""
        return [self._with_offsets(found) for found in _found_groups(self.nodes)]

    def _with_offsets(self, found: StoredGroup) -> StoredGroup:
        offsets, outdated = {}, set()
        for partition, offset in self.stored_offsets(found.group_id).items():
            topic_id = self.topics.topic_id(partition.topic)
            written_for = self.written_for[f"{found.group_id}/offsets/{partition.topic}/{partition.partition}"]
            if topic_id is None or written_for != topic_id:
                outdated.add(partition)
            else:
                offsets[partition] = CommittedOffset(offset, topic_id)
        return replace(found, offsets=offsets, outdated=frozenset(outdated))

    # Connections.

    def _on(self, connection: int) -> list[Member]:
        return [member for member in self.members.values() if member.connection == connection]

    def _close(self, connection: int) -> None:
        for member in self._on(connection):
            member.connection = None
            member.inbox.clear()

    def lose_channel(self, member_id: str) -> None:
        """Break a member's connection."""
        connection = self.members[member_id].connection
        assert connection is not None
        self._close(connection)
        self.tell("on_disconnect", connection)

    # Members.

    def register(self, member_id: str, *, group: str = "g", again: Member | None = None, **fields: Any) -> Any:
        """Register a member on a new connection; return the response, ``None`` if it waits."""
        ticket = self.send_register(member_id, group=group, again=again, **fields)
        answer, member = self.replies.get(ticket), self.members.get(member_id)
        if member is not None and answer is not None and 0 <= member.generation < answer.generation:
            member.own = answer.generation
        return answer

    def send_register(self, member_id: str, *, group: str = "g", again: Member | None = None, **fields: Any) -> int:
        """Register a member on a new connection; return the ticket."""
        member = again or Member(member_id, group)
        topics = fields.pop("topics", {"orders": 1})
        request = register_request.RegisterRequest(
            group_id=group,
            member_id=member_id,
            incarnation=fields.pop("incarnation", member.incarnation),
            session_timeout_ms=fields.pop("session", 9_000),
            rebalance_timeout_ms=fields.pop("rebalance", 30_000),
            assignor=fields.pop("assignor", "range"),
            topics=tuple(register_request.Subscription(topic=topic, streams=streams) for topic, streams in topics.items()),
            pattern=fields.pop("pattern", None),
            streams=fields.pop("streams", 1),
            coordinator_epoch=fields.pop("epoch", member.epoch),
            generation=fields.pop("generation", member.generation),
            owned_topics=owned_topics(fields.pop("held", member.held)),
            own_generation=fields.pop("own", member.own),
        )
        connection = fields.pop("connection", None) or next(self._connections)
        assert not fields
        if request.topics or request.pattern is not None:
            self.members[member_id] = member
            member.connection, member.inbox = connection, []
        return self.ask(Api.REGISTER, request, connection=connection)

    def leave(self, member_id: str, **fields: Any) -> Any:
        member = self.members[member_id]
        request = leave_request.LeaveRequest(
            group_id=member.group_id,
            member_id=member_id,
            coordinator_epoch=fields.pop("epoch", self.epoch),
            generation=fields.pop("generation", member.generation),
            reason=fields.pop("reason", None),
        )
        connection = fields.pop("connection", member.connection)
        assert not fields
        return self.replies.get(self.ask(Api.LEAVE, request, connection=connection))

    def received(self, member_id: str) -> list[Api]:
        """The requests that wait in a member's channel."""
        return [push.api for push in self.members[member_id].inbox]

    def take(self, member_id: str) -> Push:
        """Take the next request out of a member's channel."""
        return self.members[member_id].inbox.pop(0)

    def answer(self, push: Push, **changes: Any) -> None:
        """Answer a request as its member does, or with other fields."""
        connection = changes.pop("connection", push.connection)
        correlation_id = changes.pop("correlation_id", push.correlation_id)
        message = push.message
        fields = {
            "error_code": ErrorCode.none,
            "group_id": message.group_id,
            "member_id": message.member_id,
            "coordinator_epoch": message.coordinator_epoch,
            "generation": message.generation,
            **changes,
        }
        ticket = self.ask(push.api, ANSWERS[push.api](**fields), connection=connection, correlation_id=correlation_id)
        assert ticket in self.silent, "an answer gets no response"

    def obey(self, *member_ids: str) -> None:
        """Let members (all by default) do what they were asked, and answer, until no request is left."""
        chosen = member_ids or tuple(self.members)
        while waiting := [self.members[one] for one in chosen if self.members[one].inbox]:
            self.obey_next(waiting[0])

    def obey_next(self, member: Member) -> None:
        """Let a member do what it was asked first, and answer."""
        push = member.inbox.pop(0)
        member.epoch = push.message.coordinator_epoch
        if push.api is Api.STOP:
            member.held, member.generation = {}, push.message.generation
        elif push.api is Api.START:
            member.held, member.generation = share_of(push), push.message.generation
            member.own = member.generation
        self.answer(push)

    # Other requests.

    def commit(self, member_id: str, generation: int, offset: int = 10, *, group: str = "g", **topics: int) -> int:
        """Commit an offset of one partition of each topic (topic=partition); return the ticket."""
        partitions = {topic: (partition,) for topic, partition in (topics or {"orders": 0}).items()}
        return self.commit_all(member_id, generation, offset, partitions, group)

    def commit_all(
        self, member_id: str, generation: int, offset: int, partitions: Mapping[str, Iterable[int]], group: str = "g"
    ) -> int:
        """Commit an offset of partitions; return the ticket."""
        request = offset_commit_request.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            retention_time_ms=-1,
            topics=tuple(
                offset_commit_request.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=None,
                    partitions=tuple(
                        offset_commit_request.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata="note"
                        )
                        for partition in numbers
                    ),
                )
                for topic, numbers in partitions.items()
            ),
        )
        return self.ask(Api.OFFSET_COMMIT, request)

    def committed(self, member_id: str, generation: int, offset: int = 10, **topics: int) -> ErrorCode:
        """Commit an offset; return the error code of its first partition."""
        return code_of(self.replies[self.commit(member_id, generation, offset, **topics)])

    def fetch(self, group: str = "g") -> dict[TopicPartition, int]:
        """Fetch all committed offsets of a group."""
        one = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=None)
        answer = self.replies[self.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(one,)))]
        (found,) = answer.groups
        assert found.error_code is ErrorCode.none
        return {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in found.topics
            for partition in topic.partitions
        }

    def delete(self, group: str = "g") -> ErrorCode:
        request = delete_groups_request.DeleteGroupsRequest(groups_names=(group,))
        (result,) = self.replies[self.ask(Api.DELETE_GROUPS, request)].results
        code: ErrorCode = result.error_code
        return code

    def delete_offset(self, topic: str, partition: int, group: str = "g") -> ErrorCode:
        part = offset_delete_request.OffsetDeleteRequestPartition(partition_index=partition)
        named = offset_delete_request.OffsetDeleteRequestTopic(name=topic, partitions=(part,))
        request = offset_delete_request.OffsetDeleteRequest(group_id=group, topics=(named,))
        answer = self.replies[self.ask(Api.OFFSET_DELETE, request)]
        code: ErrorCode = answer.error_code or answer.topics[0].partitions[0].error_code
        return code

    def describe(self, group: str = "g") -> Any:
        request = describe_groups_request.DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)
        (described,) = self.replies[self.ask(Api.DESCRIBE_GROUPS, request)].groups
        return described

    def listed(self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, tuple[str, str, bool]]:
        request = list_groups_request.ListGroupsRequest(states_filter=states, types_filter=types)
        return {one.group_id: (one.group_state, one.group_type, one.is_central) for one in self.coordinator.list_groups(request)}

    # Queries.

    def group(self, group_id: str = "g") -> CentralGroup:
        return self.coordinator.groups()[group_id]

    def state(self, group_id: str = "g") -> CentralGroupState:
        return self.group(group_id).state

    def node(self, group_id: str = "g") -> GenerationNode:
        """The stored generation of a group."""
        path = f"{group_id}/generation"
        return GenerationNode.decode(self.nodes[path], path)

    def stored_owners(self, group_id: str = "g") -> dict[str, str]:
        prefix = f"{group_id}/owners/"
        return {path[len(prefix) :]: data.decode() for path, data in self.nodes.items() if path.startswith(prefix)}

    def stored_offsets(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {partition: int(data) for partition, data in _below(self.nodes, group_id, "offsets")}

    def outdated(self, group_id: str = "g") -> set[TopicPartition]:
        """The partitions whose stored offset is that of a topic that was deleted before the election."""
        served = self.coordinator._runtime.served(0)
        return set() if served is None else set(served.shard.state.outdated(group_id))

    def holdings(self) -> dict[str, list[str]]:
        """What each member holds."""
        return {one.member_id: [f"{topic}/{n}" for topic, n in sorted(one.held)] for one in self.members.values()}


def stable(*member_ids: str, **config: Any) -> Central:
    """A coordinator with a stable group of these members."""
    central = Central(**config)
    for member_id in member_ids:
        central.register(member_id)
        central.obey()
    return central


def share_of(push: Push) -> dict[TopicPartition, int]:
    """The share in a Start."""
    return {TopicPartition(topic.topic, one.partition): one.thread for topic in push.message.topics for one in topic.partitions}


def code_of(answer: Any) -> ErrorCode:
    """The error code of the first partition of a response to OffsetCommit."""
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def _found_groups(nodes: Mapping[str, bytes]) -> list[StoredGroup]:
    """The groups that a new coordinator finds, without their offsets."""
    groups = []
    for path in [path for path in nodes if path.endswith("/generation") and path.count("/") == 1]:
        group_id = path.split("/")[0]
        try:
            node, is_malformed = GenerationNode.decode(nodes[path], path), False
        except ProtocolError:
            node, is_malformed = GenerationNode(0, 1, 1_800_000, 0), True
        owners = {partition: data.decode() for partition, data in _below(nodes, group_id, "owners")}
        groups.append(
            StoredGroup(
                group_id=group_id,
                generation=node.generation,
                members=node.members,
                session_timeout_ms=node.session_timeout_ms,
                epoch=node.epoch,
                owners=owners,
                offsets={},
                processes=node.processes,
                is_malformed=is_malformed,
            )
        )
    return groups


def _below(nodes: Mapping[str, bytes], group_id: str, folder: str) -> list[tuple[TopicPartition, bytes]]:
    found = [(path.split("/"), data) for path, data in nodes.items() if path.startswith(f"{group_id}/{folder}/")]
    return [(TopicPartition(parts[2], int(parts[3])), data) for parts, data in found]


def owned_topics(held: Mapping[TopicPartition, int]) -> tuple[Any, ...]:
    """What a member holds, as a Register says it."""
    topics: dict[str, list[Any]] = {}
    for (topic, partition), thread in held.items():
        topics.setdefault(topic, []).append(register_request.OwnedPartition(partition=partition, thread=thread))
    return tuple(register_request.OwnedTopic(topic=topic, partitions=tuple(parts)) for topic, parts in topics.items())
