"""A new central coordinator: it waits for the members that it finds as owners, and disturbs them only if something is missing."""

from __future__ import annotations

import functools
import operator

import pytest

from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.states import CentralGroupState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import TopicPartition
from ottla.zookeeper.nodes import HIGHEST_FOUND_GENERATION
from tests.unit.coordinator.central.harness import IMMEDIATE, Central, Member, Topics, failing, stable


def held(topic: str, *partitions: int) -> dict[TopicPartition, int]:
    """What a member with one thread holds."""
    return {TopicPartition(topic, number): 0 for number in partitions}


def failed_over() -> Central:
    """A new coordinator that finds a group with the owners a and b."""
    central = stable("a", "b")
    central.committed("a", 2, 17)
    central.fail_over()
    assert central.state() is CentralGroupState.RECOVERING
    return central


def test_members_come_back_and_read_on() -> None:
    central = failed_over()
    answer = central.register("a", again=central.members["a"])
    assert (answer.coordinator_epoch, answer.generation) == (2, 2)
    assert central.state() is CentralGroupState.RECOVERING
    assert central.received("a") == []
    central.register("b", again=central.members["b"])
    assert central.state() is CentralGroupState.STABLE
    assert [central.received(one) for one in "ab"] == [[Api.START]] * 2
    central.obey()
    assert central.node()[:4] == (2, 2, 9_000, 1), "nothing was written"
    assert central.holdings() == {"a": ["orders/0", "orders/1"], "b": ["orders/2", "orders/3"]}
    assert central.fetch() == {TopicPartition("orders", 0): 17}


def test_each_group_is_checked_and_patterns_come_with_the_members() -> None:
    """A topic that was created without a coordinator is read by the group whose pattern matches it, and disturbs no other one."""
    central = stable("a")
    central.register("p", group="h", topics={}, pattern="o.*")
    central.run_jobs()
    central.obey()
    central.fail_over()
    central.topics.counts["others"] = 1
    assert [central.state(group) for group in "gh"] == [CentralGroupState.RECOVERING] * 2
    central.register("a", again=central.members["a"])
    central.register("p", group="h", topics={}, pattern="o.*", again=central.members["p"])
    central.run_jobs()
    central.obey()
    everything = [f"orders/{number}" for number in range(4)]
    assert central.holdings() == {"a": everything, "p": [*everything, "others/0"]}
    assert [central.group(group).generation for group in "gh"] == [1, 2]


def test_members_that_come_back_commit_with_their_generation_before_all_are_there() -> None:
    central = failed_over()
    assert central.committed("a", 2) is ErrorCode.coordinator_load_in_progress, "it is expected, and should try again"
    assert central.committed("x", 2) is ErrorCode.unknown_member_id
    assert central.committed("", -1) is ErrorCode.unknown_member_id
    central.register("a", again=central.members["a"])
    assert central.committed("a", 2) is ErrorCode.none
    assert central.committed("a", 1) is ErrorCode.illegal_generation


def test_who_does_not_come_back_for_one_session_is_replaced() -> None:
    central = failed_over()
    central.register("a", again=central.members["a"])
    for _ in range(2):
        central.sleep(3_000)
        central.obey("a")
    assert central.state() is CentralGroupState.RECOVERING
    central.sleep(3_000)
    central.obey("a")
    assert central.state() is CentralGroupState.STABLE
    assert central.group().generation == 3
    assert len(central.holdings()["a"]) == 4


def test_a_group_whose_members_do_not_come_back_becomes_empty() -> None:
    central = failed_over()
    central.sleep(9_000)
    assert central.state() is CentralGroupState.EMPTY
    assert not central.timers
    assert central.node() == (2, 0, 9_000, 2, frozenset())
    assert central.stored_owners() == {}


def test_a_new_member_waits_for_the_owners() -> None:
    central = failed_over()
    central.register("c")
    assert central.received("c") == []
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.QUEUED}
    central.register("a", again=central.members["a"])
    central.register("b", again=central.members["b"])
    assert [central.received(one) for one in "abc"] == [[Api.STOP]] * 3
    central.obey()
    assert central.group().generation == 3
    assert len(central.holdings()["c"]) == 1


