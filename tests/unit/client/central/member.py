"""A member of a central group, and a coordinator that the test plays.

Owns the frames between the two. Must not know what a test expects. Invariant: the member gets only what the test sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.client.effects import Answer, AnySend, Send, ToChannel
from ottla.client.events import AssignmentReceived, RebalanceNeeded
from ottla.client.groups.central.frames import Frames
from ottla.client.groups.central.membership import CentralMembership
from ottla.client.groups.central.states import State
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.connection import Pushed
from ottla.protocol.messages import (
    leave_response,
    ping_request,
    register_response,
    start_request,
    stop_request,
)
from ottla.types import Now, TopicPartition
from tests.unit.client.groups.members import GroupMember

SESSION, PING = 9_000, 3_000
"""The session time-out, and the interval of pings (ms)."""

SILENCE = PING + SESSION // 6
"""Milliseconds after which a silent channel is given up."""

ID, INCARNATION = "g_m", "5ca1ab1e"
CHANNEL = ToChannel(1)


class Member(GroupMember):
    """A member that subscribes to ``t``, and the coordinator's side of its channel."""

    manager: CentralMembership

    def __init__(self, **settings: Any) -> None:
        self.hung_up: list[ToChannel] = []
        self.on_hang_up: Callable[[], None] = lambda: None
        self.read: dict[TopicPartition, int] = {}
        self.epoch, self.generation = 1, 0
        self._correlation = 0
        defaults = {"group_protocol": "central", "session_timeout_ms": SESSION, "max_poll_interval_ms": 60_000}
        super().__init__(self._membership, **{**defaults, **settings})

    def _membership(self, context: Any) -> CentralMembership:
        return CentralMembership(context, Frames(context.config, ID, INCARNATION), self._hang_up, self.read.get)

    def _hang_up(self, target: ToChannel, reason: str, now: Now) -> None:
        assert reason
        self.hung_up.append(target)
        self.on_hang_up()

    @property
    def state(self) -> State:
        return self.manager.state

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.subscription.partitions)

    @property
    def readable(self) -> set[TopicPartition]:
        """The partitions that the application may read, apart from those that it was not told of yet."""
        held = self.subscription.partitions.items()
        return (
            {tp for tp, state in held if not (state.revoking or state.unwanted)} if self.manager.lease_until > self.mono else set()
        )

    # -- the coordinator --------------------------------------------------------------------------------------------------

    def registered(self, send: AnySend, code: int = 0, *, epoch: int | None = None, generation: int | None = None) -> None:
        answer = register_response.RegisterResponse(
            error_code=ErrorCode(code),
            error_message="because" if code else None,
            coordinator_epoch=self.epoch if epoch is None else epoch,
            generation=self.generation if generation is None else generation,
            ping_interval_ms=PING,
        )
        self.answer(send, answer)

    def push(self, api: Api, message: Any, target: ToChannel = CHANNEL) -> int:
        self._correlation += 1
        self.manager.on_pushed(target, Pushed(api, self._correlation, message), self.now)
        return self._correlation

    def _head(self, generation: int | None, epoch: int | None, member: str) -> dict[str, Any]:
        return {
            "group_id": "g",
            "member_id": member,
            "coordinator_epoch": self.epoch if epoch is None else epoch,
            "generation": self.generation if generation is None else generation,
        }

    def ping(self, generation: int | None = None, *, epoch: int | None = None, member: str = ID) -> int:
        return self.push(Api.PING, ping_request.PingRequest(**self._head(generation, epoch, member)))

    def stop(self, generation: int | None = None, *, epoch: int | None = None, member: str = ID, reason: str = "") -> int:
        return self.push(Api.STOP, stop_request.StopRequest(**self._head(generation, epoch, member), reason=reason))

    def start(self, *partitions: TopicPartition, generation: int | None = None, epoch: int | None = None, thread: int = 0) -> int:
        """Start the next generation, unless another one is named."""
        if generation is None:
            self.generation += 1
        topics: dict[str, list[Any]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(start_request.AssignedPartition(partition=tp.partition, thread=thread))
        message = start_request.StartRequest(
            **self._head(generation, epoch, ID),
            topics=tuple(start_request.AssignedTopic(topic=topic, partitions=tuple(items)) for topic, items in topics.items()),
        )
        return self.push(Api.START, message)

    def lose_channel(self, target: ToChannel = CHANNEL) -> None:
        self.manager.on_channel_closed(target, "the connection broke", self.now)

    def left(self, send: AnySend, code: int = 0) -> None:
        self.answer(send, leave_response.LeaveResponse(error_code=ErrorCode(code), error_message="no" if code else None))

    # -- the member -------------------------------------------------------------------------------------------------------

    def answers(self, at: int | None = None) -> list[Answer]:
        """What is sent now: answers only."""
        sent: list[Any] = [*self.poll(at)]
        assert all(isinstance(item, Answer) for item in sent), sent
        return sent

    def the_answer(self, correlation_id: int, code: int = 0) -> Any:
        """The only thing that is sent now: the answer to this request."""
        (answer,) = self.answers()
        assert (answer.correlation_id, answer.message.error_code) == (correlation_id, code)
        assert (answer.message.group_id, answer.message.member_id) == ("g", ID)
        return answer.message

    def requests(self) -> list[AnySend]:
        """The requests that are sent now."""
        return [item for item in self.poll() if isinstance(item, Send)]

    def accept(self) -> None:
        self.manager.accepted(self.tell(AssignmentReceived).token)

    def give_up(self, *, lost: bool = False) -> frozenset[TopicPartition]:
        """The application gives up what it was asked to."""
        asked = self.tell(RebalanceNeeded)
        assert asked.lost is lost
        self.manager.prepared(asked.token, self.now)
        return frozenset(asked.partitions)

    def join(self, *partitions: TopicPartition) -> None:
        """All the way to STABLE, with these partitions."""
        self.polled()
        self.registered(self.one(Api.REGISTER))
        self.start(*partitions)
        self.answers()
        self.accept()
        assert self.state is State.STABLE
