"""The assignors that a member of a consumer group runs itself: its offers, and the assignment that it has to compute.

Owns ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment, and the check whether the coordinator serves them. Must not
know heartbeats, nor what happens to an assignment. Invariants: a user's assignor runs on the application's thread; an assignment is
sent only in the member epoch, and for the group epoch, in which it was computed, and only within the member's rebalance timeout; an
answer to an earlier request changes nothing; the error of an assignor is sent to the coordinator, which sends it to every member.

Source: KIP-848, "Client side mode". Apache Kafka does not serve these APIs; Ottla's broker does (``docs/client-assignors.md``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ottla.assignors import (
    ASSIGNORS,
    Cluster,
    GroupSpec,
    MemberAssignment,
    MemberSpec,
    MemberSubscription,
    TopicSpec,
    checked,
    client_strategy,
)
from ottla.assignors.invocation import assign_whole
from ottla.client.backoff import ExponentialBackoff
from ottla.client.commands import Assigned
from ottla.client.effects import Poll, Send, ToCoordinator
from ottla.client.groups.consumer.requests import Offers
from ottla.client.groups.consumer.runs import RUN_REACTIONS, TRANSITIONS, RunInput, RunReaction, RunState
from ottla.client.groups.membership import MembershipContext
from ottla.client.notifications import AssignmentNeeded, ErrorNotification
from ottla.errors import AssignmentError, OttlaError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    api_versions_request,
    api_versions_response,
    consumer_group_heartbeat_request,
    consumer_group_install_assignment_request,
    consumer_group_install_assignment_response,
    consumer_group_prepare_assignment_request,
    consumer_group_prepare_assignment_response,
)
from ottla.protocol.rpcs import RequestT, ResponseT, Rpc
from ottla.types import Now, TopicPartition
from ottla.version import __version__

_log = logging.getLogger(__name__)

NEEDED = frozenset({Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT})
"""The APIs that a coordinator must serve."""

ASSIGNOR_FAILED = 1
"""The error of an assignor that raised, or whose answer breaks the rules. KIP-848 leaves the numbers to assignors; 0 is none."""

FIRST_RETRY, LAST_RETRY = 1_000, 60_000
"""Milliseconds until the group is asked to assign again after this member's assignor failed: doubled each time."""

_REASONS = 128
"""The number of values of a reason, a signed byte that must not be negative."""

_LONGEST_TEXT = 4_096
"""Maximum number of characters of an error that are sent to other members."""

_NOTHING = MemberAssignment(())

_Prepared: TypeAlias = "consumer_group_prepare_assignment_response.ConsumerGroupPrepareAssignmentResponse"


