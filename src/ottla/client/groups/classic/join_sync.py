"""The two requests of a classic rebalance, JoinGroup and SyncGroup, and the assignment by the leader between them.

Owns the request in flight, the time of the next one, the topics in the last JoinGroup, and the leader's assignment. Must not know
the cause of a rebalance, nor its effect on the member: ``ClassicMembership`` polls with its state, and methods with a response
return its content or raise an error. Invariants: at most one of the two requests is in flight; the response to an abandoned request
has no effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ottla.assignors import MemberAssignment, strategy
from ottla.client.cluster.patterns import PatternTopics
from ottla.client.effects import AnySend, Send, ToCoordinator
from ottla.client.events import Assigned, AssignmentNeeded, UserData
from ottla.client.groups.classic.leader import GroupLeader
from ottla.client.groups.classic.session import REASON_LENGTH
from ottla.client.groups.classic.states import ClassicReaction, Generation, State
from ottla.client.groups.membership import MembershipContext, Refusals
from ottla.config import ConsumerConfig
from ottla.errors import BrokerError, InconsistentGroupProtocolError, OttlaError, ProtocolError
from ottla.protocol import duration, rpcs
from ottla.protocol.consumer_protocol import Subscription, decode_assignment, encode_subscription
from ottla.protocol.messages import join_group_request, join_group_response, sync_group_request, sync_group_response
from ottla.protocol.rpcs import RequestT, ResponseT, Rpc
from ottla.types import Now

PROTOCOL_TYPE = "consumer"

JOIN_TIMEOUT_LAPSE = 5_000
"""Milliseconds by which the timeout of a JoinGroup exceeds the rebalance timeout: the coordinator answers only when all members
have joined, or at the end of that timeout."""

IMMEDIATE_RETRIES = 3
"""The number of consecutive refusals after which back-off applies also to a request that is normally repeated at once."""

_INT_MAX = 2**31 - 1


class JoinSync:
    """JoinGroup and SyncGroup of one member."""

    def __init__(
        self,
        context: MembershipContext,
        on_joined: Callable[[join_group_response.JoinGroupResponse, Now], None],
        on_synced: Callable[[sync_group_response.SyncGroupResponse, Now], None],
        on_failure: Callable[[OttlaError, Now], None],
    ) -> None:
        """The last three are called with the outcome of a request, unless it was abandoned."""
        self._on_joined = on_joined
        self._on_synced = on_synced
        self._on_failure = on_failure
        self.leader: GroupLeader | None = None
        """The leader's part, from its JoinGroup to the end of the generation; ``None``: this member is not the leader."""
        self._led: tuple[int, GroupLeader] | None = None
        """The last generation that this member led, also if it has left the group since."""
        self._config = config = context.config
        self._subscription = context.subscription
        self._coordinator = context.coordinator
        self._metadata = context.metadata
        self._notify = context.notify
        self._backoff = context.backoff
        self._refusals = Refusals(config.default_api_timeout_ms, context.notify)
        self._pattern = PatternTopics(config, context.subscription, context.metadata)
        self._strategy = strategy(config.partition_assignment_strategy)
        self._user_data: dict[str, bytes | None] = dict.fromkeys(self._strategy.assignors)
        """Assignor of the application -> its user data for the leader."""
        self._in_flight = 0
        """The number of the request in flight; 0: none."""
        self._sent = 0
        self._attempts = 0
        self._send_at = 0
        self._joined_topics: frozenset[str] = frozenset()
        self._assignments: dict[str, bytes] = {}

    @property
    def in_flight(self) -> bool:
        """Whether JoinGroup or SyncGroup is in flight."""
        return self._in_flight != 0

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions through a rebalance (KIP-429)."""
        return self._strategy.cooperative

    @property
    def is_outdated(self) -> bool:
        """Whether the subscription differs from the one in the last JoinGroup."""
        return self._joined_topics != self._subscription.topics

    # -- time -------------------------------------------------------------------------------------------------------------

    def refresh_topics(self) -> None:
        """Match a pattern with the current metadata."""
        self._pattern.refresh()

    def begin(self) -> None:
        """Prepare a join: a pattern waits for metadata that is requested now."""
        self._pattern.request_metadata()

    def forget_refusals(self) -> None:
        """Reset the count of refusals, which belong to an earlier membership."""
        self._refusals.accepted()

    def send_at(self, at: int) -> None:
        """Send the next request at this time (monotonic ms) at the earliest."""
        self._send_at = at

    def send_after_failures(self, now: Now) -> None:
        """Send the next request after the back-off for earlier failures, if there were any."""
        self._send_at = now.mono + (self._backoff.delay(self._attempts - 1) if self._attempts else 0)

    def retry_later(self, now: Now) -> None:
        """Send the request again after the back-off."""
        self._send_at = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    def failed(self) -> None:
        """Count a join that has failed for good; the application's next poll starts another one."""
        self._attempts += 1

    def abandon(self) -> None:
        """Ignore the request in flight, and stop leading, since the member's identity has changed."""
        self._in_flight, self.leader = 0, None

    @property
    def wake_at(self) -> list[int]:
        """The time of the next poll in the states with a request."""
        return [] if self.in_flight else [self._send_at]

    # -- requests ---------------------------------------------------------------------------------------------------------

    def poll(self, state: State, generation: Generation, reason: str, now: Now) -> list[AnySend]:
        """Return the request of ``state``, if it may be sent now."""
        if self.in_flight or state not in (State.JOINING, State.SYNCING) or self._send_at > now.mono:
            return []
        target = self._coordinator.target()
        if target is None or (state is State.JOINING and self._pattern.awaits_metadata()):
            return []
        if state is State.SYNCING:
            sync = sync_group(self._config, generation, self._assignments)
            return [self._send(rpcs.SYNC_GROUP, sync, target, self._config.request_timeout_ms, self._on_synced)]
        self._joined_topics = self._subscription.topics
        timeout = max(self._config.request_timeout_ms, min(self._config.poll_interval("classic") + JOIN_TIMEOUT_LAPSE, _INT_MAX))
        owned = tuple(self._subscription.partitions)
        topics = tuple(sorted(self._joined_topics))
        subscription = Subscription(topics, None, owned, generation.number, self._config.client_rack or None)
        message = join_group(self._config, generation, subscription, self._user_data, reason)
        return [self._send(rpcs.JOIN_GROUP, message, target, timeout, self._on_joined)]

    def _send(
        self,
        rpc: Rpc[RequestT, ResponseT],
        message: RequestT,
        target: ToCoordinator,
        timeout: int,
        handler: Callable[[ResponseT, Now], None],
    ) -> Send[RequestT, ResponseT]:
        self._sent = self._in_flight = number = self._sent + 1

        def on_response(response: ResponseT, now: Now) -> None:
            if self._ended(number):
                handler(response, now)

        def on_failure(error: OttlaError, now: Now) -> None:
            self._coordinator.request_failed(error, now)
            if self._ended(number):
                self._on_failure(error, now)

        return Send(rpc, message, target, timeout, on_response, on_failure)

    def _ended(self, number: int) -> bool:
        """Note the end of a request. Return ``False`` if it was abandoned before."""
        if number != self._in_flight:
            return False
        self._in_flight = 0
        return True

    def user_data(self, command: UserData) -> None:
        """Set the user data of the application's assignors, for the next JoinGroup."""
        self._user_data.update(command.by_assignor)

    # -- the leader's assignment ------------------------------------------------------------------------------------------

    def assign(self, generation: Generation) -> bool:
        """Assign with fresh metadata, or ask the application to run its assignor. Return whether SyncGroup can be sent."""
        leader = self.leader
        if leader is None or leader.application_asked or (cluster := leader.cluster()) is None:
            return False
        if leader.foreign:
            leader.application_asked = True
            self._notify(AssignmentNeeded(generation.number, generation.protocol or "", cluster, leader.members))
            return False
        self._assignments = leader.assign(cluster)
        return True

    def take_assignment(self, command: Assigned) -> None:
        """Use the result of the application's assignor. Raises the assignor's error, or ``AssignmentError`` for an invalid
        result.
        """
        if command.error is not None:
            raise command.error
        assert self.leader is not None
        self._assignments = self.leader.check(command.shares)

    # -- responses --------------------------------------------------------------------------------------------------------

    def joined(self, response: join_group_response.JoinGroupResponse, now: Now) -> Generation:
        """Return the generation of a JoinGroup. Raises ``BrokerError`` for a protocol that this member did not offer."""
        _check_protocol(response.protocol_type, response.protocol_name, tuple(self._strategy.assignors))
        self._attempts, self._send_at = 0, now.mono
        self._assignments, self.leader = {}, None
        return Generation(response.generation_id, response.member_id, response.protocol_name)

    def lead(self, response: join_group_response.JoinGroupResponse) -> None:
        """Become the leader of the generation. Raises ``ProtocolError`` if a member's subscription is malformed."""
        racks = bool(self._config.client_rack)
        assert response.protocol_name is not None  # ``joined`` has checked it
        number, former = response.generation_id, self._led
        leader = GroupLeader(response.protocol_name, response.members, self._metadata, self._strategy, follows_racks=racks)
        if response.skip_assignment:
            leader.keep_assignment(former[1] if former is not None and former[0] == number else None)
        self.leader, self._led = leader, (number, leader)

    def synced(self, response: sync_group_response.SyncGroupResponse, generation: Generation) -> MemberAssignment | None:
        """Return the assignment of a SyncGroup; ``None`` if it is for another subscription.

        1. JoinGroup is sent with topic a.
        2. The application subscribes to topic b instead.
        3. SyncGroup brings partitions of topic a, which the member must not read: it joins again.

        Raises ``BrokerError`` for a protocol that this member did not offer, and ``ProtocolError`` if the assignment is malformed.
        """
        self._refusals.accepted()
        _check_protocol(response.protocol_type, response.protocol_name, (None, generation.protocol))
        try:
            assignment = decode_assignment(response.assignment)
        except ProtocolError as error:
            text = f"the assignment by the leader of the group cannot be read: {error.args[0]}"
            raise ProtocolError(text, hint="which client does the leader run?", cause=error) from error
        if not self._pattern.allows(assignment.partitions):
            return None
        self._attempts = 0
        return MemberAssignment(assignment.partitions, assignment.user_data)

    def refused(self, error: BrokerError, reaction: ClassicReaction, now: Now) -> None:
        """Handle a refused request that is sent again: at once, or after the back-off."""
        # A large group may rebalance for as long as it waits for its slowest member.
        self._refusals.refused(error, now, self._config.poll_interval("classic") if reaction is ClassicReaction.REJOIN else 0)
        if reaction is ClassicReaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if reaction in (ClassicReaction.LATER, ClassicReaction.LOOK_UP) or self._refusals.count > IMMEDIATE_RETRIES:
            self.retry_later(now)


