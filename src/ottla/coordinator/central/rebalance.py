"""A rebalance of a central group: check whether it is necessary, stop all, store the new generation, start all.

Owns the order of these steps. Must not know requests, nor how members come and go. Invariants: no member is started before each
member has answered its Stop or its lease is over; a generation begins only when it is stored; nothing waits for a single member
without a deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ottla.coordinator.central import messages
from ottla.coordinator.central.assignment import computed_owners, why_necessary
from ottla.coordinator.central.decision import (
    CentralContext,
    answer_timer,
    backoff_timer,
    emptied_timer,
    generation_timer,
    recovery_timer,
    started_timer,
)
from ottla.coordinator.central.events import GenerationStarted, GroupEmptied, OwnersGivenUp, StartOrdered, StopOrdered
from ottla.coordinator.central.flag import FlagInput, RebalanceFlag
from ottla.coordinator.central.machine import Draft
from ottla.coordinator.central.member import MemberState
from ottla.coordinator.central.patterns import is_resolution_due, start_resolution
from ottla.coordinator.central.states import CentralGroupInput, CentralGroupState
from ottla.protocol.apis import Api
from ottla.types import short_list, short_repr
from ottla.zookeeper.nodes import GenerationNode, process_digest

logger = logging.getLogger("ottla.broker")

_NAMED = 10
"""The members that a line of the log names; it only counts the others."""


def request_check(draft: Draft, coordinator: CentralContext) -> None:
    """Check whether a rebalance is necessary: now, or as soon as that is possible."""
    if draft.group.state is not CentralGroupState.EMPTY:
        draft.move_flag(FlagInput.REQUEST)
    advance(draft, coordinator)


def advance(draft: Draft, coordinator: CentralContext) -> None:
    """Take the steps for which nothing is left to wait. Call this after each change of a group or of its members."""
    group = draft.group
    if group.state is CentralGroupState.EMPTY:
        return
    if group.is_deserted:
        _desert(draft)
    elif group.state is CentralGroupState.RECOVERING and not group.found:
        draft.cancel_timer(recovery_timer(group.group_id))
        draft.move(CentralGroupInput.RECOVERED)
        request_check(draft, coordinator)
    elif group.state is CentralGroupState.STABLE:
        _check(draft, coordinator)
    elif group.state is CentralGroupState.STOPPING:
        _end_stopping(draft)
    elif group.state is CentralGroupState.STARTING:
        _end_starting(draft, coordinator)


def _desert(draft: Draft) -> None:
    """The last member is gone. That is stored by an operation of its own (``GoOn``)."""
    group_id = draft.group.group_id
    for timer in (recovery_timer(group_id), backoff_timer(group_id)):
        draft.cancel_timer(timer)
    draft.move(CentralGroupInput.DESERTED)
    draft.move_flag(FlagInput.DESERTED)
    draft.go_on(emptied_timer(group_id))


def store_empty_group(draft: Draft, coordinator: CentralContext) -> None:
    """Delete the owners of a group without members, unless a member has come in the meantime."""
    group = draft.group
    if group.state is CentralGroupState.EMPTY and group.stored_members > 0:
        node = GenerationNode(group.generation, 0, group.session_timeout_ms, coordinator.epoch)
        draft.apply(GroupEmptied(group.group_id, node, tuple(group.owners)))


# The check


def _check(draft: Draft, coordinator: CentralContext) -> None:
    group = draft.group
    if group.flag is not RebalanceFlag.QUEUED:
        return
    if is_resolution_due(group, coordinator.topics):
        start_resolution(draft, coordinator.topics)
        return
    reason = why_necessary(group, computed_owners(group, coordinator.topics))
    if reason is None:
        draft.move_flag(FlagInput.UNNECESSARY)
        waiting = [one.member_id for one in group.members.values() if one.state is MemberState.REGISTERED]
        if waiting:
            order_start(draft, coordinator, waiting)
        return
    logger.info("group %r: rebalance: %s", group.group_id, reason)
    draft.move_flag(FlagInput.BEGIN)
    draft.move(CentralGroupInput.NECESSARY)
    order_stop(draft, coordinator, group.members, reason)
    advance(draft, coordinator)


# Stop all


def order_stop(draft: Draft, coordinator: CentralContext, member_ids: Collection[str], reason: str) -> None:
    """Tell members to stop, and why: now, or when they have a channel again. Their time runs from now on in any case."""
    group = draft.group
    draft.apply(StopOrdered(group.group_id, tuple(member_ids), reason))
    draft.ask(Api.STOP, {one: messages.stop(draft.group, one, coordinator.epoch) for one in member_ids})
    for one in member_ids:
        before = group.members[one]
        was_stopping = before.state is MemberState.STOPPING
        draft.set_timer(answer_timer(group.group_id, one), before.rebalance_timeout_ms, unless_set=was_stopping)


def _end_stopping(draft: Draft) -> None:
    """Go on to the new generation once all have stopped. It is stored by an operation of its own (``GoOn``)."""
    group = draft.group
    if not group.leases and group.all_members_are_in(MemberState.STOPPED):
        draft.move(CentralGroupInput.STOPPED)
        draft.go_on(generation_timer(group.group_id))


# The new generation


def start_generation(draft: Draft, coordinator: CentralContext) -> None:
    """Store the owners of the next generation, and start all members. Nothing of it happens if it cannot be stored."""
    group = draft.group
    if group.state is not CentralGroupState.ASSIGNING:
        return
    owners = computed_owners(group, coordinator.topics)
    session_timeout = max(member.session_timeout_ms for member in group.members.values())
    processes = frozenset(process_digest(member.member_id, member.incarnation) for member in group.members.values())
    node = GenerationNode(group.generation + 1, len(group.members), session_timeout, coordinator.epoch, processes)
    disowned = tuple(partition for partition in group.owners if partition not in owners)
    draft.apply(GenerationStarted(group.group_id, node, owners, disowned))
    if not is_resolution_due(group, coordinator.topics):  # else another check follows, with the topics of new patterns
        draft.move_flag(FlagInput.ASSIGNED)
    order_start(draft, coordinator, group.members)
    draft.go_on(started_timer(group.group_id))


def give_time_to_start(draft: Draft) -> None:
    """Let the time in which members answer their Starts begin now:

    1. A new generation is decided on, and with it the times for the answers. 2. ZooKeeper takes almost a session to store it.
    3. The Starts go out. Each member would have to answer within the rest of these times, or be evicted.
    """
    for member in draft.group.members.values():
        if member.state is MemberState.STARTING:
            draft.set_timer(answer_timer(draft.group.group_id, member.member_id), member.session_timeout_ms)


# Start all


def order_start(draft: Draft, coordinator: CentralContext, member_ids: Collection[str]) -> None:
    """Give members their shares of the present generation."""
    group = draft.group
    draft.apply(StartOrdered(group.group_id, tuple(member_ids)))
    draft.ask(Api.START, {one: messages.start(group, one, coordinator.epoch) for one in member_ids})
    for one in member_ids:
        before = group.members[one]
        was_starting = before.state is MemberState.STARTING
        draft.set_timer(answer_timer(group.group_id, one), before.session_timeout_ms, unless_set=was_starting)


def _end_starting(draft: Draft, coordinator: CentralContext) -> None:
    group = draft.group
    if group.has_member_in(MemberState.STARTING):
        return
    failures = group.failures_so_far
    if failures < coordinator.config.rebalance_max_retries or not group.is_failing:
        draft.move(CentralGroupInput.STARTED)
        draft.move_flag(FlagInput.END)
        advance(draft, coordinator)
        return
    logger.error(
        "group %r: ConsumerRebalanceFailed: members did not start in %d rebalances; next attempt in %d ms",
        group.group_id,
        failures,
        coordinator.config.rebalance_backoff_ms,
    )
    draft.move(CentralGroupInput.GAVE_UP)
    draft.move_flag(FlagInput.END)
    draft.set_timer(backoff_timer(group.group_id), coordinator.config.rebalance_backoff_ms)


# Waits that have ended


def backoff_ended(draft: Draft, coordinator: CentralContext) -> None:
    """Try again after too many failed rebalances."""
    if draft.group.state is CentralGroupState.FAILED:
        draft.move(CentralGroupInput.RETRY)
        request_check(draft, coordinator)


def recovery_ended(draft: Draft, coordinator: CentralContext) -> None:
    """Wait no longer for the owners that this coordinator has found: if they still lived, they would have registered."""
    group = draft.group
    if group.state is CentralGroupState.RECOVERING:
        names = short_list([short_repr(name) for name in sorted(group.found)], _NAMED)
        logger.warning("group %r: members did not return to the new coordinator: %s", group.group_id, names)
        draft.apply(OwnersGivenUp(group.group_id))
        advance(draft, coordinator)
