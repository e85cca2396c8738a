"""Scenarios of groups as data: who takes part, and what happens to them, step by step.

Owns the vocabulary of steps and the lists of scenarios. Must not know how a step is done or what is checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

CLIENTS = ("confluent", "kafka-python", "aiokafka", "java", "ottla")
PROTOCOLS = {"classic": CLIENTS, "consumer": ("confluent", "java", "ottla")}
"""Group protocol -> the clients that speak it."""
SIZES = (1, 3, 8)


@dataclass(frozen=True)
class Join:
    """New members come, all at once. ``client@protocol`` speaks another protocol than the scenario says."""

    clients: tuple[str, ...]
    static: bool = False


@dataclass(frozen=True)
class Leave:
    """A member is asked to end (SIGTERM), and leaves the group."""

    member: int


@dataclass(frozen=True)
class Kill:
    """A member is killed (SIGKILL)."""

    member: int


@dataclass(frozen=True)
class Return:
    """A member that left or was killed is started again, as the same client and instance."""

    member: int


@dataclass(frozen=True)
class KillAndReturn:
    """A member is killed and started again at once, before the group has missed it."""

    member: int


@dataclass(frozen=True)
class RestartBroker:
    """The broker is ended, with SIGTERM or SIGKILL, and started again."""

    kill: bool = False


Step = Join | Leave | Kill | Return | KillAndReturn | RestartBroker


@dataclass(frozen=True)
class Scenario:
    """A group's story. Members are numbered in the order of joining."""

    name: str
    protocol: str
    steps: tuple[Step, ...]
    writer: str = "confluent"
    partitions: int = 8
    assignor: str = "range"

    @property
    def clients(self) -> frozenset[str]:
        return frozenset(client.partition("@")[0] for step in self.steps if isinstance(step, Join) for client in step.clients)

    @property
    def restarts_the_broker(self) -> bool:
        return any(isinstance(step, RestartBroker) for step in self.steps)


def a_life(client: str, protocol: str) -> Scenario:
    """What each client meets sooner or later: come, share, leave, be killed, come back, and lose the broker."""
    steps = (
        Join((client,)),
        Join((client, client)),
        Leave(1),
        Kill(0),
        RestartBroker(kill=True),
        Return(0),
    )
    return Scenario(f"{protocol}-{client}-life", protocol, steps, writer="java" if client == "java" else "confluent")


def of_size(client: str, protocol: str, size: int, *, restart: bool) -> Scenario:
    """A group that grows to a size, loses half of its members to signals and gets them back."""
    steps: list[Step] = [Join((client,)), *([Join((client,) * (size - 1))] if size > 1 else [])]
    steps += [Leave(0), Return(0), Kill(size - 1), Return(size - 1)]
    if restart:
        steps += [RestartBroker(kill=False), Kill(0), RestartBroker(kill=True), Return(0)]
    name = f"{protocol}-{client}-{size}{'-restarts' if restart else ''}"
    return Scenario(name, protocol, tuple(steps), partitions=16 if size == 8 else 8)


def static(client: str, protocol: str) -> Scenario:
    """Static members are killed and come back; those of a classic group within their session, so that no one else takes over.

    A consumer group gives the instance of a member that did not leave to no one before its session is over (KIP-848).
    """
    dies = (KillAndReturn(0),) if protocol == "classic" else (Kill(0), Return(0))
    steps = (Join((client,) * 3, static=True), *dies, Leave(2), Return(2), *dies)
    return Scenario(f"{protocol}-{client}-static", protocol, steps)


def mixed(protocol: str, *, restart: bool) -> Scenario:
    """One member of each client in one group; each leads once the others have gone."""
    clients = PROTOCOLS[protocol]
    steps: list[Step] = [Join((clients[0],)), Join(clients[1:]), Leave(0), Kill(1)]
    steps += [RestartBroker(kill=True)] if restart else []
    steps += [Return(0), Return(1)]
    return Scenario(f"{protocol}-mixed{'-restarts' if restart else ''}", protocol, tuple(steps))


def everyday() -> list[Scenario]:
    """The clients of classic groups together: what every change has to pass."""
    return [mixed("classic", restart=True)]


