"""Loading and unloading, appends that are late or fail, and the order of the operations on a group."""

from __future__ import annotations

import struct
import uuid

import pytest

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.coordinator import GroupCoordinator
from ottla.coordinator.decision import session_timer
from ottla.coordinator.effects import Append, CancelTimer, Reply
from ottla.coordinator.events import events_of
from ottla.errors import IllegalStateError, ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.group_records import OffsetCommitKey, OffsetCommitValue, encode_record
from ottla.protocol.messages import heartbeat_request, list_groups_request
from tests.unit.coordinator.harness import DELAYED, Harness, Topics, failing, share

OFFSET = encode_record(
    OffsetCommitKey(group="g", topic="orders", partition=0), OffsetCommitValue(offset=1, metadata="", commit_timestamp=5)
)

# Appends.


def test_a_groups_requests_wait_for_its_append_and_others_go_on() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.stable("A", group="other")
    harness.appends = DELAYED
    first = harness.commit({("orders", 0): 1}, leader, 1)
    second = harness.commit({("orders", 0): 2}, leader, 1)
    beat = harness.ask(Api.HEARTBEAT, heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id=leader))
    assert len(harness.open) == 1
    assert harness.describe("other")[0].group_state == "Stable"
    assert all(map(harness.waits, (first, second, beat)))
    harness.settle()
    assert not harness.waits(first)
    assert len(harness.open) == 1, "now the second"
    assert harness.waits(beat)
    harness.settle()
    assert not harness.waits(second)
    assert harness.answer(beat).error_code is ErrorCode.none
    harness.appends = failing(ErrorCode.none)
    assert harness.committed() == {("orders", 0): 2}


def test_a_queued_timer_has_no_effect_after_it_was_moved() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.appends = DELAYED
    harness.sleep(5_999)
    harness.commit({("orders", 0): 1}, leader, 1)
    harness.sleep(1)
    assert harness.state() is ClassicGroupState.STABLE
    harness.settle()
    assert harness.state() is ClassicGroupState.STABLE, "the commit has restarted its session"
    harness.sleep(6_000)
    harness.settle()
    assert harness.state() is ClassicGroupState.EMPTY


def test_the_work_of_a_timer_is_retried_if_it_cannot_be_stored() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.appends = failing(ErrorCode.not_enough_replicas)
    harness.sleep(6_000)
    assert list(harness.group().members) == [leader]
    harness.sleep(499)
    harness.appends = failing(ErrorCode.none)
    assert harness.state() is ClassicGroupState.STABLE
    harness.sleep(1)
    assert harness.state() is ClassicGroupState.EMPTY


@pytest.mark.parametrize("request_name", ["join", "leave", "static"])
def test_a_failed_append_leaves_the_state_unchanged(request_name: str) -> None:
    harness = Harness()
    if request_name != "join":
        ticket = harness.join(instance="i")
        harness.wait_for(ticket)
        leader = harness.answer(ticket).member_id
        harness.answer(harness.sync(leader, 1, {leader: share(leader)}))
    before, timers = harness.coordinator.groups(), dict(harness.deadlines)
    harness.appends = failing(ErrorCode.not_enough_replicas)
    ask = {"join": harness.join, "leave": lambda: harness.leave(leader), "static": lambda: harness.join(instance="i")}
    assert harness.answer(ask[request_name]()).error_code is ErrorCode.coordinator_not_available
    assert harness.coordinator.groups() == before
    assert harness.deadlines == timers


def test_the_outcome_of_an_append_counts_only_once() -> None:
    harness = Harness()
    harness.appends = DELAYED
    harness.commit({("orders", 0): 1})
    (append,) = harness.open.values()
    harness.settle()
    assert harness.coordinator.on_appended(append.partition, append.batch, harness.now) == []
    assert harness.coordinator.on_append_failed(append.partition, append.batch, ErrorCode.none, harness.now) == []


def test_an_append_from_before_an_unload_does_not_complete_a_later_one() -> None:
    harness = Harness()
    harness.appends = DELAYED
    harness.commit({("orders", 0): 1})
    ((key, early),) = harness.open.items()
    del harness.open[key]
    harness.coordinator.unload(early.partition)
    harness.coordinator.load(early.partition, (), harness.now)
    later = harness.commit({("orders", 0): 2})
    assert harness.coordinator.on_appended(early.partition, early.batch, harness.now) == []
    assert harness.waits(later)
    harness.settle()
    assert not harness.waits(later)
    assert harness.committed() == {("orders", 0): 2}


