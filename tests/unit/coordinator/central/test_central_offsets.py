"""Offsets of central groups: commits fenced by the generation, fetches, deletions, and the descriptions of groups."""

from __future__ import annotations

from ottla.coordinator.central.states import CentralGroupState
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import decode_assignment, decode_subscription
from ottla.types import TopicPartition
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Central, failing, stable

ORDERS_0 = TopicPartition("orders", 0)


def test_a_commit_of_the_present_generation_is_stored_as_in_kafka_0_8() -> None:
    central = stable("a")
    assert central.committed("a", 1, 42, orders=0, bills=1) is ErrorCode.none
    assert central.nodes["g/offsets/orders/0"] == b"42"
    assert central.nodes["g/offsets/bills/1"] == b"42"
    assert central.fetch() == {ORDERS_0: 42, TopicPartition("bills", 1): 42}
    assert central.coordinator.offsets("g")[ORDERS_0] == 42


def test_one_request_is_one_append() -> None:
    central = stable("a")
    central.appends = DELAYED
    central.commit("a", 1, 42, orders=0, bills=1)
    (append,) = central.open.values()
    assert len(append.records) == 2
    assert central.coordinator.offsets("g") == {}


def test_commits_that_wait_share_one_append() -> None:
    central = stable("a")
    central.appends = DELAYED
    first = central.commit("a", 1, 10)
    waiting = [central.commit("a", 1, offset) for offset in (11, 12)]
    refused = central.commit("x", 1, 99)
    waiting.append(central.commit("a", 1, 13, bills=1))
    (batch,) = central.open
    central.settle(batch)
    assert first in central.replies
    assert code_of_commit(central, refused) is ErrorCode.unknown_member_id
    (append,) = central.open.values()
    assert [value for _, value in append.records] == [b"11", b"12", b"13"]
    assert central.coordinator.offsets("g")[ORDERS_0] == 10
    central.settle()
    assert [code_of_commit(central, ticket) for ticket in waiting] == [ErrorCode.none] * 3
    assert central.fetch() == {ORDERS_0: 12, TopicPartition("bills", 1): 13}
    assert central.nodes["g/offsets/orders/0"] == b"12"


def test_what_waits_behind_commits_comes_after_them_and_commits_behind_that_later() -> None:
    central = stable("a")
    central.appends = DELAYED
    tickets = [central.commit("a", 1, 10), central.commit("a", 1, 11)]
    registered = central.send_register("b")
    late = central.commit("a", 1, 12)
    central.settle(next(iter(central.open)))
    assert tickets[0] in central.replies
    assert len(central.open) == 1
    assert registered not in central.replies
    central.settle(next(iter(central.open)))
    assert code_of_commit(central, tickets[1]) is ErrorCode.none
    assert registered in central.replies
    central.settle()
    assert code_of_commit(central, late) is ErrorCode.none, "the generation may commit until its members have stopped"
    assert central.nodes["g/offsets/orders/0"] == b"12"


def test_commits_that_share_an_append_fail_together() -> None:
    central = stable("a")
    central.appends = DELAYED
    tickets = [central.commit("a", 1, offset) for offset in (10, 11, 12)]
    central.settle(next(iter(central.open)))
    central.settle(next(iter(central.open)), ErrorCode.request_timed_out)
    assert [code_of_commit(central, ticket) for ticket in tickets] == [
        ErrorCode.none,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_not_available,
    ]
    assert central.fetch() == {ORDERS_0: 10}


def code_of_commit(central: Central, ticket: int) -> ErrorCode:
    """The error of a commit that was answered."""
    code: ErrorCode = central.replies[ticket].topics[0].partitions[0].error_code
    return code


def test_commits_of_others_change_nothing() -> None:
    central = stable("a")
    assert central.committed("x", 1) is ErrorCode.unknown_member_id
    assert central.committed("a", 0) is ErrorCode.illegal_generation
    assert central.committed("a", 2) is ErrorCode.illegal_generation
    assert central.committed("", -1) is ErrorCode.unknown_member_id, "the group has a member"
    assert central.committed("by hand", -1) is ErrorCode.unknown_member_id
    assert central.committed("a", -1) is ErrorCode.illegal_generation
    assert central.fetch() == {}


def test_a_commit_that_is_repeated_in_the_next_generation_leaves_the_partitions_of_others_alone() -> None:
    central = stable("a", "b")
    owners = {partition: owner.member_id for partition, owner in central.group().owners.items()}
    assert owners[ORDERS_0] == "a"
    assert central.committed("b", 2, 5) is ErrorCode.rebalance_in_progress
    assert central.fetch() == {}
    assert central.committed("a", 2, 5) is ErrorCode.none
    assert central.fetch() == {ORDERS_0: 5}


def test_a_consumer_that_assigns_by_hand_commits_with_its_own_member_id_while_the_group_has_no_members() -> None:
    central = Central()
    central.register("by hand", topics={})
    assert central.committed("by hand", -1, 7) is ErrorCode.none
    assert central.fetch() == {ORDERS_0: 7}
    central.register("a")
    assert central.committed("by hand", -1, 8) is ErrorCode.unknown_member_id
    central.obey()
    central.fail_over()
    assert central.committed("by hand", -1, 8) is ErrorCode.unknown_member_id
    assert central.committed("a", -1, 8) is ErrorCode.unknown_member_id
    assert central.fetch() == {ORDERS_0: 7}


