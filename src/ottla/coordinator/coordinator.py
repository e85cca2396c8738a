"""The group coordinator, as the broker's core uses it: requests, timers and outcomes of appends in, effects out.

Owns the operations on several groups (ListGroups, expiration of offsets, deleted topics). Must not know the handlers of single
groups (``classic``, ``consumer``, ``offsets``), nor sockets, clocks or logs. Invariant: every request gets one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.decision import (
    GroupConfigs,
    GroupContext,
    GroupEffect,
    Ids,
    NoGroupConfigs,
    Result,
    TopicImage,
    deleted_topics_timer,
    offset_expiration_timer,
    session_timer,
)
from ottla.coordinator.describe import list_groups, list_refused
from ottla.coordinator.effects import Append, Reply, RequestContext, ResolvedRegexes, SetTimer, TimerKey
from ottla.coordinator.events import DurableEvent
from ottla.coordinator.offset_deletion import has_offsets_of
from ottla.coordinator.runtime import (
    BackgroundTask,
    CoordinatorRuntime,
    PartialAnswer,
    PartitionRuntime,
    Route,
    SplitRoute,
    TimerFired,
)
from ottla.coordinator.shard import ROUTES, GroupShard, RegexesResolved
from ottla.coordinator.state import Group, GroupTopicPartition, Offsets
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import Now, TopicPartition

GroupCoordinatorEffect = GroupEffect | Append

DurableGroup = tuple[object, dict[TopicPartition, OffsetCommitValue]]


class GroupCoordinator:
    """Serves groups of both protocols and their offsets.

    Load each partition of ``__consumer_offsets`` (``load``, with no records if it is new) before its groups are served. Report the
    outcome of an ``Append`` with ``on_appended`` or ``on_append_failed``, in any order, and a timer with ``on_timer``; the keys of
    its timers begin with ``decision.COORDINATOR``.
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
        """Use other settings from now on, except the number of partitions."""
        self._context.config = replace(config, offsets_topic_partitions=self._config.offsets_topic_partitions)

    @property
    def partition_count(self) -> int:
        """The partition count of ``__consumer_offsets``."""
        return self._config.offsets_topic_partitions

    def partition_for(self, group_id: str) -> int:
        """Return the partition of ``__consumer_offsets`` of a group."""
        return self._runtime.partition_for(group_id)

    def handle(self, context: RequestContext, request: Any, now: Now) -> list[GroupCoordinatorEffect]:
        """Handle a request of one of ``APIS``; its ``Reply`` is among the returned effects or among those of a later call."""
        if context.api is Api.LIST_GROUPS:
            return [Reply(context.ticket, self._list_groups(request))]
        return self._runtime.handle(ROUTES[context.api], context, request, now)

    def on_timer(self, key: TimerKey, now: Now) -> list[GroupCoordinatorEffect]:
        """Handle a timer that has fired; a stale one has no effect."""
        if isinstance(key[1], int):
            return self._expire_offsets(key[1], key, now)
        return self._runtime.submit(str(key[1]), TimerFired(key), now)

    def _expire_offsets(self, partition: int, key: TimerKey, now: Now) -> list[GroupCoordinatorEffect]:
        """Handle the retention timer: expire offsets of every group of the partition."""
        served = self._runtime.served(partition)
        if served is None:
            return []
        served.timers.reported(key)
        if not served.timers.take_if_due(key, now.mono):
            return []
        again = SetTimer(key, now.mono + self._context.config.offsets_retention_check_interval_ms)
        tasks = [(group_id, offset_expiration_timer(group_id)) for group_id in served.shard.state.groups()]
        return self._runtime.collect([*served.apply(Result(effects=(again,))), *_submit_tasks(served, tasks, now)])

    def on_topics_changed(self, topics: Collection[str], now: Now) -> list[GroupCoordinatorEffect]:
        """Delete the groups' offsets of deleted topics. Call this after the topic image has changed.

        Groups with an open append are included whatever their offsets are: the append may be a commit for a deleted topic.
        """
        deleted = tuple(name for name in topics if self._context.topics.topic_id(name) is None)
        effects: list[GroupCoordinatorEffect] = []
        for served in self._runtime.all_served() if deleted else ():
            appending = dict.fromkeys(served.open_keys())
            state = served.shard.state
            with_offsets = [name for name in state.groups() if name not in appending and has_offsets_of(state, name, deleted)]
            tasks = [(group_id, deleted_topics_timer(group_id, deleted)) for group_id in (*appending, *with_offsets)]
            effects += self._runtime.collect(_submit_tasks(served, tasks, now))
        return effects

    def on_regexes_resolved(self, group_id: str, matches: ResolvedRegexes | None, now: Now) -> list[GroupCoordinatorEffect]:
        """Handle the result of a ``ResolveRegexes``; ``None`` if that failed."""
        return self._runtime.submit(group_id, RegexesResolved(matches), now)

    def on_appended(self, partition: int, batch: int, now: Now) -> list[GroupCoordinatorEffect]:
        """Apply and answer an operation whose records are in the log now."""
        return self._runtime.on_appended(partition, batch, now)

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[GroupCoordinatorEffect]:
        """Fail an operation whose records are not in the log and never will be; ``error`` is the log's."""
        return self._runtime.on_append_failed(partition, batch, error, now)

    def start_loading(self, partition: int) -> None:
        """Answer requests for a partition's groups with COORDINATOR_LOAD_IN_PROGRESS while its log is read."""
        self._runtime.start_loading(partition)

    def load(self, partition: int, events: Iterable[DurableEvent], now: Now) -> list[GroupCoordinatorEffect]:
        """Load a partition from the events of its log (``events_of``), and serve its groups from now on."""
        shard = GroupShard(partition, self._context)
        shard.replay(events)
        return self._runtime.load(partition, shard, now)

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> list[GroupCoordinatorEffect]:
        """Apply a transaction marker that was written to a partition: its pending offsets become committed, or are dropped."""
        served = self._runtime.served(partition)
        if served is not None:
            served.shard.end_transaction(producer_id, commit, served.open_producers())
        return []

    def pending_offsets(self) -> dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]]:
        """Return the pending offsets of open transactions, by producer id; ``None`` for superseded ones."""
        pending: dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]] = {}
        for served in self._runtime.all_served():
            for producer_id, offsets in served.shard.state.pending.durable().items():
                pending.setdefault(producer_id, {}).update(offsets)
        return pending

    def unload(self, partition: int) -> list[GroupCoordinatorEffect]:
        """Stop serving a partition's groups, and answer their waiting requests with NOT_COORDINATOR."""
        return self._runtime.unload(partition)

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> tuple[int, list[GroupCoordinatorEffect]]:
        """Expire the sessions of the members for which ``fits`` is true. Return their number, and the effects."""
        served = self._runtime.served(self.partition_for(group_id))
        group = served.shard.state.group(group_id) if served is not None else None
        if group is None or served is None:
            return 0, []
        members = [member for member in group.members.values() if fits(member)]
        effects = [
            effect for member in members for effect in served.fire_timer(group_id, session_timer(group_id, member.member_id), now)
        ]
        return len(members), self._runtime.collect(effects)

    def groups(self) -> dict[str, Group]:
        """Return all groups by id."""
        return {group_id: group for served in self._runtime.all_served() for group_id, group in served.shard.state.groups().items()}

    def state_of(self, group_id: str) -> tuple[Group | None, Offsets] | None:
        """Return a group, ``None`` if there is none, and its committed offsets; ``None`` if its partition is not loaded."""
        served = self._runtime.served(self.partition_for(group_id))
        return None if served is None else (served.shard.state.group(group_id), served.shard.state.offsets(group_id))

    def durable_state(self) -> dict[str, DurableGroup]:
        """Return the part of the state that the log holds: for each group its last record and its offsets."""
        states = [served.shard.state for served in self._runtime.all_served()]
        return {group_id: durable for state in states for group_id, durable in state.durable().items()}

    def armed_timers(self) -> dict[TimerKey, int]:
        """Return all timers that are set, with their deadlines (milliseconds on the monotonic clock)."""
        return self._runtime.armed_timers()

    def _list_groups(self, request: Any) -> Any:
        if self._runtime.is_loading:
            return list_refused(ErrorCode.coordinator_load_in_progress)
        return list_groups(request, self.groups().values())


def _submit_tasks(
    served: PartitionRuntime[GroupShard, GroupEffect], tasks: Iterable[tuple[str, TimerKey]], now: Now
) -> list[GroupEffect | Append | Reply | PartialAnswer]:
    return [effect for group_id, key in tasks for effect in served.submit(group_id, BackgroundTask(key), now)]