def test_a_member_that_was_stopped_by_the_old_coordinator_is_started_with_a_new_generation() -> None:
    central = stable("a", "b")
    central.register("c")
    central.answer(central.take("a"))
    central.members["a"].held = {}
    central.fail_over()
    for one in "ab":
        central.register(one, again=central.members[one])
    assert central.state() is CentralGroupState.STOPPING, "what a holds is not what the owners say"
    central.obey("a", "b")
    assert central.group().generation == 3
    assert central.holdings()["a"] == ["orders/0", "orders/1"]


def test_a_generation_that_was_stored_and_not_announced_is_started() -> None:
    central = stable("a", "b", "c")
    central.register("a", again=central.members["a"], topics={"orders": 1, "bills": 1})
    for one in "abc":
        central.answer(central.take(one))
        central.members[one].held = {}
    assert central.node().generation == 4
    central.fail_over()
    for one in "abc":
        central.register(one, again=central.members[one], topics={"orders": 1, "bills": 1} if one == "a" else {"orders": 1})
    assert central.group().generation == 4
    assert [central.received(one) for one in "abc"] == [[Api.START]] * 3
    central.obey()
    read: list[str] = sorted(functools.reduce(operator.iadd, central.holdings().values(), []))
    assert read == ["bills/0", "bills/1", *(f"orders/{n}" for n in range(4))]


def never_started() -> Central:
    """A new coordinator that finds the owner c, which has answered its first Stop, and was never started."""
    central = stable("a", "b")
    central.register("c")
    for one in "abc":
        central.obey_next(central.members[one])
    central.fail_over()
    assert central.group().generation == 3
    return central


def test_an_owner_that_was_never_started_is_known_by_its_stop() -> None:
    central = never_started()
    for one in "abc":
        assert central.register(one, again=central.members[one]).error_code is ErrorCode.none
    central.obey()
    assert central.group().generation == 3
    assert sorted(functools.reduce(operator.iadd, central.holdings().values(), [])) == [f"orders/{n}" for n in range(4)]


def test_another_process_with_the_id_of_an_owner_waits_for_the_end_of_its_session() -> None:
    central = never_started()
    central.members["c"] = Member("c", incarnation="two")
    for one in "ab":
        central.register(one, again=central.members[one])
    answer = central.register("c", again=central.members["c"])
    assert answer.error_code is ErrorCode.unreleased_instance_id
    assert "9000 ms" in answer.error_message
    for _ in range(3):
        central.sleep(3_000)
        central.obey("a", "b")
    assert central.register("c", again=central.members["c"]).error_code is ErrorCode.none
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert sorted(functools.reduce(operator.iadd, central.holdings().values(), [])) == [f"orders/{n}" for n in range(4)]


def test_a_process_is_not_the_owner_by_what_it_knows() -> None:
    central = failed_over()
    other = Member("a", epoch=1, generation=2, own=2, held=held("orders", 0, 1), incarnation="two")
    assert central.register("a", again=other).error_code is ErrorCode.unreleased_instance_id
    assert central.group().found == {"a", "b"}
    central.members["a"] = Member("a", epoch=1, generation=2, own=2, held=held("orders", 0, 1))
    assert central.register("a", again=central.members["a"]).error_code is ErrorCode.none
    assert central.register("a", again=other).error_code is ErrorCode.unreleased_instance_id, "it is known now"


def test_an_owner_whose_lease_has_ended_is_known() -> None:
    """1. ZooKeeper is away for longer than the sessions, and all members lose their partitions. 2. They register again, and have
    nothing. 3. Otherwise the coordinator would wait for a whole session for owners that are there."""
    central = failed_over()
    lost = {one: Member(one, epoch=1) for one in "ab"}
    other = Member("a", epoch=1, incarnation="two")
    assert central.register("a", again=other).error_code is ErrorCode.unreleased_instance_id
    assert central.register("a", again=lost["a"]).error_code is ErrorCode.none
    assert central.register("a", again=other).error_code is ErrorCode.unreleased_instance_id
    central.members["a"] = lost["a"]
    assert central.register("b", again=lost["b"]).error_code is ErrorCode.none
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert sorted(functools.reduce(operator.iadd, central.holdings().values(), [])) == [f"orders/{n}" for n in range(4)]


