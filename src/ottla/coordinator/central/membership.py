"""Members come and go: Register, Leave, and eviction.

Owns the checks of a Register, and what follows for the group. Must not know the steps of a rebalance. Invariants: a member has at
most one channel, and belongs to one process until its session is over; a member is forgotten only if it holds nothing, because it
says so or its lease is over.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ottla.assignors.threads import THREAD_ASSIGNORS
from ottla.coordinator.central import messages
from ottla.coordinator.central.decision import CentralContext, Result, answer_timer, ping_timer, session_timer
from ottla.coordinator.central.events import (
    ChannelLost,
    GenerationReported,
    GroupKnown,
    LeaseEnded,
    MemberRegistered,
    MemberRemoved,
)
from ottla.coordinator.central.group import MOST_THREADS, CentralGroup
from ottla.coordinator.central.machine import Draft, move_member
from ottla.coordinator.central.member import CentralMember, MemberInput, MemberState, ping_interval_ms
from ottla.coordinator.central.rebalance import advance, order_start, order_stop, request_check
from ottla.coordinator.central.states import CentralGroupInput, CentralGroupState
from ottla.coordinator.consumer.regex import check_regex
from ottla.coordinator.effects import ApiError, HangUp, Reply, RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.messages import leave_request, register_request
from ottla.types import MOST_STREAMS, Now, short_repr, short_text
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import HIGHEST_FOUND_GENERATION, GenerationNode, process_digest

logger = logging.getLogger("ottla.broker")

MOST_TOPICS = 10_000
"""The topics that a member names."""

MOST_MEMBERS = 2_000
"""The members of a group. An answer to a Stop or Start, and a Register, take a time that grows with their number: with many more,
the Registers of all, after their connections have broken at once, take longer than a session (docs/central-groups.md).

