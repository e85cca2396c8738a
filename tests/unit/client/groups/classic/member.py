"""A member of a classic group by itself, and the coordinator's answers to it."""

from __future__ import annotations

from typing import Any

from ottla.client.effects import AnySend
from ottla.client.events import AssignmentReceived
from ottla.client.groups.classic.membership import ClassicMembership
from ottla.client.groups.classic.states import State
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import (
    Assignment,
    encode_assignment,
)
from ottla.protocol.messages import heartbeat_response, join_group_response, sync_group_response
from tests.unit.client.groups.members import GroupMember
from tests.unit.client.managers import NO_THROTTLE, T0, T1


class Member(GroupMember):
    """A member, and the coordinator's answers to it."""

    manager: ClassicMembership

    def __init__(self, **settings: Any) -> None:
        super().__init__(ClassicMembership, **{"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, **settings})

    @property
    def state(self) -> State:
        return self.manager.state

    def joined(self, send: AnySend, *, member: str = "m-1", leader: str = "m-9", generation: int = 4, **fields: Any) -> None:
        values = {
            "error_code": ErrorCode.none,
            "generation_id": generation,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "leader": leader,
            "member_id": member,
            "members": (),
            **fields,
        }
        self.answer(send, join_group_response.JoinGroupResponse(throttle_time=NO_THROTTLE, **values))

    def refused(self, send: AnySend, code: int, member: str = "") -> None:
        fields: dict[str, Any] = {"error_code": ErrorCode(code), "generation_id": -1, "leader": ""}
        fields |= {"protocol_name": None, "protocol_type": None}
        if send.api is Api.JOIN_GROUP:
            self.joined(send, member=member, **fields)
        else:
            self.synced(send, code=code)

    def synced(self, send: AnySend, *partitions: Any, code: int = 0, **fields: Any) -> None:
        blob = encode_assignment(Assignment(partitions)) if not code else b""
        values = {"protocol_type": "consumer", "protocol_name": "range", "assignment": blob, **fields}
        self.answer(send, sync_group_response.SyncGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(code), **values))

    def beaten(self, send: AnySend, code: int = 0) -> None:
        self.answer(send, heartbeat_response.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(code)))

    def join(self, *partitions: Any) -> None:
        """All the way to STABLE, with the assignment accepted."""
        self.polled()
        self.joined(self.one(Api.JOIN_GROUP))
        self.synced(self.one(Api.SYNC_GROUP), *(partitions or (T0, T1)))
        received = self.tell(AssignmentReceived)
        assert received.added == frozenset(partitions or (T0, T1))
        self.manager.accepted(received.token)
        assert self.state is State.STABLE

    def beat(self, code: int = 0) -> None:
        """Let an interval pass and answer the heartbeat that is due then."""
        self.mono += 1_000
        self.beaten(self.one(Api.HEARTBEAT), code)
