"""Groups with members that change their protocol, and groups with members of both protocols."""

from __future__ import annotations

import importlib
import io
import struct
from typing import Any

import pytest
from kio.serial import entity_writer

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupState, MemberState
from ottla.coordinator.decision import rejoin_timer, resync_timer, session_timer
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    GroupMetadataUpdated,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import Assignment, Subscription, decode_assignment, encode_assignment, encode_subscription
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import DELAYED, IMMEDIATE, Harness, failing, subscription

RANGE = "range"


def orders(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def owning(*numbers: int, topics: tuple[str, ...] = ("orders",)) -> dict[str, dict[str, bytes]]:
    """The protocols of a cooperative member that owns these partitions of ``orders``."""
    return {"protocols": {RANGE: encode_subscription(Subscription(topics, owned=orders(*numbers)))}}


def of_version(version: int, *topics: str) -> bytes:
    """A subscription in the format of an older or newer client."""
    schema: Any = importlib.import_module(f"kio.schema.consumer_protocol_subscription.v{version}.data")
    owned = {"owned_partitions": ()} if version else {}
    message = schema.ConsumerProtocolSubscription(topics=topics, user_data=None, **owned)
    target = io.BytesIO()
    target.write(struct.pack(">h", version))
    entity_writer(type(message))(target, message)
    return target.getvalue()


def classic(harness: Harness, user_data: bytes | None = None, **shares: tuple[int, ...]) -> list[str]:
    """Make a stable classic group ``g`` with these partitions of ``orders`` for each client; return the member ids."""
    ids = harness.joined(*shares, session=10_000)
    given = {
        member_id: encode_assignment(Assignment(orders(*numbers), user_data))
        for member_id, numbers in zip(ids, shares.values(), strict=True)
    }
    for member_id in (*ids[1:], ids[0]):
        harness.sync(member_id, 1, given)
    assert harness.state() is ClassicGroupState.STABLE
    return ids


def mixed(harness: Harness, rebalance: int = 300_000) -> tuple[str, str]:
    """Make group ``g`` with one member of each protocol, both with their target; return the classic and the consumer member."""
    (a,) = classic(harness, A=(0, 1, 2, 3))
    harness.cg_join("c", group="g", rebalance=rebalance)
    assert rejoin(harness, a, 0, 1, 2, 3) == (1, [0, 1])
    assert rejoin(harness, a, 0, 1) == (2, [0, 1])
    answer = harness.cg_heartbeat("c", 2, group="g")
    assert harness.share_of(answer) == {"orders": [2, 3]}
    assert harness.consumer_group("g").state is ConsumerGroupState.STABLE
    return a, "c"


def rejoin(harness: Harness, member_id: str, *owned: int, **fields: Any) -> tuple[int, list[int]]:
    """Send JoinGroup and SyncGroup of a classic member of a consumer group; return its generation and partitions of ``orders``."""
    answer = harness.answer(harness.join(member_id, **owning(*owned), session=10_000, **fields))
    assert answer.error_code is ErrorCode.none
    assert (answer.leader, answer.members, answer.protocol_name) == ("", (), RANGE)
    return answer.generation_id, synced(harness, answer.member_id, answer.generation_id, **fields)


def synced(harness: Harness, member_id: str, generation: int, **fields: Any) -> list[int]:
    answer = harness.answer(harness.sync(member_id, generation, group=fields.get("group", "g"), instance=fields.get("instance")))
    assert answer.error_code is ErrorCode.none
    return sorted(partition for _, partition in decode_assignment(answer.assignment).partitions)


def durable_is_replayed(harness: Harness) -> None:
    assert harness.replayed() == harness.coordinator.durable_state()


# Upgrade.


def test_a_consumer_joins_a_live_classic_group_and_no_member_loses_a_partition() -> None:
    """The trace of a real Kafka: A and B cooperative, then C of the other protocol."""
    harness = Harness()
    a, b = classic(harness, A=(0, 2), B=(1, 3))
    written = len(harness.events())
    answer = harness.cg_join("c", group="g")
    assert (answer.member_epoch, harness.share_of(answer)) == (2, {})
    kinds = [type(event) for event in harness.events()[written:]]
    assert kinds[:9] == [
        GroupMetadataDeleted,
        MemberSubscriptionUpdated,
        MemberSubscriptionUpdated,
        GroupEpochUpdated,
        TargetAssignmentUpdated,
        TargetAssignmentUpdated,
        TargetAssignmentEpochUpdated,
        CurrentAssignmentUpdated,
        CurrentAssignmentUpdated,
    ]
    assert (harness.heartbeat(a, 1), harness.heartbeat(b, 1)) == (ErrorCode.rebalance_in_progress,) * 2
    for member_id, number in ((a, 0), (b, 3)):
        told = harness.answer(harness.commit({("orders", number): 5}, member_id, 1))
        assert told.topics[0].partitions[0].error_code is ErrorCode.none
    group = harness.consumer_group("g")
    (given_up,) = {1, 3} - set(group.target[b][harness.topics.topic_id("orders")]) or {0, 2} - set(
        group.target[a][harness.topics.topic_id("orders")]
    )
    loser, keeper = (b, a) if given_up in (1, 3) else (a, b)
    (kept,) = ({1, 3} if loser == b else {0, 2}) - {given_up}
    all_of_keeper = (0, 2) if keeper == a else (1, 3)
    assert rejoin(harness, loser, kept, given_up) == (1, [kept]), "it must revoke one, so its epoch does not change"
    assert rejoin(harness, keeper, *all_of_keeper) == (2, list(all_of_keeper))
    assert harness.heartbeat(keeper, 2) is ErrorCode.none
    assert rejoin(harness, loser, kept) == (2, [kept])
    assert harness.share_of(harness.cg_heartbeat("c", 2, group="g")) == {"orders": [given_up]}
    assert harness.consumer_group("g").state is ConsumerGroupState.STABLE
    durable_is_replayed(harness)


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy_restricts_the_migration(policy: str, upgrades: bool, downgrades: bool) -> None:
    harness = Harness(group_consumer_migration_policy=policy)
    classic(harness, A=(0, 1, 2, 3))
    joined = harness.cg_join("c", group="g")
    assert joined.error_code is (ErrorCode.none if upgrades else ErrorCode.group_id_not_found)
    assert isinstance(harness.coordinator.groups()["g"], ConsumerGroup if upgrades else ClassicGroup)

    harness.cg_join("m", group="h")
    rejoin(harness, "", group="h", version=3)
    harness.cg_heartbeat("m", -1, group="h")
    assert isinstance(harness.coordinator.groups()["h"], ClassicGroup if downgrades else ConsumerGroup)
    durable_is_replayed(harness)


@pytest.mark.parametrize("reason", ["type", "size", "user data", "subscription"])
def test_a_group_that_cannot_be_upgraded_does_not_change(reason: str) -> None:
    harness = Harness(group_consumer_max_size=1 if reason == "size" else 10)
    if reason == "user data":
        classic(harness, b"mine", A=(0,))
    elif reason == "size":
        classic(harness, A=(0, 1), B=(2, 3))
    else:
        fields = {"type": {"protocol_type": "connect"}, "subscription": {"protocols": {RANGE: b"?"}}}[reason]
        harness.stable("A", **fields)
    before, timers = harness.coordinator.groups(), harness.deadlines
    answer = harness.cg_join("c", group="g")
    assert answer.error_code is ErrorCode.group_id_not_found
    assert answer.error_message.startswith("Group g is not a consumer group and cannot become one: ")
    assert (harness.coordinator.groups(), harness.deadlines) == (before, timers)


def test_parked_joins_and_syncs_are_answered_with_rebalance_in_progress() -> None:
    harness = Harness()
    a, _ = classic(harness, A=(0, 1), B=(2, 3))
    joining = harness.join(a, **owning(0, 1))
    harness.cg_join("c", group="g")
    told = harness.answer(joining)
    assert (told.error_code, told.member_id) == (ErrorCode.rebalance_in_progress, a)
    assert {key for key in harness.deadlines if key[2] != "session"} == set()

    other = Harness()
    _, follower = other.joined("A", "B")
    syncing = other.sync(follower, 1)
    other.cg_join("c", group="g")
    assert other.answer(syncing).error_code is ErrorCode.rebalance_in_progress
    assert other.consumer_group("g").members[follower].assigned == {}
    assert {key[2] for key in other.deadlines} == {"session"}


def test_a_group_in_its_first_rebalance_can_be_upgraded() -> None:
    harness = Harness()
    waiting = harness.join(member_id := harness.member_id())
    pending = harness.member_id("B")
    assert harness.cg_join("c", group="g").member_epoch == 2
    assert harness.answer(waiting).error_code is ErrorCode.rebalance_in_progress
    assert rejoin(harness, member_id) == (2, [0, 1])
    assert rejoin(harness, pending)[0] == 3, "a client can use its member id"


def test_a_partition_that_a_leader_assigned_twice_has_one_owner() -> None:
    harness = Harness()
    a, b = classic(harness, A=(0, 1), B=(1, 2))
    harness.cg_join("c", group="g")
    (topic_id,) = {harness.topics.topic_id("orders")}
    members = harness.consumer_group("g").members
    assert (set(members[a].assigned[topic_id]), set(members[b].assigned[topic_id])) == ({0, 1}, {2})


# Classic members in a consumer group.


def test_a_classic_member_joins_a_consumer_group() -> None:
    harness = Harness()
    harness.cg_join("c", group="g")
    asked = harness.answer(harness.join())
    assert asked.error_code is ErrorCode.member_id_required
    assert len(asked.member_id) == 22
    assert harness.consumer_group("g").members.keys() == {"c"}
    assert rejoin(harness, asked.member_id) == (3, [])
    assert harness.heartbeat(asked.member_id, 3) is ErrorCode.none, "the partition that it waits for is not free yet"
    shares = harness.share_of(harness.cg_heartbeat("c", 2, group="g"))
    harness.cg_heartbeat("c", 2, group="g", owned=shares)
    assert harness.heartbeat(asked.member_id, 3) is ErrorCode.rebalance_in_progress
    generation, given = rejoin(harness, asked.member_id)
    assert generation == 3
    assert sorted([*given, *(shares or {})["orders"]]) == [0, 1, 2, 3]
    assert harness.heartbeat(asked.member_id, 3) is ErrorCode.none
    durable_is_replayed(harness)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_assignment_has_the_version_of_the_members_subscription(version: int) -> None:
    harness = Harness()
    harness.cg_join("c", topics=("bills",), group="g")
    joined = harness.answer(harness.join(version=3, protocols={RANGE: of_version(version, "orders")}))
    blob = harness.answer(harness.sync(joined.member_id, joined.generation_id)).assignment
    assert struct.unpack_from(">h", blob) == (version,)
    assert decode_assignment(blob).partitions == orders(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": {}}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": {RANGE: b""}, "version": 3}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": {"sticky": subscription("orders")}}, ErrorCode.inconsistent_group_protocol),
        ({"instance": "i1", "member_id": "m"}, ErrorCode.unknown_member_id),
        ({"group": "full", "client": "B"}, ErrorCode.group_max_size_reached),
    ],
)
def test_joins_that_a_consumer_group_rejects(fields: dict[str, Any], error: ErrorCode) -> None:
    harness = Harness(group_consumer_max_size=2)
    for group in ("g", "full"):
        harness.cg_join("c", group=group)
    rejoin(harness, "", version=3)
    if fields.get("group") != "full":
        harness.cg_heartbeat("c", -1, group="g")
        harness = Harness()
        harness.cg_join("c", group="g")
        rejoin(harness, "", version=3)
    else:
        harness.cg_join("d", group="full")
    before = harness.coordinator.groups()
    assert harness.answer(harness.join(fields.pop("member_id", ""), **{"version": 5, **fields})).error_code is error
    assert harness.coordinator.groups() == before


