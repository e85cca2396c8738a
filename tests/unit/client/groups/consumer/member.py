"""A member of a consumer group by itself, and the coordinator's answers to it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from ottla.client.effects import AnySend
from ottla.client.events import AssignmentReceived
from ottla.client.groups.consumer.states import State
from tests.unit.client.groups.members import INTERVAL, ConsumerGroupMember
from tests.unit.client.managers import TOPIC_ID


class Member(ConsumerGroupMember):
    """A member, and the coordinator's answers to it."""

    def given(
        self, send: AnySend, partitions: Mapping[uuid.UUID, tuple[int, ...]] | None = None, *, epoch: int = 4, code: int = 0
    ) -> None:
        """Answer a heartbeat; without ``partitions`` the assignment is left out, which means that it is as before."""
        self.answer_beat(send, partitions, epoch=epoch, code=code)

    def refused(self, send: AnySend, code: int) -> None:
        self.given(send, code=code, epoch=0)

    def take(self) -> AssignmentReceived:
        """Run ``on_assign``."""
        received: AssignmentReceived = self.tell(AssignmentReceived)
        self.manager.accepted(received.token)
        return received

    def join(self, *numbers: int) -> None:
        """All the way to STABLE with these partitions of the one topic."""
        self.polled()
        self.given(self.beat(), {TOPIC_ID: numbers or (0, 1)})
        self.polled()
        self.poll()
        self.take()
        self.given(self.beat())
        assert self.state is State.STABLE

    def retarget(self, partitions: Mapping[uuid.UUID, tuple[int, ...]], *, epoch: int = 5) -> None:
        """The next heartbeat brings other partitions, and the application polls."""
        self.given(self.beat(self.mono + INTERVAL), partitions, epoch=epoch)
        self.polled()
        self.poll()