def id_taken_over() -> tuple[Central, Member, Member]:
    """A third coordinator, a process that owned nothing of generation 1, and another one that owns orders/1 of 2 by its id, x."""
    central = Central(Topics({"orders": 1}))
    for one in "mx":
        central.register(one)
        central.obey()
    first = central.members["x"]
    assert (first.generation, first.held) == (1, {})
    central.fail_over()
    central.register("m", again=central.members["m"])
    central.obey("m")
    second = Member("x", incarnation="two")
    assert central.register("x", again=second).error_code is ErrorCode.none, "x was not found: it owns nothing"
    central.change_topics(orders=2)
    central.obey()
    assert (second.generation, second.held) == (2, held("orders", 1))
    central.fail_over()
    central.register("m", again=central.members["m"])
    return central, first, second


def test_a_process_whose_id_was_taken_over_is_not_the_owner_by_the_generation_that_its_lease_lets_it_report() -> None:
    """1. A member that owns nothing is cut off. 2. The next coordinator does not wait for it, so another process gets its id, and a
    share. 3. A third coordinator is elected, and the first process returns before the owner, within its lease."""
    central, first, second = id_taken_over()
    assert central.register("x", again=first).error_code is ErrorCode.unreleased_instance_id
    central.members["x"] = second
    assert central.register("x", again=second).error_code is ErrorCode.none
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert (first.held, second.held, central.group().generation) == ({}, held("orders", 1), 2)


def test_only_the_owner_commits_after_its_id_was_taken_over() -> None:
    central, first, second = id_taken_over()
    central.register("x", again=first)
    central.obey()
    assert central.committed("x", 2, 120, orders=1) is ErrorCode.coordinator_load_in_progress, "the owner will register"
    central.members["x"] = second
    central.register("x", again=second)
    assert central.committed("x", 2, 150, orders=1) is ErrorCode.none


def test_owners_come_back_to_a_third_coordinator_without_a_rebalance() -> None:
    central = failed_over()
    for one in "ab":
        central.register(one, again=central.members[one])
    central.obey("a")
    central.fail_over()
    assert central.node().epoch == 1
    for one in "ab":
        assert central.register(one, again=central.members[one]).error_code is ErrorCode.none
    assert [central.received(one) for one in "ab"] == [[Api.START]] * 2
    central.obey()
    assert central.group().generation == 2
    assert central.holdings() == {"a": ["orders/0", "orders/1"], "b": ["orders/2", "orders/3"]}


def test_an_owner_that_was_never_started_is_known_by_the_third_coordinator() -> None:
    central = never_started()
    for one in "abc":
        central.register(one, again=central.members[one])
    central.fail_over()
    for one in "abc":
        assert central.register(one, again=central.members[one]).error_code is ErrorCode.none
    assert [central.received(one) for one in "abc"] == [[Api.START]] * 3
    assert central.group().generation == 3


def test_an_owner_that_was_never_started_and_is_stopped_again_is_known_by_the_third_coordinator() -> None:
    central = never_started()
    for one in "abc":
        central.register(one, again=central.members[one], topics={"orders": 1, "bills": 1})
    for one in "abc":
        assert central.received(one) == [Api.STOP]
    central.obey_next(central.members["c"])
    central.fail_over()
    for one in "abc":
        assert central.register(one, again=central.members[one]).error_code is ErrorCode.none


