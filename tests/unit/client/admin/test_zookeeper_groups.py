"""An operator's calls for groups of Kafka 0.8's consumers, on a model of ZooKeeper: what nodes mean, and how they are changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.admin.zookeeper import reading, writing
from ottla.errors import (
    ConfigError,
    GroupIdNotFoundError,
    IllegalStateError,
    KeeperCode,
    NonEmptyGroupError,
    OttlaError,
    UnknownTopicOrPartitionError,
    ZooKeeperError,
)
from ottla.types import Node, TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.calls import Call
from ottla.zookeeper.multis import MULTI_BYTES
from ottla.zookeeper.nodes import ConsumerThread
from ottla.zookeeper.operations import GetChildren, GetData, Multi, Operation
from tests.simulation.old_groups import NOW, SESSION_TIMEOUT, OldGroups

MEMBER = "g_host-1-1795377382328-12a618e8"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Counts = list[tuple[int, int]]


@pytest.fixture
def groups() -> OldGroups:
    return OldGroups()


def alter(
    offsets: dict[TopicPartition, int], expected: dict[TopicPartition, int | None] | None = None, counts: Counts | None = None
) -> Call[None]:
    return writing.alter_group_offsets("g", offsets, expected, progress(counts))


def delete(counts: Counts | None = None) -> Call[None]:
    return writing.delete_group("g", progress(counts))


def delete_topic(topic: str, counts: Counts | None = None) -> Call[None]:
    return writing.delete_group_topic("g", topic, progress(counts))


def progress(counts: Counts | None) -> writing.Progress:
    return lambda done, of: (counts if counts is not None else []).append((done, of))


def when(is_it: Callable[[Operation[Any]], bool], act: Callable[[], object]) -> Callable[[Operation[Any]], None]:
    """Act before the first operation that is the one, once."""
    left = [act]

    def between(operation: Operation[Any]) -> None:
        if left and is_it(operation):
            left.pop()()

    return between


def is_multi(operation: Operation[Any]) -> bool:
    return isinstance(operation, Multi)


# -- lists and descriptions -----------------------------------------------------------------------------------------------


def test_a_group_is_active_while_a_member_lives(groups: OldGroups) -> None:
    groups.commit("b", "t", {0: 5})
    groups.put("/consumers/a/ids")
    groups.join("c", "m")
    assert [(one.group_id, one.state) for one in groups.run(reading.list_groups())] == [
        ("a", "Empty"),
        ("b", "Empty"),
        ("c", "Active"),
    ]
    assert [groups.run(reading.group_state(name)) for name in ("a", "c", "d")] == ["Empty", "Active", "Dead"]
    groups.leave("c", "m")
    assert {one.state for one in groups.run(reading.list_groups())} == {"Empty"}


def test_other_nodes_below_consumers_are_no_groups(groups: OldGroups) -> None:
    groups.put("/consumers/coordinator", b"1", groups.operator)
    groups.put("/consumers/config/nested")
    assert groups.run(reading.list_groups()) == ()
    assert groups.run(reading.group_state("config")) == "Dead"
    with pytest.raises(GroupIdNotFoundError, match="/consumers/config has neither members nor owners nor offsets"):
        groups.run(reading.describe_group("config"))
    with pytest.raises(GroupIdNotFoundError, match="there is no group 'config'"):
        groups.run(writing.delete_group("config", progress(None)))
    assert groups.exists("/consumers/config/nested")


def test_a_group_whose_first_member_was_interrupted_has_no_children(groups: OldGroups) -> None:
    groups.put("/consumers/g")
    assert [(one.group_id, one.state) for one in groups.run(reading.list_groups())] == [("g", "Empty")]
    assert groups.run(reading.group_state("g")) == groups.run(reading.describe_group("g")).state == "Empty"
    groups.run(writing.delete_group("g", progress(None), validate_only=True))
    assert groups.exists("/consumers/g")
    groups.run(delete())
    assert not groups.exists("/consumers/g")


def test_there_are_no_groups_without_a_node_for_them(groups: OldGroups) -> None:
    assert groups.run(reading.list_groups()) == ()
    assert groups.run(reading.group_offsets("g")) == ({}, ())


def test_a_member_that_is_no_ephemeral_node_does_not_make_a_group_active(groups: OldGroups) -> None:
    groups.put("/consumers/g/ids/stray", b"{}")
    assert [one.state for one in groups.run(reading.list_groups())] == ["Empty"]
    described = groups.run(reading.describe_group("g"))
    assert (described.state, [one.is_live for one in described.members]) == ("Empty", [False])


def test_the_description_of_a_group(groups: OldGroups) -> None:
    session = groups.join("g", MEMBER, {"t": 2})
    groups.join("g", "g_own-id", {"a|b.*": 1}, "white_list")
    groups.put(paths.owner("g", "t", 0), f"{MEMBER}-1".encode(), session)
    groups.commit("g", "t", {0: 7, 1: 8})
    groups.commit("g", "old", {3: 1})
    groups.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}')
    described = groups.run(reading.describe_group("g"))
    assert (described.group_id, described.state, described.malformed) == ("g", "Active", ())
    first, second = described.members
    assert (first.member_id, first.host, first.pattern, dict(first.subscription)) == (MEMBER, "host-1", "static", {"t": 2})
    assert (first.is_live, first.partitions) == (True, (T0,))
    assert (second.host, second.pattern, dict(second.subscription)) == (None, "white_list", {"a|b.*": 1})
    assert [(one.topic, one.partition, one.offset, one.owner) for one in described.partitions] == [
        ("old", 3, 1, None),
        ("t", 0, 7, ConsumerThread(MEMBER, 1)),
        ("t", 1, 8, None),
        ("t", 2, None, None),
    ]


@pytest.mark.parametrize(
    ("member_id", "host"),
    [
        ("g_a.example-1795377382328-12a618e8", "a.example"),
        ("g_host-1-b4d870c0", "host-1"),
        ("h_host-b4d870c0", None),
        ("g_consumer-1", None),
        ("host-b4d870c0", None),
    ],
)
def test_the_host_in_a_generated_id(groups: OldGroups, member_id: str, host: str | None) -> None:
    groups.join("g", member_id)
    assert [one.host for one in groups.run(reading.describe_group("g")).members] == [host]


def test_a_topic_that_a_member_has_only_subscribed_to_is_described(groups: OldGroups) -> None:
    groups.join("g", "m", {"t": 1, "gone": 1, "not/a/topic": 1})
    groups.put("/brokers/topics/t", b'{"partitions":{"0":[1]}}')
    described = groups.run(reading.describe_group("g"))
    assert [(one.topic, one.partition) for one in described.partitions] == [("t", 0)]


def test_malformed_nodes_are_reported_with_their_paths(groups: OldGroups) -> None:
    session = groups.join("g", "m")
    groups.put(paths.member("g", "m"), b"\xff{")
    groups.put(paths.owner("g", "t", 0), b"nonsense", session)
    groups.commit("g", "t", {0: 5})
    groups.put(paths.offset("g", "t", 1), b"many")
    groups.put("/consumers/g/offsets/t/01", b"3")
    groups.put("/consumers/g/offsets/t/foreign", b"3")
    groups.put("/brokers/topics/t", b"[]")
    described = groups.run(reading.describe_group("g"))
    assert {node.path for node in described.malformed} == {
        "/consumers/g/ids/m",
        "/consumers/g/owners/t/0",
        "/consumers/g/offsets/t/1",
        "/consumers/g/offsets/t/01",
        "/consumers/g/offsets/t/foreign",
        "/brokers/topics/t",
    }
    assert all(node.path in node.error for node in described.malformed)
    assert described.state == "Active"
    assert (described.members[0].pattern, dict(described.members[0].subscription)) == ("", {})
    assert [(one.partition, one.offset, one.owner) for one in described.partitions] == [(0, 5, None), (1, None, None)]
    offsets, malformed = groups.run(reading.group_offsets("g"))
    assert offsets == {T0: 5}
    assert len(malformed) == 3


def test_nodes_that_disappear_between_two_reads_are_skipped(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5, 1: 6})
    groups.join("g", "m")
    gone = paths.offset("g", "t", 1)
    read_it = when(lambda operation: operation == GetData(gone), lambda: groups.remove(gone))
    assert groups.run(reading.group_offsets("g"), read_it) == ({T0: 5}, ())
    read_member = when(lambda operation: operation == GetData("/consumers/g/ids/m"), lambda: groups.leave("g", "m"))
    described = groups.run(reading.describe_group("g"), read_member)
    assert (described.members, described.state) == ((), "Empty")


def test_brokers_and_their_malformed_nodes(groups: OldGroups) -> None:
    groups.put("/brokers/ids/1", b'{"host":"h","port":9092,"version":1}')
    groups.put("/brokers/ids/2", b"{}")
    groups.put("/brokers/ids/x", b"{}")
    found, malformed = groups.run(reading.brokers("PLAINTEXT"))
    assert found == (Node(1, "h", 9092, None),)
    assert [node.path for node in malformed] == ["/brokers/ids/x", "/brokers/ids/2"]


def test_the_id_of_the_cluster(groups: OldGroups) -> None:
    assert groups.run(reading.cluster_id()) is None
    groups.put("/cluster/id", b'{"version":"1","id":"abc"}')
    assert groups.run(reading.cluster_id()) == "abc"
    groups.put("/cluster/id", b'{"id":1}')
    with pytest.raises(OttlaError, match="/cluster/id of ZooKeeper is malformed"):
        groups.run(reading.cluster_id())


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\x00b"])
def test_a_group_that_cannot_have_a_node(groups: OldGroups, name: str) -> None:
    calls: list[Callable[[], Call[Any]]] = [
        lambda: reading.describe_group(name),
        lambda: reading.group_offsets(name),
        lambda: writing.delete_group(name, progress(None)),
        lambda: writing.delete_group_topic(name, "t", progress(None)),
        lambda: writing.alter_group_offsets(name, {T0: 1}, None, progress(None)),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="cannot be a node of ZooKeeper"):
            groups.run(call())


@pytest.mark.parametrize("name", ['o\'clock "quoted"', "grüppe 群", "a b"])
def test_unusual_names_of_groups(groups: OldGroups, name: str) -> None:
    groups.run(writing.alter_group_offsets(name, {T0: 1}, None, progress(None)))
    assert [one.group_id for one in groups.run(reading.list_groups())] == [name]
    assert groups.run(reading.group_offsets(name)) == ({T0: 1}, ())
    groups.run(writing.delete_group(name, progress(None)))
    assert groups.run(reading.list_groups()) == ()


# -- committed offsets ----------------------------------------------------------------------------------------------------


def test_offsets_of_a_new_group_are_written_with_all_nodes_above_them(groups: OldGroups) -> None:
    counts: Counts = []
    groups.run(alter({T0: 5, T1: 6}, {}, counts))
    assert groups.offsets("g", "t") == {0: b"5", 1: b"6"}
    assert groups.exists("/consumers/g/ids")
    assert counts == [(2, 2)]
    assert len(groups.writes) == 1


def test_offsets_are_replaced_also_malformed_ones(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5, 2: 9})
    groups.put(paths.offset("g", "t", 1), b"many")
    groups.run(alter({T0: 3, T1: 4}))
    assert groups.offsets("g", "t") == {0: b"3", 1: b"4", 2: b"9"}


def test_offsets_that_are_committed_already_are_not_written(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5})
    groups.run(alter({T0: 5}, {T0: 4}))
    assert groups.writes == []


def test_many_offsets_are_written_in_parts(groups: OldGroups) -> None:
    counts: Counts = []
    groups.run(alter({TopicPartition("t", number): number for number in range(2500)}, None, counts))
    assert counts == [(1000, 2500), (2000, 2500), (2500, 2500)]
    assert len(groups.offsets("g", "t")) == 2500


def test_long_names_make_smaller_parts(groups: OldGroups) -> None:
    topic = "t" * 400
    groups.run(alter({TopicPartition(topic, number): number for number in range(2000)}))
    sizes = [sum(len(operation.path) for operation in multi.operations) for multi in groups.writes]
    assert len(sizes) > 2
    assert max(sizes) < MULTI_BYTES


def test_a_group_with_a_member_is_not_changed(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5})
    for number in range(7):
        groups.join("g", f"m{number}")
    for call in (alter({T0: 1}), delete(), delete_topic("t")):
        with pytest.raises(NonEmptyGroupError, match=r"group 'g' in ZooKeeper has 7 members: m0, m1, m2, m3, m4, \.\.\."):
            groups.run(call)
    assert (groups.writes, groups.offsets("g", "t")) == ([], {0: b"5"})


@pytest.mark.parametrize("call", [lambda: alter({T0: 1}), delete, lambda: delete_topic("t")], ids=["alter", "delete", "topic"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_a_member_that_joins_after_the_members_were_read_is_noticed(
    groups: OldGroups, call: Callable[[], Call[None]], has_ids: bool
) -> None:
    groups.commit("g", "t", {0: 5})
    if has_ids:
        groups.put("/consumers/g/ids")
    with pytest.raises(NonEmptyGroupError, match="has 1 member: m"):
        groups.run(call(), when(is_multi, lambda: groups.join("g", "m")))
    assert (groups.writes, groups.offsets("g", "t")) == ([], {0: b"5"})


def test_a_member_that_joins_between_two_parts_ends_the_call_which_says_what_was_done(groups: OldGroups) -> None:
    offsets = {TopicPartition("t", number): number for number in range(1500)}
    joins = when(lambda operation: bool(groups.writes), lambda: groups.join("g", "m"))
    with pytest.raises(NonEmptyGroupError, match="has 1 member: m; 1000 offsets were written before"):
        groups.run(alter(offsets), joins)
    groups.leave("g", "m")
    groups.writes.clear()
    joins = when(lambda operation: bool(groups.writes), lambda: groups.join("g", "m"))
    groups.run(alter(offsets))
    groups.writes.clear()
    with pytest.raises(NonEmptyGroupError, match="1000 nodes were deleted before"):
        groups.run(delete(), joins)
    groups.leave("g", "m")
    groups.run(delete())
    assert not groups.exists("/consumers/g")


def test_an_offset_that_is_no_longer_the_expected_one_is_not_replaced(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 7})
    with pytest.raises(IllegalStateError, match=r"t-0 of group 'g' in ZooKeeper is now 7, and was 5 .*look at the group again"):
        groups.run(alter({T0: 6, T1: 1}, {T0: 5}))
    with pytest.raises(IllegalStateError, match="is now 7, and was None"):
        groups.run(alter({T0: 6}, {}))
    assert groups.offsets("g", "t") == {0: b"7"}


def test_a_commit_between_read_and_write_is_noticed(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5})
    with pytest.raises(IllegalStateError, match="is now 9, and was 5"):
        groups.run(alter({T0: 6}, {T0: 5}), when(is_multi, lambda: groups.commit("g", "t", {0: 9})))
    assert groups.offsets("g", "t") == {0: b"9"}
    groups.run(alter({T0: 6}), when(is_multi, lambda: groups.commit("g", "t", {0: 10})))
    assert groups.offsets("g", "t") == {0: b"6"}


def test_a_node_of_no_session_among_the_members_is_named(groups: OldGroups) -> None:
    groups.put("/consumers/g/ids/stray")
    with pytest.raises(IllegalStateError, match="/consumers/g/ids/stray of ZooKeeper belongs to no session"):
        groups.run(alter({T0: 1}))


def test_a_group_that_changes_all_the_time_ends_the_call(groups: OldGroups) -> None:
    numbers = iter(range(100))

    def between(operation: Operation[Any]) -> None:
        if is_multi(operation):
            groups.commit("g", "t", {0: 10 + next(numbers)})

    with pytest.raises(IllegalStateError, match="other clients change group 'g' in ZooKeeper all the time") as raised:
        groups.run(alter({T0: 1}), between)
    assert isinstance(raised.value.cause, ZooKeeperError)


def test_an_error_that_is_no_conflict_is_raised(groups: OldGroups) -> None:
    def refused(operation: Operation[Any]) -> ZooKeeperError | None:
        return ZooKeeperError(KeeperCode.NOAUTH, operation.path) if is_multi(operation) else None

    with pytest.raises(ZooKeeperError, match="NOAUTH at /consumers"):
        groups.run(alter({T0: 1}), refused)
    groups.commit("g", "t", {0: 1})
    with pytest.raises(ZooKeeperError, match="NOAUTH at /consumers/g"):
        groups.run(delete(), refused)
    with pytest.raises(ZooKeeperError, match="NOAUTH at /consumers/g/offsets/t/0"):
        groups.run(
            reading.group_offsets("g"),
            lambda one: ZooKeeperError(KeeperCode.NOAUTH, one.path) if isinstance(one, GetData) else None,
        )


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_multi_whose_answer_is_lost_is_repeated(groups: OldGroups, lost: str) -> None:
    def lossy() -> Callable[[Operation[Any]], str | None]:
        left = [lost]
        return lambda operation: left.pop() if is_multi(operation) and left else None

    offsets = {TopicPartition("t", number): number for number in range(1500)}
    groups.run(alter(offsets, {}), lossy())
    assert len(groups.offsets("g", "t")) == 1500
    groups.run(delete_topic("t"), lossy())
    assert not groups.exists("/consumers/g/offsets/t")
    groups.run(alter(offsets))
    groups.run(delete(), lossy())
    assert not groups.exists("/consumers/g")
    groups.run(alter({T0: 1}))
    groups.run(delete(), lossy())
    assert not groups.exists("/consumers/g")


# -- deletion -------------------------------------------------------------------------------------------------------------


def test_a_group_is_deleted_with_all_its_nodes_also_foreign_ones(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5, 1: 6})
    groups.put("/consumers/g/owners/t")
    groups.put("/consumers/g/ids/stray/below")
    groups.put("/consumers/g/foreign/deep/er", b"x")
    groups.commit("other", "t", {0: 1})
    counts: Counts = []
    groups.run(delete(counts))
    assert [one.group_id for one in groups.run(reading.list_groups())] == ["other"]
    assert not groups.exists("/consumers/g")
    assert counts == [(2, 13), (13, 13)]
    with pytest.raises(GroupIdNotFoundError, match="there is no group 'g' in ZooKeeper"):
        groups.run(delete())


def test_a_group_with_only_members_or_only_offsets_is_deleted(groups: OldGroups) -> None:
    for path in ("/consumers/g/ids", "/consumers/g/offsets"):
        groups.put(path)
        groups.run(delete())
        assert not groups.exists("/consumers/g")


def test_a_large_group_is_deleted_in_parts_and_stays_a_group_until_the_last(groups: OldGroups) -> None:
    groups.commit("g", "t", dict.fromkeys(range(2500), 1))
    counts: Counts = []

    def between(operation: Operation[Any]) -> None:
        if groups.writes and is_multi(operation):
            assert [one.group_id for one in groups.run(reading.list_groups())] == ["g"]

    groups.run(delete(counts), between)
    assert counts == [(1000, 2503), (2000, 2503), (2503, 2503)]
    assert not groups.exists("/consumers/g")


def test_an_owner_without_a_member_keeps_a_group(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5})
    groups.put(paths.owner("g", "t", 0), b"m-0", groups.model.open(SESSION_TIMEOUT, NOW))
    with pytest.raises(NonEmptyGroupError, match="has 1 member: /consumers/g/owners/t/0"):
        groups.run(delete())


def test_a_topic_is_deleted_from_a_group(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5, 1: 6})
    groups.commit("g", "other", {0: 1})
    groups.put("/consumers/g/owners/t")
    counts: Counts = []
    groups.run(delete_topic("t", counts))
    assert counts == [(4, 4)]
    assert groups.run(reading.group_offsets("g")) == ({TopicPartition("other", 0): 1}, ())
    assert not groups.exists("/consumers/g/owners/t")
    with pytest.raises(UnknownTopicOrPartitionError, match="neither owners nor committed offsets of topic 't'"):
        groups.run(delete_topic("t"))
    with pytest.raises(GroupIdNotFoundError):
        groups.run(writing.delete_group_topic("h", "t", progress(None)))


def test_an_offset_that_is_committed_during_the_deletion_is_deleted_too(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5})
    groups.run(delete(), when(is_multi, lambda: groups.commit("g", "t", {0: 6, 1: 1})))
    assert not groups.exists("/consumers/g")


def test_a_group_that_another_client_deletes_after_it_was_found(groups: OldGroups) -> None:
    groups.commit("g", "t", {0: 5})
    deleted_by_another = when(lambda one: one == GetData(paths.COORDINATOR), lambda: groups.run(delete()))
    with pytest.raises(GroupIdNotFoundError, match="there is no group 'g' in ZooKeeper"):
        groups.run(delete(), deleted_by_another)


def test_each_call_first_catches_up_with_the_leader(groups: OldGroups) -> None:
    first: list[Operation[Any]] = []
    groups.commit("g", "t", {0: 5})
    for call in (reading.list_groups(), reading.describe_group("g"), reading.group_offsets("g"), alter({T0: 1}), delete()):
        seen: list[Operation[Any]] = []
        groups.run(call, seen.append)
        first.append(seen[0])
        assert any(isinstance(operation, GetChildren | GetData) for operation in seen[1:])
    assert {type(operation).__name__ for operation in first} == {"Sync"}
