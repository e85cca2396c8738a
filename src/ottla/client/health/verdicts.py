"""A consumer's health: the states of its two threads, combined into one value, and the rules of the verdicts.

Owns the shape of ``Health``, the reasons why a partition may not move, and what ``live``, ``ready`` and ``healthy`` mean. Must not
know threads or callers. Invariant: an assessment changes nothing except the record of stuck partitions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ottla.client.groups.membership import MemberStatus
from ottla.client.health.metrics import MetricName
from ottla.client.subscription import Consumed, Mode, PartitionState, Phase
from ottla.types import ConsumerGroupMetadata, FrozenMapping, Now, TopicPartition

STUCK_AFTER = 60.0
"""Seconds for which a partition may make no progress before the consumer counts as unhealthy."""


class WaitsFor(enum.StrEnum):
    """What a partition waits for."""

    RECORDS = "records"
    """None: the application has read to the end of the log."""
    FETCH = "fetch"
    """The response to a Fetch: the log has more records."""
    APPLICATION = "application"
    """The next ``poll()``: records have arrived."""
    RESUME = "resume"
    """It is paused."""
    REBALANCE = "rebalance"
    """It is about to be revoked, or ``on_assign`` has not returned yet."""
    POSITION = "position"
    """The committed position is being looked up."""
    RESET = "reset"
    """The first or the last offset is being looked up."""
    VALIDATION = "validation"
    """The position is being validated: the log of a new leader may lack the records before it (KIP-320)."""
    LEADER = "leader"
    """No leader is known."""
    LEASE = "lease"
    """An answer of ZooKeeper: until then another member may own it, and no records are returned."""
    PROBLEM = "problem"
    """See ``PartitionHealth.problem``."""


_ON_THE_WAY = {
    Phase.INITIALIZING: WaitsFor.POSITION,
    Phase.RESETTING: WaitsFor.RESET,
    Phase.VALIDATING: WaitsFor.VALIDATION,
}

_AT_REST = frozenset({WaitsFor.RECORDS, WaitsFor.APPLICATION, WaitsFor.RESUME})
"""A partition may wait for these indefinitely. ``live`` covers an application that does not poll."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One partition. Times are seconds ago; ``None``: never, or not known."""

    position: int | None
    end_offset: int | None
    lag: int | None
    waits_for: WaitsFor
    problem: str | None
    leader: int | None
    last_fetch: float | None
    """When the broker that it is read from last answered a fetch."""
    last_progress: float | None
    """When the application last got records of it."""
    stands_still: float
    """How long it has been stuck: the same ``waits_for`` at the same position, and neither read to the end, nor paused, nor with
    records for the next ``poll()``. Measured by the calls of ``health()``."""


