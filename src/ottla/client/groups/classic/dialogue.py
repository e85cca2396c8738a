"""The dialogue of a classic member with its coordinator: join, assign as the leader, sync, leave; and what is made of the answers.

Owns the member's state, its generation, and the requests of a rebalance. Must not know what sets a rebalance off, commits or user
code. Invariants: all transitions are those of ``TRANSITIONS``; an answer that belongs to an earlier generation changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ottla.assignors import MemberAssignment, strategy
from ottla.client.cluster.patterns import PatternTopics
from ottla.client.effects import Send, ToCoordinator
from ottla.client.groups.classic import requests
from ottla.client.groups.classic.handover import Handover
from ottla.client.groups.classic.leader import Leadership
from ottla.client.groups.classic.leaving import Leaving
from ottla.client.groups.classic.requests import PROTOCOL_TYPE, Tag
from ottla.client.groups.classic.session import Session
from ottla.client.groups.classic.states import (
    JOIN_REACTIONS,
    SYNC_REACTIONS,
    TRANSITIONS,
    Generation,
    Input,
    Reaction,
    State,
    reaction_to,
)
from ottla.client.groups.neighbours import Neighbours
from ottla.client.groups.refusals import Refusals
from ottla.client.notifications import AssignmentNeeded, ErrorNotification
from ottla.errors import (
    BrokerError,
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    OttlaError,
    ProtocolError,
    broker_error,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import Subscription as Wish, decode_assignment
from ottla.types import ConsumerGroupMetadata, Now

_log = logging.getLogger(__name__)

JOIN_LAPSE = 5_000
"""Milliseconds that a JoinGroup is given beyond the rebalance timeout."""

AT_ONCE = 3
"""Refusals in a row after which a member waits even before a join that is normally sent at once."""

_INT_MAX = 2**31 - 1


class Dialogue:
    """See the module. The base of ``ClassicMembership``, which says when to join and when to leave."""

    def __init__(self, neighbours: Neighbours) -> None:
        config, subscription, coordinator, metadata, notify, backoff, polls = neighbours
        self.state = State.UNJOINED
        self.generation = Generation()
        self.failure: OttlaError | None = None
        self._config = config
        self._subscription = subscription
        self._coordinator = coordinator
        self._metadata = metadata
        self._notify = notify
        self._backoff = backoff
        self._session = Session(config, coordinator, backoff, notify)
        self._refusals = Refusals(config.default_api_timeout_ms, notify)
        self._liveness = self._session.liveness
        self._polls = polls
        self._round = 0
        self._in_flight = False
        self._attempts = 0
        self._retry_at = 0
        self._reason = ""
        self._joined_topics: frozenset[str] = frozenset()
        self._pattern = PatternTopics(config, subscription, metadata)
        self._leaving = Leaving(config, coordinator)
        self._strategy = strategy(config.partition_assignment_strategy)
        self._told: dict[str, bytes | None] = dict.fromkeys(self._strategy.assignors)
        """What the application's assignors have to tell the leader."""
        self._handover = Handover(subscription, notify, polls, cooperative=self._strategy.cooperative)
        self._leadership: Leadership | None = None
        self._assignments: dict[str, bytes] = {}
        coordinator.on_fatal(self._lookup_failed)

    def __repr__(self) -> str:
        return f"<ClassicMembership {self.state.name} {self.generation}>"

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        number, member_id, _ = self.generation
        return ConsumerGroupMetadata(self._config.group_id or "", number, member_id, self._config.group_instance_id)

    # -- join, assign, sync, leave -------------------------------------------------------------------------------------

    def _dialogue(self, now: Now) -> list[Send]:
        if self._leaving.due:
            return self._send_leave()
        if self._in_flight:
            return []
        if self.state is State.ASSIGNING and self._leadership is not None:
            self._assign(self._leadership)
        if self.state not in (State.JOINING, State.SYNCING) or self._retry_at > now.mono:
            return []
        target = self._coordinator.target()
        if target is None or (self.state is State.JOINING and self._pattern.awaits_metadata()):
            return []
        if self.state is State.SYNCING:
            send = self._send(Api.SYNC_GROUP, requests.sync_group(self._config, self.generation, self._assignments), target)
        else:
            self._joined_topics = self._subscription.topics
            timeout = max(self._config.request_timeout_ms, min(self._config.poll_interval("classic") + JOIN_LAPSE, _INT_MAX))
            message = requests.join_group(self._config, self.generation, self._wish(), self._told, self._reason)
            send = self._send(Api.JOIN_GROUP, message, target, timeout)
        self._in_flight = True
        return [send]

    def _wish(self) -> Wish:
        """What this member wants and still holds."""
        owned = tuple(self._subscription.partitions)
        return Wish(tuple(sorted(self._joined_topics)), None, owned, self.generation.number, self._config.client_rack or None)

    def _assign(self, leadership: Leadership) -> None:
        """Once it is known what there is to assign: at once by an assignor of ours, by the application by one of its own."""
        if leadership.asked or (cluster := leadership.cluster()) is None:
            return
        if leadership.foreign:
            leadership.asked = True
            number, _, assignor = self.generation
            self._notify(AssignmentNeeded(number, assignor or "", cluster, leadership.members))
        else:
            self._assignments = leadership.assign(cluster)
            self._move(Input.ASSIGNED)

    def _send(self, api: Api, message: Any, target: ToCoordinator, timeout: int | None = None) -> Send:
        return Send(api, message, target, Tag(api, self.generation, self._round), timeout or self._config.request_timeout_ms)

    def _on_joined(self, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if code:
            return self._refused(JOIN_REACTIONS, code, message, now)
        if (mismatch := _unknown_protocol(message, tuple(self._strategy.assignors))) is not None:
            return self._fail(mismatch)
        self.generation = Generation(message.generation_id, message.member_id, message.protocol_name)
        self._attempts, self._retry_at = 0, now.mono
        self._session.begin(now)
        self._polls.joined()
        self._assignments, self._leadership = {}, None
        if message.leader != message.member_id:
            return self._move(Input.JOINED)
        return self._lead(message)

    def _lead(self, message: Any) -> None:
        """This member assigns: it needs to know the topics of all the others."""
        try:
            self._leadership = Leadership(
                message.protocol_name, message.members, self._metadata, self._strategy, follows_racks=bool(self._config.client_rack)
            )
        except ProtocolError as error:
            return self._fail(error)
        self._move(Input.LEADS)
        if message.skip_assignment:
            self._leadership.let_stand()
            self._move(Input.ASSIGNED)
        return None

    def _on_synced(self, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if code:
            return self._refused(SYNC_REACTIONS, code, message, now)
        self._refusals.accepted()
        if (mismatch := _unknown_protocol(message, (None, self.generation.protocol))) is not None:
            return self._fail(mismatch)
        try:
            assignment = decode_assignment(message.assignment)
        except ProtocolError as error:
            text = f"what the leader of the group assigned cannot be read: {error.args[0]}"
            return self._fail(ProtocolError(text, hint="which client does the leader run?", cause=error))
        if not self._pattern.allows(assignment.partitions):
            self._reason = "the subscription has changed"
            return self._move(Input.REJOIN)
        self._reason, self._attempts = "", 0
        if self._handover.receive(MemberAssignment(assignment.partitions, assignment.user_data)):
            return self._move(Input.TAKEN)
        self._move(Input.SYNCED)
        return self._hand_over()

    def _hand_over(self) -> None:
        self._handover.hand_over(self.generation.protocol or "", self.metadata())

    def _send_leave(self) -> list[Send]:
        # Only a member in LEAVING waits for the answer.
        sends = self._leaving.poll(self.generation, self._round if self.state is State.LEAVING else -1)
        self._in_flight = bool(sends) and self.state is State.LEAVING
        return sends

    def _on_left(self, message: Any, now: Now) -> None:
        self._left(message)

    def _left(self, answer: Any = None) -> None:
        if self.state is State.LEAVING:
            self._move(Input.LEFT)
        self._leaving.over(answer)

    _ON_ANSWER = {Api.JOIN_GROUP: _on_joined, Api.SYNC_GROUP: _on_synced, Api.LEAVE_GROUP: _on_left}  # noqa: RUF012

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _refused(self, reactions: Mapping[int, Reaction], code: int, message: Any, now: Now) -> None:
        """JoinGroup or SyncGroup was answered with an error."""
        error = broker_error(code, f"joining group {self._config.group_id!r}")
        reaction = reaction_to(error, reactions)
        self._reason = f"rebalance failed due to {error.name}"
        if reaction is Reaction.FENCED:
            self._fence(f"joining group {self._config.group_id!r}")
            return
        if reaction is Reaction.FATAL:
            if code == ErrorCode.unsupported_version and self._config.group_instance_id is not None:
                error.hint = "the brokers may be too old for static members: leave group_instance_id out"
            self._fail(error, removed=True)
            return
        # A large group may rebalance for as long as it waits for its slowest member.
        self._refusals.refused(error, now, self._config.poll_interval("classic") if reaction is Reaction.REJOIN else 0)
        if reaction is Reaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if reaction in (Reaction.LATER, Reaction.LOOK_UP) or self._refusals.count > AT_ONCE:
            self._try_later(now)
        if reaction is Reaction.ADOPT:
            self.generation = Generation(-1, message.member_id)
            self._reason = f"need to re-join with the given member-id: {message.member_id}"
        elif reaction in (Reaction.UNKNOWN, Reaction.OUTDATED):
            self._dropped(reaction, error.name)
            return
        self._move(Input.REJOIN)

    def _fail(self, error: OttlaError, *, removed: bool = False) -> None:
        """Report the error to the application; its next poll tries again.

        ``removed``: the coordinator refuses the member, so the group goes on without it, and the partitions that it kept through
        the rebalance are lost. Otherwise it keeps them until the coordinator removes it.
        """
        self._attempts += 1
        self._notify(ErrorNotification(error))
        if removed and self._subscription.partitions:
            self._dropped(Reaction.OUTDATED, str(error))
        else:
            self._move(Input.FAIL)

    def _dropped(self, reaction: Reaction, why: str) -> None:
        """The coordinator has removed the member, or gone on without it: the partitions are lost."""
        self._reason = f"rebalance failed due to {why}"
        member_id = "" if reaction is Reaction.UNKNOWN else self.generation.member_id
        self._forget(Generation(-1, member_id))
        if not self._subscription.partitions and self.state in (State.JOINING, State.ASSIGNING, State.SYNCING, State.FAILED):
            if self.state is not State.FAILED:
                self._move(Input.REJOIN)
            return
        _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, why)
        self._move(Input.DROPPED)
        self._handover.prepare(lost=True)

    def _fence(self, what: str) -> OttlaError:
        """Another member has taken the instance id. To join again would throw it out in turn."""
        self.failure = FencedInstanceIdError(what)
        self.failure.fatal = True
        self._forget(Generation())
        self._move(Input.FENCE)
        self._subscription.version += 1
        self._handover.prepare(lost=True)
        return self.failure

    def _lookup_failed(self, error: OttlaError, now: Now) -> None:
        """The coordinator cannot be found, and waiting does not help: the application has to know. The look-up goes on."""
        del now
        if self.state is not State.UNJOINED:
            self._notify(ErrorNotification(error))
        if isinstance(error, BrokerError) and error.code == ErrorCode.group_authorization_failed and self.generation.number >= 0:
            # No more heartbeats can be sent: the group goes on without this member when its session expires, and nothing reports
            # that.
            self._dropped(Reaction.OUTDATED, str(error))

    def _try_later(self, now: Now) -> None:
        self._retry_at = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    # -- what the member is --------------------------------------------------------------------------------------------

    def _forget(self, generation: Generation) -> None:
        """Change the identity: answers to earlier requests no longer matter."""
        self.generation = generation
        self._round += 1
        self._in_flight = False
        self._leadership = None
        self._handover.forget()

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a member that is {self.state.name} cannot be moved by {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        if state is State.JOINING:
            self._pattern.look_again()
        self.state = state
        self._subscription.version += 1


def _unknown_protocol(message: Any, known: tuple[str | None, ...]) -> OttlaError | None:
    """An error where a JoinGroup or SyncGroup answer speaks of a protocol that this member did not offer."""
    if message.protocol_type in (None, PROTOCOL_TYPE) and message.protocol_name in known:
        return None
    chosen = f"{message.protocol_type or PROTOCOL_TYPE}/{message.protocol_name}"
    return InconsistentGroupProtocolError(f"the group chose {chosen}, which this member did not offer")