def test_errors_of_a_sync() -> None:
    harness = Harness()
    a, c = mixed(harness)
    errors = [
        harness.answer(harness.sync(*asked, **fields)).error_code
        for asked, fields in (
            (("who", 2), {}),
            ((c, 2), {}),
            ((a, 1), {}),
            ((a, 2), {"instance": "i9"}),
            ((a, 2), {"protocol_type": "consumer", "protocol_name": "sticky"}),
            ((a, 2), {"protocol_type": "connect", "protocol_name": RANGE}),
            ((a, 2), {"protocol_type": "consumer", "protocol_name": RANGE}),
        )
    ]
    assert errors == [
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.none,
    ]
    harness.cg_join("d", group="g")
    assert harness.answer(harness.sync(a, 2)).error_code is ErrorCode.rebalance_in_progress


def test_errors_of_a_heartbeat() -> None:
    harness = Harness()
    a, c = mixed(harness)
    assert harness.heartbeat("who", 2) is ErrorCode.unknown_member_id
    assert harness.heartbeat(c, 2) is ErrorCode.unknown_member_id, "it must use the other protocol"
    assert harness.heartbeat(a, 1) is ErrorCode.illegal_generation
    assert harness.heartbeat(a, 2, instance="i9") is ErrorCode.unknown_member_id
    assert harness.heartbeat(a, 2) is ErrorCode.none
    harness.cg_join("d", group="g")
    assert harness.heartbeat(a, 2) is ErrorCode.rebalance_in_progress
    generation, _ = rejoin(harness, a, 0, 1)
    group = harness.consumer_group("g")
    if group.members[a].state is MemberState.UNREVOKED_PARTITIONS:
        assert harness.heartbeat(a, generation) is ErrorCode.rebalance_in_progress, "it must still revoke"


