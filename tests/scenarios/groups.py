"""Members of a group in either protocol: joining, settling, and the requests of each protocol as the broker sees them.

Owns the topic that they read and the table of each protocol's requests to join, heartbeat and leave. Must not know which faults
are injected. Invariant: the calls of a listener add up to the partitions that its consumer owns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ottla.client.groups.classic import states as classic_states
from ottla.client.groups.consumer import states as consumer_states
from ottla.protocol.apis import Api
from ottla.simulation.application import App, member
from ottla.types import TopicPartition
from tests.simulation.world import World

PARTITIONS = 4
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
STABLE = (classic_states.State.STABLE, consumer_states.State.STABLE)


def filled(path: Path, partitions: int = PARTITIONS, records: int = 100, **settings: Any) -> World:
    """A world with a topic ``t`` of ``partitions`` partitions with ``records`` records each."""
    world = World(path, **settings)
    world.create_topic("t", partitions)
    for partition in range(partitions):
        world.produce("t", partition, records)
    return world


def new(world: World, name: str, **settings: Any) -> App:
    """An application for a member with the world's protocol, which does not run yet."""
    return world.app(name, group_id="g", **{"group_protocol": world.protocol, **settings})


def join(world: World, name: str, **settings: Any) -> App:
    """A member that runs the program ``member`` in the background."""
    program: dict[str, Any] = {
        key: settings.pop(key) for key in ("topics", "pattern", "work", "commits", "timeout") if key in settings
    }
    app = new(world, name, **settings)
    app.start(member(app, **program))
    return app


def settle(world: World, *apps: App, limit: int = 60_000) -> None:
    """Run until these members share all partitions, each has some, and all are stable."""

    def settled() -> bool:
        owned = [tp for app in apps for tp in app.calls.owned]
        return sorted(owned) == ALL and all(app.calls.owned and app.membership.state in STABLE for app in apps)

    world.run_until(settled, limit)


def owned_by_listeners(app: App) -> set[TopicPartition]:
    """The partitions to which the calls of a listener add up; each was assigned, then revoked or lost, in turns."""
    held: set[TopicPartition] = set()
    for what, partitions in app.listener_calls:
        if what == "assign":
            assert held.isdisjoint(partitions)
            held |= set(partitions)
        else:
            assert held >= set(partitions)
            held -= set(partitions)
    return held


def check_listeners(app: App) -> None:
    """Check that the calls of a listener add up to the owned partitions."""
    assert owned_by_listeners(app) == app.calls.owned


class Goodbye(NamedTuple):
    """A request with which a member left."""

    at: int
    member_id: str
    reason: str | None
    """``None``: the protocol does not say why."""


class Wording(NamedTuple):
    """The requests of one protocol: the API of each purpose, and how to read it."""

    joins: Api
    is_join: Callable[[Any], bool]
    beats: Api
    leaves: Api
    goodbye: Callable[[int, Any], Goodbye | None]
    """The good-bye in a request that arrived at ``at``; ``None`` if it is none."""


HEARTBEAT = Api.CONSUMER_GROUP_HEARTBEAT
WORDINGS = {
    "classic": Wording(
        Api.JOIN_GROUP,
        lambda message: True,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        lambda at, message: Goodbye(at, message.members[0].member_id, message.members[0].reason),
    ),
    "consumer": Wording(
        HEARTBEAT,
        lambda message: message.member_epoch == 0,
        HEARTBEAT,
        HEARTBEAT,
        lambda at, message: Goodbye(at, message.member_id, None) if message.member_epoch < 0 else None,
    ),
}


def sent(world: World, api: Api, since: int = 0) -> list[tuple[int, Any]]:
    """The requests of an API that the broker has received, each with its time."""
    return [(at, message) for at, one, message in world.broker.seen if one is api and at >= since]


def joins(world: World, since: int = 0) -> list[tuple[int, Any]]:
    """The requests of members that join."""
    wording = WORDINGS[world.protocol]
    return [(at, message) for at, message in sent(world, wording.joins, since) if wording.is_join(message)]


def beats(world: World, member_id: str, since: int = 0) -> list[tuple[int, Any]]:
    """The heartbeats of one member."""
    assert member_id, "a consumer that is not a member has no heartbeats"
    api = WORDINGS[world.protocol].beats
    return [(at, message) for at, message in sent(world, api, since) if message.member_id == member_id]


def goodbyes(world: World) -> list[Goodbye]:
    """The requests with which members left."""
    wording = WORDINGS[world.protocol]
    said = [wording.goodbye(at, message) for at, message in sent(world, wording.leaves)]
    return [one for one in said if one is not None]


def the_goodbye(world: World) -> Goodbye:
    """The only good-bye of the group, whose member has sent no heartbeat since."""
    (goodbye,) = goodbyes(world)
    assert beats(world, goodbye.member_id, goodbye.at + 1) == []
    return goodbye


def reason(world: World, text: str) -> str | None:
    """The reason in a good-bye of the world's protocol."""
    return None if world.protocol == "consumer" else text
