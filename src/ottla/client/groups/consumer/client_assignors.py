"""The client-side assignors of a member of a consumer group: its offers, and the assignments that it computes.

Owns ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment, the states of the member that assigns (``TRANSITIONS``), and
the check whether the coordinator serves the two requests. Must not know heartbeats, nor the effect of an assignment. Invariants: a
user's assignor runs on the application's thread; an assignment is sent only in the member epoch, and for the group epoch, in which
it was computed, and only within the member's rebalance timeout; the response to an earlier request has no effect; the error of an
assignor is sent to the coordinator, which sends it to every member; a transition that is not in the table does not happen.

Source: KIP-848, "Client side mode". Apache Kafka does not serve these APIs; Ottla's broker does (``docs/client-assignors.md``).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

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
from ottla.client.effects import Answer, AnySend, Poll, Send, ToCoordinator
from ottla.client.events import Assigned, AssignmentNeeded, ErrorNotification
from ottla.client.groups.consumer.heartbeats import Offers
from ottla.client.groups.membership import MembershipContext
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

if TYPE_CHECKING:
    from ottla.zookeeper.session import AnyAsk

_log = logging.getLogger(__name__)

NEEDED = frozenset({Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT})
"""The APIs that a coordinator must serve."""

ASSIGNOR_FAILED = 1
"""The error code of an assignor that raised an exception or returned an invalid assignment. KIP-848 leaves the numbers to
assignors; 0 means no error."""

FIRST_RETRY, LAST_RETRY = 1_000, 60_000
"""Milliseconds until this member requests another assignment after its assignor failed: doubled each time."""

_REASONS = 128
"""The number of values of a reason, a signed byte that must not be negative."""

_LONGEST_TEXT = 4_096
"""The longest text of an error that is sent to other members, in characters."""

_NOTHING = MemberAssignment(())

_Prepared: TypeAlias = "consumer_group_prepare_assignment_response.ConsumerGroupPrepareAssignmentResponse"


class RunState(enum.Enum):
    """The state of the member's assignment."""

    IDLE = "does not compute an assignment"
    PREPARING = "requests the members and topics of the group from the coordinator"
    COMPUTING = "the assignor is running"
    INSTALLING = "sends the assignment, or the assignor's error, to the coordinator"


class RunInput(enum.Enum):
    """The causes of a change of state."""

    REQUESTED = "the response to a heartbeat requests an assignment"
    OUTDATED = "the member has a new epoch, or the assignment is for another epoch of the group"
    PREPARED = "the coordinator has described the group"
    COMPUTED = "the assignor has succeeded or failed"
    INVALID = "the coordinator refuses the assignment: an error is sent instead"
    INSTALLED = "the coordinator has accepted the assignment or the error"
    VOID = "the member has left, the timeout has passed, or the coordinator does not expect an assignment from this member"


_REQUESTED_AGAIN = {RunInput.REQUESTED: RunState.PREPARING, RunInput.OUTDATED: RunState.PREPARING, RunInput.VOID: RunState.IDLE}

TRANSITIONS: Mapping[RunState, Mapping[RunInput, RunState]] = {
    RunState.IDLE: {RunInput.REQUESTED: RunState.PREPARING},
    RunState.PREPARING: {
        RunInput.OUTDATED: RunState.PREPARING,
        RunInput.PREPARED: RunState.COMPUTING,
        RunInput.VOID: RunState.IDLE,
    },
    RunState.COMPUTING: {**_REQUESTED_AGAIN, RunInput.COMPUTED: RunState.INSTALLING},
    RunState.INSTALLING: {
        **_REQUESTED_AGAIN,
        RunInput.INVALID: RunState.INSTALLING,
        RunInput.INSTALLED: RunState.IDLE,
    },
}
"""State -> input -> next state."""


class RunReaction(enum.Enum):
    """The reaction to an error code."""

    LATER = "send again after a while"
    LOOK_UP = "the coordinator is another broker: look it up, then send again"
    PREPARE = "request the group again: the assignment is for another epoch"
    INVALID = "the assignment breaks the rules: send an error instead"
    VOID = "the coordinator does not expect an assignment from this member"
    FAIL = "report the error to the application; the coordinator chooses another member after the timeout"


