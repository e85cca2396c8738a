"""What tests of single request managers share: a clock, a cluster of two brokers, and neutral answers.

Owns the virtual time of one manager and the requests it sent. Must not know which manager is tested. Invariant: nothing is answered
unless the test answers it.
"""

from __future__ import annotations

import errno
import itertools
import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from ottla.client import events
from ottla.client.backoff import ExponentialBackoff
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.effects import AnySend, ToCoordinator
from ottla.client.groups.membership import NO_MEMBER, MemberIdentity
from ottla.config import ConsumerConfig
from ottla.errors import DisconnectedError, OttlaError, OttlaTimeoutError, broker_error
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_response
from ottla.types import Node, Now, TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
TOPIC_ID = uuid.UUID(int=5)
NO_THROTTLE = timedelta(0)
NODES = {1: Node(1, "one", 9092), 2: Node(2, "two", 9092)}
LEADERS = {T0: 1, T1: 2, T2: 1}


class NoJitter:
    """Randomness that is always in the middle: delays are exact."""

    def random(self) -> float:
        return 0.5


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse(**{"bootstrap_servers": "one:9092", "group_id": "g", **settings})


def subscribed(calls: ConsumerCalls, listeners: Listeners | None = None) -> None:
    """Put a consumer's calls into the subscribed state, in which notifications concern the current membership."""
    command = events.Subscribe(frozenset({"t"}))
    command.completion.settle(None, None)
    calls._rebalancing.subscribe(command, Listeners() if listeners is None else listeners)


def backoff() -> ExponentialBackoff:
    """100 ms, 200, 400, 800, 1000."""
    return ExponentialBackoff(100, 1_000, NoJitter())


def now(mono: int) -> Now:
    return Now(mono, 1_700_000_000_000 + mono)


def metadata_answer(
    leaders: Mapping[TopicPartition, int] = LEADERS,
    *,
    errors: Mapping[str, int] | None = None,
    epoch: int = 3,
    topic_id: uuid.UUID | None = TOPIC_ID,
    racks: Mapping[int, str] | None = None,
) -> Any:
    """An answer to Metadata: a leader for each partition, -1 being none, and its only replica."""
    topics: dict[str, list[Any]] = {name: [] for name in errors or {}}
    for tp, leader in leaders.items():
        part = metadata_response.MetadataResponsePartition(
            error_code=ErrorCode.leader_not_available if leader < 0 else ErrorCode.none,
            partition_index=tp.partition,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=(leader,),
        )
        topics.setdefault(tp.topic, []).append(part)
    return metadata_response.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            metadata_response.MetadataResponseBroker(node_id=n, host=node.host, port=node.port, rack=(racks or {}).get(n))
            for n, node in NODES.items()
        ),
        topics=tuple(
            metadata_response.MetadataResponseTopic(
                error_code=ErrorCode((errors or {}).get(name, 0)), name=name, topic_id=topic_id, partitions=tuple(parts)
            )
            for name, parts in topics.items()
        ),
        error_code=ErrorCode.none,
    )


class Cluster:
    """A metadata manager whose view of the cluster the test sets; ``asked`` is whether an update was requested."""

    def __init__(self, **answer: Any) -> None:
        self.notifications: list[Any] = []
        self.manager = MetadataManager(config(), random.Random(0), self.notifications.append)
        self.manager.poll(now(0))
        self.tell(**answer)

    def tell(self, mono: int = 0, **answer: Any) -> None:
        self.manager.on_response(metadata_answer(**answer), now(mono))

    @property
    def asked(self) -> bool:
        return self.manager._wanted


class Asked:
    """A manager under a clock of its own: ``poll`` gives what it sends, ``answer`` and ``fail`` bring it back."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.mono = 0
        self.wake_at: int | None = None
        self.sent: list[AnySend] = []

    @property
    def now(self) -> Now:
        return now(self.mono)

    def poll(self, at: int | None = None) -> list[AnySend]:
        if at is not None:
            self.mono = at
        sends, self.wake_at = self.manager.poll(self.now)
        self.sent += sends
        return list(sends)

    def one(self, api: Api, at: int | None = None) -> AnySend:
        """The only request that goes out now."""
        (send,) = self.poll(at)
        assert send.api is api
        return send

    def answer(self, send: AnySend, message: Any) -> None:
        send.on_response(message, self.now)

    def fail(self, send: AnySend, error: OttlaError) -> None:
        send.on_failure(error, self.now)


class FixedCoordinator:
    """A coordinator at node 1, until someone doubts it."""

    def __init__(self, node_id: int | None = 1) -> None:
        self.node_id = self.named = node_id
        self.found = 1
        self.failure: OttlaError | None = None
        self.doubts: list[str] = []
        self.hung_up: list[str] = []
        self.observers: list[Any] = []

    def target(self) -> ToCoordinator | None:
        return ToCoordinator(self.node_id) if self.node_id is not None else None

    def request_failed(self, error: OttlaError, now: Now) -> None:
        if isinstance(error, DisconnectedError | OttlaTimeoutError):
            self.mark_unknown(str(error), now)

    def mark_unknown(self, reason: str, now: Now) -> None:
        if self.node_id is not None:
            self.doubts.append(reason)
            self.node_id = None

    def mark_moved(self, reason: str) -> None:
        if self.node_id is not None:
            self.doubts.append(reason)
            self.node_id = None

    def disconnect(self, reason: str, now: Now) -> None:
        self.hung_up.append(reason)

    def on_fatal(self, observer: Any) -> None:
        self.observers.append(observer)


class FixedMembership:
    """A member of generation 7, or one that may not commit."""

    def __init__(self) -> None:
        self.signs: MemberIdentity | OttlaError = MemberIdentity(7, "member", None)
        self.reads: MemberIdentity = NO_MEMBER
        self.refusals: list[tuple[int, MemberIdentity]] = []
        self.may_retry = False

    def identity(self) -> MemberIdentity:
        if isinstance(self.signs, OttlaError):
            raise self.signs
        return self.signs

    def reader(self) -> MemberIdentity:
        return self.reads

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        self.refusals.append((code, sent_by))
        error = broker_error(code, "refused")
        error.retriable = self.may_retry
        return error


class Replies:
    """Collects what comes back."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, OttlaError | None]] = []

    def __call__(self, value: Any, error: OttlaError | None) -> None:
        self.got.append((value, error))

    @property
    def value(self) -> Any:
        ((value, error),) = self.got
        assert error is None, error
        return value

    @property
    def error(self) -> OttlaError:
        ((_, error),) = self.got
        assert error is not None
        return error


__all__ = [
    "LEADERS",
    "NODES",
    "NO_MEMBER",
    "NO_THROTTLE",
    "T0",
    "T1",
    "T2",
    "TOPIC_ID",
    "Asked",
    "Cluster",
    "FixedCoordinator",
    "FixedMembership",
    "NoJitter",
    "Replies",
    "backoff",
    "config",
    "metadata_answer",
    "now",
]


@contextmanager
def unmade(module: Any, name: str, number: int) -> Iterator[None]:
    """The request of a class that is made as the ``number``-th cannot be made: for example, its module cannot be imported."""
    real, made = getattr(module, name), itertools.count(1)

    def make(**fields: Any) -> Any:
        if next(made) == number:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(**fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, make)
        yield
