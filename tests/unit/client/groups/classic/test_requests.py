"""The requests of a classic member in every version of the protocol: what each can say, and what is not said in silence."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.groups.classic.join_sync import join_group, sync_group
from ottla.client.groups.classic.session import heartbeat, leave_group
from ottla.client.groups.classic.states import Generation
from ottla.errors import UnsupportedApiError
from ottla.protocol import milliseconds
from ottla.protocol.apis import SPOKEN, Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_request
from ottla.protocol.connection import ClientConnection
from ottla.protocol.consumer_protocol import Subscription, decode_subscription
from ottla.types import TopicPartition
from tests.unit.client.managers import config

GENERATION = Generation(7, "m-1", "range")
SUBSCRIPTION = Subscription(("t",), None, (TopicPartition("t", 1),), 7, "rack-1")
STATIC = config(group_instance_id="i-1", session_timeout_ms=6_000, max_poll_interval_ms=20_000)
DYNAMIC = config(session_timeout_ms=6_000, max_poll_interval_ms=20_000)
REASON = "because " + "x" * 300

every_version_of = lambda api: pytest.mark.parametrize("version", range(SPOKEN[api].minimum, SPOKEN[api].maximum + 1))  # noqa: E731


def over_the_wire(api: Api, version: int, message: Any) -> Any:
    pieces = encode_request(RequestHeader(api, version, 1, "me"), message)
    frame = b"".join(bytes(piece) for piece in pieces if isinstance(piece, bytes | bytearray | memoryview))
    return decode_request(frame[4:])[1]


@every_version_of(Api.JOIN_GROUP)
def test_join_group(version: int) -> None:
    sent = join_group(DYNAMIC, GENERATION, SUBSCRIPTION, {"range": None, "sticky": b"data"}, REASON)
    read = over_the_wire(Api.JOIN_GROUP, version, sent)
    assert milliseconds(read.session_timeout) == 6_000
    # Before version 1 the coordinator waits for members as long as a session lasts.
    assert milliseconds(read.rebalance_timeout) == (20_000 if version >= 1 else 6_000)
    assert read.member_id == "m-1"
    assert read.reason in (None, "") if version < 8 else read.reason == REASON[:255]
    assert [protocol.name for protocol in read.protocols] == ["range", "sticky"]
    plain, told = (decode_subscription(protocol.metadata) for protocol in read.protocols)
    assert plain == SUBSCRIPTION
    assert told.user_data == b"data"


@every_version_of(Api.SYNC_GROUP)
def test_sync_group(version: int) -> None:
    read = over_the_wire(Api.SYNC_GROUP, version, sync_group(DYNAMIC, GENERATION, {"m-1": b"blob"}))
    assert (read.generation_id, read.member_id) == (7, "m-1")
    assert [(one.member_id, one.assignment) for one in read.assignments] == [("m-1", b"blob")]
    assert (read.protocol_type, read.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))


@every_version_of(Api.HEARTBEAT)
def test_heartbeat(version: int) -> None:
    read = over_the_wire(Api.HEARTBEAT, version, heartbeat(DYNAMIC, GENERATION))
    assert (read.generation_id, read.member_id) == (7, "m-1")


@every_version_of(Api.LEAVE_GROUP)
def test_leave_group(version: int) -> None:
    """Before version 3 one member at a time; before version 5 without a reason."""
    (read,) = over_the_wire(Api.LEAVE_GROUP, version, leave_group(DYNAMIC, "m-1", REASON)).members
    assert read.member_id == "m-1"
    assert (read.reason or "") == (REASON[:255] if version >= 5 else "")


@pytest.mark.parametrize(
    ("api", "message", "first"),
    [
        (Api.JOIN_GROUP, lambda of: join_group(of, GENERATION, SUBSCRIPTION, {"range": None}, ""), 5),
        (Api.SYNC_GROUP, lambda of: sync_group(of, GENERATION, {}), 3),
        (Api.HEARTBEAT, lambda of: heartbeat(of, GENERATION), 3),
    ],
    ids=lambda value: value.name if isinstance(value, Api) else "",
)
def test_a_broker_that_knows_no_static_members_is_not_joined_as_a_dynamic_one(api: Api, message: Any, first: int) -> None:
    connection = ClientConnection("me")
    for newest in range(SPOKEN[api].maximum + 1):
        connection.versions = {api: VersionRange(0, newest)}
        assert connection.version_for(api, message(DYNAMIC)) == newest
        if newest >= first:
            assert connection.version_for(api, message(STATIC)) == newest
        else:
            with pytest.raises(UnsupportedApiError, match=f"{api.name} up to version {newest}; .*a member can be static"):
                connection.version_for(api, message(STATIC))