RUN_REACTIONS: Mapping[int, RunReaction] = {
    ErrorCode.request_timed_out: RunReaction.LATER,
    ErrorCode.coordinator_load_in_progress: RunReaction.LATER,
    ErrorCode.coordinator_not_available: RunReaction.LOOK_UP,
    ErrorCode.not_coordinator: RunReaction.LOOK_UP,
    ErrorCode.illegal_generation: RunReaction.PREPARE,
    ErrorCode.unknown_member_id: RunReaction.VOID,
    ErrorCode.invalid_request: RunReaction.INVALID,
    ErrorCode.group_id_not_found: RunReaction.VOID,
    ErrorCode.fenced_member_epoch: RunReaction.VOID,
    ErrorCode.stale_member_epoch: RunReaction.LATER,
}
"""Error codes of ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment -> reaction; to another one that is retriable
``LATER``, to any other ``FAIL``.

After STALE_MEMBER_EPOCH the next heartbeat brings the new epoch, with which the run starts again."""


class ClientAssignorManager:
    """The client-side assignors of one member. A part of the membership, which calls it."""

    def __init__(self, context: MembershipContext, member_id: str) -> None:
        self.state = RunState.IDLE
        self.offers: Offers = None
        """The assignors in heartbeats; ``None``: none, since the coordinator does not support them."""
        self._config = context.config
        self._coordinator = context.coordinator
        self._metadata = context.metadata
        self._notify = context.notify
        self._backoff = context.backoff
        self._pauses = ExponentialBackoff(FIRST_RETRY, LAST_RETRY, context.backoff.random)
        self._strategy = client_strategy(context.config.group_client_assignors)
        self._user_data: dict[str, bytes | None] = {}
        self._member_id = member_id
        self._versions_of: int | None = None
        """The coordinator whose APIs are known, by the number of its lookup; ``None``: none has answered yet."""
        self._serves = self._warned = False
        self.undecided = bool(self._strategy.assignors)
        """Whether it is unknown if the coordinator supports client-side assignors. The member joins only after it is known."""
        self._versions_in_flight = False
        self._unsent: list[AnySend | AnyAsk | Answer] = []
        """An ApiVersions request already noted as in flight. If the next step of a poll raises, the next poll returns it."""
        self._versions_attempts = self._versions_at = 0
        self._run = 0
        """The number of the run, also in requests to the application."""
        self._epoch = self._deadline = 0
        self._in_flight = False
        self._attempts = self._retry_at = 0
        self._prepared: _Prepared | None = None
        """The group as PrepareAssignment returned it."""
        self._shares: Mapping[str, MemberAssignment] = {}
        self._error: OttlaError | None = None
        self._reported_text = ""
        """The text of the latest error that was reported to this member's application and is sent to the group."""
        self._failures = self._reason = 0
        self._assign_again_at: int | None = None

    def __repr__(self) -> str:
        return f"<ClientAssignorManager {self.state.name} {', '.join(self._strategy.assignors) or 'without assignors'}>"

    # -- events from the membership ------------------------------------------------------------------------------------------

    def user_data(self, by_assignor: Mapping[str, bytes | None]) -> None:
        """Set the user data of the application's assignors for the member that assigns. An assignor that failed keeps its earlier
        data.
        """
        self._user_data.update(by_assignor)
        self._offer()

    def asked(self, epoch: int, deadline: int) -> None:
        """Start a run after the response to a heartbeat has requested an assignment, until ``deadline`` (monotonic ms).

        Responses repeat the request until PrepareAssignment was answered. A request after that means that the coordinator has
        forgotten that answer (it was restarted), so the run starts again.
        """
        if self.state is not RunState.PREPARING:
            self._deadline = deadline
            self._begin(RunInput.REQUESTED, epoch)

    def moved(self, epoch: int) -> None:
        """Start the run again in the member's new epoch: the assignment of the previous one is invalid."""
        if self.state is not RunState.IDLE:
            self._begin(RunInput.OUTDATED, epoch)

    def heard(self, text: str, *, failed: bool) -> bool:
        """Note that the group has a new assignment, or that an assignor failed with this text. Return whether to report the error
        to the application: not if it is this member's own error, which was reported already.
        """
        if not failed:
            self._failures, self._assign_again_at = 0, None
            return False
        reported, self._reported_text = self._reported_text, ""
        return text != reported

    def assigned(self, command: Assigned) -> None:
        """Use the result of the application's assignor. One for an earlier run is ignored."""
        if self.state is RunState.COMPUTING and command.generation == self._run:
            self._computed(command.shares, command.error)

    def forget(self) -> None:
        """End the run, since the member has left the group."""
        self._assign_again_at = None
        if self.state is not RunState.IDLE:
            self._void("it has left the group")

    # -- the request manager -----------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the next request of a run, and an ApiVersions request to a new coordinator."""
        if not self._strategy.assignors:
            return Poll()
        if self._assign_again_at is not None and now.mono >= self._assign_again_at:
            self._assign_again_at = None
            self._reason = (self._reason + 1) % _REASONS
            self._offer()
        versions = self._request_versions(now)
        self._unsent += versions.sends
        run = self._next_request(now)
        sends, self._unsent = (*self._unsent, *run.sends), []
        times = (versions.wake_at, run.wake_at, self._assign_again_at)
        return Poll(sends, min((at for at in times if at is not None), default=None))

    # -- the APIs of the coordinator --------------------------------------------------------------------------------------------

    def _request_versions(self, now: Now) -> Poll:
        """Return an ApiVersions request after each lookup: the coordinator may be another broker, or a newer one at the same
        address.
        """
        target = self._coordinator.target()
        if target is None or self._versions_in_flight or self._versions_of == self._coordinator.found:
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
        self._versions_of, self._versions_attempts = coordinator, 0
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
        """Start a run: the outcome of earlier requests to the coordinator or the application is ignored."""
        self._end_of_run()
        self._epoch = epoch
        self._move(cause)

    def _next_request(self, now: Now) -> Poll:
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
        """Return a request of the present run; an outcome that arrives after the end of the run is ignored."""
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
                    self._retry_later(now)
                else:
                    self._fail(error)

        return Send(rpc, message, target, self._config.request_timeout_ms, on_response, on_failure)

    def _on_prepared(self, response: _Prepared, now: Now) -> None:
        """Run Ottla's own assignor at once, or ask the application to run its own."""
        if response.error_code:
            return self._refused(response.error_code, response.error_message, now)
        self._prepared = response
        self._attempts = 0
        self._move(RunInput.PREPARED)
        name = response.assignor_name
        cluster, members = self._cluster(response), _members(response)
        if name in self._strategy.foreign:
            return self._notify(AssignmentNeeded(self._run, name, cluster, members, "consumer"))
        if name in self._strategy.assignors:
            return self._computed(assign_whole(ASSIGNORS[name](), cluster, members), None)
        text = f"the coordinator requests the assignor {name!r}, which is not in group_client_assignors"
        return self._computed({}, AssignmentError(text))

    def _computed(self, shares: Mapping[str, MemberAssignment], error: OttlaError | None) -> None:
        if error is None:
            assert self._prepared is not None
            try:
                _check(self._prepared, shares)
            except AssignmentError as invalid:
                error = invalid
        self._shares = shares
        self._move(RunInput.COMPUTED)
        if error is not None:
            self._report(error)

    def _report(self, error: OttlaError) -> None:
        """Report the error to the application; InstallAssignment reports it to the group."""
        self._error, self._reported_text = error, _text(error)
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
                self._retry_later(now)
            case RunReaction.LOOK_UP:
                self._coordinator.mark_moved(error.name)
                self._retry_later(now)
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
        _log.debug("group %r: this member no longer computes an assignment: %s", self._config.group_id, reason)
        self._end_of_run()
        self._move(RunInput.VOID)

    def _end_of_run(self) -> None:
        self._run += 1
        self._in_flight = False
        self._attempts = self._retry_at = 0
        self._prepared, self._shares, self._error = None, {}, None

    def _retry_later(self, now: Now) -> None:
        self._retry_at = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    def _move(self, cause: RunInput) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a run in state {self.state.name} has no transition for {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state

    # -- messages ---------------------------------------------------------------------------------------------------------------

    def _prepare_request(self) -> consumer_group_prepare_assignment_request.ConsumerGroupPrepareAssignmentRequest:
        return consumer_group_prepare_assignment_request.ConsumerGroupPrepareAssignmentRequest(
            group_id=self._config.group_id or "", member_id=self._member_id, member_epoch=self._epoch
        )

    def _install_request(self) -> consumer_group_install_assignment_request.ConsumerGroupInstallAssignmentRequest:
        prepared, failed = self._prepared, self._error is not None
        assert prepared is not None
        ids = {topic.topic_name: topic.topic_id for topic in prepared.topics}
        version = self._strategy.versions.get(prepared.assignor_name, 0)
        return consumer_group_install_assignment_request.ConsumerGroupInstallAssignmentRequest(
            group_id=self._config.group_id or "",
            member_id=self._member_id,
            member_epoch=self._epoch,
            group_epoch=prepared.group_epoch,
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
                for member_id in (member.member_id for member in prepared.members)
                for share in (self._shares.get(member_id, _NOTHING),)
            ),
        )

    def _cluster(self, prepared: _Prepared) -> Cluster:
        """Return the topics from the coordinator, with racks for those that are the same topics (ids) in this member's metadata."""
        metadata = self._metadata.current
        partitions = {topic.topic_name: topic.num_partitions for topic in prepared.topics}
        ids = {topic.topic_name: topic.topic_id for topic in prepared.topics}
        racks = metadata.replica_racks(topic for topic in partitions if metadata.topic_id(topic) == ids[topic])
        return Cluster(partitions, {topic: of_topic for topic, of_topic in racks.items() if len(of_topic) == partitions[topic]})


