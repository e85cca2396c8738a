"""The group coordinator, as a broker's core sees it: requests, timers and appends in, effects out.

Owns which shard serves a group, the life cycle of shards, and requests that concern several groups. Must not know what a request
means to a group (``classic``, ``offsets``, ``describe``), nor sockets, clocks or logs. Invariant: every request gets one answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.describe import list_groups, list_refused
from ottla.coordinator.effects import Effect, RegexMatches, Reply, RequestContext, TimerKey
from ottla.coordinator.events import DurableEvent
from ottla.coordinator.partitioner import partition_for
from ottla.coordinator.pending import Place
from ottla.coordinator.ports import GroupConfigs, Ids, NoGroupConfigs, Surroundings, TopicImage
from ottla.coordinator.routes import ROUTES, GroupRoute, SplitRoute
from ottla.coordinator.shard import Part, RegexesDone, Request, Shard, ShardEffect, TimerFired
from ottla.coordinator.state import Group
from ottla.coordinator.timers import session_timer
from ottla.errors import IllegalStateError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import Now, TopicPartition

DurableGroup = tuple[object, dict[TopicPartition, OffsetCommitValue]]


class _Absence(enum.Enum):
    """Why a partition's groups are not served; the values are the answers to clients."""

    NOT_HERE = ErrorCode.not_coordinator
    LOADING = ErrorCode.coordinator_load_in_progress


class _Gathering:
    """A request for several groups, of which some answers are still missing."""

    def __init__(self, route: SplitRoute, size: int) -> None:
        self._route = route
        self._answers: list[Any] = [None] * size
        self._missing = size

    def put(self, index: int, answer: Any) -> bool:
        """Keep one answer; whether it was the last."""
        self._answers[index] = answer
        self._missing -= 1
        return self._missing == 0

    def response(self) -> Any:
        """All answers as one response, in the order in which the groups were asked for."""
        return self._route.join(tuple(self._answers))


