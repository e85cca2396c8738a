"""Cooperative classic groups (KIP-429): retained partitions are read throughout, moved ones are revoked first; rolling upgrades."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.assignors import Cluster, ConsumerPartitionAssignor, MemberSubscription, RebalanceProtocol
from ottla.broker.faults.rules import ExpireMember
from ottla.client.calls.listeners import Listeners
from ottla.client.groups.classic.states import State
from ottla.errors import RebalanceInProgressError
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import decode_subscription
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import TopicPartition
from tests.scenarios.groups import filled
from tests.simulation.world import World

PARTITIONS = 6
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
COOPERATIVE = "cooperative-sticky"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(tmp_path, PARTITIONS)


class Ledger:
    """The owners of partitions by the calls of listeners: no partition may be assigned while another member owns it."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self.ignored: set[str] = set()
        """Those whose session is over without their knowing: what they believe to have is someone else's by now."""

    def forget(self, app: App) -> None:
        """The member is gone, or about to learn it: its partitions are free."""
        self.ignored.add(app.name)
        self.owners = {tp: name for tp, name in self.owners.items() if name != app.name}

    def listeners(self, app: App) -> Listeners:
        def take(partitions: list[TopicPartition]) -> None:
            app.listener_calls.append(("assign", partitions))
            if app.name in self.ignored:
                return
            for tp in partitions:
                assert tp not in self.owners, f"{tp} is still of {self.owners[tp]}"
                self.owners[tp] = app.name

        def give(what: str, partitions: list[TopicPartition]) -> None:
            app.listener_calls.append((what, partitions))
            if app.name not in self.ignored:
                for tp in partitions:
                    assert self.owners.pop(tp) == app.name
            elif what == "lost":
                self.ignored.discard(app.name)

        return Listeners(take, lambda partitions: give("revoke", partitions), lambda partitions: give("lost", partitions))


def join(
    world: World, ledger: Ledger, name: str, strategy: object = COOPERATIVE, group_instance_id: str | None = None, **more: Any
) -> App:
    settings = {"group_protocol": "classic", "partition_assignment_strategy": strategy, "group_instance_id": group_instance_id}
    app = world.app(name, group_id="g", **settings)
    listeners = ledger.listeners(app)
    app.listeners = lambda: listeners  # type: ignore[method-assign]
    app.start(member(app, **more))
    return app


def settled(*apps: App) -> bool:
    owned = [tp for app in apps for tp in app.calls.owned]
    states = all(app.membership.state is State.STABLE for app in apps)
    return states and sorted(owned) == ALL and all(not app.membership.status.rebalancing for app in apps)


