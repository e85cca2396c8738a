"""Topics of central groups: created, extended and deleted ones, and patterns."""

from __future__ import annotations

import pytest

from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.states import CentralGroupState
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Central, Member, Topics, failing, stable


def matching(pattern: str, **fields: int) -> Central:
    """A stable group with one member that has a pattern."""
    central = Central(Topics(dict(fields) or {"orders": 4, "bills": 2}))
    central.register("a", topics={}, pattern=pattern)
    central.run_jobs()
    central.obey()
    return central


def test_a_topic_that_is_created_is_read() -> None:
    central = Central()
    central.register("a", topics={"new": 1})
    central.obey()
    central.change_topics(new=2)
    central.obey()
    assert central.holdings() == {"a": ["new/0", "new/1"]}
    assert central.group().generation == 1


def test_a_topic_that_is_extended_is_read_in_whole() -> None:
    central = stable("a", "b")
    central.change_topics(orders=6)
    central.obey()
    assert [len(held) for held in central.holdings().values()] == [3, 3]
    assert central.group().generation == 3


def test_a_topic_that_no_member_reads_changes_nothing() -> None:
    central = stable("a")
    central.change_topics(bills=7, new=1)
    assert central.state() is CentralGroupState.STABLE
    assert central.received("a") == []


def test_a_deleted_topic_loses_its_owners_and_offsets() -> None:
    central = Central()
    central.register("a", topics={"orders": 1, "bills": 1})
    central.obey()
    central.committed("a", 1, 3, orders=0, bills=0)
    central.change_topics(bills=0)
    assert "g/offsets/bills/0" not in central.nodes
    central.obey()
    assert central.holdings() == {"a": [f"orders/{n}" for n in range(4)]}
    assert set(central.stored_owners()) == {f"orders/{n}" for n in range(4)}
    assert central.fetch() == {TopicPartition("orders", 0): 3}


def test_offsets_of_a_deleted_topic_are_deleted_in_groups_without_members_too() -> None:
    central = stable("a")
    central.committed("a", 1)
    central.leave("a")
    central.change_topics(orders=0)
    assert central.fetch() == {}
    assert not any("offsets" in path for path in central.nodes)


def test_offsets_that_cannot_be_deleted_are_deleted_later() -> None:
    central = stable("a")
    central.committed("a", 1)
    central.leave("a")
    central.appends = failing(ErrorCode.request_timed_out)
    central.change_topics(orders=0)
    assert central.fetch() == {TopicPartition("orders", 0): 10}
    central.appends = IMMEDIATE
    central.sleep(500)
    assert central.fetch() == {}


def test_a_commit_whose_append_is_open_when_its_topic_is_deleted_is_deleted_as_well() -> None:
    central = stable("a")
    central.appends = DELAYED
    central.commit("a", 1)
    central.change_topics(orders=0)
    central.appends = IMMEDIATE
    central.settle()
    assert central.fetch() == {}


def test_offsets_of_a_topic_that_was_created_again_survive() -> None:
    central = stable("a")
    central.committed("a", 1, 3, bills=0)
    central.topics.generations["bills"] += 1
    central.committed("a", 1, 7, bills=1)
    central.change_topics(bills=2)
    assert central.fetch() == {TopicPartition("bills", 1): 7}, "the offset of the old topic does not"


# Patterns.


def test_a_pattern_is_matched_away_from_the_event_loop() -> None:
    central = Central()
    central.register("a", topics={}, pattern="o.*")
    assert central.state() is CentralGroupState.STABLE
    assert central.received("a") == []
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.QUEUED}
    (job,) = central.jobs
    assert job.regexes == ("o.*",)
    assert set(job.names) == {"orders", "bills"}
    central.run_jobs()
    central.obey()
    assert central.holdings() == {"a": [f"orders/{n}" for n in range(4)]}


def test_a_pattern_does_not_match_internal_topics() -> None:
    central = matching(".*", orders=1, __consumer_offsets=50, __transaction_state=50)
    assert central.holdings() == {"a": ["orders/0"]}


def test_a_new_topic_that_matches_is_read() -> None:
    central = matching("o.*")
    central.change_topics(others=1, more=1)
    central.run_jobs()
    central.obey()
    assert central.holdings() == {"a": ["orders/0", "orders/1", "orders/2", "orders/3", "others/0"]}
    assert central.group().generation == 2


def test_a_new_topic_that_does_not_match_causes_no_rebalance() -> None:
    central = matching("o.*")
    central.change_topics(more=1)
    central.run_jobs()
    assert central.received("a") == []
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.IDLE}


def test_topics_that_change_while_a_pattern_is_matched_are_matched_again() -> None:
    central = Central()
    central.register("a", topics={}, pattern="o.*")
    central.change_topics(others=1)
    assert len(central.jobs) == 1
    central.run_jobs()
    central.obey()
    assert "others/0" in central.holdings()["a"]
    assert central.group().generation == 1


def test_a_failed_match_is_tried_again() -> None:
    central = Central()
    central.register("a", topics={}, pattern="o.*")
    central.jobs.clear()
    central.tell("on_regexes_resolved", "g", None)
    assert central.jobs == []
    central.sleep(500)
    central.run_jobs()
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert len(central.holdings()["a"]) == 4


def test_members_with_patterns_and_with_names_share_topics() -> None:
    central = matching("o.*")
    central.register("b", topics={"orders": 1, "bills": 1})
    central.run_jobs()
    central.obey()
    assert central.holdings() == {"a": ["orders/0", "orders/1"], "b": ["bills/0", "bills/1", "orders/2", "orders/3"]}