def test_an_assignment_that_is_not_due_causes_no_rejoin() -> None:
    harness = Harness(group_consumer_assignment_interval_ms=1_000)
    (a,) = classic(harness, A=(0, 1, 2, 3))
    harness.cg_join("c", group="g")
    assert rejoin(harness, a, 0, 1, 2, 3)[0] == 1
    harness.cg_join("d", group="g")
    (half,) = (harness.consumer_group("g").members[a].assigned.values(),)
    numbers = sorted(number for one in half for number in one)
    assert rejoin(harness, a, *numbers) == (2, numbers)
    assert harness.heartbeat(a, 2) is ErrorCode.none
    harness.sleep(1_000)
    assert harness.heartbeat(a, 2) is ErrorCode.rebalance_in_progress, "its JoinGroup would compute the assignment"


def test_the_rejoin_timer_of_a_member_starts_only_once() -> None:
    harness = Harness()
    a, _ = mixed(harness)
    rejoin(harness, a, 0, 1, rebalance=20_000)
    harness.cg_join("d", group="g")
    deadline = harness.mono + 20_000
    while harness.mono < deadline:
        assert harness.heartbeat(a, 2) is ErrorCode.rebalance_in_progress
        assert harness.deadlines[rejoin_timer("g", a)] == deadline
        harness.cg_heartbeat("c", 2, group="g")
        harness.sleep(5_000)
    assert a not in harness.consumer_group("g").members
    assert harness.heartbeat(a, 2) is ErrorCode.unknown_member_id
    durable_is_replayed(harness)