The node of the generation has 15 bytes for each member, and ZooKeeper takes a megabyte.
"""

_USUAL_SESSION_MS = 45_000
"""The session time-out of a consumer that has no other one."""

_STOPPING = (CentralGroupState.STOPPING, CentralGroupState.ASSIGNING)


# Register


def register(
    coordinator: CentralContext,
    group: CentralGroup | None,
    context: RequestContext,
    request: register_request.RegisterRequest,
    now: Now,
    first_generation: int,
) -> Result:
    """Make a consumer a member, or a member again, with this connection as its channel."""
    draft = Draft(group or CentralGroup(request.group_id, generation=first_generation), now)
    try:
        _check_request(coordinator, request)
        if not request.topics and request.pattern is None:
            return _know_group(coordinator, draft, request, is_new=group is None)
        _check_member(coordinator, draft.group, request, now)
    except ApiError as error:
        return Result(answer=messages.register_refused(error))
    _occupy(coordinator, draft, request)
    member = _member_of(draft.group, context, request)
    old = draft.group.members.get(request.member_id)
    old_channel = None if old is None else old.connection
    if draft.group.state is CentralGroupState.EMPTY:
        draft.move(CentralGroupInput.JOINED)
    draft.apply(MemberRegistered(request.group_id, member))
    draft.set_timer(session_timer(request.group_id, member.member_id), member.session_timeout_ms)
    draft.set_timer(ping_timer(request.group_id, member.member_id), member.ping_interval_ms)
    draft.add(Reply(context.ticket, messages.registered(draft.group, coordinator.epoch, member.ping_interval_ms)))
    if old_channel is not None and old_channel != context.connection:
        draft.add(HangUp(old_channel, f"member {short_repr(member.member_id)} has registered on another connection"))
    _include(coordinator, draft, member, is_known=old is not None)
    return draft.result()


def _check_request(coordinator: CentralContext, request: register_request.RegisterRequest) -> None:
    """Raise ``ApiError`` for a request that is wrong whatever the state of the group."""
    if not paths.may_be_central(request.group_id):
        raise ApiError(ErrorCode.invalid_group_id, f"{request.group_id!r} cannot be the name of a group in ZooKeeper")
    if request.coordinator_epoch > coordinator.epoch:
        known = f"its epoch is {coordinator.epoch}, and you know {request.coordinator_epoch}"
        raise ApiError(ErrorCode.not_coordinator, f"this broker is no longer the coordinator: {known}")
    if not request.topics and request.pattern is None:
        return
    if not request.member_id:
        raise ApiError(ErrorCode.invalid_request, "the member id is empty")
    if not request.incarnation:
        raise ApiError(ErrorCode.invalid_request, "the incarnation is empty, which tells a member from another with its id")
    if request.topics and request.pattern is not None:
        raise ApiError(ErrorCode.invalid_request, "a member names topics or has a pattern, not both")
    if len(request.topics) > MOST_TOPICS:
        raise ApiError(ErrorCode.invalid_request, f"a member names at most {MOST_TOPICS:,} topics, not {len(request.topics):,}")
    streams = [*(topic.streams for topic in request.topics), *([request.streams] if request.pattern is not None else [])]
    if not all(1 <= number <= MOST_STREAMS for number in streams):
        raise ApiError(ErrorCode.invalid_request, f"a member has from 1 to {MOST_STREAMS:,} threads for a topic")
    if sum(streams) > MOST_THREADS:
        text = f"a member has at most {MOST_THREADS:,} threads over all topics, not {sum(streams):,}"
        raise ApiError(ErrorCode.invalid_request, text)
    refused = next((topic.topic for topic in request.topics if not paths.is_name(topic.topic)), None)
    if refused is not None:
        raise ApiError(ErrorCode.invalid_request, f"{refused!r} cannot be the name of a topic in ZooKeeper")
    if request.rebalance_timeout_ms <= 0:
        raise ApiError(ErrorCode.invalid_request, f"the rebalance timeout is {request.rebalance_timeout_ms} ms")
    low, high = coordinator.config.group_min_session_timeout_ms, coordinator.config.group_max_session_timeout_ms
    if not low <= request.session_timeout_ms <= high:
        text = f"the session timeout is {request.session_timeout_ms} ms; this broker allows {low} to {high}"
        raise ApiError(ErrorCode.invalid_session_timeout, text)
    if request.assignor not in THREAD_ASSIGNORS:
        names = ", ".join(THREAD_ASSIGNORS)
        raise ApiError(ErrorCode.inconsistent_group_protocol, f"there is no assignor {request.assignor!r}; there are {names}")
    if request.pattern is not None:
        check_regex(request.pattern)


def _check_member(coordinator: CentralContext, group: CentralGroup, request: register_request.RegisterRequest, now: Now) -> None:
    """Raise ``ApiError`` if this group cannot have the member."""
    if request.generation > group.generation and not group.may_be_later:
        text = f"the generation of the group is {group.generation}, not {request.generation}: give up what you hold"
        raise ApiError(ErrorCode.illegal_generation, text)
    latest = max(request.generation, request.own_generation)
    if latest > HIGHEST_FOUND_GENERATION:
        raise ApiError(ErrorCode.illegal_generation, f"no group has generation {latest}: give up what you hold")
    _check_incarnation(coordinator, group, request, now)
    others = [member for member in group.members.values() if member.member_id != request.member_id]
    other = next((member for member in others if member.assignor != request.assignor), None)
    if other is not None:
        text = f"the assignor is {request.assignor!r}, but member {other.member_id!r} has {other.assignor!r}"
        raise ApiError(ErrorCode.inconsistent_group_protocol, text)
    if len(others) >= min(coordinator.config.group_max_size, MOST_MEMBERS):
        raise ApiError(ErrorCode.group_max_size_reached, f"the group has {len(others)} members, as many as it may have")
    is_known = request.member_id in group.members or request.member_id in group.leases
    if request.generation >= 0 and not is_known and group.share_of(request.member_id) and _may_be_another(group, request):
        # The session of the owner is over. A process that is not in the node has no part in its generation, only in the next one.
        text = f"another process was member {request.member_id!r} in generation {group.generation}: give up what you hold"
        raise ApiError(ErrorCode.illegal_generation, text)
    if request.member_id in group.leases and request.owned_topics:
        raise ApiError(ErrorCode.unknown_member_id, "the member was evicted: it must give up what it holds")


def _check_incarnation(
    coordinator: CentralContext, group: CentralGroup, request: register_request.RegisterRequest, now: Now
) -> None:
    """Raise ``ApiError`` if another process has this member id, and may read:

    1. Two processes are started with the same ``consumer.id``, and the first one reads.
    2. The second one registers, and so would get the share of its member id at once.
    3. The first one reads on for the rest of its lease.

    After an election the node of the generation tells which process was the member (``_may_be_another``), and how long its session
    is. If the node was malformed, no session of this id is taken for longer than that of this process or Kafka's default, since the
    longest one that is allowed is far longer: processes with one id must have the same time-out, or shorter ones than the default.
    """
    member_id = request.member_id
    known = group.members.get(member_id) or group.leases.get(member_id)
    if known is not None and known.incarnation != request.incarnation:
        text = (
            f"{known.client_host} (client id {known.client_id!r}) is member {member_id!r}, by another process or instance; "
            f"its session of {known.session_timeout_ms} ms must end first"
        )
        raise ApiError(ErrorCode.unreleased_instance_id, text)
    session = group.session_timeout_ms
    if group.may_be_later:
        session = min(session, max(request.session_timeout_ms, _USUAL_SESSION_MS))
    is_over = group.may_be_later and now.mono >= coordinator.loaded_at + session
    if member_id in group.found and _may_be_another(group, request) and not is_over:
        text = (
            f"an instance that this coordinator has not heard of so far is member {member_id!r} and owns partitions; "
            f"its session must end first, {session} ms after the election"
        )
        raise ApiError(ErrorCode.unreleased_instance_id, text)


def _may_be_another(group: CentralGroup, request: register_request.RegisterRequest) -> bool:
    """Whether this process may be another than the owner with its member id. The node of the generation says which processes its
    members are. A process proves nothing by what it knows:

    1. A member answers a Stop, and loses its channel. Its Register waits in the kernel of another broker. 2. It is evicted, and
       another process gets its id, and its share of the next generation. 3. That broker is elected, and the Register arrives.

    If the node was malformed, nothing can be compared. Then it must hold partitions: none are given to others before it has
    stopped, or its lease is over.
    """
    if group.may_be_later:
        return not request.owned_topics
    return process_digest(request.member_id, request.incarnation) not in group.processes


def _know_group(coordinator: CentralContext, draft: Draft, request: register_request.RegisterRequest, *, is_new: bool) -> Result:
    """Serve the commits of a consumer that is no member. The group's node says that it is central."""
    if is_new:
        draft.apply(GroupKnown(request.group_id, GenerationNode(draft.group.generation, 0, 0, coordinator.epoch)))
    interval = ping_interval_ms(request.session_timeout_ms)
    return draft.result(messages.registered(draft.group, coordinator.epoch, interval))