@dataclass(frozen=True, slots=True)
class Health:
    """One consumer at one moment. Times are seconds ago; ``None``: never."""

    live: bool
    """The consumer can work. Otherwise it is closed or fenced, or its application hangs, and only a new consumer helps."""
    ready: bool
    """It is live, connected, and has its partitions: in a group, it is a member and no rebalance is in progress."""
    healthy: bool
    """It is ready, its heartbeats are answered, and no partition is stuck."""
    reasons: tuple[str, ...]
    """Why it is not healthy; empty if it is."""
    group_id: str | None = None
    protocol: str = ""
    state: str = ""
    """The state of the membership, by its Kafka name."""
    member_id: str = ""
    epoch: int = -1
    """The generation (``classic``, ``central``), the member epoch (``consumer``), or the number of changes of the members
    (``zookeeper``)."""
    joined: bool = False
    rebalancing: bool = False
    processing: bool = False
    """Whether the application is inside ``processing()``."""
    last_heartbeat: float | None = None
    """When the coordinator last accepted one."""
    last_poll: float | None = None
    """When the application last gave a sign of life: a poll, or progress of a job."""
    assignor: str = ""
    """The assignor of a member that computed what is assigned; empty: the coordinator computed it, or nothing is assigned."""
    partitions: Mapping[TopicPartition, PartitionHealth] = FrozenMapping()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as strings, numbers, lists and dictionaries, for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("partitions", "reasons")}
        partitions = {str(tp): asdict(part) for tp, part in self.partitions.items()}
        return {**plain, "reasons": list(self.reasons), "partitions": partitions}


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """One partition in the view of the network thread."""

    waits_for: WaitsFor | None
    problem: str | None
    leader: int | None
    fetch: int
    """The next offset to fetch."""
    fetch_at: int | None

    @classmethod
    def of(cls, state: PartitionState, leader: int | None, fetch_at: int | None, *, leased: bool) -> PartitionSeen:
        """Return the current view of a partition."""
        waits_for: WaitsFor | None = None
        if state.problem is not None:
            waits_for = WaitsFor.PROBLEM
        elif state.paused:
            waits_for = WaitsFor.RESUME
        elif state.revoking or state.awaiting_acceptance:
            waits_for = WaitsFor.REBALANCE
        elif not leased:
            waits_for = WaitsFor.LEASE
        elif state.phase in _ON_THE_WAY:
            waits_for = _ON_THE_WAY[state.phase]
        elif leader is None:
            waits_for = WaitsFor.LEADER
        problem = None if state.problem is None else str(state.problem)
        return cls(waits_for, problem, leader, state.fetch, fetch_at)


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The state of the network thread at the time ``at``. Times are monotonic milliseconds."""

    at: Now
    mode: Mode
    status: MemberStatus | None
    group: ConsumerGroupMetadata | None
    failure: str | None
    unreachable: str | None
    heartbeat_at: int | None
    accepted_at: int | None
    last_sign: int | None
    sign_due: int
    processing: bool
    partitions: Mapping[TopicPartition, PartitionSeen]
    metrics: Mapping[MetricName, float]


@dataclass(slots=True)
class _Still:
    position: int | None
    waits_for: WaitsFor
    since: int


class Assessor:
    """Combines the states of both threads into a ``Health``. It remembers since when each partition is stuck."""

    def __init__(self, group_id: str | None, session_timeout_ms: int) -> None:
        self._group_id = group_id
        self._session_timeout = session_timeout_ms
        self._still: dict[TopicPartition, _Still] = {}

    def assess(self, network: NetworkView, consumed: Mapping[TopicPartition, Consumed], stuck_after: int) -> Health:
        """Return the health. ``stuck_after``: the milliseconds after which a stuck partition makes the consumer unhealthy."""
        now = network.at.mono
        partitions = {
            tp: self._partition(tp, seen, consumed.get(tp) or Consumed(None, None, None), now)
            for tp, seen in sorted(network.partitions.items())
        }
        self._still = {tp: still for tp, still in self._still.items() if tp in partitions}
        dead = self._why_not_live(network)
        absent = self._why_not_ready(network)
        ill = self._why_not_healthy(network, partitions, stuck_after)
        status, group = network.status, network.group
        return Health(
            live=not dead,
            ready=not dead and not absent,
            healthy=not (dead or absent or ill),
            reasons=(*dead, *absent, *ill),
            group_id=self._group_id,
            protocol="" if status is None else status.protocol,
            state="" if status is None else status.state,
            assignor="" if status is None else status.assignor,
            member_id="" if group is None else group.member_id,
            epoch=-1 if group is None else group.generation_id,
            joined=status is not None and status.joined,
            rebalancing=status is not None and status.rebalancing,
            processing=network.processing,
            last_heartbeat=_ago(network.heartbeat_at, now),
            last_poll=_ago(network.last_sign, now),
            partitions=FrozenMapping(partitions),
        )

    def _partition(self, tp: TopicPartition, seen: PartitionSeen, consumed: Consumed, now: int) -> PartitionHealth:
        position, end = consumed.position, consumed.end
        lag = None if position is None or end is None else max(0, end - position)
        waits_for = seen.waits_for
        if waits_for is None:
            waits_for = WaitsFor.APPLICATION if position is not None and seen.fetch > position else WaitsFor.FETCH
        if waits_for is WaitsFor.FETCH and lag == 0:
            waits_for = WaitsFor.RECORDS
        still = self._still.get(tp)
        if waits_for in _AT_REST:
            self._still.pop(tp, None)
        elif still is None or (still.position, still.waits_for) != (position, waits_for):
            self._still[tp] = _Still(position, waits_for, now)
        since = self._still[tp].since if tp in self._still else now
        return PartitionHealth(
            position=position,
            end_offset=end,
            lag=lag,
            waits_for=waits_for,
            problem=seen.problem,
            leader=seen.leader,
            last_fetch=_ago(seen.fetch_at, now),
            last_progress=_ago(consumed.progress_at, now),
            stands_still=(now - since) / 1000,
        )

    def _why_not_live(self, network: NetworkView) -> list[str]:
        reasons = [] if network.failure is None else [network.failure]
        polls = network.mode is Mode.TOPICS and network.last_sign is not None
        if polls and network.at.mono >= network.sign_due:
            assert network.last_sign is not None
            silent = (network.at.mono - network.last_sign) / 1000
            reasons.append(f"the application has given no sign of life for {silent:.1f} s")
        return reasons

    def _why_not_ready(self, network: NetworkView) -> list[str]:
        reasons = [] if network.unreachable is None else [network.unreachable]
        status = network.status
        if network.mode is Mode.NONE:
            reasons.append("it is neither subscribed nor assigned")
        elif network.mode is Mode.TOPICS and status is not None:
            obstacle = f"; {status.obstacle}" if status.obstacle else ""
            if not status.joined:
                reasons.append(f"it is not a member of group {self._group_id!r} now: {status.state}{obstacle}")
            elif status.rebalancing:
                reasons.append(f"group {self._group_id!r} is rebalancing: {status.reason or status.state}{obstacle}")
        return reasons

    def _why_not_healthy(
        self, network: NetworkView, partitions: Mapping[TopicPartition, PartitionHealth], stuck_after: int
    ) -> list[str]:
        reasons = []
        silent = None if network.accepted_at is None else network.at.mono - network.accepted_at
        if network.status is not None and network.status.joined and silent is not None and silent > self._session_timeout:
            reasons.append(f"no heartbeat was answered for {silent / 1000:.1f} s")
        for tp, part in partitions.items():
            if part.waits_for is WaitsFor.PROBLEM or part.stands_still * 1000 >= stuck_after:
                why = part.problem or f"it waits for {part.waits_for.value}, lag {'unknown' if part.lag is None else part.lag}"
                reasons.append(f"{tp} has been stuck at {part.position} for {part.stands_still:.1f} s: {why}")
        return reasons


def _ago(at: int | None, now: int) -> float | None:
    return None if at is None else max(0, now - at) / 1000
