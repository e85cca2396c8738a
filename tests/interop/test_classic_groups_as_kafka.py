"""The same requests of classic groups to Apache Kafka and to Ottla's broker: the members get the same responses.

A seed and the responses determine what members do. Each member has its own connections, because JoinGroup and SyncGroup requests
are parked. The test compares the responses on each connection, in order, after a request that has to wait for all others has its
response. Member ids are replaced by member and time. Kafka chooses an arbitrary member when the leader is gone; then an exchange
ends.
"""

from __future__ import annotations

import random
import select
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import Subscription, encode_subscription
from ottla.protocol.messages import (
    delete_groups_request,
    describe_groups_request,
    find_coordinator_request,
    heartbeat_request,
    join_group_request,
    leave_group_request,
    list_groups_request,
    offset_commit_request,
    offset_delete_request,
    offset_fetch_request,
    sync_group_request,
)
from tests.interop.comparison import Comparison
from tests.interop.other_clients import create_topic
from tests.raw_client import RawClient

_RUN = uuid.uuid4().hex[:8]
TOPICS = (f"{_RUN}-a", f"{_RUN}-b")
"""New ones, as the real Kafka is shared."""
SUBSCRIPTIONS = [encode_subscription(Subscription(topics)) for topics in (TOPICS[:1], TOPICS)]
PROTOCOLS = [
    {"range": SUBSCRIPTIONS[0], "sticky": SUBSCRIPTIONS[0]},
    {"range": SUBSCRIPTIONS[1], "sticky": SUBSCRIPTIONS[0]},
    {"range": SUBSCRIPTIONS[0]},
    {"sticky": SUBSCRIPTIONS[1]},
    {"other": SUBSCRIPTIONS[0]},
]
"""No two of them vote against each other: where that ends in a draw Kafka decides by the hash of names."""
UNKNOWN_MEMBER = "unknown"
WAITS = "a parked member"
"""The name of a member that does not know its id yet."""
PARKED = (Api.JOIN_GROUP, Api.SYNC_GROUP)
"""The requests whose answers may come later."""


class Line:
    """One connection of a member, and which of its requests have no answer yet."""

    def __init__(self, servers: str) -> None:
        self.client = RawClient(servers)
        self.due: list[tuple[Api, int]] = []

    def received(self) -> Iterator[tuple[Api, Any]]:
        """What has come since."""
        while self.due and select.select([self.client.sock], [], [], 0 if self.due[0][0] in PARKED else 5.0)[0]:
            api, version = self.due.pop(0)
            yield api, self.client.receive(api, version)[1]


