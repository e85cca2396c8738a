"""The choice of the group protocol: the configured one, or with ``auto`` the one that suits the group.

Owns the choice, which is made again before each join. Must not know the protocols. Invariants: a choice never converts a classic
group with members; a member changes its protocol only before it has an identity; each choice is logged with its reason.

With ``auto`` the member sends one DescribeGroups to the coordinator. That API knows classic groups only, so a group that it does
not know is new or uses the consumer protocol already. ApiVersions, when the connection was opened, has shown what the cluster
offers.

::

    the cluster lacks the consumer protocol   -> classic
    a classic group with members              -> classic
    the coordinator does not describe it      -> classic
    a central group                           -> consumer: the refusal says what the group is, that of JoinGroup has only a code
    a new or empty group, or a consumer group -> consumer
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.connections.node_connections import NodeConnection
from ottla.client.effects import Poll, Send, ToCoordinator
from ottla.client.events import Assigned, Reply, UserData
from ottla.client.groups.classic.membership import ClassicMembership
from ottla.client.groups.consumer.membership import ConsumerMembership
from ottla.client.groups.membership import DEFAULT, MemberIdentity, Membership, MembershipContext, MemberStatus, Refusals
from ottla.errors import COORDINATOR, BrokerError, DisconnectedError, OttlaError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_groups_request, describe_groups_response
from ottla.types import ConsumerGroupMetadata, GroupMembershipOperation, Now

_log = logging.getLogger(__name__)

FEATURE = "group.version"
"""The feature of a cluster that enables the consumer protocol from level 1 on."""

_VACANT = ("Empty", "Dead")
"""States of a classic group without members, which becomes a consumer group when a consumer member joins."""

ConnectionTo = Callable[[ToCoordinator], NodeConnection | None]
"""Returns the connection to the coordinator, which has the broker's API versions and features."""


def membership_of(context: MembershipContext, *, connection_to: ConnectionTo) -> Membership:
    """Return the membership for ``group.protocol``."""
    protocol = context.config.group_protocol
    if protocol == "classic":
        return ClassicMembership(context)
    if protocol == "consumer":
        return ConsumerMembership(context)
    return AutoMembership(context, connection_to)