def test_a_process_that_was_replaced_after_its_stop_is_not_the_owner() -> None:
    """1. A member answers a Stop, and loses its channel. Its Register waits at another broker. 2. While others are slow to stop, it
    is evicted, and another process gets its id: before the next generation is written. 3. That broker is elected, and the Register
    arrives before the owner's."""
    central = stable("a", "b")
    first = central.members["b"]
    central.register("c")
    central.obey_next(first)
    late = Member("b", epoch=first.epoch, generation=first.generation, own=first.own)
    central.obey_next(central.members["c"])
    for _ in range(8):
        central.sleep(1_500)
        for one in "ac":
            for push in [push for push in central.members[one].inbox if push.api is Api.PING]:
                central.members[one].inbox.remove(push)
                central.answer(push)
    assert central.group().members.keys() == {"a", "c"}
    second = Member("b", incarnation="two")
    assert central.register("b", again=second).error_code is ErrorCode.none
    central.obey()
    central.fail_over()
    assert central.register("b", again=late).error_code is ErrorCode.unreleased_instance_id
    central.members["b"] = second
    for one in "abc":
        assert central.register(one, again=central.members[one]).error_code is ErrorCode.none
    central.obey()
    assert (central.state(), central.group().generation, late.held) == (CentralGroupState.STABLE, 3, {})


def test_a_longer_session_does_not_make_the_epoch_of_a_generation_that_of_a_later_coordinator() -> None:
    """The epoch tells who has written the owners."""
    central = never_started()
    central.register("a", again=central.members["a"], session=20_000)
    assert (central.node().session_timeout_ms, central.node().epoch) == (20_000, 1)
    central.fail_over()
    assert central.register("c", again=central.members["c"]).error_code is ErrorCode.none


def replaced(*, again: bool = True) -> tuple[Central, Member, Member]:
    """The first coordinator evicts b, whose id another process takes. It stops for that, and a does not. ``again``: then another
    coordinator is elected."""
    central = stable("a", "b")
    first = central.members["b"]
    for _ in range(4):
        central.sleep(2_250)
        central.obey("a") if central.received("a") == [Api.PING] else None
    assert central.group().members.keys() == {"a"}
    second = Member("b", incarnation="two")
    assert central.register("b", again=second).error_code is ErrorCode.none
    central.obey("b")
    assert (second.generation, second.own, central.group().generation) == (2, -1, 2)
    if again:
        central.fail_over()
    return central, first, second


def test_a_process_that_was_stopped_in_the_generation_of_the_owner_before_it_is_not_the_owner() -> None:
    """1. An owner is silent, and its session ends. 2. Another process gets its id, and is stopped. 3. Another coordinator is
    elected before the next generation, and the owner is back, without a lease: it is started again. 4. At the next coordinator
    the other process must not take its place, for it reads."""
    central, first, second = replaced()
    central.members["b"] = first
    assert central.register("b", again=first, generation=-1, held={}).error_code is ErrorCode.none
    central.register("a", again=central.members["a"])
    central.obey()
    assert first.held == held("orders", 2, 3)
    central.fail_over()
    assert central.register("b", again=second).error_code is ErrorCode.unreleased_instance_id
    central.register("a", again=central.members["a"])
    central.members["b"] = first
    assert central.register("b", again=first).error_code is ErrorCode.none
    central.obey()
    assert (central.state(), central.group().generation) == (CentralGroupState.STABLE, 2)


@pytest.mark.parametrize(("generation", "partitions"), [(2, (2, 3)), (2, (2,)), (1, (2, 3)), (1, ())])
def test_a_register_that_arrives_after_the_lease_of_its_process_is_not_that_of_the_owner(
    generation: int, partitions: tuple[int, ...]
) -> None:
    """1. A member registers at a broker that it does not reach, and what it has sent waits. 2. It is evicted, and another process
    gets its id, and its share of the next generation. 3. That broker is elected, and the Register arrives before the owner's."""
    central, _, second = replaced(again=False)
    central.obey()
    assert (second.held, central.node().generation, central.node().epoch) == (held("orders", 2, 3), 3, 1)
    central.fail_over()
    late = Member("b", epoch=1, generation=generation, own=generation, held=held("orders", *partitions))
    assert central.register("b", again=late).error_code is ErrorCode.unreleased_instance_id
    central.members["b"] = second
    for one in "ab":
        assert central.register(one, again=central.members[one]).error_code is ErrorCode.none
    central.obey()
    assert (central.state(), central.group().generation) == (CentralGroupState.STABLE, 3)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("election", [False, True])