def test_a_member_that_joined_and_does_not_sync_is_removed() -> None:
    harness = Harness()
    harness.cg_join("c", group="g")
    joined = harness.answer(harness.join(version=3, rebalance=8_000, session=10_000))
    assert harness.deadlines[resync_timer("g", joined.member_id)] == harness.mono + 8_000
    harness.sleep(8_000)
    assert harness.consumer_group("g").members.keys() == {"c"}


def test_a_classic_member_keeps_its_own_session_timeout() -> None:
    harness = Harness()
    a, c = mixed(harness)
    assert harness.deadlines[session_timer("g", a)] - harness.mono == 10_000
    harness.restart()
    assert harness.deadlines == {session_timer("g", a): harness.mono + 10_000, session_timer("g", c): harness.mono + 45_000}
    harness.sleep(9_999)
    assert harness.heartbeat(a, 2) is ErrorCode.none
    harness.sleep(10_000)
    assert harness.consumer_group("g").members.keys() == {c}


def test_members_of_both_protocols_leave_by_one_request() -> None:
    harness = Harness()
    a, c = mixed(harness)
    harness.cg_join("d", group="g")
    answer = harness.answer(harness.leave(a, c, "who", a))
    assert [one.error_code for one in answer.members] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert harness.consumer_group("g").members.keys() == {"d"}
    assert {key[3] for key in harness.deadlines} == {"d"}