class ClientAssignorManager:
    """See the module. A part of the membership, which is called first and passes on what concerns this."""

    def __init__(self, context: MembershipContext, member_id: str) -> None:
        self.state = RunState.IDLE
        self.offers: Offers = None
        """The assignors that heartbeats list; ``None``: none, since the coordinator would not use them."""
        self._config = context.config
        self._coordinator = context.coordinator
        self._metadata = context.metadata
        self._notify = context.notify
        self._backoff = context.backoff
        self._pauses = ExponentialBackoff(FIRST_RETRY, LAST_RETRY, context.backoff.random)
        self._strategy = client_strategy(context.config.group_client_assignors)
        self._user_data: dict[str, bytes | None] = {}
        self._member_id = member_id
        self._asked_apis_of: int | None = None
        """The coordinator that was last asked what it serves, counted by look-ups; ``None``: none has answered yet."""
        self._serves = self._warned = False
        self.undecided = bool(self._strategy.assignors)
        """Whether it is not known yet if a coordinator would use the assignors: a member must know before it joins."""
        self._versions_in_flight = False
        self._versions_attempts = self._versions_at = 0
        self._run = 0
        """Counts the requests to the application, and the runs."""
        self._epoch = self._deadline = 0
        self._in_flight = False
        self._attempts = self._retry_at = 0
        self._question: _Prepared | None = None
        """The group as the coordinator described it."""
        self._shares: Mapping[str, MemberAssignment] = {}
        self._error: OttlaError | None = None
        self._told = ""
        """The latest error that was reported to this member's application and is sent to the group."""
        self._failures = self._reason = 0
        self._assign_again_at: int | None = None

    def __repr__(self) -> str:
        return f"<ClientAssignorManager {self.state.name} {', '.join(self._strategy.assignors) or 'without assignors'}>"

    # -- events from the membership ------------------------------------------------------------------------------------------

    def user_data(self, by_assignor: Mapping[str, bytes | None]) -> None:
        """The user data of the application's assignors for the member that assigns. An assignor that failed keeps its earlier
        data."""
        self._user_data.update(by_assignor)
        self._offer()

    def asked(self, epoch: int, deadline: int) -> None:
        """An answer to a heartbeat asks for an assignment, until ``deadline`` (monotonic ms).

        It is repeated until the group was described. After that it means that the coordinator has forgotten the description.
        """
        if self.state is not RunState.PREPARING:
            self._deadline = deadline
            self._begin(RunInput.ASKED, epoch)

    def moved(self, epoch: int) -> None:
        """The member has a new epoch: what was computed in the previous one is void."""
        if self.state is not RunState.IDLE:
            self._begin(RunInput.OUTDATED, epoch)

    def heard(self, text: str, *, failed: bool) -> bool:
        """The group has a new assignment, or the error with this text. Returns whether the error must be reported to the
        application."""
        if not failed:
            self._failures, self._assign_again_at = 0, None
            return False
        told, self._told = self._told, ""
        return text != told

    def assigned(self, command: Assigned) -> None:
        """The application's assignor has answered. An answer to an earlier request is void."""
        if self.state is RunState.COMPUTING and command.generation == self._run:
            self._computed(command.shares, command.error)

    def forget(self) -> None:
        """The member has left the group: it computes nothing."""
        self._assign_again_at = None
        if self.state is not RunState.IDLE:
            self._void("it has left the group")

    # -- the request manager -----------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """The next request of a run, or the ApiVersions request to a new coordinator."""
        if not self._strategy.assignors:
            return Poll()
        if self._assign_again_at is not None and now.mono >= self._assign_again_at:
            self._assign_again_at = None
            self._reason = (self._reason + 1) % _REASONS
            self._offer()
        polls = (self._ask_versions(now), self._go_on(now))
        wishes = [one.wake_at for one in polls] + [self._assign_again_at]
        return Poll(tuple(send for one in polls for send in one.sends), min((at for at in wishes if at is not None), default=None))

    # -- what the coordinator serves --------------------------------------------------------------------------------------------

    def _ask_versions(self, now: Now) -> Poll:
        """Once for each coordinator that is found: it may be another broker, or a newer one at the same address."""
        target = self._coordinator.target()
        if target is None or self._versions_in_flight or self._asked_apis_of == self._coordinator.found:
            return Poll()
        if self._versions_at > now.mono:
            return Poll(wake_at=self._versions_at)
        message = api_versions_request.ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        coordinator, timeout = self._coordinator.found, self._config.request_timeout_ms
        self._versions_in_flight = True
        send = Send(
            rpcs.API_VERSIONS,
            message,
            target,
            timeout,
            lambda response, _: self._on_versions(coordinator, response),
            self._on_versions_failure,
        )
        return Poll((send,))

    def _on_versions(self, coordinator: int, response: api_versions_response.ApiVersionsResponse) -> None:
        self._versions_in_flight = False
        self._asked_apis_of, self._versions_attempts = coordinator, 0
        served = set() if response.error_code else {item.api_key for item in response.api_keys}
        self._serves = served >= NEEDED
        if not self._serves and not self._warned:
            self._warned = True
            _log.warning(
                "group %r: the coordinator does not serve %s: group.client.assignors is ignored, and an assignor of the broker"
                " assigns the partitions",
                self._config.group_id,
                " and ".join(sorted(api.name for api in NEEDED)),
            )
        self.undecided = False
        self._offer()

    def _on_versions_failure(self, error: OttlaError, now: Now) -> None:
        self._coordinator.request_failed(error, now)
        self._versions_in_flight = False
        if not error.retriable:
            self._notify(ErrorNotification(error))
        self._versions_at = now.mono + self._backoff.delay(self._versions_attempts)
        self._versions_attempts += 1

    def _offer(self) -> None:
        if not self._serves:
            self.offers = None
            return
        self.offers = tuple(
            consumer_group_heartbeat_request.ClientAssignor(
                name=name,
                minimum_version=version,
                maximum_version=version,
                reason=self._reason,
                metadata_version=version,
                metadata=self._user_data.get(name) or b"",
            )
            for name, version in self._strategy.versions.items()
        )

    # -- a run ------------------------------------------------------------------------------------------------------------------

    def _begin(self, cause: RunInput, epoch: int) -> None:
        """Start again: earlier requests to the coordinator or to the application are void."""
        self._end_of_run()
        self._epoch = epoch
        self._move(cause)

    def _go_on(self, now: Now) -> Poll:
        if self.state is RunState.IDLE:
            return Poll()
        if now.mono >= self._deadline:
            self._void("the rebalance timeout has passed")
            return Poll()
        target = None if self.state is RunState.COMPUTING or self._in_flight else self._coordinator.target()
        if target is None or self._retry_at > now.mono:
            later = self._retry_at if self._retry_at > now.mono and target is not None else self._deadline
            return Poll(wake_at=min(later, self._deadline))
        if self.state is RunState.PREPARING:
            prepare = self._send(rpcs.CONSUMER_GROUP_PREPARE_ASSIGNMENT, self._prepare_request(), target, self._on_prepared)
            return Poll((prepare,), self._deadline)
        install = self._send(rpcs.CONSUMER_GROUP_INSTALL_ASSIGNMENT, self._install_request(), target, self._on_installed)
        return Poll((install,), self._deadline)

    def _send(
        self,
        rpc: Rpc[RequestT, ResponseT],
        message: RequestT,
        target: ToCoordinator,
        handler: Callable[[ResponseT, Now], None],
    ) -> Send[RequestT, ResponseT]:
        """A request of the present run; an outcome that arrives after the end of the run is ignored."""
        self._in_flight, run = True, self._run

        def on_response(response: ResponseT, now: Now) -> None:
            if run == self._run:
                self._in_flight = False
                handler(response, now)

        def on_failure(error: OttlaError, now: Now) -> None:
            self._coordinator.request_failed(error, now)
            if run == self._run:
                self._in_flight = False
                if error.retriable:
                    self._try_later(now)
                else:
                    self._fail(error)

        return Send(rpc, message, target, self._config.request_timeout_ms, on_response, on_failure)

    def _on_prepared(self, response: _Prepared, now: Now) -> None:
        """The group is known: run Ottla's own assignor at once, or ask the application to run its own."""
        if response.error_code:
            return self._refused(response.error_code, response.error_message, now)
        self._question = response
        self._attempts = 0
        self._move(RunInput.SHOWN)
        name = response.assignor_name
        cluster, members = self._cluster(response), _members(response)
        if name in self._strategy.foreign:
            return self._notify(AssignmentNeeded(self._run, name, cluster, members, "consumer"))
        if name in self._strategy.assignors:
            return self._computed(assign_whole(ASSIGNORS[name](), cluster, members), None)
        text = f"the coordinator asks for the assignor {name!r}, which group_client_assignors does not name"
        return self._computed({}, AssignmentError(text))

    def _computed(self, shares: Mapping[str, MemberAssignment], error: OttlaError | None) -> None:
        if error is None:
            assert self._question is not None
            try:
                _check(self._question, shares)
            except AssignmentError as wrong:
                error = wrong
        self._shares = shares
        self._move(RunInput.COMPUTED)
        if error is not None:
            self._report(error)

    def _report(self, error: OttlaError) -> None:
        """Report the error to the application; the request that is sent now reports it to the group."""
        self._error, self._told = error, _text(error)
        self._notify(ErrorNotification(error))

    def _on_installed(
        self, response: consumer_group_install_assignment_response.ConsumerGroupInstallAssignmentResponse, now: Now
    ) -> None:
        if response.error_code:
            return self._refused(response.error_code, response.error_message, now)
        if self._error is not None:
            self._assign_again_at = now.mono + self._pauses.delay(self._failures)
            self._failures += 1
        self._end_of_run()
        return self._move(RunInput.INSTALLED)

    def _refused(self, code: ErrorCode, text: str | None, now: Now) -> None:
        error = broker_error(int(code), f"the assignment of group {self._config.group_id!r}{f': {text}' if text else ''}")
        match RUN_REACTIONS.get(code, RunReaction.LATER if error.retriable else RunReaction.FAIL):
            case RunReaction.LATER:
                self._try_later(now)
            case RunReaction.LOOK_UP:
                self._coordinator.mark_moved(error.name)
                self._try_later(now)
            case RunReaction.PREPARE if self.state is RunState.INSTALLING:
                self._begin(RunInput.OUTDATED, self._epoch)
            case RunReaction.INVALID if self.state is RunState.INSTALLING and self._error is None:
                self._move(RunInput.INVALID)
                self._report(AssignmentError(f"the coordinator refused the assignment: {error}", cause=error))
            case RunReaction.VOID:
                self._void(error.name)
            case _:
                self._fail(error)

    def _fail(self, error: OttlaError) -> None:
        self._notify(ErrorNotification(error))
        self._void(str(error))

    def _void(self, reason: str) -> None:
        _log.debug("group %r: this member computes no assignment: %s", self._config.group_id, reason)
        self._end_of_run()
        self._move(RunInput.VOID)

    def _end_of_run(self) -> None:
        self._run += 1
        self._in_flight = False
        self._attempts = self._retry_at = 0
        self._question, self._shares, self._error = None, {}, None

    def _try_later(self, now: Now) -> None:
        self._retry_at = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    def _move(self, cause: RunInput) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"an assignment in state {self.state.name} cannot be moved by {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state

    # -- messages ---------------------------------------------------------------------------------------------------------------

    def _prepare_request(self) -> consumer_group_prepare_assignment_request.ConsumerGroupPrepareAssignmentRequest:
        return consumer_group_prepare_assignment_request.ConsumerGroupPrepareAssignmentRequest(
            group_id=self._config.group_id or "", member_id=self._member_id, member_epoch=self._epoch
        )

    def _install_request(self) -> consumer_group_install_assignment_request.ConsumerGroupInstallAssignmentRequest:
        shown, failed = self._question, self._error is not None
        assert shown is not None
        ids = {topic.topic_name: topic.topic_id for topic in shown.topics}
        version = self._strategy.versions.get(shown.assignor_name, 0)
        return consumer_group_install_assignment_request.ConsumerGroupInstallAssignmentRequest(
            group_id=self._config.group_id or "",
            member_id=self._member_id,
            member_epoch=self._epoch,
            group_epoch=shown.group_epoch,
            error=ASSIGNOR_FAILED if failed else 0,
            error_message=_text(self._error) if self._error is not None else None,
            members=()
            if failed
            else tuple(
                consumer_group_install_assignment_request.Member(
                    member_id=member_id,
                    topic_partitions=tuple(
                        consumer_group_install_assignment_request.TopicPartitions(topic_id=ids[topic], partitions=numbers)
                        for topic, numbers in _by_topic(share.partitions).items()
                    ),
                    metadata_version=version,
                    metadata=share.user_data or b"",
                )
                for member_id in (member.member_id for member in shown.members)
                for share in (self._shares.get(member_id, _NOTHING),)
            ),
        )

    def _cluster(self, shown: _Prepared) -> Cluster:
        """The topics as the coordinator describes them; the racks of those that this member knows to be the same topics."""
        known = self._metadata.current
        partitions = {topic.topic_name: topic.num_partitions for topic in shown.topics}
        ids = {topic.topic_name: topic.topic_id for topic in shown.topics}
        racks = known.replica_racks(topic for topic in partitions if known.topic_id(topic) == ids[topic])
        return Cluster(partitions, {topic: one for topic, one in racks.items() if len(one) == partitions[topic]})