def test_a_topic_that_matches_only_after_the_new_owners_were_computed_is_not_forgotten() -> None:
    central = matching("o.*")
    central.register("b")
    central.run_jobs()
    central.obey("a")
    central.change_topics(others=1)
    central.obey()
    central.run_jobs()
    central.obey()
    assert "others/0" in central.holdings()["a"]
    assert central.state() is CentralGroupState.STABLE


def test_the_indexes_of_the_draft_follow_the_members() -> None:
    central = matching("o.*")
    central.register("b", topics={"bills": 1})
    served = central.coordinator._runtime.served(0)
    assert served is not None
    state = served.shard.state
    assert state.consumer_groups_per_topic == {"bills": {"g": 1}}
    assert state.groups_with_wildcard_topics == {"g"}
    central.register("b", again=Member("b"), topics={"orders": 1})
    assert state.consumer_groups_per_topic == {"orders": {"g": 1}}
    central.leave("b")
    central.leave("a")
    assert state.consumer_groups_per_topic == {}
    assert state.groups_with_wildcard_topics == set()
    assert not state.channels()


# Topics that change while there is no coordinator, or while one is elected.


def test_offsets_of_an_earlier_coordinator_survive_an_extension_of_their_topic() -> None:
    central = stable("a")
    central.committed("a", 1, 3)
    central.fail_over()
    central.change_topics(orders=6)
    assert central.fetch() == {TopicPartition("orders", 0): 3}
    central.change_topics(orders=0)
    assert central.fetch() == {}


def replace_topic(central: Central, name: str) -> None:
    """Delete a topic and create it again, so that the coordinator sees both at once."""
    central.topics.generations[name] += 1
    central.change_topics(**{name: central.topics.counts[name]})


def test_a_topic_that_is_created_again_after_an_election_loses_its_offsets() -> None:
    central = stable("a")
    central.committed("a", 1, 3, orders=0, bills=0)
    central.fail_over()
    replace_topic(central, "bills")
    assert central.fetch() == {TopicPartition("orders", 0): 3}
    assert "g/offsets/bills/0" not in central.nodes


def test_a_commit_whose_append_is_open_when_its_topic_is_created_again_is_deleted_as_well() -> None:
    central = stable("a")
    central.appends = DELAYED
    central.commit("a", 1, 3, orders=0, bills=0)
    replace_topic(central, "bills")
    central.settle()
    central.settle()
    assert central.fetch() == {TopicPartition("orders", 0): 3}


def between_coordinators(name: str, partitions: int = 0) -> Central:
    """The offset of a partition, whose topic is deleted while there is no coordinator; another one is kept."""
    central = stable("a")
    central.committed("a", 1, 3, orders=0, **{name: 1})
    del central.topics.counts[name]
    central.topics.generations[name] += 1
    if partitions:
        central.topics.counts[name] = partitions
    return central


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_is_deleted_while_there_is_no_coordinator_loses_its_offsets(partitions: int) -> None:
    central = between_coordinators("bills", partitions)
    central.fail_over()
    assert central.stored_offsets() == central.fetch() == {TopicPartition("orders", 0): 3}
    assert central.outdated() == set()


def test_outdated_offsets_that_cannot_be_deleted_are_deleted_later_and_are_none_meanwhile() -> None:
    central = between_coordinators("bills", 2)
    central.appends = failing(ErrorCode.request_timed_out)
    central.fail_over()
    assert central.fetch() == {TopicPartition("orders", 0): 3}
    assert central.outdated() == {TopicPartition("bills", 1)}
    central.appends = IMMEDIATE
    central.sleep(500)
    assert central.stored_offsets() == central.fetch() == {TopicPartition("orders", 0): 3}


def test_an_offset_that_is_committed_before_the_outdated_one_is_deleted_stays() -> None:
    central = between_coordinators("bills", 2)
    central.appends = failing(ErrorCode.request_timed_out)
    central.fail_over()
    central.appends = IMMEDIATE
    central.register("a", again=central.members["a"])
    assert central.committed("a", 1, 8, bills=1) is ErrorCode.none
    central.sleep(1_000)
    assert central.stored_offsets() == {TopicPartition("orders", 0): 3, TopicPartition("bills", 1): 8}


def test_outdated_offsets_are_left_to_members_of_0_8() -> None:
    central = between_coordinators("bills")
    central.leave("a")
    central.appends = failing(ErrorCode.inconsistent_group_protocol)
    central.fail_over()
    central.appends = IMMEDIATE
    central.change_topics(bills=0)
    central.sleep(10_000)
    assert TopicPartition("bills", 1) in central.stored_offsets()


def test_a_topic_that_the_new_coordinator_does_not_know_yet_keeps_its_offsets() -> None:
    """The groups may be read before the topics: it counts what is stored, not what is known."""
    central = stable("a")
    central.committed("a", 1, 3, orders=0, bills=1)
    found = central.stored_groups()
    del central.topics.counts["bills"]
    central.tell("unload")
    central.tell("load", found, 2)
    assert TopicPartition("bills", 1) in central.stored_offsets()
    assert central.fetch()[TopicPartition("bills", 1)] == 3


def test_a_topic_that_is_deleted_while_the_groups_are_loaded_loses_its_offsets() -> None:
    central = stable("a")
    central.committed("a", 1, 3, orders=0, bills=1)
    central.tell("unload")
    central.coordinator.start_loading()
    found = central.stored_groups()
    central.change_topics(bills=0)
    central.tell("load", found, 2)
    assert central.stored_offsets() == central.fetch() == {TopicPartition("orders", 0): 3}