def test_a_process_is_not_the_owner_by_its_generation_if_the_group_was_deleted_in_the_meantime(
    election: bool, is_known: bool
) -> None:
    """The generations of the next group with its name begin again, or have the same epoch."""
    central = stable("a")
    first = central.members["a"]
    central.sleep(12_000)
    assert central.delete() is ErrorCode.none
    if election:
        central.fail_over()
    if is_known:
        central.send_register("", topics={})
    second = Member("a", incarnation="two")
    assert central.register("a", again=second).error_code is ErrorCode.none
    central.obey()
    assert (second.generation, first.own) == (1 if election else 2, 1)
    central.fail_over()
    assert central.register("a", again=first, generation=-1, held={}).error_code is ErrorCode.unreleased_instance_id
    central.members["a"] = second
    assert central.register("a", again=second).error_code is ErrorCode.none


def test_a_process_that_comes_after_an_owner_must_give_up_the_generation_of_its_lease() -> None:
    """It is not in the node of that generation, which a coordinator that cannot write begins again for those that are."""
    central, first, _ = id_taken_over()
    central.appends = failing(ErrorCode.coordinator_not_available)
    central.sleep(18_000)
    assert (central.state(), len(central.group().share_of("x"))) == (CentralGroupState.EMPTY, 1)
    assert central.register("x", again=first, session=30_000).error_code is ErrorCode.illegal_generation
    central.appends = IMMEDIATE
    assert central.register("x", again=first, generation=-1).error_code is ErrorCode.none
    central.obey()
    assert central.group().generation == 3


def test_a_process_gets_nothing_of_a_generation_in_which_another_one_with_its_id_was_started() -> None:
    """1. The last member is evicted, and ZooKeeper does not store that. 2. Another process with its id joins, and would be started
    in the same generation. 3. The first one would be taken for it after an election."""
    central = stable("a")
    central.appends = failing(ErrorCode.coordinator_not_available)
    central.sleep(9_000)
    central.sleep(3_000)
    assert central.state() is CentralGroupState.EMPTY
    assert central.group().owners
    central.appends = IMMEDIATE
    second = Member("a", incarnation="two")
    central.register("a", again=second)
    central.register("a", again=second, connection=second.connection)
    central.obey()
    assert (central.group().generation, len(second.held)) == (2, 4)
    central.fail_over()
    assert central.register("a", again=Member("a", epoch=1), own=1).error_code is ErrorCode.unreleased_instance_id
    central.members["a"] = second
    assert central.register("a", again=second).error_code is ErrorCode.none


def test_a_process_that_is_started_again_as_its_own_member_causes_no_rebalance() -> None:
    central = stable("a")
    central.appends = failing(ErrorCode.coordinator_not_available)
    central.sleep(12_000)
    assert central.state() is CentralGroupState.EMPTY
    central.appends = IMMEDIATE
    central.register("a", again=Member("a", epoch=1), own=1)
    central.obey()
    assert central.group().generation == 1


def test_members_know_the_generation_of_a_group_whose_node_is_malformed() -> None:
    central = stable("a", "b", "c")
    members = dict(central.members)
    assert central.group().generation == 3
    central.nodes["g/generation"] = b"{"
    central.fail_over()
    assert (central.group().generation, central.group().session_timeout_ms) == (0, 1_800_000)
    for one in "bac":
        assert central.register(one, again=members[one]).error_code is ErrorCode.none
        assert central.nodes["g/generation"] == b"{", "only what is true of all owners is stored"
        if one != "c":
            members[one].generation = 9
            assert central.register(one, again=members[one]).error_code is ErrorCode.none, "as long as owners may know a later one"
    assert central.state() is CentralGroupState.STOPPING
    assert "the node of its generation was malformed" in central.group().reason
    central.obey()
    assert central.node()[:4] == (10, 3, 9_000, 2)
    assert sorted(functools.reduce(operator.iadd, central.holdings().values(), [])) == [f"orders/{n}" for n in range(4)]
    central.members["c"].generation = 11
    assert central.register("c", again=central.members["c"]).error_code is ErrorCode.illegal_generation


