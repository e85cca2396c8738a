"""Assignors that users write: they run on the application's thread, and their failures do not break the consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.assignors import Cluster, ConsumerPartitionAssignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from ottla.client.groups.classic.states import State
from ottla.errors import AssignmentError
from ottla.protocol.apis import Api
from ottla.simulation.application import App, member
from ottla.types import ConsumerGroupMetadata, TopicPartition
from tests.scenarios.groups import ALL, PARTITIONS, filled
from tests.simulation.world import World

Members = Mapping[str, MemberSubscription]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(tmp_path, records=10, **{"auto.create.topics.enable": False})


class Weighted(ConsumerPartitionAssignor):
    """Each member's user data is its weight; the assignment's user data lists all members' counts."""

    name = "weighted"

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.heard: list[tuple[MemberAssignment, ConsumerGroupMetadata]] = []
        self.clusters: list[Cluster] = []

    def subscription_user_data(self, topics: frozenset[str]) -> bytes:
        return b"%d %s" % (self.weight, ",".join(sorted(topics)).encode())

    def assign(self, cluster: Cluster, members: Members) -> dict[str, MemberAssignment]:
        self.clusters.append(cluster)
        weights = {one: int((members[one].user_data or b"0").split()[0]) for one in members}
        places = [one for one in sorted(members, key=lambda one: (-weights[one], one)) for _ in range(weights[one])]
        shares: dict[str, list[TopicPartition]] = {one: [] for one in members}
        for place, number in enumerate(range(cluster.partitions["t"])):
            shares[places[place % len(places)]].append(TopicPartition("t", number))
        return {one: MemberAssignment(tuple(share), b"you have %d" % len(share)) for one, share in shares.items()}

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        self.heard.append((assignment, metadata))


def join(world: World, name: str, assignor: object, **more: Any) -> App:
    app = world.app(name, group_id="g", group_protocol="classic", partition_assignment_strategy=[assignor])
    app.start(member(app, **more))
    return app


def settled(*apps: App) -> bool:
    owned = sorted(tp for app in apps for tp in app.calls.owned)
    return owned == ALL and all(app.membership.state is State.STABLE for app in apps)


def test_the_leader_receives_user_data_and_members_receive_the_leader_s(world: World) -> None:
    heavy, light = Weighted(3), Weighted(1)
    first, second = join(world, "a", heavy), join(world, "b", light)
    world.run_until(lambda: settled(first, second))
    assert (len(first.calls.owned), len(second.calls.owned)) == (3, 1)
    assignment, metadata = heavy.heard[-1]
    assert set(assignment.partitions) == first.calls.owned
    assert assignment.user_data == b"you have 3"
    assert metadata == first.membership.metadata()
    leader = heavy if heavy.clusters else light
    assert leader.clusters[-1] == Cluster({"t": PARTITIONS})


def test_each_consumer_instantiates_an_assignor_class(world: World) -> None:
    first, second = join(world, "a", Weighted), join(world, "b", Weighted)
    world.run_until(lambda: settled(first, second))
    (one,), (other,) = (
        app.assembly.core.config.partition_assignment_strategy  # type: ignore[attr-defined]
        for app in (first, second)
    )
    assert isinstance(one, Weighted)
    assert one is not other
    assert len(one.heard) >= 1 <= len(other.heard)


def test_a_slow_assignor_delays_no_heartbeat(world: World) -> None:
    class Slow(Weighted):
        def assign(self, cluster: Cluster, members: Members) -> dict[str, MemberAssignment]:
            app = next(app for app in world.apps.values() if app.membership.state is State.ASSIGNING)
            # This blocks the application's thread, like a real assignor; all other threads and members run.
            app.busy(10_000)
            return super().assign(cluster, members)

    first = join(world, "a", Slow())
    world.run_until(lambda: settled(first))
    beats = [at for at, api, _ in world.broker.seen if api is Api.HEARTBEAT]
    assert len(beats) >= 9, "session.timeout.ms is 6 s"
    assert first.listener_calls == [("assign", ALL)]
    assert not first.errors


def test_an_assignor_that_raises_is_an_error_of_poll_and_is_asked_again(world: World) -> None:
    class Moody(Weighted):
        tries = 0

        def assign(self, cluster: Cluster, members: Members) -> dict[str, MemberAssignment]:
            self.tries += 1
            if self.tries == 1:
                raise ZeroDivisionError("no weights")
            return super().assign(cluster, members)

    app = join(world, "a", Moody())
    world.run_until(lambda: settled(app))
    (error,) = app.errors
    assert isinstance(error, AssignmentError)
    assert str(error).startswith("the assignor 'weighted' failed in assign(): ZeroDivisionError('no weights')")
    assert isinstance(error.cause, ZeroDivisionError)


@pytest.mark.parametrize("method", ["subscription_user_data", "on_assignment"])
def test_poll_raises_errors_of_the_other_assignor_methods_and_the_rebalance_goes_on(world: World, method: str) -> None:
    class Broken(Weighted):
        def assign(self, cluster: Cluster, members: Members) -> Any:
            return dict.fromkeys(members, ALL)

    def fail(self: object, *args: object) -> None:
        raise KeyError("oh")

    setattr(Broken, method, fail)
    app = join(world, "a", Broken)
    world.run_until(lambda: settled(app))
    world.run(1_000)
    assert app.errors
    assert all(f"'weighted' failed in {method}(): KeyError('oh')" in str(error) for error in app.errors)