def join_group(
    config: ConsumerConfig, generation: Generation, subscription: Subscription, user_data: Mapping[str, bytes | None], reason: str
) -> join_group_request.JoinGroupRequest:
    """Return a JoinGroup. It offers each assignor with the same subscription (version 3) and its own user data."""
    return join_group_request.JoinGroupRequest(
        group_id=config.group_id or "",
        session_timeout=duration(config.session_timeout_ms),
        rebalance_timeout=duration(config.poll_interval("classic")),
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            join_group_request.JoinGroupRequestProtocol(
                name=name, metadata=encode_subscription(dataclasses.replace(subscription, user_data=data))
            )
            for name, data in user_data.items()
        ),
        reason=reason[:REASON_LENGTH],
    )


def sync_group(
    config: ConsumerConfig, generation: Generation, assignments: Mapping[str, bytes]
) -> sync_group_request.SyncGroupRequest:
    """Return a SyncGroup: the leader's has the assignments of all members, the others' have none."""
    return sync_group_request.SyncGroupRequest(
        group_id=config.group_id or "",
        generation_id=generation.number,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=generation.protocol,
        assignments=tuple(
            sync_group_request.SyncGroupRequestAssignment(member_id=member_id, assignment=blob)
            for member_id, blob in assignments.items()
        ),
    )


def _check_protocol(protocol_type: str | None, name: str | None, offered: tuple[str | None, ...]) -> None:
    """Raise ``BrokerError`` for a protocol that this member did not offer."""
    if protocol_type in (None, PROTOCOL_TYPE) and name in offered:
        return
    chosen = f"{protocol_type or PROTOCOL_TYPE}/{name}"
    raise InconsistentGroupProtocolError(f"the group chose {chosen}, which this member did not offer")