def _members(prepared: _Prepared) -> dict[str, MemberSubscription]:
    """Return the members from the coordinator; ``owned`` is from the last target assignment."""
    names = {topic.topic_id: topic.topic_name for topic in prepared.topics}
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
        for member in prepared.members
    }


def _check(prepared: _Prepared, shares: Mapping[str, MemberAssignment]) -> None:
    """Raise ``AssignmentError`` for an assignment that the coordinator would reject."""
    assignor = f"the assignor {prepared.assignor_name!r}"
    ids = {topic.topic_name: topic.topic_id for topic in prepared.topics if topic.topic_id is not None}
    group = GroupSpec(
        {one.member_id: MemberSpec(frozenset(filter(None, one.subscribed_topic_ids))) for one in prepared.members},
        {},
        {one.topic_id: TopicSpec(one.topic_name, one.num_partitions) for one in prepared.topics if one.topic_id is not None},
    )
    assignment = {}
    for member_id, share in shares.items():
        by_topic = _by_topic(share.partitions)
        if unknown := sorted(by_topic.keys() - ids.keys()):
            raise AssignmentError(
                f"{assignor} gave member {member_id} partitions of {', '.join(unknown)}: no member subscribes to that"
            )
        assignment[member_id] = {ids[topic]: numbers for topic, numbers in by_topic.items()}
    checked(group, assignment, assignor)


def _by_topic(partitions: tuple[TopicPartition, ...]) -> dict[str, tuple[int, ...]]:
    by_topic: dict[str, set[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, set()).add(number)
    return {topic: tuple(sorted(numbers)) for topic, numbers in by_topic.items()}


def _text(error: OttlaError) -> str:
    """Return the text of an error that can be sent: shortened, and without characters that cannot be encoded."""
    return str(error)[:_LONGEST_TEXT].encode("utf-8", "replace").decode()