def _member_of(group: CentralGroup, context: RequestContext, request: register_request.RegisterRequest) -> CentralMember:
    """Return the member of a Register. What it reports of an earlier generation it has stopped, or it has lost its lease."""
    old = group.members.get(request.member_id)
    is_current = request.generation == group.generation
    held = messages.held(request) if is_current else {}
    owned = group.share_of(request.member_id)
    if is_current:
        differs = held != owned
    elif old is not None:
        differs = old.differs
    else:  # a process that owns nothing of this generation must not get a share of it: see _check_incarnation
        differs = bool(owned) and _may_be_another(group, request)
    member = CentralMember(
        member_id=request.member_id,
        incarnation=request.incarnation,
        connection=context.connection,
        client_id=context.client_id,
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        assignor=request.assignor,
        topics={topic.topic: topic.streams for topic in request.topics},
        pattern=request.pattern,
        streams=request.streams,
        generation=request.generation if is_current else -1,
        differs=differs,
        pushes=0 if old is None else old.pushes,
    )
    if old is None:
        return member
    if group.state in _STOPPING:
        return replace(member, state=move_member(old, MemberInput.STOP).state if held else old.state)
    if group.state is CentralGroupState.STARTING:
        return replace(member, state=old.state)
    return replace(member, state=move_member(old, MemberInput.REGISTER).state)


def _occupy(coordinator: CentralContext, draft: Draft, request: register_request.RegisterRequest) -> None:
    """Store that the group has members, before the first gets its response, and how long a new coordinator must wait for them. The
    epoch remains that of the owners.

    If the node of their generation was malformed, it remains so until the next generation, which follows as soon as all owners are
    back or given up (``why_necessary``):

    1. A member registers, which knows an earlier generation. 2. Another coordinator is elected. 3. In a node without their
       processes, it would take the other owners for strangers, and refuse them.

    Nor is the time stored that counts as the session's if no one knows it: the longest one that is allowed.
    """
    group = draft.group
    generation = group.generation
    if group.may_be_later:
        generation = max(generation, request.generation, request.own_generation)
        if group.owners:
            return draft.apply(GenerationReported(group.group_id, generation))
    is_known = generation == group.generation and request.session_timeout_ms <= group.session_timeout_ms
    if group.stored_members > 0 and is_known:
        return None
    timeout = max(request.session_timeout_ms, group.session_timeout_ms if group.stored_members > 0 else 0)
    count = len({*group.members, request.member_id})
    epoch = group.epoch if group.owners else coordinator.epoch
    return draft.apply(GroupKnown(group.group_id, GenerationNode(generation, count, timeout, epoch, group.processes)))