def matrix() -> list[Scenario]:
    """Every client, protocol and size, with and without restarts of the broker, static members, and the mixtures."""
    found: list[Scenario] = []
    for protocol in SERVED:
        for client in PROTOCOLS[protocol]:
            found.append(a_life(client, protocol))
            found += [of_size(client, protocol, size, restart=restart) for size in SIZES for restart in (False, True)]
            found.append(static(client, protocol))
        found += [mixed(protocol, restart=restart) for restart in (False, True)]
    return found


EAGER = {
    "range": ("confluent", "kafka-python", "aiokafka", "java"),
    "roundrobin": ("confluent", "kafka-python", "aiokafka", "java"),
    "sticky": ("kafka-python", "aiokafka", "java"),
}
COOPERATIVE = {"cooperative-sticky": ("confluent", "kafka-python", "java")}
"""Assignor of classic groups -> the peers that have it as well."""


def beside_ours(peer: str, protocol: str, assignor: str) -> Scenario:
    """Ours and a peer's in one group: either comes first, leads, leaves, is killed and comes back."""
    steps = (Join(("ottla",)), Join((peer, "ottla")), Leave(0), Return(0), Kill(1), Return(1))
    return Scenario(f"{protocol}-{assignor}-ours-and-{peer}", protocol, steps, assignor=assignor)


def all_beside_ours(protocol: str, assignor: str, peers: tuple[str, ...]) -> Scenario:
    """Ours and one of each of the others; who comes first leaves first."""
    steps = (Join((peers[0],)), Join(("ottla", *peers[1:], "ottla")), Leave(0), Kill(1), Return(1), Return(0))
    return Scenario(f"{protocol}-{assignor}-ours-and-all", protocol, steps, assignor=assignor)


def beside_ours_everywhere(protocols: tuple[str, ...], assignors: dict[str, tuple[str, ...]]) -> list[Scenario]:
    """The matrix of ours and the peers': each alone with ours, and all together."""
    found = []
    for assignor, peers in assignors.items():
        found += [*(beside_ours(peer, "classic", assignor) for peer in peers), all_beside_ours("classic", assignor, peers)]
    if "consumer" in protocols:
        peers = ("confluent", "java")
        found += [*(beside_ours(peer, "consumer", "range") for peer in peers), all_beside_ours("consumer", "range", peers)]
    return found


def coming_and_going(protocol: str) -> Scenario:
    """Ours and one of each of the others, one of ours and one of theirs leave, ours comes back: what every change has to pass."""
    clients = ("ottla", *(client for client in PROTOCOLS[protocol] if client != "ottla"))
    return Scenario(f"{protocol}-coming-and-going", protocol, (Join(clients), Leave(0), Return(0), Leave(1)))


def migrations() -> list[Scenario]:
    """Groups whose members speak both protocols: from classic to consumer and back while they work, ours on either side."""
    story = {
        "ours-converts": (Join(("java", "java")), Join(("ottla@consumer",)), Leave(0), Leave(1), Return(0), Leave(2)),
        "theirs-converts": (Join(("ottla", "ottla")), Join(("java@consumer",)), Leave(0), Return(0), Leave(2), Kill(0), Return(0)),
        "member-by-member": (Join(("ottla", "ottla")), Join(("ottla@consumer",)), Leave(0), Leave(1), Join(("ottla",)), Leave(2)),
    }
    return [
        Scenario(f"both-{name}-{assignor}", "classic", steps, assignor=assignor)
        for name, steps in story.items()
        for assignor in ("range", "cooperative-sticky")
    ]


def torture(seed: int, protocol: str, kills: int = 12) -> Scenario:
    """Kills of members and of the broker in a random order, from a seed; a mixed group of six."""
    dice = random.Random(seed)
    clients = PROTOCOLS[protocol]
    steps: list[Step] = [Join(tuple(dice.choice(clients) for _ in range(3))) for _ in range(2)]
    for _ in range(kills):
        victim = dice.randrange(6)
        steps += dice.choice([[RestartBroker(kill=True)], [Kill(victim), Return(victim)], [KillAndReturn(victim)]])
    return Scenario(f"{protocol}-torture-{seed}", protocol, tuple(steps), partitions=12)


SERVED = ("classic", "consumer")
"""The group protocols that the broker serves."""