# Downgrade.


@pytest.mark.parametrize("end", ["leaves", "is silent", "is removed", "keeps what it was asked for"])
def test_a_group_with_only_classic_members_left_is_downgraded(end: str) -> None:
    harness = Harness()
    a, c = mixed(harness, rebalance=2_000)
    written = len(harness.events())
    match end:
        case "leaves":
            harness.cg_heartbeat(c, -1, group="g")
        case "is removed":
            harness.answer(harness.leave(c))
        case "is silent":
            while harness.mono < 50_000 and isinstance(harness.coordinator.groups()["g"], ConsumerGroup):
                harness.heartbeat(a, 2)
                harness.sleep(5_000)
        case "keeps what it was asked for":
            for _ in range(2):
                rejoin(harness, "", version=3)
            harness.cg_heartbeat(c, 2, group="g")
            assert harness.consumer_group("g").members[c].state is MemberState.UNREVOKED_PARTITIONS
            written = len(harness.events())
            harness.sleep(2_000)
    group = harness.group()
    assert group.state is ClassicGroupState.PREPARING_REBALANCE
    kinds = [type(event) for event in harness.events()[written:]]
    assert kinds[-1] is GroupMetadataUpdated
    assert list(dict.fromkeys(kinds)) == [
        CurrentAssignmentUpdated,
        TargetAssignmentUpdated,
        TargetAssignmentEpochUpdated,
        MemberSubscriptionUpdated,
        PartitionMetadataDeleted,
        GroupEpochUpdated,
        GroupMetadataUpdated,
    ]
    given = set(decode_assignment(group.members[a].assignment).partitions)
    assert given
    assert given <= set(orders(0, 1))
    assert {key for key in harness.deadlines if key[-1] == c} == set()
    durable_is_replayed(harness)
    if len(group.members) == 1:
        assert harness.heartbeat(a, group.generation) is ErrorCode.rebalance_in_progress
        joined = harness.answer(harness.join(a, **owning(0, 1)))
        assert (joined.leader, joined.generation_id) == (a, group.generation + 1)
        assert harness.answer(harness.sync(a, joined.generation_id, {a: b"all"})).assignment == b"all"


def test_a_group_that_is_too_big_for_the_classic_protocol_is_not_downgraded() -> None:
    harness = Harness(group_max_size=1)
    harness.cg_join("c", group="g")
    for _ in range(2):
        rejoin(harness, "", version=3)
    harness.cg_heartbeat("c", -1, group="g")
    group = harness.consumer_group("g")
    assert len(group.members) == 2
    assert all(member.uses_classic_protocol for member in group.members.values())


def test_classic_members_of_a_consumer_group_rebalance_after_a_leave() -> None:
    harness = Harness(group_consumer_migration_policy="upgrade")
    a, c = mixed(harness)
    harness.cg_heartbeat(c, -1, group="g")
    assert harness.heartbeat(a, 2) is ErrorCode.rebalance_in_progress
    assert rejoin(harness, a, 0, 1) == (3, [0, 1, 2, 3])


def test_a_group_whose_members_all_leave_at_once_is_not_downgraded() -> None:
    harness = Harness()
    a, c = mixed(harness)
    harness.answer(harness.leave(a, c))
    assert harness.consumer_group("g").state is ConsumerGroupState.EMPTY