def _include(coordinator: CentralContext, draft: Draft, member: CentralMember, *, is_known: bool) -> None:
    """Let a registered member take part in what the group is doing."""
    state = draft.group.state
    if state in _STOPPING and member.state is not MemberState.STOPPED:
        if state is CentralGroupState.ASSIGNING:
            draft.move(CentralGroupInput.UNSTOPPED)
        order_stop(draft, coordinator, (member.member_id,), draft.group.reason)
    elif state is CentralGroupState.STARTING and is_known and member.state is not MemberState.REGISTERED:
        order_start(draft, coordinator, (member.member_id,))
    elif state is CentralGroupState.STABLE:
        draft.cancel_timer(answer_timer(draft.group.group_id, member.member_id))
    request_check(draft, coordinator)


# Leave and eviction


def leave(
    coordinator: CentralContext, group: CentralGroup | None, context: RequestContext, request: leave_request.LeaveRequest, now: Now
) -> Result:
    """Remove a member that has given up everything, and hang up its channel."""
    member = group.members.get(request.member_id) if group is not None else None
    if group is None or member is None:
        return Result(answer=messages.left(ErrorCode.unknown_member_id, f"there is no member {request.member_id!r}"))
    if member.connection != context.connection:
        return Result(answer=messages.left(ErrorCode.unknown_member_id, "this connection is not the channel of the member"))
    if request.coordinator_epoch != coordinator.epoch:
        text = f"the epoch of the coordinator is {coordinator.epoch}, not {request.coordinator_epoch}"
        return Result(answer=messages.left(ErrorCode.stale_member_epoch, text))
    reason = short_text(request.reason or "no reason given")
    logger.info("group %r: member %s leaves: %s", group.group_id, short_repr(member.member_id), reason)
    draft = Draft(group, now)
    draft.add(Reply(context.ticket, messages.left(ErrorCode.none)))
    draft.add(HangUp(context.connection, f"member {short_repr(member.member_id)} has left"))
    _remove(draft, coordinator, member, is_evicted=False, may_read=False)
    return draft.result()


def evict(draft: Draft, coordinator: CentralContext, member: CentralMember, reason: str, *, may_read: bool) -> None:
    """Remove a member that is silent. ``may_read``: its lease is not over, so no other member gets its partitions before."""
    name = short_repr(member.member_id)
    logger.warning("group %r: member %s is evicted: %s", draft.group.group_id, name, reason)
    if member.connection is not None:
        draft.add(HangUp(member.connection, f"member {name} is evicted: {reason}"))
    _remove(draft, coordinator, member, is_evicted=True, may_read=may_read)


def _remove(draft: Draft, coordinator: CentralContext, member: CentralMember, *, is_evicted: bool, may_read: bool) -> None:
    group_id, member_id = draft.group.group_id, member.member_id
    draft.cancel_timer(ping_timer(group_id, member_id))
    draft.cancel_timer(answer_timer(group_id, member_id))
    if not may_read:
        draft.cancel_timer(session_timer(group_id, member_id))
    draft.apply(MemberRemoved(group_id, member_id, is_evicted, may_read))
    request_check(draft, coordinator)


def lease_ended(draft: Draft, coordinator: CentralContext, member_id: str) -> None:
    """Forget an evicted member: its session is over, so that it reads no more."""
    draft.apply(LeaseEnded(draft.group.group_id, member_id))
    advance(draft, coordinator)


def connection_closed(draft: Draft, connection: int) -> None:
    """Note that members have lost their channel. They keep their places, and may come back, until their sessions end."""
    for member in draft.group.members.values():
        if member.connection == connection:
            logger.info("group %r: member %s has lost its channel", draft.group.group_id, short_repr(member.member_id))
            draft.cancel_timer(ping_timer(draft.group.group_id, member.member_id))
            draft.apply(ChannelLost(draft.group.group_id, member.member_id))