def _members(shown: _Prepared) -> dict[str, MemberSubscription]:
    """The members as the coordinator describes them: ``owned`` is from the last assignment."""
    names = {topic.topic_id: topic.topic_name for topic in shown.topics}
    return {
        member.member_id: MemberSubscription(
            topics=tuple(sorted(names[one] for one in member.subscribed_topic_ids if one in names)),
            instance_id=member.instance_id,
            rack=member.rack_id or None,
            owned=tuple(
                TopicPartition(names[one.topic_id], number)
                for one in member.topic_partitions
                if one.topic_id in names
                for number in one.partitions
            ),
            generation=member.member_epoch,
            user_data=member.metadata or None,
        )
        for member in shown.members
    }


def _check(shown: _Prepared, shares: Mapping[str, MemberAssignment]) -> None:
    """Raises ``AssignmentError`` for an answer that the coordinator would refuse."""
    who = f"the assignor {shown.assignor_name!r}"
    ids = {topic.topic_name: topic.topic_id for topic in shown.topics if topic.topic_id is not None}
    group = GroupSpec(
        {one.member_id: MemberSpec(frozenset(filter(None, one.subscribed_topic_ids))) for one in shown.members},
        {},
        {one.topic_id: TopicSpec(one.topic_name, one.num_partitions) for one in shown.topics if one.topic_id is not None},
    )
    answer = {}
    for member_id, share in shares.items():
        by_topic = _by_topic(share.partitions)
        if strange := sorted(by_topic.keys() - ids.keys()):
            raise AssignmentError(f"{who} gave member {member_id} partitions of {', '.join(strange)}: no member subscribes to that")
        answer[member_id] = {ids[topic]: numbers for topic, numbers in by_topic.items()}
    checked(group, answer, who)


def _by_topic(partitions: tuple[TopicPartition, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, set()).add(number)
    return {topic: tuple(sorted(numbers)) for topic, numbers in found.items()}


def _text(error: OttlaError) -> str:
    """The text of an error in a form that can be sent: user code may put anything into it."""
    return str(error)[:_LONGEST_TEXT].encode("utf-8", "replace").decode()