class AutoMembership:
    """Chooses a protocol before each join (see the module); all else is delegated to the chosen membership."""

    def __init__(self, context: MembershipContext, connection_to: ConnectionTo) -> None:
        self._config = context.config
        self._coordinator = context.coordinator
        self._backoff = context.backoff
        self._connection_to = connection_to
        self._classic = ClassicMembership(context)
        self._consumer = ConsumerMembership(context)
        self.chosen: Membership = self._classic
        self._decided = False
        self._in_flight = False
        self._attempts = 0
        self._not_before = 0
        self._refusals = Refusals(self._config.default_api_timeout_ms, context.notify)
        self._warned = self._config.means_classic
        """Whether the warning about the effective poll interval was logged."""

    def __repr__(self) -> str:
        return f"<AutoMembership {self.chosen!r}>"

    # -- the choice -------------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Before a join, choose the protocol; otherwise poll the chosen membership."""
        if self.chosen.joins_as_new_member and not self._decided:
            self._decide_by_settings(now)
        if not self._is_decided:
            return self._describe_group(now)
        poll = self.chosen.poll(now)
        # A choice is good for one attempt.
        self._decided = self._decided and self.chosen.joins_as_new_member
        return poll

    def _on_response(self, asked: ToCoordinator, response: describe_groups_response.DescribeGroupsResponse, now: Now) -> None:
        """Choose a protocol after the response of the coordinator ``asked``."""
        self._in_flight = False
        if not self.chosen.joins_as_new_member:
            return None
        (group,) = response.groups
        error = broker_error(int(group.error_code), f"asking what group {self._config.group_id!r} is") if group.error_code else None
        if error is not None and error.retriable:
            return self._retry_later(error, now)
        try:
            connection = self._connection_to(asked)
            lacking = (
                connection.lacks(Api.CONSUMER_GROUP_HEARTBEAT, FEATURE) if connection is not None else "the coordinator is gone"
            )
        except DisconnectedError as lost:
            return self._retry_later(lost, now)
        members = len(group.members)
        if lacking is not None:
            return self._decide(self._classic, lacking, now)
        if error is None and group.is_central:
            return self._decide(self._consumer, "the group is central, so the coordinator refuses this member", now)
        if error is None and group.group_state not in _VACANT:
            return self._decide(self._classic, f"the group is a classic group with {members} member{'s' * (members != 1)}", now)
        if error is not None and error.code != ErrorCode.group_id_not_found:
            return self._decide(self._classic, f"the group's protocol cannot be determined: {error}", now)
        return self._decide(self._consumer, "the cluster offers it, and the group is new, empty or already uses it", now)

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        """Retry, or choose classic if a retry does not help."""
        self._in_flight = False
        self._coordinator.request_failed(error, now)
        if error.retriable:
            return self._retry_later(error, now)
        return self._decide(self._classic, f"the group's protocol cannot be determined: {error}", now)

    def _describe_group(self, now: Now) -> Poll:
        if self._in_flight:
            return Poll()
        if self._not_before > now.mono:
            return Poll(wake_at=self._not_before)
        target = self._coordinator.target()
        if target is None:
            return Poll()
        message = describe_groups_request.DescribeGroupsRequest(
            groups=(self._config.group_id or "",), include_authorized_operations=False
        )
        self._in_flight = True
        send = Send(
            rpcs.DESCRIBE_GROUPS,
            message,
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_response(target, response, now),
            self._on_failure,
        )
        return Poll((send,))

    def _decide_by_settings(self, now: Now) -> None:
        if self._config.means_classic:
            self._decide(self._classic, "partition.assignment.strategy is set, which is a classic group's", now)

    def _decide(self, member: Membership, reason: str, now: Now) -> None:
        if not self._decided:
            name = "consumer" if member is self._consumer else "classic"
            _log.info("group %r: group.protocol=auto chose %s: %s%s", self._config.group_id, name, reason, self._ignored(name))
            if member is self._classic and not self._warned and (warning := self._config.poll_interval_warning) is not None:
                self._warned = True
                _log.warning("group %r: %s", self._config.group_id, warning)
        self._decided, self._attempts, self._not_before = True, 0, 0
        self._refusals.accepted()
        if member is not self.chosen:
            before, self.chosen = self.chosen, member
            before.leave("another protocol was chosen", lambda value, error: None, now)
            member.polled(now)

    def _ignored(self, protocol: str) -> str:
        names = ", ".join(self._config.ignored_by(protocol))
        return f"; it ignores {names}" if names else ""

    def _retry_later(self, error: OttlaError, now: Now) -> None:
        if isinstance(error, BrokerError):
            self._refusals.refused(error, now)
            if error.action == COORDINATOR:
                self._coordinator.mark_moved(str(error))
        self._not_before = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    @property
    def _is_decided(self) -> bool:
        return self._decided or not self.chosen.joins_as_new_member

    # -- delegated to the chosen membership -------------------------------------------------------------------------------

    @property
    def failure(self) -> OttlaError | None:
        """See ``Membership``."""
        return self.chosen.failure

    @property
    def group_topics(self) -> frozenset[str]:
        """See ``Membership``."""
        return self.chosen.group_topics

    @property
    def follows_all_topics(self) -> bool:
        """See ``Membership``."""
        return self.chosen.follows_all_topics

    @property
    def status(self) -> MemberStatus:
        """See ``Membership``."""
        status = self.chosen.status
        return status if self._is_decided else status._replace(protocol="")

    @property
    def joins_as_new_member(self) -> bool:
        """See ``Membership``."""
        return self.chosen.joins_as_new_member

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        return self.chosen.metadata()

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self.chosen.polled(now)

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``."""
        self.chosen.prepared(token, now)

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        self.chosen.accepted(token)

    def user_data(self, command: UserData) -> None:
        """See ``Membership``. The application sends it once, so both memberships get it: the choice may change."""
        self._classic.user_data(command)
        self._consumer.user_data(command)

    def assigned(self, command: Assigned) -> None:
        """See ``Membership``."""
        self.chosen.assigned(command)

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """See ``Membership``."""
        self.chosen.leave(reason, reply, now, operation)

    def identity(self) -> MemberIdentity:
        """See ``Membership``."""
        return self.chosen.identity()

    def reader(self) -> MemberIdentity:
        """See ``Membership``."""
        return self.chosen.reader()

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``."""
        return self.chosen.commit_refused(code, sent_by, now)