class GroupCoordinator:
    """Serves groups of both protocols and their offsets.

    Each partition of ``__consumer_offsets`` must be loaded (``load``, with no records if it is new) before its groups are
    served. An ``Append`` is told done by ``on_appended`` or failed by ``on_append_failed``, in any order. A timer is told by
    ``on_timer``; its key begins with ``timers.COORDINATOR``.
    """

    APIS: ClassVar[Mapping[Api, GroupRoute | SplitRoute | None]] = MappingProxyType({**ROUTES, Api.LIST_GROUPS: None})
    """The APIs that ``handle`` serves."""

    def __init__(
        self,
        config: GroupConfig,
        topics: TopicImage,
        ids: Ids,
        *,
        assignors: Mapping[str, PartitionAssignor] = SERVER_ASSIGNORS,
        configs: GroupConfigs | None = None,
    ) -> None:
        self._config = config
        self._around = Surroundings(config, topics, ids, assignors, configs or NoGroupConfigs())
        self._shards: dict[int, Shard | _Absence] = dict.fromkeys(range(config.offsets_topic_partitions), _Absence.NOT_HERE)
        self._gathering: dict[int, _Gathering] = {}

    def reconfigure(self, config: GroupConfig) -> None:
        """Let other settings hold from now on; the number of partitions stays."""
        self._around.config = replace(config, offsets_topic_partitions=self._config.offsets_topic_partitions)

    def partition_for(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that a group lives in."""
        return partition_for(group_id, self._config.offsets_topic_partitions)

    def handle(self, context: RequestContext, request: Any, now: Now) -> list[Effect]:
        """Serve a request of one of ``APIS``; its ``Reply`` is among these effects or among those of a later call."""
        if context.api is Api.LIST_GROUPS:
            return [Reply(context.ticket, self._list_groups(request))]
        route = ROUTES[context.api]
        if isinstance(route, GroupRoute):
            return self._collect(self._submit(Request(route, context, request), now))
        parts = route.split(request)
        if not parts:
            return [Reply(context.ticket, route.join(()))]
        self._gathering[context.ticket] = _Gathering(route, len(parts))
        effects: list[ShardEffect] = []
        for index, part in enumerate(parts):
            effects += self._submit(Request(route.part, context, part, index), now)
        return self._collect(effects)

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """A timer has fired. One that is not armed any more does nothing."""
        if isinstance(key[1], int):
            of_partition = self._shards[key[1]]
            return self._collect(of_partition.look_for_expired(key, now)) if isinstance(of_partition, Shard) else []
        group_id = str(key[1])
        shard = self._shards[self.partition_for(group_id)]
        return self._collect(shard.submit(group_id, TimerFired(key), now)) if isinstance(shard, Shard) else []

    def on_topics_changed(self, topics: Collection[str], now: Now) -> list[Effect]:
        """Topics were created, were deleted or have more partitions; the topic image says so already."""
        return self._collect([effect for shard in self._loaded() for effect in shard.topics_changed(topics, now)])

    def on_regexes_matched(self, group_id: str, matches: RegexMatches | None, now: Now) -> list[Effect]:
        """What a ``MatchRegexes`` has found; ``None`` if that could not be done."""
        shard = self._shards[self.partition_for(group_id)]
        return self._collect(shard.submit(group_id, RegexesDone(matches), now)) if isinstance(shard, Shard) else []

    def on_appended(self, partition: int, batch: int, now: Now) -> list[Effect]:
        """The records of an ``Append`` are in the log."""
        shard = self._shards[partition]
        return self._collect(shard.appended(batch, now)) if isinstance(shard, Shard) else []

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[Effect]:
        """The records of an ``Append`` are not in the log, and never will be; ``error`` is the log's."""
        shard = self._shards[partition]
        return self._collect(shard.append_failed(batch, error, now)) if isinstance(shard, Shard) else []

    def start_loading(self, partition: int) -> None:
        """The log of a partition is being read: requests for its groups are answered with "loading"."""
        if isinstance(self._shards[partition], Shard):
            raise IllegalStateError(f"partition {partition} of __consumer_offsets is loaded", hint="unload it first")
        self._shards[partition] = _Absence.LOADING

    def load(self, partition: int, events: Iterable[DurableEvent], now: Now) -> list[Effect]:
        """Take a partition over with what its log says (``events_of`` its records), and serve its groups from now on."""
        self.start_loading(partition)
        shard = Shard(partition, self._around)
        effects = shard.load(events, now)
        self._shards[partition] = shard
        return self._collect(effects)

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> list[Effect]:
        """The marker that ends a producer's transaction is in a partition: the offsets that it wrote count, or are forgotten."""
        shard = self._shards[partition]
        if isinstance(shard, Shard):
            shard.end_transaction(producer_id, commit)
        return []

    def pending_offsets(self) -> dict[int, dict[Place, OffsetCommitValue | None]]:
        """What the log holds of open transactions, by producer id; ``None`` for what cannot count any more."""
        found: dict[int, dict[Place, OffsetCommitValue | None]] = {}
        for shard in self._loaded():
            for producer_id, places in shard.state.pending.durable().items():
                found.setdefault(producer_id, {}).update(places)
        return found

    def unload(self, partition: int, now: Now) -> list[Effect]:
        """Stop serving a partition's groups; waiting requests are answered with NOT_COORDINATOR."""
        shard = self._shards[partition]
        self._shards[partition] = _Absence.NOT_HERE
        return self._collect(shard.unload()) if isinstance(shard, Shard) else []

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> tuple[int, list[Effect]]:
        """Let the sessions of those members of a group that fit be over now; also returns how many they are."""
        shard = self._shards[self.partition_for(group_id)]
        group = shard.state.group(group_id) if isinstance(shard, Shard) else None
        if group is None or not isinstance(shard, Shard):
            return 0, []
        members = [member for member in group.members.values() if fits(member)]
        effects = [
            effect for member in members for effect in shard.hasten(group_id, session_timer(group_id, member.member_id), now)
        ]
        return len(members), self._collect(effects)

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection is gone. What it asked for stays parked: its client may come back under the same member id, or time out."""
        return []

    def groups(self) -> dict[str, Group]:
        """All groups as they are now, by id."""
        return {group_id: group for shard in self._loaded() for group_id, group in shard.state.groups().items()}

    def durable_state(self) -> dict[str, DurableGroup]:
        """What the log holds of each group: its last record and its offsets."""
        return {group_id: durable for shard in self._loaded() for group_id, durable in shard.state.durable().items()}

    def armed_timers(self) -> dict[TimerKey, int]:
        """All timers that are set, and when they are due (milliseconds on the monotonic clock)."""
        return {key: shard.timers.deadline(key) or 0 for shard in self._loaded() for key in shard.timers}

    def _loaded(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if isinstance(shard, Shard)]

    def _submit(self, request: Request, now: Now) -> list[ShardEffect]:
        group_id = request.route.group_of(request.body)
        shard = self._shards[self.partition_for(group_id)]
        if isinstance(shard, Shard):
            return shard.submit(group_id, request, now)
        return [request.refused(shard.value)]

    def _list_groups(self, request: Any) -> Any:
        if _Absence.LOADING in self._shards.values():
            return list_refused(ErrorCode.coordinator_load_in_progress)
        return list_groups(request, self.groups().values())

    def _collect(self, effects: list[ShardEffect]) -> list[Effect]:
        """Keep the parts of answers; let a whole answer, and everything else, go out."""
        outgoing: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, Part):
                outgoing.append(effect)
            elif self._gathering[effect.context.ticket].put(effect.index, effect.answer):
                whole = self._gathering.pop(effect.context.ticket)
                outgoing.append(Reply(effect.context.ticket, whole.response()))
        return outgoing