@pytest.mark.parametrize(("session", "wait"), [(9_000, 45_000), (60_000, 60_000)])
def test_an_owner_whose_lease_has_ended_waits_for_a_usual_session_or_its_own_if_the_node_is_malformed(
    session: int, wait: int
) -> None:
    """It cannot prove that it is the owner, and how long a session lasts was in the node."""
    central = stable("a")
    central.nodes["g/generation"] = b"{"
    central.fail_over()
    lost = Member("a", epoch=1, own=1)
    central.sleep(wait - 1)
    answer = central.register("a", again=lost, session=session)
    assert answer.error_code is ErrorCode.unreleased_instance_id
    assert f"{wait} ms after the election" in answer.error_message
    central.sleep(1)
    assert central.register("a", again=lost, session=session).error_code is ErrorCode.none
    central.obey()
    assert (central.state(), len(lost.held)) == (CentralGroupState.STABLE, 4)
    assert central.node().generation == 2, "the number of a generation is not used twice"


def test_a_generation_that_no_group_has_is_refused_also_if_the_node_is_malformed() -> None:
    """It would be stored, and the next one would fit into no request and no node."""
    central = stable("a")
    member = central.members["a"]
    central.nodes["g/generation"] = b"{"
    central.fail_over()
    for generation in (2**31 - 1, HIGHEST_FOUND_GENERATION + 1):
        for fields in ({"generation": generation, "held": member.held}, {"own": generation}):
            assert central.register("a", again=Member("a"), **fields).error_code is ErrorCode.illegal_generation
    assert (central.nodes["g/generation"], central.group().generation) == (b"{", 0)
    assert central.register("a", again=member).error_code is ErrorCode.none
    central.obey()
    assert central.node().generation == 2


def test_a_later_coordinator_is_as_careful_as_long_as_owners_of_a_malformed_generation_are_missing() -> None:
    """With the generation that the first one knows, and the epoch of its coordinator, it would take strangers for owners."""
    central = stable("a", "b")
    members = dict(central.members)
    first = Member("a", epoch=1, own=1)
    central.nodes["g/generation"] = b"{"
    central.fail_over()
    assert central.register("b", again=members["b"], generation=1, own=1).error_code is ErrorCode.none
    assert (central.nodes["g/generation"], central.group().generation) == (b"{", 1)
    central.fail_over()
    assert central.register("a", again=first).error_code is ErrorCode.unreleased_instance_id
    central.members.update(members)
    for one in "ab":
        assert central.register(one, again=members[one]).error_code is ErrorCode.none
    central.obey()
    assert central.node()[:4] == (3, 2, 9_000, 3)


def test_later_coordinators_wait_for_one_session_of_the_members_whose_node_was_malformed_once() -> None:
    central = stable("a", "b")
    central.nodes["g/generation"] = b"{"
    central.fail_over()
    for one in "ab":
        central.register(one, again=central.members[one])
    central.obey()
    central.fail_over()
    central.register("a", again=central.members["a"])
    for _ in range(3):
        central.sleep(3_000)
        central.obey("a")
    assert (central.state(), len(central.holdings()["a"])) == (CentralGroupState.STABLE, 4)


def test_a_group_without_owners_whose_node_was_malformed_begins_a_generation_with_its_next_member() -> None:
    central = stable("a")
    central.nodes = {"g/generation": b"{"}
    central.fail_over()
    central.register("a", again=Member("a"))
    central.obey()
    assert (central.node()[:4], len(central.holdings()["a"])) == ((1, 1, 9_000, 2), 4)


