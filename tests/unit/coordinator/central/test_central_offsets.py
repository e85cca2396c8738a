"""Offsets of central groups: commits fenced by the generation, fetches, deletions, and the descriptions of groups."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ottla.broker.zookeeper.central_calls import GroupNodes, Malformed, write_records
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.effects import Append
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import decode_assignment, decode_subscription
from ottla.types import TopicPartition
from ottla.zookeeper.operations import Multi
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Central, Topics, failing, stable

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


def settle_as_zookeeper(central: Central, refused: bytes) -> list[int]:
    """Complete appends, the next ones too, but those with this offset fail. Return how many records each of them has."""
    sizes = []
    while central.open:
        batch, append = next(iter(central.open.items()))
        sizes.append(len(append.records))
        fails = refused in [value for _, value in append.records]
        central.settle(batch, ErrorCode.coordinator_not_available if fails else ErrorCode.none)
    return sizes


@pytest.mark.parametrize("bad", [*range(7)])
def test_a_commit_that_cannot_be_stored_fails_no_other_one_that_shares_its_append(bad: int) -> None:
    central = stable("a")
    central.appends = DELAYED
    first = central.commit("a", 1, 1)
    tickets = [central.commit("a", 1, 10 + number, orders=number % 4) for number in range(7)]
    registered = central.send_register("b")
    late = central.commit("a", 1, 20)
    assert settle_as_zookeeper(central, b"%d" % (10 + bad))[:3] == [1, 7, 3]
    codes = [code_of_commit(central, ticket) for ticket in tickets]
    assert codes.pop(bad) is ErrorCode.coordinator_not_available
    assert {*codes, code_of_commit(central, first), code_of_commit(central, late)} == {ErrorCode.none}
    assert registered in central.replies
    last = {number % 4: 10 + number for number in range(7) if number != bad}
    assert central.fetch() == {TopicPartition("orders", partition): offset for partition, offset in {**last, 0: 20}.items()}
    assert list(central.replies) == sorted(central.replies), "all are answered in order"


def test_of_several_commits_that_cannot_be_stored_each_fails_for_itself() -> None:
    central = stable("a")
    central.appends = DELAYED
    central.commit("a", 1, 1)
    tickets = [central.commit("a", 1, 99 if number % 5 < 2 else 10) for number in range(40)]
    settle_as_zookeeper(central, b"99")
    codes = [code_of_commit(central, ticket) for ticket in tickets]
    assert codes == [ErrorCode.coordinator_not_available if number % 5 < 2 else ErrorCode.none for number in range(40)]


def test_of_many_commits_none_of_which_can_be_stored_some_are_tried_by_themselves() -> None:
    central = stable("a")
    central.appends = DELAYED
    tickets = [central.commit("a", 1, 99) for _ in range(120)]
    registered = central.send_register("b")
    sizes = settle_as_zookeeper(central, b"99")
    assert sizes[:3] == [1, 119, 59]
    assert sizes.count(1) == 1 + 16 + 1
    assert len(sizes) < 50
    assert {code_of_commit(central, ticket) for ticket in tickets} == {ErrorCode.coordinator_not_available}
    assert registered in central.replies
    assert list(central.replies) == sorted(central.replies), "all are answered in order"
    again = [central.commit("a", 1, 10) for _ in range(5)]
    assert settle_as_zookeeper(central, b"99") == [1, 4]
    assert {code_of_commit(central, ticket) for ticket in again} == {ErrorCode.none}


@pytest.mark.parametrize("good", [0, 1, 15, 100, 119])
def test_one_commit_that_can_be_stored_lets_each_of_many_others_be_tried_before_it_is_refused(good: int) -> None:
    """Unless it comes so late that all seem to be refused: then its client tries again, perhaps earlier than the others."""
    central = stable("a")
    central.appends = DELAYED
    tickets = [central.commit("a", 1, 10 if number == good else 99) for number in range(120)]
    sizes = settle_as_zookeeper(central, b"99")
    is_tried = good <= 15 or good == 119
    assert (code_of_commit(central, tickets[good]) is ErrorCode.none) is is_tried
    assert (len(sizes) > 200) is (1 <= good <= 15)


def test_commits_that_can_be_stored_are_in_the_end_though_others_always_come_first() -> None:
    """All clients try again at once, in the same order."""
    central = stable("a")
    central.appends = DELAYED
    offsets = [99] * 20 + [10] * 80
    for _ in range(8):
        first = central.commit("a", 1, 1)
        tickets = [central.commit("a", 1, offset) for offset in offsets]
        settle_as_zookeeper(central, b"99")
        assert code_of_commit(central, first) is ErrorCode.none
        codes = [code_of_commit(central, ticket) for ticket in tickets]
        offsets = [offset for offset, code in zip(offsets, codes, strict=True) if code is not ErrorCode.none]
    assert offsets == [99] * 20


@pytest.mark.parametrize("error", [ErrorCode.not_coordinator, ErrorCode.inconsistent_group_protocol])
def test_commits_that_share_an_append_fail_together_with_an_error_of_all(error: ErrorCode) -> None:
    central = stable("a")
    central.appends = DELAYED
    tickets = [central.commit("a", 1, offset) for offset in (10, 11, 12)]
    central.settle(next(iter(central.open)))
    central.settle(next(iter(central.open)), error)
    told = ErrorCode.unknown_member_id if error is ErrorCode.inconsistent_group_protocol else error
    assert [code_of_commit(central, ticket) for ticket in tickets] == [ErrorCode.none, told, told]
    assert not central.open
    assert central.fetch() == {ORDERS_0: 10}


def test_commits_that_are_tried_again_are_refused_if_the_coordinator_is_deposed_meanwhile() -> None:
    central = stable("a")
    central.appends = DELAYED
    tickets = [central.commit("a", 1, offset) for offset in (10, 11, 12, 13, 14)]
    central.settle(next(iter(central.open)))
    central.settle(next(iter(central.open)), ErrorCode.coordinator_not_available)
    central.tell("unload")
    assert [code_of_commit(central, ticket) for ticket in tickets] == [ErrorCode.none, *[ErrorCode.not_coordinator] * 4]


@pytest.mark.parametrize(
    ("group", "partitions", "most"),
    [("g", 1, 124), ("g", 15, 27), ("g", 600, 1), ("g" * 3_000, 15, 3)],
    ids=["small", "medium", "large", "long name"],
)
def test_commits_share_an_append_only_if_it_fits_into_one_multi(group: str, partitions: int, most: int) -> None:
    """Each commits other partitions of two topics, and none of the nodes exists. The longest names that topics may have."""
    commits = 2 * most + 2
    names = ["t" * 248 + end for end in "ab"]
    central = Central(Topics(dict.fromkeys(names, partitions * commits)))
    central.register("by hand", group=group, topics={})
    central.appends = DELAYED
    tickets = []
    for number in range(commits):
        committed = range(number * partitions, (number + 1) * partitions)
        tickets.append(central.commit_all("", -1, 5, dict.fromkeys(names, committed), group))
    sizes = []
    while central.open:
        (append,) = central.open.values()
        sizes.append(len(append.records) // (2 * partitions))
        multis = written(group, append)
        assert len(multis) == 1 or sizes[-1] == 1, "a commit is divided, and could have had an append for itself"
        central.settle()
    assert {code_of_commit(central, ticket) for ticket in tickets} == {ErrorCode.none}
    assert sizes == [1, most, most, 1], "the first one has waited for nothing"


def written(group: str, append: Append) -> list[Multi]:
    """The multis that store an append of a group that may have members of Kafka 0.8, and has no nodes."""
    multis: list[Multi] = []
    steps = write_records(group, append.records, 1, GroupNodes(set()), Malformed())
    with suppress(StopIteration):
        asked = next(steps)
        while True:
            multis += [one for one in asked if isinstance(one, Multi)]
            asked = steps.send([()] * len(asked))
    return multis


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


def test_offsets_of_topics_that_a_pattern_may_match_are_not_deleted_before_it_is_matched() -> None:
    central = Central()
    central.register("a", topics={}, pattern="o.*")
    central.run_jobs()
    central.obey()
    central.committed("a", 1)
    assert central.delete_offset("orders", 0) is ErrorCode.group_subscribed_to_topic
    central.fail_over()
    central.register("a", topics={}, pattern="o.*", again=central.members["a"])
    assert central.state() is CentralGroupState.STABLE
    assert central.delete_offset("orders", 0) is ErrorCode.coordinator_load_in_progress
    assert central.fetch() == {ORDERS_0: 10}
    central.run_jobs()
    assert central.delete_offset("orders", 0) is ErrorCode.group_subscribed_to_topic
    assert central.delete_offset("bills", 0) is ErrorCode.none


def test_offsets_of_owned_partitions_are_not_deleted_though_their_member_has_left() -> None:
    central = stable("a")
    central.register("b", topics={"bills": 1})
    central.obey()
    central.committed("b", 2, bills=0)
    central.leave("b")
    assert central.state() is CentralGroupState.STOPPING
    assert central.delete_offset("bills", 0) is ErrorCode.group_subscribed_to_topic
    central.obey("a")
    assert central.delete_offset("bills", 0) is ErrorCode.none


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
    assert central.group().generation == 2, "the number of a generation is not used twice"


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
