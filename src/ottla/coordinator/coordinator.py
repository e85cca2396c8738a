"""The group coordinator, as a broker's core sees it: requests, timers and appends in, effects out.

Owns what concerns several groups of the runtime's partitions. Must not know what a request means to a group (``classic``,
``offsets``, ``describe``), nor sockets, clocks or logs. Invariant: every request gets one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.describe import list_groups, list_refused
from ottla.coordinator.effects import Append, Reply, RequestContext, ResolvedRegexes, SetTimer, TimerKey
from ottla.coordinator.events import DurableEvent
from ottla.coordinator.pending import GroupTopicPartition
from ottla.coordinator.ports import GroupConfigs, GroupContext, Ids, NoGroupConfigs, TopicImage
from ottla.coordinator.removal import has_offsets_of
from ottla.coordinator.result import GroupEffect, Result
from ottla.coordinator.routes import ROUTES
from ottla.coordinator.runtime import BackgroundTask, CoordinatorRuntime, Part, PartitionRuntime, Route, SplitRoute, TimerFired
from ottla.coordinator.shard import GroupShard, RegexesResolved
from ottla.coordinator.state import Group
from ottla.coordinator.timers import deleted_topics_timer, offset_expiration_timer, session_timer
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import Now, TopicPartition

GroupCoordinatorEffect = GroupEffect | Append

DurableGroup = tuple[object, dict[TopicPartition, OffsetCommitValue]]


class GroupCoordinator:
    """Serves groups of both protocols and their offsets.

    Each partition of ``__consumer_offsets`` must be loaded (``load``, with no records if it is new) before its groups are
    served. An ``Append`` is told done by ``on_appended`` or failed by ``on_append_failed``, in any order. A timer is told by
    ``on_timer``; its key begins with ``timers.COORDINATOR``.
    """

    APIS: ClassVar[Mapping[Api, Route | SplitRoute | None]] = MappingProxyType({**ROUTES, Api.LIST_GROUPS: None})
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
        self._context = GroupContext(config, topics, ids, assignors, configs or NoGroupConfigs())
        self._runtime: CoordinatorRuntime[GroupShard, GroupEffect] = CoordinatorRuntime(
            "__consumer_offsets", config.offsets_topic_partitions, config.append_retry_backoff_ms
        )

    def reconfigure(self, config: GroupConfig) -> None:
        """Let other settings hold from now on; the number of partitions stays."""
        self._context.config = replace(config, offsets_topic_partitions=self._config.offsets_topic_partitions)

    def partition_for(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that a group lives in."""
        return self._runtime.partition_for(group_id)

    def handle(self, context: RequestContext, request: Any, now: Now) -> list[GroupCoordinatorEffect]:
        """Serve a request of one of ``APIS``; its ``Reply`` is among these effects or among those of a later call."""
        if context.api is Api.LIST_GROUPS:
            return [Reply(context.ticket, self._list_groups(request))]
        return self._runtime.handle(ROUTES[context.api], context, request, now)

    def on_timer(self, key: TimerKey, now: Now) -> list[GroupCoordinatorEffect]:
        """A timer has fired. One that is not armed any more does nothing."""
        if isinstance(key[1], int):
            return self._look_for_expired(key[1], key, now)
        return self._runtime.submit(str(key[1]), TimerFired(key), now)

    def _look_for_expired(self, partition: int, key: TimerKey, now: Now) -> list[GroupCoordinatorEffect]:
        """The retention timer has fired: every group of the partition lets go of what has expired."""
        served = self._runtime.served(partition)
        if served is None:
            return []
        served.timers.reported(key)
        if not served.timers.take_if_due(key, now.mono):
            return []
        again = SetTimer(key, now.mono + self._context.config.offsets_retention_check_interval_ms)
        chores = [(group_id, offset_expiration_timer(group_id)) for group_id in served.shard.state.groups()]
        return self._runtime.collect([*served.apply(Result(effects=(again,))), *_do(served, chores, now)])

    def on_topics_changed(self, topics: Collection[str], now: Now) -> list[GroupCoordinatorEffect]:
        """Topics were created, were deleted or have more partitions; the topic image has it already. Groups forget what is gone."""
        gone = tuple(name for name in topics if self._context.topics.topic_id(name) is None)
        effects: list[GroupCoordinatorEffect] = []
        for served in self._runtime.all_served() if gone else ():
            committing = dict.fromkeys(served.open_keys())
            state = served.shard.state
            concerned = [name for name in state.groups() if name not in committing and has_offsets_of(state, name, gone)]
            chores = [(group_id, deleted_topics_timer(group_id, gone)) for group_id in (*committing, *concerned)]
            effects += self._runtime.collect(_do(served, chores, now))
        return effects

    def on_regexes_resolved(self, group_id: str, matches: ResolvedRegexes | None, now: Now) -> list[GroupCoordinatorEffect]:
        """What a ``ResolveRegexes`` has found; ``None`` if that could not be done."""
        return self._runtime.submit(group_id, RegexesResolved(matches), now)

    def on_appended(self, partition: int, batch: int, now: Now) -> list[GroupCoordinatorEffect]:
        """The records of an ``Append`` are in the log."""
        return self._runtime.on_appended(partition, batch, now)

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[GroupCoordinatorEffect]:
        """The records of an ``Append`` are not in the log, and never will be; ``error`` is the log's."""
        return self._runtime.on_append_failed(partition, batch, error, now)

    def start_loading(self, partition: int) -> None:
        """The log of a partition is being read: requests for its groups are answered with "loading"."""
        self._runtime.start_loading(partition)

    def load(self, partition: int, events: Iterable[DurableEvent], now: Now) -> list[GroupCoordinatorEffect]:
        """Take a partition over with what its log says (``events_of`` its records), and serve its groups from now on."""
        shard = GroupShard(partition, self._context)
        shard.replay(events)
        return self._runtime.load(partition, shard, now)

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> list[GroupCoordinatorEffect]:
        """The marker that ends a producer's transaction is in a partition: the offsets that it wrote count, or are forgotten."""
        served = self._runtime.served(partition)
        if served is not None:
            served.shard.end_transaction(producer_id, commit, served.open_producers())
        return []

    def pending_offsets(self) -> dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]]:
        """What the log holds of open transactions, by producer id; ``None`` for what cannot count any more."""
        found: dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]] = {}
        for served in self._runtime.all_served():
            for producer_id, places in served.shard.state.pending.durable().items():
                found.setdefault(producer_id, {}).update(places)
        return found

    def unload(self, partition: int) -> list[GroupCoordinatorEffect]:
        """Stop serving a partition's groups; waiting requests are answered with NOT_COORDINATOR."""
        return self._runtime.unload(partition)

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> tuple[int, list[GroupCoordinatorEffect]]:
        """Let the sessions of those members of a group that fit be over now; also returns how many they are."""
        served = self._runtime.served(self.partition_for(group_id))
        group = served.shard.state.group(group_id) if served is not None else None
        if group is None or served is None:
            return 0, []
        members = [member for member in group.members.values() if fits(member)]
        effects = [
            effect for member in members for effect in served.fire_timer(group_id, session_timer(group_id, member.member_id), now)
        ]
        return len(members), self._runtime.collect(effects)

    def on_disconnect(self, connection: int, now: Now) -> list[GroupCoordinatorEffect]:
        """A connection is gone. What it asked for stays parked: its client may come back under the same member id, or time out."""
        return []

    def groups(self) -> dict[str, Group]:
        """All groups as they are now, by id."""
        return {group_id: group for served in self._runtime.all_served() for group_id, group in served.shard.state.groups().items()}

    def durable_state(self) -> dict[str, DurableGroup]:
        """What the log holds of each group: its last record and its offsets."""
        states = [served.shard.state for served in self._runtime.all_served()]
        return {group_id: durable for state in states for group_id, durable in state.durable().items()}

    def armed_timers(self) -> dict[TimerKey, int]:
        """All timers that are set, and when they are due (milliseconds on the monotonic clock)."""
        return self._runtime.armed_timers()

    def _list_groups(self, request: Any) -> Any:
        if self._runtime.is_loading:
            return list_refused(ErrorCode.coordinator_load_in_progress)
        return list_groups(request, self.groups().values())


def _do(
    served: PartitionRuntime[GroupShard, GroupEffect], chores: Iterable[tuple[str, TimerKey]], now: Now
) -> list[GroupEffect | Append | Reply | Part]:
    return [effect for group_id, key in chores for effect in served.submit(group_id, BackgroundTask(key), now)]