def test_the_generation_that_ends_may_commit_until_all_have_stopped() -> None:
    central = stable("a")
    central.register("b")
    assert central.state() is CentralGroupState.STOPPING
    assert central.committed("a", 1) is ErrorCode.none
    central.obey("b")
    assert central.committed("a", 1) is ErrorCode.none
    central.obey()
    assert central.committed("a", 1) is ErrorCode.illegal_generation
    assert central.committed("a", 2) is ErrorCode.none


def test_a_commit_that_waits_for_the_new_generation_comes_too_late() -> None:
    central = stable("a")
    central.register("b")
    central.appends = DELAYED
    central.answer(central.take("a"))
    central.answer(central.take("b"))
    ticket = central.commit("a", 1)
    assert ticket not in central.replies
    central.appends = IMMEDIATE
    central.settle()
    assert central.replies[ticket].topics[0].partitions[0].error_code is ErrorCode.illegal_generation


def test_without_a_member_offsets_of_an_empty_group_can_be_committed() -> None:
    central = stable("a")
    central.leave("a")
    assert central.committed("", -1, 5) is ErrorCode.none
    assert central.committed("by hand", -1, 5) is ErrorCode.none, "it has a member id, but is no member"
    assert central.committed("a", 1) is ErrorCode.unknown_member_id
    assert central.fetch() == {ORDERS_0: 5}


def test_a_commit_that_cannot_be_stored_changes_nothing() -> None:
    central = stable("a")
    central.appends = failing(ErrorCode.request_timed_out)
    assert central.committed("a", 1) is ErrorCode.coordinator_not_available
    central.appends = failing(ErrorCode.not_coordinator)
    assert central.committed("a", 1) is ErrorCode.not_coordinator
    assert central.fetch() == {}


def test_partitions_that_do_not_exist_and_offsets_below_zero_are_refused() -> None:
    central = stable("a")
    assert central.committed("a", 1, orders=4) is ErrorCode.unknown_topic_or_partition
    assert central.committed("x", 1, missing=0) is ErrorCode.unknown_topic_or_partition
    assert central.committed("a", 1, -1) is ErrorCode.invalid_request
    assert central.fetch() == {}


def test_a_commit_for_an_unknown_group_is_refused() -> None:
    assert Central().committed("a", 1) in (ErrorCode.group_id_not_found, ErrorCode.illegal_generation)


def test_fetch_of_an_unknown_group_finds_nothing() -> None:
    assert Central().fetch() == {}


# Deletions.


def test_offsets_of_topics_that_members_read_are_not_deleted() -> None:
    central = stable("a")
    central.committed("a", 1, 3, orders=0, bills=0)
    assert central.delete_offset("orders", 0) is ErrorCode.group_subscribed_to_topic
    assert central.delete_offset("bills", 0) is ErrorCode.none
    assert central.delete_offset("bills", 9) is ErrorCode.unknown_topic_or_partition
    assert central.delete_offset("bills", 0, group="none") is ErrorCode.group_id_not_found
    assert central.fetch() == {ORDERS_0: 3}
    assert "g/offsets/bills/0" not in central.nodes
    central.fail_over()
    assert central.delete_offset("orders", 0) is ErrorCode.coordinator_load_in_progress


def test_a_group_is_deleted_when_it_is_empty() -> None:
    central = stable("a")
    central.committed("a", 1)
    assert central.delete() is ErrorCode.non_empty_group
    central.leave("a")
    assert central.delete() is ErrorCode.none
    assert central.nodes == {}
    assert not central.coordinator.is_central("g")
    assert central.fetch() == {}
    assert central.delete() is ErrorCode.group_id_not_found
    central.register("a")
    central.obey()
    assert central.group().generation == 1


def test_a_group_whose_emptiness_is_not_stored_is_not_deleted() -> None:
    central = stable("a")
    central.appends = failing(ErrorCode.request_timed_out)
    central.leave("a")
    assert central.delete() is ErrorCode.non_empty_group


# Descriptions.


def test_a_description_is_what_kafkas_tools_can_read() -> None:
    central = stable("a", "b")
    described = central.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    first = described.members[0]
    assert (first.member_id, first.client_id, first.client_host) == ("a", "client", "/127.0.0.1")
    assert decode_subscription(first.member_metadata).topics == ("orders",)
    assert decode_assignment(first.member_assignment).partitions == (ORDERS_0, TopicPartition("orders", 1))
    missing = central.describe("none")
    assert missing.group_state == "Dead"
    assert missing.error_code is ErrorCode.group_id_not_found


def test_states_have_names_that_kafka_knows() -> None:
    central = stable("a", "b")
    seen = [central.describe().group_state]
    central.register("c")
    seen.append(central.describe().group_state)
    for one in "abc":
        central.answer(central.take(one))
    seen.append(central.describe().group_state)
    central.fail_over()
    seen.append(central.describe().group_state)
    central.sleep(9_000)
    seen.append(central.describe().group_state)
    assert seen == ["Stable", "PreparingRebalance", "CompletingRebalance", "PreparingRebalance", "Empty"]


def test_groups_are_listed_by_state_and_type() -> None:
    central = stable("a")
    central.register("x", group="other", topics={})
    assert central.listed() == {"g": ("Stable", "classic", True), "other": ("Empty", "classic", True)}
    assert central.listed(states=("stable",)) == {"g": ("Stable", "classic", True)}
    assert central.listed(types=("Central",)) == central.listed()
    assert central.listed(types=("Consumer", "Classic")) == central.listed(), "Java's tools ask for these"
    assert central.listed(types=("consumer", "share")) == {}