def test_user_data_that_cannot_be_sent_is_an_error_of_poll_and_the_rebalance_goes_on(world: World) -> None:
    class Wordy(Weighted):
        def subscription_user_data(self, topics: frozenset[str]) -> Any:
            return "3"

        def assign(self, cluster: Cluster, members: Members) -> Any:
            return dict.fromkeys(members, ALL)

    app = join(world, "a", Wordy)
    world.run_until(lambda: settled(app))
    assert app.errors
    said = "returned '3' from subscription_user_data(), not bytes or None"
    assert all(said in str(error) for error in app.errors)


def give(members: Members, topic: str, number: int) -> Mapping[str, Sequence[TopicPartition]]:
    return {min(members): [TopicPartition(topic, number)]}


TWICE = "the assignor 'mine' gave t-0 to .* and to "


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda members: {"stranger": ALL}, "the assignor 'mine' named members that are not in the group: stranger"),
        (lambda members: {one: [ALL[0]] for one in members}, TWICE),
        (lambda members: dict.fromkeys(members, 3), "the assignor 'mine' gave member .* 3, not a collection of TopicPartitions"),
        (lambda members: None, r"the assignor 'mine' returned None from assign\(\), not a mapping from member ids to partitions"),
        (lambda members: {1: ALL}, "the assignor 'mine' named the member 1: a member id is a string"),
        (lambda members: dict.fromkeys(members, (("t", [0]),)), r"gave member .* \('t', \[0\]\), which is not a TopicPartition"),
        (lambda members: dict.fromkeys(members, MemberAssignment((), "x")), "user data that is not bytes: 'x'"),  # type: ignore[arg-type]
        (lambda members: give(members, "t", -1), "the assignor 'mine' gave member .* partition -1 of t: partitions are numbered"),
        (
            lambda members: give(members, "t", 99),
            "the assignor 'mine' gave member .* partition 99 of t, which has partitions 0 to 3",
        ),
        (
            lambda members: give(members, "extra", 0),
            "the assignor 'mine' gave member .* partition 0 of extra, which it did not sub",
        ),
        (lambda members: give(members, "none", 0), "the assignor 'mine' gave member .* partition 0 of none, which does not exist"),
    ],
    ids=[
        "stranger",
        "twice",
        "no partitions",
        "no mapping",
        "no id",
        "no number",
        "no bytes",
        "negative",
        "too high",
        "unsubscribed",
        "absent",
    ],
)
def test_an_invalid_assignment_is_refused(world: World, answer: Any, message: str) -> None:
    world.create_topic("extra", 1)

    class Mine(ConsumerPartitionAssignor):
        name = "mine"

        def assign(self, cluster: Cluster, members: Members) -> Any:
            return answer(members)

    apps = [join(world, name, Mine(), topics=["t", "none"]) for name in ("a", "b")]
    world.run_until(lambda: any(app.errors for app in apps))
    (error,) = [app.errors[0] for app in apps if app.errors][:1]
    with pytest.raises(AssignmentError, match=message):
        raise error
    assert not any(app.calls.owned for app in apps)


def test_a_cooperative_assignor_may_not_move_a_partition_in_one_round(world: World) -> None:
    """Kafka checks this, too: two members would read the same partition."""

    class Hasty(ConsumerPartitionAssignor):
        name = "hasty"

        def supported_protocols(self) -> Sequence[RebalanceProtocol]:
            return (RebalanceProtocol.COOPERATIVE,)

        def assign(self, cluster: Cluster, members: Members) -> Any:
            ids = sorted(members, key=lambda one: len(members[one].owned))
            return {one: [tp for tp in ALL if tp.partition % len(ids) == place] for place, one in enumerate(ids)}

    first = join(world, "a", Hasty())
    world.run_until(lambda: settled(first))
    second = join(world, "b", Hasty())
    world.run_until(lambda: bool(first.errors or second.errors))
    error = (first.errors or second.errors)[0]
    with pytest.raises(AssignmentError, match=r"the assignor 'hasty' gave t-\d to .* while .* owns it"):
        raise error
    assert second.calls.owned == frozenset()


def test_an_assignment_of_an_unsubscribed_topic_is_refused(world: World) -> None:
    """The member would not take it, and would rejoin for ever."""
    world.create_topic("extra", 1)

    class Mistaken(ConsumerPartitionAssignor):
        name = "mistaken"

        def assign(self, cluster: Cluster, members: Members) -> Any:
            extra = TopicPartition("extra", 0)
            if len(members) == 1:
                return dict.fromkeys(members, ALL)
            return {one: [extra] for one in members if "extra" not in members[one].topics}

    first = join(world, "a", Mistaken())
    world.run_until(lambda: settled(first))
    second = join(world, "b", Mistaken(), topics=["extra"])
    world.run_until(lambda: bool(first.errors))
    with pytest.raises(AssignmentError, match=r"gave member .* partition 0 of extra, which it did not subscribe to"):
        raise first.errors[0]
    assert not second.errors


def test_partitions_added_while_an_assignor_runs_are_assigned(world: World) -> None:
    class Slow(Weighted):
        def assign(self, cluster: Cluster, members: Members) -> Any:
            shares = super().assign(cluster, members)
            if len(self.clusters) == 1:
                world.grow("t", PARTITIONS + 2)
                world.apps["a"].busy(5_000)
            return shares

    slow = Slow()
    app = world.app("a", group_id="g", metadata_max_age_ms=1_000, partition_assignment_strategy=[slow])
    app.start(member(app))
    world.run_until(lambda: len(app.calls.owned) == PARTITIONS + 2)
    assert [cluster.partitions["t"] for cluster in slow.clusters] == [PARTITIONS, PARTITIONS + 2]