class Side:
    """One of the two brokers, and how its answers look when everything that may differ is left out."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._control = RawClient(servers)
        for topic in TOPICS:
            create_topic(servers, topic, 2)
        wanted = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("classic-unknown",))
        self._control.ask(Api.FIND_COORDINATOR, wanted)
        while self._beat("classic-unknown") is not ErrorCode.unknown_member_id:
            time.sleep(0.1)  # until the coordinator is there

    def use(self, group: str) -> None:
        """A new group."""
        self.group = group
        self.lines: dict[str, Line] = {}
        self.news: list[tuple[str, Api, Any]] = []
        self._newest: tuple[int, str] | None = None
        self._names: dict[str, str] = {"": "", UNKNOWN_MEMBER: UNKNOWN_MEMBER}

    def close(self) -> None:
        """Close all connections."""
        for line in self.lines.values():
            line.client.sock.close()

    def hang_up(self, line: str) -> None:
        """A connection ends."""
        if line in self.lines:
            self.lines.pop(line).client.sock.close()

    def id_of(self, name: str) -> str:
        """The member id that goes by a name here."""
        return next(member_id for member_id, one in self._names.items() if one == name)

    # What members send; the answers come by ``heard``.

    def join(self, line: str, member: str, instance: str | None, protocols: dict[str, bytes], version: int, kind: str) -> None:
        request = join_group_request.JoinGroupRequest(
            group_id=self.group,
            session_timeout=timedelta(seconds=60),
            rebalance_timeout=timedelta(seconds=60),
            member_id=self.id_of(member),
            group_instance_id=instance if version >= 5 else None,
            protocol_type=kind,
            protocols=tuple(
                join_group_request.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols.items()
            ),
        )
        self._send(line, Api.JOIN_GROUP, request, version)

    def sync(self, line: str, member: str, instance: str | None, generation: int, given: dict[str, bytes], **fields: Any) -> None:
        request = sync_group_request.SyncGroupRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=self.id_of(member),
            group_instance_id=instance,
            assignments=tuple(
                sync_group_request.SyncGroupRequestAssignment(member_id=self.id_of(name), assignment=share)
                for name, share in given.items()
            ),
            **fields,
        )
        self._send(line, Api.SYNC_GROUP, request, 5 if fields else 4)

    def heartbeat(self, line: str, member: str, instance: str | None, generation: int) -> None:
        request = heartbeat_request.HeartbeatRequest(
            group_id=self.group, generation_id=generation, member_id=self.id_of(member), group_instance_id=instance
        )
        self._send(line, Api.HEARTBEAT, request, 4)

    def leave(self, line: str, identities: list[tuple[str, str | None]], version: int) -> None:
        members = tuple(
            leave_group_request.MemberIdentity(member_id=self.id_of(name), group_instance_id=instance)
            for name, instance in identities
        )
        self._send(line, Api.LEAVE_GROUP, leave_group_request.LeaveGroupRequest(group_id=self.group, members=members), version)

    def _send(self, line: str, api: Api, request: Any, version: int) -> None:
        if line not in self.lines:
            self.lines[line] = Line(self._servers)
        self.lines[line].due.append(self.lines[line].client.send(api, request, version))

    # What has come of it.

    def heard(self) -> list[tuple[str, Any]]:
        """What has come on all lines and was not taken up yet, line by line."""
        for _ in range(2):  # the first may overtake what was sent on another connection
            self._beat(self.group)
        came = [(name, api, answer) for name, line in self.lines.items() for api, answer in line.received()]
        for name, api, answer in came:
            if api is Api.JOIN_GROUP and answer.member_id not in self._names:
                self._names[answer.member_id] = self._new_name(name)
        self.news += came
        return sorted(((name, self._seen(api, answer)) for name, api, answer in self.news), key=lambda one: one[0])

    def _new_name(self, line: str) -> str:
        who = line.split("/")[0]
        return f"{who}#{sum(name.startswith(f'{who}#') for name in self._names.values())}"

    def _seen(self, api: Api, answer: Any) -> Any:
        error = answer.error_code.name
        match api:
            case Api.JOIN_GROUP:
                members = [(self._name(one.member_id), one.group_instance_id, one.metadata) for one in answer.members]
                return {
                    "join": error,
                    "member": self._name(answer.member_id),
                    "leader": self._name(answer.leader),
                    "chosen": (answer.generation_id, answer.protocol_type, answer.protocol_name),
                    "members": sorted(members, key=str),
                    "skip": answer.skip_assignment,
                }
            case Api.SYNC_GROUP:
                return {"sync": error, "chosen": (answer.protocol_type, answer.protocol_name), "share": answer.assignment}
            case Api.LEAVE_GROUP:
                each = [(self._name(one.member_id), one.group_instance_id, one.error_code.name) for one in answer.members]
                return {"leave": error, "each": each}
        return {"heartbeat": error}

    def _name(self, member_id: str) -> str:
        return self._names.get(member_id, WAITS)

    def _beat(self, group: str) -> ErrorCode:
        request = heartbeat_request.HeartbeatRequest(group_id=group, generation_id=1, member_id=UNKNOWN_MEMBER)
        error = self._control.ask(Api.HEARTBEAT, request).error_code
        assert isinstance(error, ErrorCode)
        return error

    # What is answered at once.

    def describe(self, version: int) -> Any:
        request = describe_groups_request.DescribeGroupsRequest(groups=(self.group,), include_authorized_operations=True)
        (result,) = self._control.ask(Api.DESCRIBE_GROUPS, request, version).groups
        members = [
            (
                *(self._name(one.member_id), one.group_instance_id, one.client_id, one.client_host),
                *(one.member_metadata, one.member_assignment),
            )
            for one in result.members
        ]
        head = (result.error_code.name, result.error_message, result.group_state, result.protocol_type, result.protocol_data)
        return head, result.authorized_operations, sorted(members, key=str)

    def leader(self) -> str | None:
        """The leader of the newest generation in an answer."""
        joined = [answer for _, api, answer in self.news if api is Api.JOIN_GROUP and answer.error_code is ErrorCode.none]
        generations = [(answer.generation_id, self._name(answer.leader)) for answer in joined]
        self._newest = max([*generations, self._newest or (-1, "")])
        return self._newest[1] or None

    def listed(self) -> Any:
        answer = self._control.ask(Api.LIST_GROUPS, list_groups_request.ListGroupsRequest(states_filter=(), types_filter=()))
        return [(one.protocol_type, one.group_state, one.group_type) for one in answer.groups if one.group_id == self.group]

    def commit(self, member: str, instance: str | None, generation: int, version: int, topic: str) -> Any:
        parts = tuple(
            offset_commit_request.OffsetCommitRequestPartition(
                partition_index=number, committed_offset=generation, committed_metadata="m" * (5000 if number == 1 else 1)
            )
            for number in range(3)
        )
        request = offset_commit_request.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=self.id_of(member),
            group_instance_id=instance if version >= 7 else None,
            topics=(offset_commit_request.OffsetCommitRequestTopic(name=topic, partitions=parts),),
        )
        answer = self._control.ask(Api.OFFSET_COMMIT, request, version)
        return sorted((one.partition_index, one.error_code.name) for topic in answer.topics for one in topic.partitions)

    def fetch(self, version: int) -> Any:
        wanted = offset_fetch_request.OffsetFetchRequestGroup(group_id=self.group, topics=None)
        request = offset_fetch_request.OffsetFetchRequest(groups=(wanted,), require_stable=True)
        (result,) = self._control.ask(Api.OFFSET_FETCH, request, version).groups
        found = [(topic.name, one.partition_index, one.committed_offset) for topic in result.topics for one in topic.partitions]
        return result.error_code.name, sorted(found)

    def delete(self) -> Any:
        answer = self._control.ask(Api.DELETE_GROUPS, delete_groups_request.DeleteGroupsRequest(groups_names=(self.group,)))
        return [one.error_code.name for one in answer.results]

    def delete_offsets(self, topic: str) -> Any:
        parts = tuple(offset_delete_request.OffsetDeleteRequestPartition(partition_index=number) for number in range(3))
        topics = (offset_delete_request.OffsetDeleteRequestTopic(name=topic, partitions=parts),)
        answer = self._control.ask(
            Api.OFFSET_DELETE, offset_delete_request.OffsetDeleteRequest(group_id=self.group, topics=topics), 0
        )
        each = sorted((one.partition_index, one.error_code.name) for topic in answer.topics for one in topic.partitions)
        return answer.error_code.name, each


@pytest.fixture(scope="module")
def comparison(real_kafka: str) -> Iterator[Comparison[Side]]:
    with Broker() as broker:
        yield Comparison(Side(real_kafka), Side(broker.bootstrap_servers))


class Member:
    """What a member knows of itself."""

    def __init__(self, name: str, instance: str | None, protocols: dict[str, bytes], version: int) -> None:
        self.name, self.instance, self.protocols, self.version = name, instance, protocols, version
        self.member, self.generation = "", -1
        self.led: list[str] = []
        """Whom it has to give something, as the leader."""
        self.chosen: tuple[Any, Any] = (None, None)
        self.waits = ""
        """What it has asked that is not answered."""
        self._lines = 0

    @property
    def expected(self) -> bool:
        """Whether it was given an id, and has not joined yet."""
        return bool(self.member) and self.generation < 0 and not self.waits

    @property
    def line(self) -> str:
        return f"{self.name}/{self._lines}"

    def connect_again(self) -> None:
        """What has not come yet never will."""
        self._lines += 1
        self.waits = ""

    def take(self, news: list[tuple[str, Any]]) -> None:
        """Take up what came on its present connection."""
        for answer in [answer for line, answer in news if line == self.line]:
            self.waits = ""
            if "join" in answer and answer["join"] in ("none", "member_id_required"):
                self.member = answer["member"]
                self.generation, *self.chosen = answer["chosen"] if answer["join"] == "none" else (-1, None, None)  # type: ignore[assignment]
                self.led = [name for name, _, _ in answer["members"]]
            elif next(iter(answer.values())) in ("unknown_member_id", "fenced_instance_id", "group_max_size_reached"):
                self.member, self.generation = "", -1


ACTS = (
    *("come", "come", "join", "join", "join", "sync", "sync", "sync", "sync", "sync", "heartbeat", "leave", "commit", "commit"),
    *("change", "restart", "impatient", "describe", "describe", "list", "fetch", "delete", "delete offsets", "stranger", "remove"),
)

OF_OTHERS = ("restart", "impatient", "describe", "list", "fetch", "delete", "delete offsets", "stranger", "remove")
"""What can happen while a member waits for an answer. Kafka takes one request of a connection at a time."""


class RandomGroup:
    """Some members of one group, whose acts are drawn from a seed."""

    def __init__(self, comparison: Comparison[Side], seed: int) -> None:
        self.comparison = comparison
        self.chance = random.Random(seed)
        self.members: list[Member] = []
        self.gone: list[str] = []
        """Members that were killed, and that the group still counts."""
        self.group = f"classic-{seed}-{uuid.uuid4()}"
        comparison.said.clear()
        comparison.tell("use", self.group)

    def step(self) -> bool:
        """One act and what comes of it; whether the dialogue goes on."""
        chance = self.chance
        act = chance.choice(ACTS)
        if act == "come" or not self.members:
            version = chance.choice([0, 1, 3, 4, 5, 7, 9, 9, 9])
            instance = chance.choice([None, None, "i1", "i2"]) if version >= 5 else None
            protocols = chance.choice([*PROTOCOLS[:2] * 3, *PROTOCOLS])
            self.members.append(Member(f"m{len(self.members)}", instance, protocols, version))
            self._join(self.members[-1])
            if not self._take_news():
                return False
            if self.members[-1].expected and self._is_empty():
                if self.gone or sum(one.expected for one in self.members) > 1:
                    return False
                self._join(self.members[-1])
        else:
            self._act(act, chance.choice(self.members[-5:]))
        return self._take_news()

    def _is_empty(self) -> bool:
        """Whether the first of the group joins: Kafka does not wait for others that were given an id, not even a moment."""
        return self.comparison.kafka.describe(6)[0][2] not in ("Stable", "PreparingRebalance", "CompletingRebalance")

    def _take_news(self) -> bool:
        news = self.comparison.ask_until_same("heard", unless=self._leaders_differ)
        if news is None:
            return False
        for one in self.members:
            one.take(news)
        for side in (self.comparison.kafka, self.comparison.ours):
            side.news.clear()
        # Who waits for an answer cannot tell whether its request has arrived, and the next one takes another connection.
        waits = any(one.waits for one in self.members)
        return not waits or self.comparison.ask_until_same("describe", 6, unless=self._leaders_differ) is not None

    def _leaders_differ(self) -> bool:
        leaders = (self.comparison.kafka.leader(), self.comparison.ours.leader())
        return None not in leaders and leaders[0] != leaders[1]

    def _join(self, one: Member, kind: str = "consumer") -> None:
        self._send("join", one, one.member, one.instance, one.protocols, one.version, kind)

    def _connect_again(self, one: Member) -> None:
        self.comparison.tell("hang_up", one.line)
        one.connect_again()

    def _send(self, what: str, one: Member, *args: Any, **fields: Any) -> None:
        one.waits = what
        self.comparison.tell(what, one.line, *args, **fields)

    def _act(self, act: str, one: Member) -> None:
        chance, comparison = self.chance, self.comparison
        if one.waits and act not in OF_OTHERS:
            return
        match act:
            case "join":
                self._join(one, chance.choice(["consumer"] * 9 + ["connect"]))
            case "change":
                one.protocols = chance.choice(PROTOCOLS)
                self._join(one)
            case "restart":
                if one.instance is None and one.member:
                    self.gone.append(one.member)
                self._connect_again(one)
                one.member, one.generation = "", -1
                self._join(one)
            case "impatient":
                self._connect_again(one)
                self._join(one)
            case "sync":
                given = {name: b"for " + name.encode() for name in one.led if name != WAITS and chance.random() < 0.95}
                named = dict(zip(("protocol_type", "protocol_name"), one.chosen, strict=True)) if one.version >= 7 else {}
                if named and chance.random() < 0.1:
                    named["protocol_name"] = chance.choice(["other", None])
                generation = one.generation - chance.choice([0] * 9 + [1])
                self._send("sync", one, one.member, one.instance, generation, given, **named)
            case "heartbeat":
                self._send("heartbeat", one, one.member, one.instance, one.generation - chance.choice([0, 0, 0, 1]))
            case "leave" if one.member:
                version = chance.choice([1, 3, 5])
                self._send("leave", one, [(one.member, one.instance if version >= 3 else None)], version)
            case "remove":
                gone = [(name, None) for name in self.gone]
                # Of a member that waits for its share Kafka forgets the request, and never answers it.
                others = [other for other in self.members[-2:] if other.waits != "sync"]
                some = [(chance.choice([other.member, ""]), other.instance) for other in others if chance.random() < 0.3]
                comparison.tell("leave", "administrator", [*gone, *some, (UNKNOWN_MEMBER, None), ("", "i9")], 5)
                self.gone.clear()
            case "stranger":
                comparison.tell("heartbeat", "stranger", UNKNOWN_MEMBER, one.instance, one.generation)
                comparison.tell("sync", "another stranger", UNKNOWN_MEMBER, None, one.generation, {})
            case "commit":
                generation = chance.choice([one.generation, one.generation, one.generation - 1, -1])
                who = chance.choice([(one.member, one.instance)] * 3 + [("", None), (UNKNOWN_MEMBER, None)])
                comparison.ask("commit", *who, generation, chance.choice([2, 6, 7, 8, 9]), chance.choice([*TOPICS, "absent"]))
            case "fetch":
                comparison.ask("fetch", chance.choice([7, 8, 9]))
            case "describe":
                comparison.ask_until_same("describe", chance.choice([0, 4, 5, 6]))
            case "list":
                comparison.ask_until_same("listed")
            case "delete":
                comparison.ask_until_same("listed")
                comparison.ask("delete")
            case "delete offsets":
                comparison.ask("delete_offsets", chance.choice([*TOPICS, "absent"]))


def play(comparison: Comparison[Side], seed: int, steps: int = 60) -> None:
    """One dialogue from its seed."""
    dialogue = RandomGroup(comparison, seed)
    try:
        for _ in range(steps):
            if not dialogue.step():
                return
        comparison.ask_until_same("describe", 6)
    finally:
        comparison.tell("close")


@pytest.mark.parametrize("seed", range(6))
def test_a_dialogue(comparison: Comparison[Side], seed: int) -> None:
    play(comparison, seed)


@pytest.mark.interop
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1_000, 1_300, 30))
def test_many_dialogues(comparison: Comparison[Side], seed: int) -> None:
    for one in range(seed, seed + 30):
        play(comparison, one)
