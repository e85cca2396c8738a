"""The responses of Apache Kafka 4.3.1 to its own consumers, step by step.

The conversations were recorded between Java consumers and a broker with an initial rebalance delay of 500 ms; topic
``orders`` has four partitions. Times are milliseconds since the start of the recording.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import Harness

NONE, MEMBER_ID_REQUIRED, REBALANCE = ErrorCode.none, ErrorCode.member_id_required, ErrorCode.rebalance_in_progress


def orders(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def gives(**shares: tuple[int, ...]) -> dict[str, bytes]:
    return {member: encode_assignment(Assignment(orders(*numbers))) for member, numbers in shares.items()}


class Client:
    """One Java consumer of the recording."""

    def __init__(self, harness: Harness, name: str, protocol: str = "range", instance: str | None = None) -> None:
        self.harness, self.name, self.protocol, self.instance = harness, name, protocol, instance
        self.member_id = ""

    def send_join(self, owned: tuple[int, ...] = (), generation: int = -1) -> int:
        user_data = generation.to_bytes(4, signed=True) if self.protocol == "cooperative-sticky" else None
        subscription = encode_subscription(Subscription(("orders",), user_data, orders(*owned), generation))
        return self.harness.join(self.member_id, client=self.name, instance=self.instance, protocols={self.protocol: subscription})

    def join_with_a_new_id(self) -> int:
        response = self.harness.answer(self.send_join())
        assert (response.error_code, response.generation_id, response.protocol_type) == (MEMBER_ID_REQUIRED, -1, None)
        assert (response.protocol_name, response.leader, response.members) == (None, "", ())
        self.member_id = response.member_id
        assert self.member_id.startswith(f"{self.name}-")
        return self.send_join()

    def joined(self, ticket: int, generation: int, leader: Client, members: list[Client] | None = None) -> None:
        response = self.harness.answer(ticket)
        assert (response.error_code, response.generation_id, response.protocol_name) == (NONE, generation, self.protocol)
        self.member_id = response.member_id
        assert (response.leader, response.skip_assignment) == (leader.member_id, False)
        assert [member.member_id for member in response.members] == [one.member_id for one in members or []]

    def send_sync(self, generation: int, given: dict[str, bytes] | None = None) -> int:
        return self.harness.sync(
            self.member_id,
            generation,
            given,
            instance=self.instance,
            protocol_type="consumer",
            protocol_name=self.protocol,
        )

    def synced(self, ticket: int, *numbers: int) -> None:
        response = self.harness.answer(ticket)
        assert (response.error_code, response.protocol_type, response.protocol_name) == (NONE, "consumer", self.protocol)
        assert decode_assignment(response.assignment).partitions == orders(*numbers)

    def heartbeat(self, generation: int) -> ErrorCode:
        return self.harness.heartbeat(self.member_id, generation, instance=self.instance)

    def commit(self, generation: int, *numbers: int, offset: int = 3) -> ErrorCode:
        ticket = self.harness.commit(
            {("orders", number): offset for number in numbers}, self.member_id, generation, instance=self.instance
        )
        (topic,) = self.harness.answer(ticket).topics
        (error,) = {partition.error_code for partition in topic.partitions}
        return error

    def leave(self) -> list[ErrorCode]:
        response: Any = self.harness.answer(self.harness.leave((self.member_id, self.instance)))
        return [response.error_code, *(member.error_code for member in response.members)]


def at(harness: Harness, milliseconds: int) -> None:
    harness.sleep(milliseconds - harness.mono)


def test_range_with_two_members_of_which_one_closes() -> None:
    harness = Harness()
    a, b = Client(harness, "A"), Client(harness, "B")
    at(harness, 10)
    joining = a.join_with_a_new_id()
    at(harness, 509)
    assert harness.waits(joining)
    at(harness, 510)
    a.joined(joining, 1, a, [a])
    at(harness, 530)
    a.synced(a.send_sync(1, gives(**{a.member_id: (0, 1, 2, 3)})), 0, 1, 2, 3)
    assert harness.committed("g", *(("orders", n) for n in range(4))) == {("orders", n): -1 for n in range(4)}

    at(harness, 2_410)
    b_joining = b.join_with_a_new_id()
    assert harness.waits(b_joining)
    at(harness, 2_520)
    assert a.heartbeat(1) is REBALANCE
    assert a.commit(1, 0, 1, 2, 3) is NONE
    a_joining = a.send_join(generation=1)
    a.joined(a_joining, 2, a, [a, b])
    b.joined(b_joining, 2, a)
    b_syncing = b.send_sync(2)
    assert harness.waits(b_syncing)
    a.synced(a.send_sync(2, gives(**{a.member_id: (0, 1), b.member_id: (2, 3)})), 0, 1)
    b.synced(b_syncing, 2, 3)

    at(harness, 6_430)
    assert b.commit(2, 2, 3) is NONE
    assert b.leave() == [NONE, NONE]
    at(harness, 6_550)
    assert a.heartbeat(2) is REBALANCE
    assert a.commit(2, 0, 1) is NONE
    a.joined(a.send_join(generation=2), 3, a, [a])
    a.synced(a.send_sync(3, gives(**{a.member_id: (0, 1, 2, 3)})), 0, 1, 2, 3)
    assert a.leave() == [NONE, NONE]
    assert (harness.state(), harness.group().generation, harness.group().protocol_type) == (ClassicGroupState.EMPTY, 4, "consumer")


def test_cooperative_sticky_moves_a_partition_in_two_rebalances() -> None:
    harness = Harness()
    a, b, c = (Client(harness, name, "cooperative-sticky") for name in "ABC")
    a_joining, b_joining = a.join_with_a_new_id(), b.join_with_a_new_id()
    at(harness, 999)
    assert harness.waits(a_joining), "both joined within the initial delay, so the answer comes after two"
    at(harness, 1_000)
    a.joined(a_joining, 1, a, [a, b])
    b.joined(b_joining, 1, a)
    b_syncing = b.send_sync(1)
    a.synced(a.send_sync(1, gives(**{a.member_id: (0, 2), b.member_id: (1, 3)})), 0, 2)
    b.synced(b_syncing, 1, 3)

    at(harness, 2_620)
    c_joining = c.join_with_a_new_id()
    at(harness, 3_020)
    for client, numbers in ((a, (0, 2)), (b, (1, 3))):
        assert client.heartbeat(1) is REBALANCE
        assert client.commit(1, *numbers) is NONE
    a_joining, b_joining = a.send_join((0, 2), 1), b.send_join((1, 3), 1)
    a.joined(a_joining, 2, a, [a, b, c])
    b.joined(b_joining, 2, a)
    c.joined(c_joining, 2, a)
    b_syncing, c_syncing = b.send_sync(2), c.send_sync(2)
    a.synced(a.send_sync(2, gives(**{a.member_id: (0, 2), b.member_id: (1,), c.member_id: ()})), 0, 2)
    b.synced(b_syncing, 1)
    c.synced(c_syncing)

    at(harness, 3_060)
    assert b.commit(2, 1) is NONE
    b_joining = b.send_join((1,), 2)
    assert harness.waits(b_joining)
    at(harness, 4_040)
    assert [a.heartbeat(2), c.heartbeat(2)] == [REBALANCE, REBALANCE]
    assert a.commit(2, 0, 2) is NONE
    a_joining, c_joining = a.send_join((0, 2), 2), c.send_join((), 2)
    a.joined(a_joining, 3, a, [a, b, c])
    b.joined(b_joining, 3, a)
    c.joined(c_joining, 3, a)
    b_syncing, c_syncing = b.send_sync(3), c.send_sync(3)
    a.synced(a.send_sync(3, gives(**{a.member_id: (0, 2), b.member_id: (1,), c.member_id: (3,)})), 0, 2)
    b.synced(b_syncing, 1)
    c.synced(c_syncing, 3)

    at(harness, 6_650)
    assert c.commit(3, 3) is NONE
    assert c.leave() == [NONE, NONE]
    assert [a.heartbeat(3), b.heartbeat(3)] == [REBALANCE, REBALANCE]
    a_joining, b_joining = a.send_join((0, 2), 3), b.send_join((1,), 3)
    a.joined(a_joining, 4, a, [a, b])
    b.joined(b_joining, 4, a)
    b_syncing = b.send_sync(4)
    a.synced(a.send_sync(4, gives(**{a.member_id: (0, 2), b.member_id: (1, 3)})), 0, 2)
    b.synced(b_syncing, 1, 3)


def test_a_static_member_is_restarted() -> None:
    harness = Harness()
    a, b = Client(harness, "A", instance="i1"), Client(harness, "B", instance="i2")
    b_joining, a_joining = b.send_join(), a.send_join()
    at(harness, 1_010)
    a.member_id, b.member_id = (harness.answer(ticket).member_id for ticket in (a_joining, b_joining))
    assert a.member_id.startswith("i1-")
    b.joined(b_joining, 1, b, [b, a])
    a.joined(a_joining, 1, b)
    a_syncing = a.send_sync(1)
    b.synced(b.send_sync(1, gives(**{a.member_id: (0, 1), b.member_id: (2, 3)})), 2, 3)
    a.synced(a_syncing, 0, 1)
    at(harness, 2_380)
    assert a.commit(1, 0, 1) is NONE

    at(harness, 3_390)
    restarted = Client(harness, "A", instance="i1")
    restarted.joined(restarted.send_join(), 1, b)
    assert restarted.member_id != a.member_id
    restarted.synced(restarted.send_sync(1), 0, 1)
    assert b.heartbeat(1) is NONE
    assert a.heartbeat(1) is ErrorCode.fenced_instance_id
    assert harness.committed("g", ("orders", 0)) == {("orders", 0): 3}
