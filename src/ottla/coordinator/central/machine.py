"""How a central group changes: the effect of each event, and the draft on which a handler applies events.

Owns every change of a group. ``apply`` is a pure function: handlers use it through the draft, to read the outcome of their
decision, and ``replay`` to apply events. Must not know which handler decides on an event. Invariants: a state changes only by a row
of its table; the events of a draft's result, applied to the original group, give the draft's group; a generation never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from ottla.coordinator.central import flag as flags, member as members, states
from ottla.coordinator.central.decision import CentralEffect, GoOn, Result
from ottla.coordinator.central.events import (
    Answered,
    Asked,
    ChannelLost,
    Complained,
    Event,
    FlagMoved,
    GenerationReported,
    GenerationStarted,
    GroupEmptied,
    GroupEvent,
    GroupKnown,
    LeaseEnded,
    MemberRegistered,
    MemberRemoved,
    Moved,
    OwnersGivenUp,
    PingAnswered,
    Pinged,
    RegexResolutionEnded,
    RegexResolutionStarted,
    StartOrdered,
    StopOrdered,
)
from ottla.coordinator.central.flag import FlagInput
from ottla.coordinator.central.group import CentralGroup, shares_of
from ottla.coordinator.central.member import CentralMember, MemberInput, MemberState, Question
from ottla.coordinator.central.states import CentralGroupInput, CentralGroupState
from ottla.coordinator.effects import CancelTimer, Push, SetTimer, TimerKey
from ottla.protocol.apis import Api
from ottla.types import Now
from ottla.zookeeper.nodes import GenerationNode


def apply(group: CentralGroup, event: GroupEvent) -> CentralGroup:
    """Return the group after an event. Raises ``KeyError`` for an event that its state does not allow: a bug in a handler."""
    match event:
        case GroupKnown(_, node):
            return _stored(group, node)
        case GenerationStarted(_, node, owners):
            moved = _move(group, CentralGroupInput.GENERATION)
            return _stored(replace(moved, owners=owners, shares=shares_of(owners), may_be_later=False), node)
        case GroupEmptied(_, node):
            return _stored(replace(group, owners={}, shares={}, may_be_later=False), node)
        case GenerationReported(_, generation):
            return replace(group, generation=max(group.generation, generation))
        case Moved(_, cause):
            return _moved(group, cause)
        case FlagMoved(_, cause):
            return replace(group, flag=flags.TRANSITIONS[group.flag][cause])
        case OwnersGivenUp():
            return replace(group, found=frozenset())
        case LeaseEnded(_, member_id):
            return replace(group, leases=_other_than(member_id, group.leases))
        case RegexResolutionStarted():
            return replace(group, is_resolving=True)
        case RegexResolutionEnded(_, matches):
            resolved = replace(group, is_resolving=False)
            return resolved if matches is None else replace(resolved, regexes=matches.topics, regex_version=matches.version)
        case MemberRegistered(_, member):
            found, leases = group.found - {member.member_id}, _other_than(member.member_id, group.leases)
            return replace(group, members={**group.members, member.member_id: member}, found=found, leases=leases)
        case MemberRemoved():
            return _without(group, event)
        case Asked(_, questions):
            return _changed(group, {one: _asked(group.members[one], question) for one, question in questions.items()})
        case StopOrdered(_, member_ids, reason):
            stopped = {one: _ordered(group.members[one], MemberInput.STOP) for one in member_ids}
            return replace(_changed(group, stopped), reason=reason)
        case StartOrdered(_, member_ids):
            return _changed(group, {one: _ordered(group.members[one], MemberInput.START) for one in member_ids})
        case ChannelLost() | Answered() | Complained():
            return _changed(group, {event.member_id: _apply_to_member(group.members[event.member_id], event)})
        case _:
            assert_never(event)


def _changed(group: CentralGroup, changed: Mapping[str, CentralMember]) -> CentralGroup:
    return replace(group, members={**group.members, **changed})


def _asked(member: CentralMember, question: Question) -> CentralMember:
    return replace(member, pushes=question.correlation_id, command=question)


def _ordered(member: CentralMember, cause: MemberInput) -> CentralMember:
    return replace(member, state=members.TRANSITIONS[member.state][cause], command=None)


def _apply_to_member(member: CentralMember, event: ChannelLost | Answered | Complained) -> CentralMember:
    match event:
        case ChannelLost():
            return replace(member, connection=None, command=None)
        case Answered(_, _, api):
            return _answered(member, api)
        case Complained():
            return replace(member, complained=True)
        case _:
            assert_never(event)


def _answered(member: CentralMember, api: Api) -> CentralMember:
    if api is Api.STOP:
        return replace(move_member(member, MemberInput.STOP_ANSWERED), command=None, differs=False)
    assert member.command is not None, "only a question is answered"
    return replace(move_member(member, MemberInput.START_ANSWERED), command=None, generation=member.command.generation)


def move_member(member: CentralMember, cause: MemberInput) -> CentralMember:
    """Return the member in its next state."""
    return replace(member, state=members.TRANSITIONS[member.state][cause])


def _move(group: CentralGroup, cause: CentralGroupInput) -> CentralGroup:
    return replace(group, state=states.TRANSITIONS[group.state][cause])


def _moved(group: CentralGroup, cause: CentralGroupInput) -> CentralGroup:
    moved = _move(group, cause)
    match cause:
        case CentralGroupInput.NECESSARY:
            return replace(moved, is_failing=False)
        case CentralGroupInput.STARTED:
            return replace(moved, failures=group.failures_so_far)
        case CentralGroupInput.GAVE_UP:
            return replace(moved, failures=0)
        case CentralGroupInput.DESERTED:
            return replace(moved, failures=0, regexes={}, regex_version=None)
    return moved


def _stored(group: CentralGroup, node: GenerationNode) -> CentralGroup:
    assert node.generation >= group.generation, "a generation never goes back"
    return replace(
        group,
        generation=node.generation,
        stored_members=node.members,
        session_timeout_ms=node.session_timeout_ms,
        epoch=node.epoch,
        processes=node.processes,
    )


def _without(group: CentralGroup, event: MemberRemoved) -> CentralGroup:
    removed = group.members[event.member_id]
    did_not_start = event.is_evicted and group.state is CentralGroupState.STARTING and removed.state is MemberState.STARTING
    return replace(
        group,
        members=_other_than(event.member_id, group.members),
        leases={**group.leases, event.member_id: removed} if event.may_read else group.leases,
        is_failing=group.is_failing or did_not_start,
    )


def _other_than(member_id: str, some: Mapping[str, CentralMember]) -> Mapping[str, CentralMember]:
    if member_id not in some:
        return some
    others = dict(some)
    del others[member_id]
    return others


class Draft:
    """A central group, the events applied to it at the time ``now``, and effects."""

    def __init__(self, group: CentralGroup, now: Now) -> None:
        self.group = group
        self.now = now
        self._events: list[Event] = []
        self._effects: list[CentralEffect] = []

    def apply(self, event: GroupEvent) -> None:
        """Apply an event to the draft's group, and add it to the result."""
        self.group = apply(self.group, event)
        self._events.append(event)

    def note(self, event: Pinged | PingAnswered) -> None:
        """Add an event to the result that does not change the group."""
        self._events.append(event)

    def move(self, cause: CentralGroupInput) -> None:
        """Change the group's state."""
        self.apply(Moved(self.group.group_id, cause))

    def move_flag(self, cause: FlagInput) -> None:
        """Change the group's flag."""
        if flags.TRANSITIONS[self.group.flag][cause] is not self.group.flag:
            self.apply(FlagMoved(self.group.group_id, cause))

    def add(self, effect: CentralEffect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def ask(self, api: Api, messages: Mapping[str, Any]) -> None:
        """Send a Stop or Start to each of some members, if it has a channel."""
        questions: dict[str, Question] = {}
        for member_id, message in messages.items():
            member = self.group.members[member_id]
            if member.connection is not None:
                question = questions[member_id] = Question(api, member.pushes + 1, message.generation, self.now.mono)
                self.add(Push(member.connection, api, question.correlation_id, message))
        if questions:
            self.apply(Asked(self.group.group_id, questions))

    def set_timer(self, key: TimerKey, delay: int, *, unless_set: bool = False) -> None:
        """Set a timer ``delay`` milliseconds from now."""
        self.add(SetTimer(key, self.now.mono + delay, unless_set))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer."""
        self.add(CancelTimer(key))

    def go_on(self, timer: TimerKey) -> None:
        """Do the work of a timer as the next operation of the group."""
        self.add(GoOn(timer))

    def result(self, answer: Any = None) -> Result:
        """Return the events and effects; ``answer`` is the response to the current request, if there is one to come."""
        return Result(tuple(self._events), tuple(self._effects), answer)
