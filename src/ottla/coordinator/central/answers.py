"""Answers of members, and the deadlines of those that do not answer.

Owns Pings, sessions, and the check of an answer. Must not know the steps of a rebalance. Invariants: a Ping is only sent after the
one before was answered, so it tells the member that its last answer to a Ping arrived; a session ends only after a Ping was
unanswered for the rest of it; a frame that is not expected is ignored, and never fatal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ottla.coordinator.central import messages
from ottla.coordinator.central.decision import CentralContext, answer_timer, ping_timer, session_timer
from ottla.coordinator.central.events import Answered, Complained, PingAnswered, Pinged
from ottla.coordinator.central.group import CentralGroup
from ottla.coordinator.central.machine import Draft
from ottla.coordinator.central.member import CentralMember, LastPing, MemberState, Question
from ottla.coordinator.central.membership import evict, lease_ended
from ottla.coordinator.central.rebalance import advance
from ottla.coordinator.effects import Push, RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import short_repr

logger = logging.getLogger("ottla.broker")


Pings = Mapping[str, LastPing]
"""The last Ping to each member of a group."""


def is_expected(group: CentralGroup | None, pings: Pings, context: RequestContext, message: Any) -> bool:
    """Whether a frame answers an open question of the coordinator to this member, on its channel."""
    return _question(group, pings, context, message) is not None


def _question(
    group: CentralGroup | None, pings: Pings, context: RequestContext, message: Any
) -> tuple[CentralMember, Question] | None:
    member = group.members.get(message.member_id) if group is not None else None
    if member is None or member.connection != context.connection:
        logger.debug("group %r: ignored a frame of %r, which is no member on its channel", message.group_id, message.member_id)
        return None
    question = _open_ping(pings, member.member_id) if context.api is Api.PING else member.command
    if question is None or (question.api, question.correlation_id) != (context.api, context.correlation_id):
        logger.debug("group %r: ignored a late answer of member %r", message.group_id, message.member_id)
        return None
    return member, question


def _open_ping(pings: Pings, member_id: str) -> Question | None:
    last = pings.get(member_id)
    return None if last is None or last.is_answered else last.question


def answered(draft: Draft, pings: Pings, coordinator: CentralContext, context: RequestContext, message: Any) -> None:
    """Take the answer of a member to its last Ping, Stop or Start; ignore any other frame."""
    group_id = draft.group.group_id
    expected = _question(draft.group, pings, context, message)
    if expected is None:
        return
    member, question = expected
    refusal = _why_refused(coordinator, draft.group, member, question, message)
    if refusal is not None:
        _complain(draft, member, refusal)
        return
    draft.set_timer(session_timer(group_id, member.member_id), member.session_timeout_ms)
    if context.api is Api.PING:
        draft.note(PingAnswered(group_id, member.member_id))
        next_ping = max(0, question.at + member.ping_interval_ms - draft.now.mono)
        draft.set_timer(ping_timer(group_id, member.member_id), next_ping)
    else:
        draft.apply(Answered(group_id, member.member_id, context.api))
        draft.cancel_timer(answer_timer(group_id, member.member_id))
        advance(draft, coordinator)


def _why_refused(
    coordinator: CentralContext, group: CentralGroup, member: CentralMember, question: Question, message: Any
) -> str | None:
    """Return why an answer does not count; ``None`` if it does. To a Ping a member may answer with the generation that it has."""
    known = f"epoch {message.coordinator_epoch} and generation {message.generation}"
    if message.coordinator_epoch > coordinator.epoch:
        return f"it knows {known}: this coordinator, with epoch {coordinator.epoch}, is deposed"
    if message.error_code is not ErrorCode.none:
        return f"it answers {message.error_code.name}, and knows {known}"
    low = member.generation if question.api is Api.PING else question.generation
    if message.coordinator_epoch < coordinator.epoch or not low <= message.generation <= group.generation:
        return f"it answers with {known}, not {coordinator.epoch} and {question.generation}"
    return None


def _complain(draft: Draft, member: CentralMember, reason: str) -> None:
    """Log why a frame of a member is ignored: the first time as a warning, since it may do so for ever."""
    level = logging.DEBUG if member.complained else logging.WARNING
    name = short_repr(member.member_id)
    logger.log(level, "group %r: ignored an answer of member %s: %s", draft.group.group_id, name, reason)
    if not member.complained:
        draft.apply(Complained(draft.group.group_id, member.member_id))


# Deadlines


def ping(draft: Draft, pings: Pings, coordinator: CentralContext, member_id: str) -> Question | None:
    """Ping a member, unless it has a Ping to answer. Return the Ping; ``None`` if it has no channel."""
    member = draft.group.members.get(member_id)
    if member is None or member.connection is None:
        return None
    question = _open_ping(pings, member_id)
    if question is None:
        message = messages.ping(draft.group, member_id, coordinator.epoch)
        last = pings.get(member_id)
        number = 1 if last is None else last.question.correlation_id + 1
        question = Question(Api.PING, number, message.generation, draft.now.mono)
        draft.add(Push(member.connection, Api.PING, number, message))
        draft.note(Pinged(draft.group.group_id, member_id, question))
    return question


def session_ended(draft: Draft, pings: Pings, coordinator: CentralContext, member_id: str) -> None:
    """Evict a member that was silent for its session timeout, if it was asked in time.

    1. The group's append is open for long, and holds the timers of the group: no Ping goes out.
    2. The append ends, and all these timers have passed.
    3. The member could not answer what it was not asked, so it is asked now, and has the rest of a session to answer.
    """
    if member_id in draft.group.leases:
        lease_ended(draft, coordinator, member_id)
        return
    member = draft.group.members.get(member_id)
    if member is None:
        return
    question = ping(draft, pings, coordinator, member_id)
    until = draft.now.mono
    if question is not None:  # else it has no channel
        until = question.at + member.session_timeout_ms - member.ping_interval_ms
    if until > draft.now.mono:
        draft.set_timer(session_timer(draft.group.group_id, member_id), until - draft.now.mono)
    else:
        evict(draft, coordinator, member, f"it has not answered for {member.session_timeout_ms} ms", may_read=False)


def answer_missing(draft: Draft, coordinator: CentralContext, member_id: str) -> None:
    """Evict a member that did not answer its Stop or Start in time. It may still answer Pings, and so have a lease."""
    member = draft.group.members.get(member_id)
    if member is not None and member.state is MemberState.STOPPING:
        reason = f"it has not stopped for {member.rebalance_timeout_ms} ms"
        evict(draft, coordinator, member, reason, may_read=True)
    elif member is not None and member.state is MemberState.STARTING:
        reason = f"it has not started for {member.session_timeout_ms} ms"
        evict(draft, coordinator, member, reason, may_read=True)