# Static members.


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    harness = Harness()
    harness.cg_join("c", topics=("bills",), group="g")
    old = harness.answer(harness.join(instance="i1", **owning())).member_id
    assert synced(harness, old, 3, instance="i1") == [0, 1, 2, 3]
    newer = harness.cg_join("n", group="g", instance="i1")
    assert (newer.member_epoch, harness.share_of(newer)) == (3, {"orders": [0, 1, 2, 3]})
    assert harness.consumer_group("g").members.keys() == {"c", "n"}
    assert harness.heartbeat(old, 3, instance="i1") is ErrorCode.fenced_instance_id
    assert {key[3] for key in harness.deadlines} == {"c", "n"}
    again = harness.answer(harness.join(instance="i1", **owning()))
    assert (again.error_code, again.generation_id) == (ErrorCode.none, 3)
    assert synced(harness, again.member_id, 3, instance="i1") == [0, 1, 2, 3]
    assert harness.answer(harness.join(old, instance="i1", **owning())).error_code is ErrorCode.fenced_instance_id
    durable_is_replayed(harness)


def test_the_last_consumer_returns_as_a_classic_static_member_without_a_rebalance() -> None:
    harness = Harness()
    harness.cg_join("c", group="g", instance="i1")
    other = harness.answer(harness.join(instance="i2", **owning(topics=("bills",)))).member_id
    synced(harness, other, 3, instance="i2")
    written = len(harness.events())
    joined = harness.answer(harness.join(instance="i1", **owning()))
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.none, 3, "")
    group = harness.group()
    assert (group.state, group.generation) == (ClassicGroupState.STABLE, 3)
    assert isinstance(harness.events()[-1], GroupMetadataUpdated)
    assert len(harness.events()) > written
    synced_share = harness.answer(harness.sync(joined.member_id, 3, instance="i1")).assignment
    assert decode_assignment(synced_share).partitions == orders(0, 1, 2, 3)
    assert harness.heartbeat(other, 3, instance="i2") is ErrorCode.none
    assert {key[3] for key in harness.deadlines} == {other, joined.member_id}
    assert group.members[other].protocols[0][0] == RANGE
    durable_is_replayed(harness)


# Logs that fail, and restarts.


@pytest.mark.parametrize("step", ["upgrade", "join", "downgrade"])
def test_a_step_that_cannot_be_stored_changes_nothing(step: str) -> None:
    harness = Harness()
    if step == "upgrade":
        a, _ = classic(harness, A=(0, 1), B=(2, 3))
        parked = harness.join(a, **owning(0, 1))
    else:
        a, c = mixed(harness)
    before, timers = harness.coordinator.groups(), harness.deadlines
    harness.appends = failing(ErrorCode.not_enough_replicas)
    match step:
        case "upgrade":
            assert harness.cg_join("c", group="g").error_code is ErrorCode.coordinator_not_available
            assert harness.waits(parked)
        case "join":
            answer = harness.answer(harness.join(version=3))
            assert (answer.error_code, answer.member_id) == (ErrorCode.coordinator_not_available, "")
        case "downgrade":
            assert harness.cg_heartbeat(c, -1, group="g").error_code is ErrorCode.coordinator_not_available
    assert (harness.coordinator.groups(), harness.deadlines) == (before, timers)
    harness.appends = IMMEDIATE
    durable_is_replayed(harness)


def test_requests_of_both_protocols_wait_for_a_conversion() -> None:
    harness = Harness()
    a, _ = classic(harness, A=(0, 1), B=(2, 3))
    harness.appends = DELAYED
    joining = harness.cg_beat("c", 0, group="g", topics=("orders",), owned={}, rebalance=300_000)
    beating = harness.beat(a, 1)
    assert harness.waits(joining)
    assert harness.waits(beating)
    harness.appends = IMMEDIATE
    harness.settle()
    assert harness.answer(joining).member_epoch == 2
    assert harness.answer(beating).error_code is ErrorCode.rebalance_in_progress


def test_a_group_that_was_upgraded_and_downgraded_is_loaded_with_its_last_type() -> None:
    harness = Harness()
    a, c = mixed(harness)
    harness.answer(harness.commit({("orders", 0): 7}, a, 2))
    harness.restart()
    assert rejoin(harness, a, 0, 1) == (2, [0, 1])
    harness.cg_heartbeat(c, -1, group="g")
    harness.restart()
    assert harness.group().members.keys() == {a}
    assert harness.committed() == {("orders", 0): 7}
    harness.cg_join("d", group="g")
    harness.restart()
    assert harness.consumer_group("g").members.keys() == {a, "d"}
    durable_is_replayed(harness)
