"""Members of a central group on connections that delay and lose what is sent, and what they may read by their leases.

Each connection has two queues. A break loses what the coordinator has sent; what the member has sent may still arrive. A hang-up of
the coordinator arrives after all that it sent before, and loses what the member has sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.coordinator.central.coordinator import CentralCoordinator, CentralCoordinatorEffect
from ottla.coordinator.effects import Append, HangUp, Push, Reply
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import leave_request, register_request
from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread
from tests.unit.coordinator.central.harness import ANSWERS, Central, owned_topics, share_of

SESSION, REBALANCE = 9_000, 20_000
_GIVE_UP = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.unreleased_instance_id)
CLOSED = "closed"
"""What arrives at the end of a connection."""


@dataclass
class Connection:
    """The queues between a member and the coordinator: ``up`` to the coordinator, ``down`` to the member."""

    number: int
    up: deque[Any] = field(default_factory=deque)
    down: deque[Any] = field(default_factory=deque)
    is_open: bool = True
    """Whether the coordinator has it."""


@dataclass
class Consumer:
    """A member. It obeys the protocol, however slowly, and reads what it holds until its lease ends."""

    member_id: str
    topics: dict[str, int]
    incarnation: str = "one"
    connection: Connection | None = None
    epoch: int = -1
    generation: int = -1
    own: int = -1
    """The latest generation in which it was started or has registered (``RegisterRequest.own_generation``)."""
    held: dict[TopicPartition, int] = field(default_factory=dict)
    lease_until: int = -1
    sent_at: int = -1
    """When its Register, or its last answer to a Ping, was sent; the response or the next Ping proves that it has arrived."""
    is_member: bool = False
    """Whether its Register on this connection was answered."""
    wants: bool = True
    """Whether it wants to be a member."""
    stops: deque[Push] = field(default_factory=deque)
    """Stops that the application has not followed so far."""

    def may_read(self, mono: int) -> frozenset[TopicPartition]:
        """What it may hand to its application."""
        return frozenset(self.held) if mono < self.lease_until else frozenset()

    def disconnect(self) -> None:
        self.connection, self.is_member = None, False
        self.stops.clear()


class Network(Central):
    """A coordinator, and consumers beyond a network. Everything that arrives does so because a test lets it arrive."""

    def __init__(self, **config: Any) -> None:
        self.consumers: dict[str, Consumer] = {}
        self.channels: dict[int, Connection] = {}
        self.early: list[Connection] = []
        """Connections to the broker that is elected next, which answers nothing before."""
        self.problems: list[str] = []
        """What must not happen, and did."""
        self.generation_at: dict[int, int] = {}
        """Ticket -> the stored generation when it was answered."""
        self._origin: dict[int, int] = {}
        self._calls: list[str] = []
        self._stopped_generations: set[tuple[int, int]] = set()
        super().__init__(**config)

    # What the coordinator does.

    def tell(self, what: str, *args: Any) -> list[CentralCoordinatorEffect]:
        if what == "handle":
            self._origin[args[0].ticket] = args[0].connection
        self._calls.append(what)
        try:
            return super().tell(what, *args)
        finally:
            self._calls.pop()

    def perform(self, effects: Iterable[CentralCoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Push(number, Api.STOP) if (self.epoch, effect.message.generation) not in self._stopped_generations:
                    self._stopped_generations.add((self.epoch, effect.message.generation))
                    self._send_down(number, effect)
                    self._check_necessity()
                case Push(number):
                    self._send_down(number, effect)
                case HangUp(number):
                    self._send_down(number, CLOSED)
                    if number in self.channels:
                        closed = self.channels.pop(number)
                        closed.is_open = False
                        closed.up.clear()
                case Reply(ticket, response):
                    super().perform([effect])
                    self.generation_at[ticket] = self.node().generation if "g/generation" in self.nodes else -1
                    self._send_down(self._origin[ticket], response)
                case Append(records=records):
                    self._check_generation(dict(records))
                    super().perform([effect])
                case _:
                    super().perform([effect])

    def _send_down(self, number: int, message: Any) -> None:
        if number in self.channels:
            self.channels[number].down.append(message)

    def _check_generation(self, records: dict[bytes, bytes | None]) -> None:
        """No member may read while a generation with other owners is being stored."""
        if b"g/generation" not in records or not any(key.startswith(b"g/owners/") for key in records):
            return
        for consumer in self.consumers.values():
            if consumer.may_read(self.mono):
                self.problems.append(f"a generation is stored while {consumer.member_id} reads {set(consumer.held)}")

    def _check_necessity(self) -> None:
        """A rebalance begins only by the five rules. After an append several operations may follow; their effects come together."""
        if self._calls[0] in ("on_appended", "on_append_failed"):
            return
        group = self.group()
        owners = {key.removeprefix("g/owners/"): data.decode() for key, data in self.nodes.items() if "/owners/" in key}
        computed = {f"{topic}/{n}": str(owner) for (topic, n), owner in self.computed().items()}
        if owners == computed and not any(member.differs for member in group.members.values()):
            self.problems.append(f"a rebalance of {group.members.keys()} was not necessary: {owners}")

    def computed(self) -> dict[TopicPartition, ConsumerThread]:
        """The owners that the members should be, by ``range`` with one thread each."""
        owners = {}
        for topic, count in self.topics.counts.items():
            readers = sorted(one.member_id for one in self.group().members.values() if topic in one.topics)
            size, larger = divmod(count, len(readers) or 1)
            numbers = iter(range(count))
            for place, member_id in enumerate(readers):
                for _ in range(size + (place < larger)):
                    owners[TopicPartition(topic, next(numbers))] = ConsumerThread(member_id, 0)
        return owners

    def replace_coordinator(self, written: int, *, crash: bool) -> None:
        """Elect another coordinator. Of the open appends, at most ``written`` records each are stored."""
        if not crash:
            self.tell("unload")
        for append in self.open.values():
            for key, value in append.records[:written]:
                self.write(key, value)
        for connection in self.channels.values():
            connection.down.append(CLOSED)
            connection.is_open = False
            connection.up.clear()
        self.channels.clear()
        for held in (self.open, self.timers, self.jobs):
            held.clear()
        self.asked &= self.replies.keys() | self.silent
        self.epoch += 1
        self.coordinator = CentralCoordinator(self.config, self.topics)
        self.tell("load", self.stored_groups(), self.epoch)
        for connection in self.early:
            connection.is_open = True
            self.channels[connection.number] = connection
        self.early.clear()

    # The network.

    def arrive(self, consumer: Consumer) -> None:
        """Let a member's next frame arrive at the coordinator."""
        if consumer.connection is not None:
            self.arrive_on(consumer.connection)

    def arrive_on(self, connection: Connection) -> None:
        """Let the next frame of a connection arrive at the coordinator."""
        if not connection.up or not connection.is_open:
            return
        frame = connection.up.popleft()
        if frame == CLOSED:
            self.channels.pop(connection.number)
            connection.is_open = False
            self.tell("on_disconnect", connection.number)
        else:
            api, message, correlation_id = frame
            self.ask(api, message, connection=connection.number, correlation_id=correlation_id)

    def broken(self) -> list[Connection]:
        """The connections that members have lost, and of which the coordinator does not know that."""
        used = [consumer.connection for consumer in self.consumers.values()]
        return [connection for connection in self.channels.values() if not any(connection is one for one in used)]

    def break_connection(self, consumer: Consumer) -> None:
        """Break a member's connection. What it has sent may still arrive."""
        if consumer.connection is not None:
            consumer.connection.up.append(CLOSED)
            consumer.disconnect()

    # Members.

    def end_lease(self, consumer: Consumer) -> None:
        """If the lease of a member is over, it has lost everything, and must register again."""
        if self.mono >= consumer.lease_until and consumer.generation >= 0:
            consumer.held, consumer.generation = {}, -1
            self.break_connection(consumer)

    def send_to_coordinator(self, consumer: Consumer, api: Api, message: Any, correlation_id: int = 0) -> None:
        assert consumer.connection is not None
        consumer.connection.up.append((api, message, correlation_id))

    def consume(self, consumer: Consumer) -> None:
        """Register a member on a new connection."""
        self.end_lease(consumer)
        if consumer.connection is not None:
            return
        consumer.wants = True
        consumer.connection = Connection(next(self._connections))
        self.channels[consumer.connection.number] = consumer.connection
        consumer.sent_at = self.mono
        request = register_request.RegisterRequest(
            group_id="g",
            member_id=consumer.member_id,
            incarnation=consumer.incarnation,
            session_timeout_ms=SESSION,
            rebalance_timeout_ms=REBALANCE,
            assignor="range",
            topics=tuple(register_request.Subscription(topic=topic, streams=1) for topic in consumer.topics),
            coordinator_epoch=consumer.epoch,
            generation=consumer.generation,
            owned_topics=owned_topics(consumer.held),
            own_generation=consumer.own,
        )
        self.send_to_coordinator(consumer, Api.REGISTER, request)

    def consume_early(self, consumer: Consumer) -> None:
        """Register a member with the broker that is elected next. Its Register arrives then, also if it has given up meanwhile."""
        if consumer.connection is None:
            self.consume(consumer)
            assert consumer.connection is not None
            consumer.connection.is_open = False
            self.early.append(self.channels.pop(consumer.connection.number))

    def leave_group(self, consumer: Consumer) -> None:
        """Give up everything, and leave."""
        consumer.wants, consumer.held = False, {}
        if consumer.connection is not None and consumer.is_member:
            request = leave_request.LeaveRequest(
                group_id="g",
                member_id=consumer.member_id,
                coordinator_epoch=consumer.epoch,
                generation=consumer.generation,
            )
            self.send_to_coordinator(consumer, Api.LEAVE, request)

    def read(self, consumer: Consumer) -> None:
        """Let a member handle the next frame of the coordinator."""
        self.end_lease(consumer)
        connection = consumer.connection
        if connection is None or not connection.down:
            return
        frame = connection.down.popleft()
        if frame == CLOSED:
            consumer.disconnect()
        elif isinstance(frame, Push):
            self._pushed(consumer, frame)
        elif frame.error_code is not ErrorCode.none:
            if frame.error_code in _GIVE_UP:
                consumer.held, consumer.generation = {}, -1
            self.break_connection(consumer)
        elif hasattr(frame, "ping_interval_ms"):
            consumer.is_member, consumer.epoch = True, frame.coordinator_epoch
            consumer.lease_until = max(consumer.lease_until, consumer.sent_at + SESSION)
            if 0 <= consumer.generation < frame.generation:
                consumer.own = frame.generation
            if not consumer.wants:
                self.leave_group(consumer)

    def _pushed(self, consumer: Consumer, push: Push) -> None:
        message = push.message
        if (message.coordinator_epoch, message.generation) < (consumer.epoch, consumer.generation):
            self.problems.append(f"{consumer.member_id} got a lower epoch or generation: {message}")
        if push.api is Api.STOP:
            consumer.stops.append(push)
            return
        if push.api is Api.PING:
            consumer.lease_until = max(consumer.lease_until, consumer.sent_at + SESSION)
            consumer.sent_at = self.mono
        elif consumer.wants:
            consumer.held, consumer.generation = share_of(push), message.generation
            consumer.own = consumer.generation
        self._answer(consumer, push)

    def stop(self, consumer: Consumer) -> None:
        """Let a member follow its Stop: its application has given up everything."""
        if consumer.stops:
            stop = consumer.stops.popleft()
            consumer.held, consumer.generation = {}, stop.message.generation
            self._answer(consumer, stop)

    def _answer(self, consumer: Consumer, push: Push) -> None:
        message = push.message
        answer = ANSWERS[push.api](
            error_code=ErrorCode.none,
            group_id="g",
            member_id=consumer.member_id,
            coordinator_epoch=message.coordinator_epoch,
            generation=message.generation,
        )
        self.send_to_coordinator(consumer, push.api, answer, push.correlation_id)