def test_a_group_whose_node_was_malformed_and_whose_owners_do_not_return_becomes_empty() -> None:
    central = stable("a")
    central.nodes["g/generation"] = b"{"
    central.fail_over()
    central.sleep(1_800_000)
    assert (central.state(), central.node()[:4], central.stored_owners()) == (CentralGroupState.EMPTY, (0, 0, 1_800_000, 2), {})
    central.register("a", again=Member("a"))
    central.obey()
    assert central.node()[:4] == (1, 1, 9_000, 2)


def test_a_group_whose_members_own_nothing_is_not_taken_for_one_without_members() -> None:
    central = Central(Topics({"orders": 1}))
    central.register("a", topics={"other": 1})
    assert central.committed("", -1) is ErrorCode.unknown_member_id
    central.fail_over()
    assert central.state() is CentralGroupState.EMPTY
    assert central.committed("", -1) is ErrorCode.coordinator_load_in_progress
    assert central.delete_offset("orders", 0) is ErrorCode.coordinator_load_in_progress
    assert central.delete() is ErrorCode.non_empty_group
    central.sleep(9_000)
    assert central.committed("", -1) is ErrorCode.none


def test_a_member_that_owns_nothing_may_come_back_as_any_process() -> None:
    central = failed_over()
    assert central.register("c", incarnation="two").error_code is ErrorCode.none


def test_owners_that_only_partly_reached_the_nodes_lead_to_a_rebalance() -> None:
    central = stable("a", "b")
    central.nodes["g/owners/orders/1"] = b"c-0"
    central.fail_over()
    for one in "ab":
        central.register(one, again=central.members[one])
    central.sleep(3_000)
    central.obey()
    central.sleep(3_000)
    central.obey()
    central.sleep(3_000)
    central.obey()
    assert central.group().generation == 3
    assert central.stored_owners()["orders/1"] == "a-0"


def test_an_owner_with_a_text_of_another_tool_is_not_waited_for_longer_than_a_session() -> None:
    central = stable("a")
    central.nodes["g/owners/orders/1"] = b"?"
    central.fail_over()
    central.register("a", again=central.members["a"])
    for _ in range(3):
        central.sleep(3_000)
        central.obey()
    assert set(central.stored_owners().values()) == {"a-0"}


def test_members_without_partitions_are_not_waited_for_but_the_group_becomes_empty_in_the_end() -> None:
    central = Central()
    central.register("a", topics={"missing": 1})
    central.obey()
    central.fail_over()
    assert central.state() is CentralGroupState.EMPTY
    assert central.delete() is ErrorCode.non_empty_group
    central.register("a", again=central.members["a"], topics={"missing": 1})
    central.obey()
    central.sleep(8_000)
    assert central.state() is CentralGroupState.STABLE
    central.fail_over()
    central.sleep(9_000)
    assert central.node().members == 0


def test_an_owner_leaves_while_the_others_are_waited_for() -> None:
    central = failed_over()
    central.register("a", again=central.members["a"])
    assert central.leave("a").error_code is ErrorCode.none
    assert central.state() is CentralGroupState.RECOVERING
    del central.members["a"]
    central.register("b", again=central.members["b"])
    central.obey()
    assert central.group().generation == 3
    assert len(central.holdings()["b"]) == 4


def test_a_generation_above_the_stored_one_is_refused() -> None:
    central = failed_over()
    answer = central.register("a", again=Member("a", epoch=1, generation=3))
    assert answer.error_code is ErrorCode.illegal_generation


def test_the_old_coordinator_does_nothing_after_its_unload() -> None:
    central = stable("a")
    old = central.coordinator
    timers = dict(central.timers)
    central.fail_over()
    for key in timers:
        assert old.on_timer(key, central.now) == []
    assert old.on_disconnect(100, central.now) == []
    assert old.on_topics_changed(("orders",), central.now) == []
    assert old.on_regexes_resolved("g", None, central.now) == []
    assert old.on_appended(0, 1, central.now) == []
