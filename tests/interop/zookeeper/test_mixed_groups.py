"""Groups of Java's old consumers and ours on a real Kafka 1.1.1: at each step the owners are those of 0.8's formula."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, run_tool
from tests.interop.zookeeper.members import OLDEST, VERSION, Member, Stage, by_range, until


@pytest.fixture(scope="module")
def whole_stage(kafka_tool: KafkaTool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    for version in (VERSION, OLDEST):
        run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    stage = Stage(tmp_path_factory.mktemp("stage"))
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(whole_stage: Stage) -> Iterator[Stage]:
    try:
        yield whole_stage
    finally:
        whole_stage.stop_members()


def verify(stage: Stage, group: str, topic: str) -> None:
    """Kafka's own tools agree that the group is balanced, and about its members."""
    verified = stage.tool("kafka.tools.VerifyConsumerRebalance", "--zookeeper.connect", stage.zookeeper, "--group", group)
    assert "Rebalance operation successful" in verified, verified
    described = stage.tool("kafka.admin.ConsumerGroupCommand", "--zookeeper", stage.zookeeper, "--describe", "--group", group)
    listed = [line.split() for line in described.splitlines() if line.startswith(topic)]
    # Ottla's `group describe --zookeeper` is compared with this tool in tests/interop/test_zookeeper_tools.py.
    assert {int(row[1]): f"{row[-1]}-0" for row in listed} == stage.owners(group, topic), described


@pytest.mark.interop
def test_a_member_of_java_and_two_of_ours(stage: Stage) -> None:
    topic = stage.create_topic("orders", 5)
    java = Member(stage, "g1", "b", topic, java=VERSION)
    stage.wait_for_owners("g1", {topic: by_range(5, java)})
    first = Member(stage, "g1", "a", topic)
    stage.wait_for_owners("g1", {topic: by_range(5, first, java)})
    second = Member(stage, "g1", "c", topic)
    stage.wait_for_owners("g1", {topic: by_range(5, first, java, second)})
    verify(stage, "g1", topic)
    stage.produce(topic, 0, 500)
    until(lambda: {*first.read(), *java.read(), *second.read()} == {str(number) for number in range(500)})
    second.leave()
    stage.wait_for_owners("g1", {topic: by_range(5, first, java)})
    stage.grow_topic(topic, 7)
    stage.wait_for_owners("g1", {topic: by_range(7, first, java)})
    java.kill()
    stage.wait_for_owners("g1", {topic: by_range(7, first)})
    verify(stage, "g1", topic)
    until(lambda: stage.offsets("g1", topic) == 500)


@pytest.mark.interop
def test_stopped_members_come_back(stage: Stage) -> None:
    """A process that was stopped beyond its session joins again, of either side."""
    topic = stage.create_topic("stopped", 4)
    java, ours = Member(stage, "g2", "b", topic, java=VERSION), Member(stage, "g2", "a", topic)
    stage.wait_for_owners("g2", {topic: by_range(4, java, ours)})
    for stopped, other in ((ours, java), (java, ours)):
        stopped.signal(signal.SIGSTOP)
        stage.wait_for_owners("g2", {topic: by_range(4, other)})
        stopped.signal(signal.SIGCONT)
        stage.wait_for_owners("g2", {topic: by_range(4, java, ours)})
    verify(stage, "g2", topic)


@pytest.mark.interop
@pytest.mark.parametrize("oldest", [VERSION, OLDEST])
def test_wildcards_and_eight_members(stage: Stage, oldest: str) -> None:
    group = f"g3-{oldest.replace('.', '')}"
    topics = {stage.create_topic(f"{group}-{name}", partitions): partitions for name, partitions in (("x", 12), ("y", 3))}
    members = [Member(stage, group, f"m{number}", pattern=f"{group}-.*", java=oldest) for number in (0, 4)]
    stage.wait_for_owners(group, {topic: by_range(partitions, *members) for topic, partitions in topics.items()})
    members += [Member(stage, group, f"m{number}", pattern=f"{group}-.*") for number in (1, 2, 3, 5, 6, 7)]
    stage.wait_for_owners(group, {topic: by_range(partitions, *members) for topic, partitions in topics.items()})
    topics[stage.create_topic(f"{group}-z", 8)] = 8
    stage.wait_for_owners(group, {topic: by_range(partitions, *members) for topic, partitions in topics.items()})
    members.pop(4).kill()
    members.pop(0).leave()
    stage.wait_for_owners(group, {topic: by_range(partitions, *members) for topic, partitions in topics.items()})


@pytest.mark.interop
@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_java_continues_where_ours_ended_and_back(stage: Stage, storage: str) -> None:
    topic = stage.create_topic(f"turns-{storage}", 3)
    group, read = f"g4-{storage}", set()
    for turn, java in enumerate(("", VERSION, "", VERSION)):
        stage.produce(topic, turn * 100, turn * 100 + 100)
        member = Member(stage, group, "one", topic, java=java, storage=storage)
        expected = {str(number) for number in range(turn * 100, turn * 100 + 100)}
        until(lambda member=member, expected=expected: set(member.read()) >= expected)
        member.leave()
        read |= set(member.read())
        assert set(member.read()) == expected, "records were read again"
    assert len(read) == 400


@pytest.mark.interop
def test_roundrobin_agrees_with_java(stage: Stage) -> None:
    """Java's member would never own its share if ours computed another one: a conflict lasts for ever."""
    topics = [stage.create_topic(f"turn-{name}", 11) for name in "uv"]
    members = [
        Member(stage, "g5", f"m{number}", pattern="turn-.*", java=VERSION if number < 2 else "", strategy="roundrobin")
        for number in range(3)
    ]

    def shares() -> list[int]:
        owners = [owner for topic in topics for owner in stage.owners("g5", topic).values()]
        return sorted(owners.count(f"{member.id}-0") for member in members)

    until(lambda: shares() == [7, 7, 8], lambda: str(shares()))
    stage.produce(topics[0], 0, 300)
    until(lambda: {value for member in members for value in member.read()} == {str(number) for number in range(300)})