class Failing(Topics):
    """Topics whose image raises while ``broken``."""

    broken = False

    def partition_count(self, name: str) -> int | None:
        if self.broken:
            raise RuntimeError("a defect")
        return super().partition_count(name)

    def topic_id(self, name: str) -> uuid.UUID | None:
        if self.broken:
            raise RuntimeError("a defect")
        return super().topic_id(name)


def test_after_an_exception_in_a_handler_queued_requests_go_on(caplog: pytest.LogCaptureFixture) -> None:
    topics = Failing()
    harness = Harness(topics)
    (leader,) = harness.stable("A")
    harness.appends = DELAYED
    first = harness.commit({("orders", 0): 1}, leader, 1)
    second = harness.commit({("orders", 0): 2}, leader, 1)
    beat = harness.ask(Api.HEARTBEAT, heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id=leader))
    topics.broken = True
    harness.settle()
    assert harness.answer(first).topics[0].partitions[0].error_code is ErrorCode.none
    assert harness.answer(second).topics[0].partitions[0].error_code is ErrorCode.unknown_server_error
    assert harness.answer(beat).error_code is ErrorCode.none
    assert "a defect" in caplog.text


def test_the_work_of_a_timer_is_retried_after_an_exception(caplog: pytest.LogCaptureFixture) -> None:
    topics = Failing()
    harness = Harness(topics)
    harness.cg_join("a")
    harness.cg_join("b")
    topics.broken = True
    harness.sleep(harness.config.group_consumer_session_timeout_ms)
    assert "a defect" in caplog.text
    assert set(harness.consumer_group().members) == {"a", "b"}
    topics.broken = False
    harness.sleep(harness.config.append_retry_backoff_ms)
    assert not harness.consumer_group().members


# Loading.


def test_groups_and_offsets_survive_a_restart() -> None:
    harness = Harness()
    ids = harness.stable("A", "B")
    harness.answer(harness.commit({("orders", 1): 5}, ids[0], 1))
    harness.answer(harness.commit({("bills", 0): 6}, group="simple"))
    before = harness.coordinator.groups()
    harness.sleep(5_000)
    harness.restart()
    assert harness.coordinator.groups() == before
    assert harness.committed() == {("orders", 1): 5}
    assert harness.committed("simple") == {("bills", 0): 6}
    assert [harness.heartbeat(one, 1) for one in ids] == [ErrorCode.none] * 2
    assert harness.answer(harness.sync(ids[1], 1)).assignment == share(ids[1])


def test_members_of_a_loaded_group_get_a_full_session() -> None:
    harness = Harness()
    ids = harness.stable("A", "B")
    harness.sleep(5_000)
    harness.restart()
    assert harness.deadlines == {session_timer("g", one): harness.mono + 6_000 for one in ids}
    harness.sleep(6_000)
    assert harness.state() is ClassicGroupState.EMPTY


def test_a_rebalance_starts_again_after_a_restart() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    harness.join(leader)
    harness.restart()
    assert (harness.state(), harness.group().generation) == (ClassicGroupState.STABLE, 1)
    assert harness.heartbeat(follower, 1) is ErrorCode.none
    ticket = harness.join(leader)
    harness.join(follower)
    assert harness.answer(ticket).generation_id == 2


def test_requests_for_an_unloaded_partition_get_not_coordinator() -> None:
    harness = Harness(load=False)
    assert harness.heartbeat("a", 1) is ErrorCode.not_coordinator
    assert harness.answer(harness.join()).error_code is ErrorCode.not_coordinator
    assert harness.list_groups().groups == (), "groups of unloaded partitions are left out"


def test_requests_during_a_load_get_load_in_progress() -> None:
    harness = Harness(load=False)
    for partition in range(5):
        harness.coordinator.start_loading(partition)
    loading = ErrorCode.coordinator_load_in_progress
    assert harness.answer(harness.join()).error_code is loading
    assert harness.answer(harness.sync("a", 1)).error_code is loading
    assert harness.answer(harness.leave("a")).error_code is loading
    assert harness.answer(harness.commit({("orders", 0): 1})).topics[0].partitions[0].error_code is loading
    assert harness.answer(harness.delete("g")).results[0].error_code is loading
    assert harness.describe("g")[0].error_code is loading
    assert harness.list_groups().error_code is loading
    assert harness.heartbeat("a", 1) is ErrorCode.none, "the member stays in the group"
    harness.load_all()
    assert harness.heartbeat("a", 1) is ErrorCode.unknown_member_id


