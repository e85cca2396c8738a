"""What is counted of the bytes on a connection, wherever they are split, and whatever they are."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kazoo.protocol.serialization import (
    Auth,
    CheckVersion,
    Close,
    Connect,
    Create,
    Delete,
    Exists,
    GetChildren2,
    GetData,
    Ping,
    SetData,
    Sync,
    Transaction,
)
from kazoo.security import OPEN_ACL_UNSAFE

from ottla.comparison.life import Traffic
from ottla.comparison.wire import LONGEST_FRAME, SET_WATCHES, KafkaMeter, Meter, Tally, ZooKeeperMeter
from ottla.protocol.apis import Api

Sent = list[tuple[bool, bytes]]
"""Frames in the order in which they pass by. True: from the client to the server."""

ROOTS = ("/consumers", "/coordinator_epoch")


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api: int, correlation_id: int) -> tuple[bool, bytes]:
    return True, frame(struct.pack(">hhih", api, 3, correlation_id, 6) + b"client and what follows")


def response(correlation_id: int) -> tuple[bool, bytes]:
    return False, frame(struct.pack(">i", correlation_id) + b"what follows")


def push(api: int, correlation_id: int) -> tuple[bool, bytes]:
    return False, request(api, correlation_id)[1]


def passed(meter: Callable[[Tally], Meter], sent: Sent, split: Callable[[bytes], Iterable[bytes]] = lambda data: [data]) -> Traffic:
    tally = Tally()
    counting = meter(tally)
    for from_client, data in sent:
        for part in split(data):
            (counting.to_server if from_client else counting.to_client)(part)
    return tally.total()


def at(position: int) -> Callable[[bytes], Iterable[bytes]]:
    return lambda data: [data[:position], data[position:]]


def bytewise(data: bytes) -> Iterable[bytes]:
    return [data[number : number + 1] for number in range(len(data))]


# -- Kafka ------------------------------------------------------------------------------------------------------------

MEMBER: Sent = [
    request(Api.API_VERSIONS, 0),
    response(0),
    request(Api.FIND_COORDINATOR, 1),
    request(Api.METADATA, 2),
    response(1),
    response(2),
    request(Api.JOIN_GROUP, 3),
    request(Api.HEARTBEAT, 4),
    response(4),
    response(3),
    request(Api.OFFSET_COMMIT, 5),
    request(Api.FETCH, 6),
    response(6),
]
"""The commit has no response."""
OF_MEMBER = Counter(FindCoordinator=2, JoinGroup=2, Heartbeat=2, OffsetCommit=1)

CHANNEL: Sent = [
    request(Api.REGISTER, 1),
    response(1),
    push(Api.STOP, 1),
    request(Api.STOP, 1),
    push(Api.START, 2),
    push(Api.PING, 3),
    request(Api.START, 2),
    request(Api.OFFSET_COMMIT, 2),
    request(Api.PING, 3),
    response(2),
    request(Api.LEAVE, 3),
    response(3),
]
OF_CHANNEL = Counter(Register=2, Stop=2, Start=2, Ping=2, OffsetCommit=2, Leave=2)


@pytest.mark.parametrize(("sent", "messages"), [(MEMBER, OF_MEMBER), (CHANNEL, OF_CHANNEL)], ids=["member", "channel"])
@pytest.mark.parametrize("split", [*map(at, range(12)), bytewise])
def test_requests_and_responses_of_groups_count(
    sent: Sent, messages: Counter[str], split: Callable[[bytes], Iterable[bytes]]
) -> None:
    assert passed(KafkaMeter, sent, split) == Traffic(messages, 0, 0, 0, 0)


def test_frames_that_arrive_together_count_one_by_one() -> None:
    requests = b"".join(data for from_client, data in MEMBER if from_client)
    responses = b"".join(data for from_client, data in MEMBER if not from_client)
    assert passed(KafkaMeter, [(True, requests), (False, responses)]).messages == OF_MEMBER


def test_a_response_counts_once() -> None:
    sent = [request(Api.SYNC_GROUP, 1), response(1), response(1), response(7)]
    assert passed(KafkaMeter, sent).messages == Counter(SyncGroup=2)


# -- ZooKeeper --------------------------------------------------------------------------------------------------------


def asked(operation: Any, number: int = 1) -> tuple[bool, bytes]:
    return True, frame(struct.pack(">ii", number, operation.type) + operation.serialize())


def answered(number: int) -> tuple[bool, bytes]:
    return False, frame(struct.pack(">iqi", number, 77, 0) + b"a result")


def fired(path: str, kind: int = 3) -> tuple[bool, bytes]:
    name = path.encode()
    return False, frame(struct.pack(">iqiiii", -1, 77, 0, kind, 3, len(name)) + name)


def create(path: str, data: bytes = b"data") -> Create:
    return Create(path, data, OPEN_ACL_UNSAFE, 1)


CONNECTED: Sent = [
    (True, frame(Connect(0, 0, 6000, 0, b"\0" * 16, False).serialize())),
    (False, frame(struct.pack(">iiqi", 0, 6000, 1234, 16) + b"secret of 16 byt")),
]
MULTI = Transaction(
    [
        create("/consumers/compared/ids/one"),
        CheckVersion("/coordinator_epoch", 3),
        SetData("/consumers/compared/offsets/topic/1", b"12", -1),
        Delete("/consumers/compared/owners/topic/1", 2),
        Create("/consumers/compared/x", b"", [], 0),
    ]
)
SESSION: Sent = [
    *CONNECTED,
    (True, frame(struct.pack(">ii", -4, Auth.type) + b"\0\0\0\0")),
    asked(GetData("/consumers/compared/generation", True)),
    answered(1),
    asked(create("/consumers/compared"), 2),
    asked(GetChildren2("/consumers/compared/ids", True), 3),
    answered(2),
    fired("/consumers/compared/ids", 4),
    answered(3),
    asked(MULTI, 4),
    answered(4),
    asked(Sync("/"), 5),
    asked(SetData("/consumers/compared/offsets/topic/1", b"13", -1), 8),
    asked(Exists("/brokers/ids/1", False), 6),
    fired("/brokers/ids", 4),
    fired("/consumers/compared/generation"),
    fired("/coordinator_epoch"),
    fired("", -1),
    asked(Ping, -2),
    answered(-2),
    (True, frame(struct.pack(">iiq", SET_WATCHES, 101, 77) + b"\0" * 12)),
    (True, frame(struct.pack(">ii", 7, Close.type))),
]


@pytest.mark.parametrize("split", [*map(at, range(24)), bytewise])
@pytest.mark.parametrize(
    ("roots", "traffic"),
    [
        (None, Traffic(Counter(), 6, 3 + 4 + 1 + 1, 1, 4)),
        (ROOTS, Traffic(Counter(), 5, 3 + 4 + 1, 1, 3)),
        ((), Traffic(Counter(), 0, 0, 0, 0)),
    ],
    ids=["everything", "some paths", "nothing"],
)
def test_operations_count_as_issued_and_one_by_one(
    roots: tuple[str, ...] | None, traffic: Traffic, split: Callable[[bytes], Iterable[bytes]]
) -> None:
    assert passed(lambda tally: ZooKeeperMeter(tally, roots), SESSION, split) == traffic


@pytest.mark.parametrize(
    ("path", "concerned"),
    [("/consumers", 1), ("/consumers/g/ids", 1), ("/consumers2/g", 0), ("/coordinator_epoch", 1), ("/brokers/consumers", 0)],
)
def test_paths_are_below_a_root_or_not(path: str, concerned: int) -> None:
    sent = [*CONNECTED, asked(SetData(path, b"", 0)), fired(path)]
    assert passed(lambda tally: ZooKeeperMeter(tally, ROOTS), sent) == Traffic(Counter(), concerned, concerned, 0, concerned)


def test_a_multi_counts_if_one_of_its_paths_does() -> None:
    multi = Transaction([CheckVersion("/brokers/ids/1", 0), create("/consumers/coordinator"), SetData("/other", b"", 0)])
    sent = [*CONNECTED, asked(multi), asked(Transaction([create("/brokers/ids/1")]))]
    assert passed(lambda tally: ZooKeeperMeter(tally, ROOTS), sent) == Traffic(Counter(), 1, 2, 0, 0)


# -- what cannot be read --------------------------------------------------------------------------------------------------

FOREIGN = [
    struct.pack(">i", -1),
    struct.pack(">i", LONGEST_FRAME + 1),
    frame(b""),
    frame(b"\0"),
    frame(struct.pack(">iii", 1, 1, 1000) + b"a path that is shorter"),
    frame(struct.pack(">iii", 1, 1, 2) + b"\xff\xff"),
    frame(struct.pack(">iii?i", 1, 14, 4, False, -1) + struct.pack(">i", 1) + b"/"),
    frame(struct.pack(">ii", 1, 14) + MULTI.serialize()[:-9]),
]


@pytest.mark.parametrize("data", FOREIGN)
def test_after_what_is_no_operation_nothing_counts(data: bytes) -> None:
    good = asked(GetData("/a", False))
    assert passed(ZooKeeperMeter, [*CONNECTED, good, (True, data), good, fired("/a")]) == Traffic(Counter(), 1, 1, 0, 0)


@pytest.mark.parametrize("data", FOREIGN[:4])
@pytest.mark.parametrize("from_client", [True, False])
def test_after_what_is_no_message_nothing_counts(data: bytes, from_client: bool) -> None:
    good = [request(Api.HEARTBEAT, 1), response(1)]
    assert passed(KafkaMeter, [*good, (from_client, data), *good]).messages == Counter(Heartbeat=2)


Streams = st.lists(st.tuples(st.booleans(), st.binary(max_size=40) | st.binary(max_size=40).map(frame)), max_size=8)


@given(Streams, st.sets(st.integers(0, 44)))
@pytest.mark.parametrize("meter", [KafkaMeter, ZooKeeperMeter])
def test_no_bytes_raise_an_error_and_splits_change_nothing(meter: type[Meter], sent: Sent, cuts: set[int]) -> None:
    def split(data: bytes) -> Iterable[bytes]:
        places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
        return [data[start:end] for start, end in pairwise(places)]

    assert passed(meter, sent, split) == passed(meter, sent)