def settle(world: World, *apps: App) -> None:
    """Run until these members have shared all partitions evenly for a while."""

    def even() -> bool:
        return settled(*apps) and max(len(app.calls.owned) for app in apps) <= -(-PARTITIONS // len(apps))

    world.run_until(even)
    world.run(2_500)
    assert even()


def test_only_moved_partitions_are_revoked_and_their_owner_rejoins(world: World) -> None:
    ledger = Ledger()
    first = join(world, ledger, "a")
    settle(world, first)
    began = world.now.mono
    second = join(world, ledger, "b")
    settle(world, first, second)
    assert first.listener_calls[0] == ("assign", ALL)
    (gone,) = [partitions for what, partitions in first.listener_calls if what == "revoke"]
    assert len(gone) == PARTITIONS // 2
    assert [partitions for what, partitions in second.listener_calls if partitions] == [gone]
    reasons = [message.reason for at, api, message in world.broker.seen if api is Api.JOIN_GROUP and at >= began]
    assert reasons.count("need to revoke partitions and re-join") == 1


def test_join_group_names_owned_partitions_and_their_generation(world: World) -> None:
    ledger = Ledger()
    first = join(world, ledger, "a")
    settle(world, first)
    generation = first.membership.metadata().generation_id
    began = world.now.mono
    join(world, ledger, "b")
    world.run_until(lambda: len(first.calls.owned) == PARTITIONS // 2)
    of_first = [
        decode_subscription(message.protocols[0].metadata)
        for at, api, message in world.broker.seen
        if api is Api.JOIN_GROUP and at >= began and message.member_id == first.membership.metadata().member_id
    ]
    assert list(of_first[0].owned) == ALL
    assert of_first[0].generation == generation


def test_retained_partitions_are_read_while_the_group_waits_for_a_slow_member(world: World) -> None:
    ledger = Ledger()
    first, slow = join(world, ledger, "a"), join(world, ledger, "slow")
    settle(world, first, slow)
    slow.stop = True
    world.run_until(lambda: not slow.running)
    slow = world.apps["slow2"] = join(world, ledger, "slow2", work=8_000)
    world.run_until(lambda: settled(first, slow))
    world.run(1_000)
    kept = first.calls.owned
    join(world, ledger, "c")
    world.run_until(lambda: first.membership.state is State.JOINING)
    handled = len(first.handled)
    for tp in kept:
        world.produce("t", tp.partition, 50)
    world.run(3_000)
    assert first.membership.state is State.JOINING, "the group waits for the slow one"
    assert len(first.handled) - handled == 50 * len(kept)


def test_when_a_member_leaves_the_others_revoke_nothing(world: World) -> None:
    ledger = Ledger()
    apps = [join(world, ledger, name) for name in "abc"]
    settle(world, *apps)
    before = {app.name: app.calls.owned for app in apps}
    told = {app.name: len(app.listener_calls) for app in apps}
    apps[2].stop = True
    settle(world, *apps[:2])
    for app in apps[:2]:
        assert before[app.name] <= app.calls.owned
        assert all(what == "assign" for what, _ in app.listener_calls[told[app.name] :])


def test_a_removed_member_loses_its_partitions_and_rejoins(world: World) -> None:
    ledger = Ledger()
    first, second = join(world, ledger, "a"), join(world, ledger, "b")
    settle(world, first, second)
    member_id = first.membership.metadata().member_id
    had = sorted(first.calls.owned)
    assert world.broker.expire(ExpireMember("g", member_id)) == 1
    world.run_until(lambda: ("lost", had) in first.listener_calls)
    settle(world, first, second)


def test_a_member_removed_during_a_join_loses_its_retained_partitions(world: World) -> None:
    ledger = Ledger()
    first, slow = join(world, ledger, "a"), join(world, ledger, "b", work=10_000)
    world.run_until(lambda: settled(first, slow))
    join(world, ledger, "c")
    world.run_until(lambda: first.membership.state is State.JOINING and bool(first.calls.owned))
    had = sorted(first.calls.owned)
    assert world.broker.expire(ExpireMember("g", first.membership.metadata().member_id)) == 1
    world.run_until(lambda: ("lost", had) in first.listener_calls)
    settle(world, first, slow, world.apps["c"])


def test_a_changed_subscription_gives_up_only_unsubscribed_topics(world: World) -> None:
    world.create_topic("u", 2)
    app = world.app("a", group_id="g", group_protocol="classic", partition_assignment_strategy=COOPERATIVE)

    def program() -> Program:
        yield from app.calls.subscribe(("t", "u"), app.listeners(), app.now)
        while len(app.calls.owned) < PARTITIONS + 2:
            yield from app.calls.poll(500, app.now)
        yield from app.calls.subscribe(("t",), app.listeners(), app.now)
        for _ in range(10):
            yield from app.calls.poll(200, app.now)
            yield Sleep(100)

    world.call(app, program())
    gone = [partitions for what, partitions in app.listener_calls if what == "revoke"]
    assert gone == [[TopicPartition("u", 0), TopicPartition("u", 1)]]
    assert sorted(app.calls.owned) == ALL


def test_records_returned_before_a_revocation_are_committed(world: World) -> None:
    """No record is handled twice, although partitions move while they are read."""
    ledger = Ledger()
    first = join(world, ledger, "a")
    world.run_until(lambda: len(first.handled) > 50)
    second = join(world, ledger, "b")
    settle(world, first, second)
    world.run_until(lambda: len(first.handled) + len(second.handled) >= 100 * PARTITIONS)
    world.run(2_000)
    seen = [(record.partition, record.offset) for app in (first, second) for record in app.handled]
    assert len(seen) == len(set(seen)) == 100 * PARTITIONS


def test_a_commit_while_the_group_rebalances_is_refused_and_works_afterwards(world: World) -> None:
    ledger = Ledger()
    first, slow = join(world, ledger, "a"), join(world, ledger, "b", work=8_000)
    world.run_until(lambda: settled(first, slow))
    first.stop = True
    world.run_until(lambda: not first.running)
    app = world.app("d", group_id="g", group_protocol="classic", partition_assignment_strategy=COOPERATIVE)
    errors: list[Exception] = []

    def program() -> Program:
        yield from app.calls.subscribe(("t",), app.listeners(), app.now)
        while not app.stop:
            yield from app.calls.poll(100, app.now)
            try:
                yield from app.calls.commits.commit(None, 5_000, app.now)
            except RebalanceInProgressError as error:
                errors.append(error)
            yield Sleep(10)

    app.start(program())
    world.run_until(lambda: settled(slow, app))
    newcomer = join(world, ledger, "e")
    world.run_until(lambda: bool(errors))
    settle(world, slow, app, newcomer)
    count = len(errors)
    world.run(1_000)
    assert len(errors) == count


class Patient(ConsumerPartitionAssignor):
    """A user's assignor: owners keep partitions up to a fair share; others are assigned after their owner has revoked them."""

    name = "patient"

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        return (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, list[TopicPartition]]:
        fair = -(-cluster.partitions["t"] // len(members))
        shares = {one: sorted(members[one].owned)[:fair] for one in members}
        owned = {tp for member in members.values() for tp in member.owned}
        for tp in ALL:
            if tp not in owned:
                min(shares.values(), key=len).append(tp)
        return shares


@pytest.mark.parametrize("cooperative", [COOPERATIVE, Patient], ids=["ours", "the user's"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_rolling_upgrade_from_eager_to_cooperative(tmp_path: Path, seed: int, cooperative: object) -> None:
    """As Kafka documents it: first all members offer both assignors, then one after the other drops the eager one."""
    world = World(tmp_path, seed)
    world.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        world.produce("t", partition, 100)
    ledger = Ledger()
    eager = [join(world, ledger, f"eager{place}", ["range"]) for place in range(2)]
    settle(world, *eager)
    generation: list[App] = eager
    for step, strategy in enumerate((["range", cooperative], [cooperative])):
        replaced: list[App] = []
        for place, old in enumerate(generation):
            old.stop = True
            replaced.append(join(world, ledger, f"step{step}.{place}", strategy))
            settle(world, *replaced, *generation[place + 1 :])
        generation = replaced
    for partition in range(PARTITIONS):
        world.produce("t", partition, 20)
    world.run(5_000)
    seen = {(record.partition, record.offset) for app in world.apps.values() for record in app.handled}
    assert len(seen) == 120 * PARTITIONS
    before = [app.calls.owned for app in generation]
    newcomer = join(world, ledger, "newcomer", [cooperative])
    settle(world, newcomer, *generation)
    assert all(app.calls.owned <= had for app, had in zip(generation, before, strict=True))


@pytest.mark.parametrize("place", [0, 1], ids=["the leader", "another one"])
def test_a_returning_static_member_gets_its_partitions_back_without_a_rebalance(world: World, place: int) -> None:
    """KIP-345; the coordinator tells a returning leader to skip the assignment (KIP-814)."""
    ledger = Ledger()
    apps = [join(world, ledger, "a", group_instance_id="a")]
    settle(world, *apps)
    apps.append(join(world, ledger, "b", group_instance_id="b"))
    settle(world, *apps)
    gone, other = apps[place], apps[1 - place]
    had, generation = gone.calls.owned, other.membership.metadata().generation_id
    told = len(other.listener_calls)
    gone.kill()
    for tp in had:
        del ledger.owners[tp]
    back = join(world, ledger, f"{gone.name}2", group_instance_id=gone.name)
    world.run_until(lambda: back.calls.owned == had)
    world.run(5_000)
    assert other.membership.metadata().generation_id == generation
    assert len(other.listener_calls) == told
    assert settled(back, other)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))])
def test_members_join_leave_die_stall_and_are_removed_in_any_order(tmp_path: Path, seed: int) -> None:
    """No partition is assigned while another member owns it, and in the end all records were read."""
    dice = random.Random(seed)
    world = World(tmp_path, seed)
    world.create_topic("t", PARTITIONS)
    ledger = Ledger()
    living = [join(world, ledger, f"m{place}", work=dice.choice((5, 50, 900))) for place in range(3)]
    for step in range(14):
        for partition in range(PARTITIONS):
            world.produce("t", partition, 5)
        what = dice.choice(("join", "leave", "kill", "cut", "expire", "nothing"))
        if what == "join" and len(living) < 5:
            living.append(join(world, ledger, f"s{step}", work=dice.choice((5, 50, 900))))
        elif what in ("leave", "kill", "cut") and len(living) > 1:
            victim = living.pop(dice.randrange(len(living)))
            if what == "leave":
                victim.stop = True
            elif what == "kill":
                victim.kill()
                ledger.forget(victim)
            else:
                world.network.isolate(victim.name)
                ledger.forget(victim)
                world.run(15_000)
                victim.kill()
        elif what == "expire":
            victim = dice.choice(living)
            if world.broker.expire(ExpireMember("g", victim.membership.metadata().member_id)):
                ledger.forget(victim)
        world.run(dice.choice((20, 300, 2_000, 7_000)))
    world.run(1_000)  # so that the last removed member learns of it
    settle(world, *living)
    world.run_until(lambda: read_by(world) == {(p, o) for p in range(PARTITIONS) for o in range(70)}, 60_000)


def read_by(world: World) -> set[tuple[int, int]]:
    return {(record.partition, record.offset) for app in world.apps.values() for record in app.handled}