def test_unknown_records_of_a_newer_kafka_are_ignored() -> None:
    harness = Harness(load=False)
    partition = harness.coordinator.partition_for("g")
    harness.log[partition] = [(struct.pack(">h", 99) + b"?", b"?"), OFFSET, (struct.pack(">h", 3) + b"\0\1g", None)]
    harness.load_all()
    assert harness.committed() == {("orders", 0): 1}


@pytest.mark.parametrize("damaged", [(b"", b""), (b"\0\2\0", b""), (OFFSET[0], b"\0\4\0")])
def test_a_malformed_record_fails_the_load_which_can_be_retried(damaged: tuple[bytes, bytes]) -> None:
    harness = Harness(load=False)
    partition = harness.coordinator.partition_for("g")
    with pytest.raises(ProtocolError):
        harness.coordinator.load(partition, events_of([OFFSET, damaged]), harness.now)
    assert harness.heartbeat("a", 1) is ErrorCode.not_coordinator
    harness.coordinator.load(partition, events_of([OFFSET]), harness.now)
    assert harness.committed() == {("orders", 0): 1}


def test_a_loaded_partition_is_not_loaded_again() -> None:
    harness = Harness()
    with pytest.raises(IllegalStateError, match="unload it first"):
        harness.coordinator.load(0, [], harness.now)
    harness.coordinator.unload(0)
    harness.perform(harness.coordinator.load(0, [], harness.now))
    harness.answer(
        harness.commit({("orders", 0): 1}, group=next(one for one in "abcdefgh" if harness.coordinator.partition_for(one) == 0))
    )


def test_tombstones_without_earlier_records_have_no_effect() -> None:
    harness = Harness(load=False)
    partition = harness.coordinator.partition_for("g")
    harness.log[partition] = [(OFFSET[0], None), (b"\0\2\0\1g", None)]
    harness.load_all()
    assert harness.coordinator.groups() == {}


def test_offsets_that_outlive_their_groups_record_are_kept() -> None:
    harness = Harness(load=False)
    partition = harness.coordinator.partition_for("g")
    harness.log[partition] = [OFFSET, (b"\0\2\0\1g", None)]
    harness.load_all()
    assert harness.committed() == {("orders", 0): 1}
    assert harness.state() is ClassicGroupState.EMPTY


# Unloading.


def test_waiting_requests_are_answered_when_a_partition_is_unloaded() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    joining = harness.join(leader)
    harness.answer(harness.commit({("orders", 0): 1}, group="s"))
    partition = harness.coordinator.partition_for("g")
    harness.perform(harness.coordinator.unload(partition))
    assert harness.answer(joining).error_code is ErrorCode.not_coordinator
    assert harness.heartbeat(follower, 1) is ErrorCode.not_coordinator
    assert harness.deadlines == {}


def test_a_parked_sync_and_an_open_append_are_answered_at_an_unload() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    harness.appends = DELAYED
    stored = harness.sync(leader, 1)
    late = harness.join(leader)
    gone = harness.delete("g", "h")
    partition = harness.coordinator.partition_for("g")
    effects = harness.coordinator.unload(partition)
    harness.perform(effects)
    assert [harness.answer(one).error_code for one in (parked, stored, late)] == [ErrorCode.not_coordinator] * 3
    assert [one.error_code for one in harness.answer(gone).results] == [ErrorCode.not_coordinator, ErrorCode.group_id_not_found]
    assert {type(effect) for effect in effects} == {Reply, CancelTimer}
    harness.settle()
    assert harness.coordinator.groups() == {}, "the outcome of an open append has no effect after an unload"
    assert harness.coordinator.on_timer(("coordinator", "g", "join"), harness.now) == []


# The table of APIs.


def test_the_table_lists_the_apis() -> None:
    assert set(GroupCoordinator.APIS) == {
        Api.JOIN_GROUP,
        Api.SYNC_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.OFFSET_COMMIT,
        Api.OFFSET_FETCH,
        Api.DESCRIBE_GROUPS,
        Api.LIST_GROUPS,
        Api.DELETE_GROUPS,
        Api.OFFSET_DELETE,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.CONSUMER_GROUP_DESCRIBE,
        Api.TXN_OFFSET_COMMIT,
        Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT,
        Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT,
    }


def test_the_same_requests_have_the_same_effects() -> None:
    def run() -> list[object]:
        harness = Harness()
        ids = harness.stable("A", "B")
        harness.commit({("orders", 0): 1}, ids[0], 1)
        harness.join(ids[0])
        harness.sleep(400_000)
        harness.ask(Api.LIST_GROUPS, list_groups_request.ListGroupsRequest())
        return list(harness.trace)

    first = run()
    assert first == run()
    assert sum(isinstance(effect, Append) for effect in first) > 2
