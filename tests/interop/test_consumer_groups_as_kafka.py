"""The same requests of consumer groups (KIP-848) to Apache Kafka and to Ottla's broker: the members get the same responses.

A seed and Kafka's responses determine what members do. Topic ids differ, so topics are compared by name. The group uses ``range``,
whose assignment is unique. The test avoids two errors of Apache Kafka 4.3.1: it assigns partitions to members without topics, and
it forgets partitions whose revocation it has requested from a member that then unsubscribes from their topic.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol import ErrorCode, duration, milliseconds
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consumer_group_describe_request,
    consumer_group_heartbeat_request,
    create_topics_request,
    delete_groups_request,
    find_coordinator_request,
    incremental_alter_configs_request,
    leave_group_request,
    metadata_request,
    offset_commit_request,
    offset_fetch_request,
)
from tests.interop.comparison import Comparison
from tests.raw_client import RawClient

TOPICS = {"like-a": 4, "like-b": 2, "like-c": 3}
GROUP_RESOURCE = 32
Share = dict[str, list[int]]


class Side:
    """One of the two brokers, and how its answers look when everything that may differ is left out."""

    def __init__(self, servers: str) -> None:
        self.client = RawClient(servers)
        created = create_topics_request.CreateTopicsRequest(
            topics=tuple(
                create_topics_request.CreatableTopic(
                    name=name, num_partitions=count, replication_factor=1, assignments=(), configs=()
                )
                for name, count in TOPICS.items()
            ),
            timeout=timedelta(seconds=10),
            validate_only=False,
        )
        self.client.ask(Api.CREATE_TOPICS, created)
        self.ids: dict[str, uuid.UUID] = {}
        while self.ids.keys() < TOPICS.keys():
            asked = metadata_request.MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            found = self.client.ask(Api.METADATA, asked)
            self.ids = {one.name: one.topic_id for one in found.topics if one.name in TOPICS}
        self.client.ask(
            Api.FIND_COORDINATOR, find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("like-unknown",))
        )
        while self.heartbeat("like-unknown", "m", -1)["error"] is not ErrorCode.group_id_not_found:
            time.sleep(0.1)  # until the coordinator is there

    def use(self, group: str) -> None:
        """A new group whose target is recreated at once. Settings take effect in their order, but a little later: one group more
        shows when they have."""
        self._set_interval(group)
        first = {"owned": {}, "rebalance": 300_000, "assignor": "range"}
        while True:
            probe = f"like-probe-{uuid.uuid4()}"
            self._set_interval(probe)
            self.heartbeat(probe, "p", 0, topics=("like-a",), **first)
            self.heartbeat(probe, "p", -1)
            if self.heartbeat(probe, "p", 0, topics=("like-b",), **first)["share"]:
                break
            time.sleep(0.1)

    def _set_interval(self, group: str) -> None:
        setting = incremental_alter_configs_request.AlterableConfig(
            name="consumer.assignment.interval.ms", config_operation=0, value="0"
        )
        resource = incremental_alter_configs_request.AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configs=(setting,)
        )
        request = incremental_alter_configs_request.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        (answer,) = self.client.ask(Api.INCREMENTAL_ALTER_CONFIGS, request).responses
        assert answer.error_code is ErrorCode.none, answer

    def heartbeat(self, group: str, member_id: str, epoch: int, **fields: Any) -> dict[str, Any]:
        owned: Share | None = fields.pop("owned", None)
        request = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=fields.pop("instance", None),
            rack_id=fields.pop("rack", None),
            rebalance_timeout=duration(fields.pop("rebalance", -1)),
            subscribed_topic_names=fields.pop("topics", None),
            server_assignor=fields.pop("assignor", None),
            topic_partitions=None
            if owned is None
            else tuple(
                consumer_group_heartbeat_request.TopicPartitions(topic_id=self.ids[name], partitions=tuple(numbers))
                for name, numbers in owned.items()
            ),
        )
        assert not fields
        answer = self.client.ask(Api.CONSUMER_GROUP_HEARTBEAT, request)
        return {
            "error": answer.error_code,
            "message": answer.error_message,
            "member": answer.member_id,
            "epoch": answer.member_epoch,
            "has_interval": milliseconds(answer.heartbeat_interval) > 0,
            "share": None if answer.assignment is None else self.named(answer.assignment),
        }

    def named(self, assignment: Any) -> Share:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return {names[one.topic_id]: sorted(one.partitions) for one in assignment.topic_partitions}

    def describe(self, group: str) -> Any:
        request = consumer_group_describe_request.ConsumerGroupDescribeRequest(
            group_ids=(group,), include_authorized_operations=True
        )
        (result,) = self.client.ask(Api.CONSUMER_GROUP_DESCRIBE, request).groups
        members = [
            (
                *(one.member_id, one.instance_id, one.rack_id, one.member_epoch, one.client_id, one.client_host, one.member_type),
                *(sorted(one.subscribed_topic_names), one.subscribed_topic_regex),
                *(self.named(one.assignment), self.named(one.target_assignment)),
            )
            for one in result.members
        ]
        head = (
            result.error_code,
            result.error_message,
            result.group_state,
            result.group_epoch,
            result.assignment_epoch,
            result.assignor_name,
        )
        return head, result.authorized_operations, sorted(members, key=str)

    def commit(self, group: str, member_id: str, epoch: int, share: Share, version: int) -> list[Any]:
        request = offset_commit_request.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=tuple(
                offset_commit_request.OffsetCommitRequestTopic(
                    name=name,
                    topic_id=self.ids.get(name),
                    partitions=tuple(
                        offset_commit_request.OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=epoch, committed_metadata=""
                        )
                        for number in numbers
                    ),
                )
                for name, numbers in share.items()
            ),
        )
        answer = self.client.ask(Api.OFFSET_COMMIT, request, version)
        return [(one.partition_index, one.error_code) for topic in answer.topics for one in topic.partitions]

    def fetch(self, group: str, member_id: str | None, epoch: int) -> Any:
        topics = tuple(
            offset_fetch_request.OffsetFetchRequestTopics(name=name, partition_indexes=(0, 1)) for name in (*TOPICS, "like-absent")
        )
        wanted = offset_fetch_request.OffsetFetchRequestGroup(
            group_id=group, member_id=member_id, member_epoch=epoch, topics=topics
        )
        request = offset_fetch_request.OffsetFetchRequest(groups=(wanted,), require_stable=True)
        (result,) = self.client.ask(Api.OFFSET_FETCH, request, 9).groups
        found = [(topic.name, one.partition_index, one.committed_offset) for topic in result.topics for one in topic.partitions]
        return result.error_code, sorted(found)

    def remove(self, group: str, *identities: tuple[str, str | None]) -> Any:
        members = tuple(
            leave_group_request.MemberIdentity(member_id=member_id, group_instance_id=instance)
            for member_id, instance in identities
        )
        answer = self.client.ask(Api.LEAVE_GROUP, leave_group_request.LeaveGroupRequest(group_id=group, members=members))
        return answer.error_code, [(one.member_id, one.group_instance_id, one.error_code) for one in answer.members]

    def delete(self, group: str) -> list[ErrorCode]:
        answer = self.client.ask(Api.DELETE_GROUPS, delete_groups_request.DeleteGroupsRequest(groups_names=(group,)))
        return [one.error_code for one in answer.results]


@pytest.fixture(scope="module")
def comparison(real_kafka: str) -> Iterator[Comparison[Side]]:
    with Broker() as broker:
        yield Comparison(Side(real_kafka), Side(broker.bootstrap_servers))


class Member:
    """What a member knows of itself."""

    def __init__(self, member_id: str, instance: str | None, topics: tuple[str, ...]) -> None:
        self.member_id, self.instance, self.topics = member_id, instance, topics
        self.epoch = 0
        self.share: Share = {}

    def heard(self, answer: dict[str, Any]) -> None:
        if answer["error"] is not ErrorCode.none:
            return
        self.epoch = max(answer["epoch"], 0)
        self.share = self.share if answer["share"] is None else answer["share"]


SUBSCRIPTIONS = (("like-a",), ("like-a", "like-b"), ("like-b", "like-c"), tuple(TOPICS), ("like-a", "like-absent"))
ACTS: tuple[str, ...] = (
    "join",
    "join",
    "beat",
    "beat",
    "acknowledge",
    "acknowledge",
    "acknowledge",
    "say_all",
    "give_up_some",
    "old",
    "leave",
    "pause",
)
ACTS += ("resubscribe", "join_again", "commit", "commit", "fetch", "describe", "remove", "delete")


@pytest.mark.parametrize("seed", range(12))
def test_a_dialogue(comparison: Comparison[Side], seed: int) -> None:
    chance = random.Random(seed)
    group = f"like-{seed}-{uuid.uuid4()}"
    comparison.kafka.use(group)
    comparison.ours.use(group)
    comparison.said.clear()
    members: list[Member] = []
    for number in range(70):
        act = chance.choice(ACTS)
        if act == "join" or not members:
            members.append(Member(f"m{number}", chance.choice([None, None, "i1", "i2"]), chance.choice(SUBSCRIPTIONS)))
            act = "join_again"
        one = chance.choice(members[-6:])
        fields: dict[str, Any] = {"instance": one.instance}
        epoch = one.epoch
        match act:
            case "acknowledge":
                fields["owned"] = one.share
            case "say_all":
                fields |= {"owned": one.share, "rebalance": 300_000, "topics": one.topics, "assignor": "range"}
            case "give_up_some":
                fields["owned"] = {name: [n for n in numbers if chance.random() < 0.5] for name, numbers in one.share.items()}
            case "old":
                epoch, fields["owned"] = max(1, epoch - 1), one.share
            case "leave":
                epoch = -1
            case "pause" if one.instance is not None:
                epoch = -2
            case "resubscribe":
                for _ in range(2):  # nothing is left to give back
                    one.heard(comparison.ask("heartbeat", group, one.member_id, one.epoch, owned=one.share, **fields))
                one.topics, epoch = chance.choice(SUBSCRIPTIONS), one.epoch
                fields |= {"topics": one.topics, "owned": chance.choice([None, one.share])}
            case "join_again":
                epoch = 0
                fields |= {"owned": {}, "rebalance": 300_000, "topics": one.topics, "assignor": "range"}
                fields["rack"] = chance.choice([None, "r1"])
            case "commit":
                share = chance.choice([one.share, {"like-a": [0, 1]}, {"like-b": [1]}]) or {"like-a": [0]}
                comparison.ask(
                    "commit", group, one.member_id, epoch - chance.choice([0, 0, 1, 2]), share, chance.choice([8, 9, 10])
                )
                continue
            case "fetch":
                comparison.ask("fetch", group, *chance.choice([(one.member_id, epoch), (one.member_id, -1), (None, -1)]))
                continue
            case "describe" | "delete":
                comparison.ask(act, group)
                continue
            case "remove":
                comparison.ask("remove", group, (one.member_id, chance.choice([None, one.instance])))
                continue
        one.heard(comparison.ask("heartbeat", group, one.member_id, epoch, **fields))
    comparison.ask("describe", group)
