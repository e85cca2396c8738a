"""A member of a consumer group, as the coordinator sees it: it follows its assignment, perhaps slowly."""

from __future__ import annotations

from typing import Any

from ottla.assignors import SERVER_ASSIGNORS, GroupSpec, MemberSpec, TopicSpec
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consumer_group_heartbeat_request as heartbeat,
    consumer_group_install_assignment_request as install,
    consumer_group_prepare_assignment_request as prepare,
)
from tests.unit.coordinator.harness import Harness

BEGIN_ANEW = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}
"""Errors after which a client gives up all that it has, and joins again under the same member id."""

OFFERS = tuple(heartbeat.ClientAssignor(name=name) for name in ("mine", "another"))
"""Assignors that a client can run itself."""

Share = dict[str, frozenset[int]]


class ConsumerClient:
    """Sends a heartbeat, waits for the response, and follows it; ``step`` does one of these and never blocks.

    ``has`` are its partitions. It revokes partitions at the next step, unless it is ``slow``.
    """

    def __init__(self, harness: Harness, name: str, group: str, instance: str | None, subscription: dict[str, Any]) -> None:
        self.harness, self.name, self.group, self.instance = harness, name, group, instance
        self.subscription = subscription
        self.incarnation = 0
        self.epoch = 0
        self.has: Share = {}
        self.told: Share | None = None
        """The last assignment, until it is taken up."""
        self.news = False
        self.slow = False
        self.is_gone = False
        self._ticket: int | None = None
        self._asked: dict[str, Any] = {}

    @property
    def member_id(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def waiting(self) -> bool:
        return self._ticket is not None and self.harness.waits(self._ticket)

    def step(self) -> None:
        """Handle a response, or send the next request."""
        if self.waiting or self.is_gone:
            return
        if self._ticket is not None:
            answer, self._ticket = self.harness.answer(self._ticket), None
            self._answered(answer)
        else:
            self._send()

    def subscribe(self, subscription: dict[str, Any]) -> None:
        """Subscribe to other topics."""
        self.subscription = subscription
        if self.epoch > 0:
            self._ask(self.epoch, **subscription)

    def again(self) -> None:
        """Repeat the last request, whose response was lost with the connection."""
        if self._asked and not self.is_gone:
            self._ask(**self._asked)

    def restart(self) -> None:
        """Restart the process: no partitions, and a new member id."""
        self.incarnation += 1
        self.is_gone = False
        self._lose_all()

    def pause(self) -> None:
        """Leave as a static member that will return."""
        if self.epoch > 0:
            self._ask(-2)
            self.is_gone = True
            self._ticket = None
            self.has = {}

    def leave(self) -> None:
        """Leave for good."""
        if self.epoch > 0:
            self._ask(-1)
        self.is_gone = True
        self._ticket = None
        self.has = {}

    def vanish(self) -> None:
        """Stop without leaving."""
        self.is_gone = True
        self._ticket = None

    def compute(self, error: int = 0) -> None:
        """Compute the assignment, if the coordinator accepts it. Gives up if a response takes long."""
        who: dict[str, Any] = {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch}
        ticket = self.harness.ask(Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, prepare.ConsumerGroupPrepareAssignmentRequest(**who))
        if self.harness.waits(ticket) or self.harness.answer(ticket).error_code is not ErrorCode.none:
            return
        shown = self.harness.answer(ticket)
        group = GroupSpec(
            {one.member_id: MemberSpec(frozenset(one.subscribed_topic_ids)) for one in shown.members},
            {one.member_id: {topic.topic_id: topic.partitions for topic in one.topic_partitions} for one in shown.members},
            {one.topic_id: TopicSpec(one.topic_name, one.num_partitions) for one in shown.topics},
        )
        members = tuple(
            install.Member(
                member_id=member_id,
                topic_partitions=tuple(install.TopicPartitions(topic_id=one, partitions=some) for one, some in target.items()),
            )
            for member_id, target in SERVER_ASSIGNORS["uniform"](group).items()
        )
        request = install.ConsumerGroupInstallAssignmentRequest(**who, group_epoch=shown.group_epoch, error=error, members=members)
        self.harness.ask(Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT, request)

    def _send(self) -> None:
        if self.epoch == 0:
            self._ask(0, owned={}, rebalance=20_000, **self.subscription)
            return
        if self.told is not None and not self.slow:
            self.has, self.told, self.news = self.told, None, True
        owned = {topic: sorted(numbers) for topic, numbers in self.has.items()} if self.news else None
        self.news = False
        self._ask(self.epoch, owned=owned)

    def _ask(self, epoch: int, **fields: Any) -> None:
        self._asked = {"epoch": epoch, **fields}
        self._ticket = self.harness.cg_beat(self.member_id, epoch, group=self.group, instance=self.instance, **fields)

    def _answered(self, answer: Any) -> None:
        if answer.error_code is ErrorCode.none:
            self.epoch = answer.member_epoch
            share = self.harness.share_of(answer)
            if share is not None:
                self.told = {topic: frozenset(numbers) for topic, numbers in share.items() if topic != "?"}
            if answer.should_compute_assignment and not self.slow:
                self.compute()
        elif answer.error_code in BEGIN_ANEW:
            self._lose_all()
        elif answer.error_code in (ErrorCode.fenced_instance_id, ErrorCode.unreleased_instance_id):
            self._lose_all()
            self.is_gone = True
        elif answer.error_code is ErrorCode.group_id_not_found:
            self._lose_all()

    def _lose_all(self) -> None:
        self.epoch, self.has, self.told, self.news, self._ticket = 0, {}, None, False, None
