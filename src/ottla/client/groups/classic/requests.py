"""The requests of a classic member, made of its settings and its generation.

Owns how the fields are filled. Must not know states or timers. Invariant: the same settings and generation make the same request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.client.groups.classic.states import Generation
from ottla.config import ConsumerConfig
from ottla.protocol import duration
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import Subscription, encode_subscription

PROTOCOL_TYPE = "consumer"
_REASON_LENGTH = 255


Told = Mapping[str, bytes | None]
"""By the names of the assignors, in the order of preference, what each of them tells the leader."""


class Tag(NamedTuple):
    """What a request was about, and who the member was when it was sent; ``round`` identifies answers that no longer matter."""

    api: Api
    generation: Generation
    round: int = -1


def join_group(config: ConsumerConfig, generation: Generation, wish: Subscription, told: Told, reason: str) -> Any:
    """JoinGroup: every assignor is offered, with the same wish and what it has itself to tell (subscription version 3)."""
    from ottla.protocol.messages import join_group_request

    return join_group_request.JoinGroupRequest(
        group_id=config.group_id or "",
        session_timeout=duration(config.session_timeout_ms),
        rebalance_timeout=duration(config.poll_interval("classic")),
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            join_group_request.JoinGroupRequestProtocol(
                name=name, metadata=encode_subscription(dataclasses.replace(wish, user_data=user_data))
            )
            for name, user_data in told.items()
        ),
        reason=reason[:_REASON_LENGTH],
    )


def sync_group(config: ConsumerConfig, generation: Generation, assignments: Mapping[str, bytes]) -> Any:
    """SyncGroup: with the assignments of all members from the leader, with none from the others."""
    from ottla.protocol.messages import sync_group_request

    return sync_group_request.SyncGroupRequest(
        group_id=config.group_id or "",
        generation_id=generation.number,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=generation.protocol,
        assignments=tuple(
            sync_group_request.SyncGroupRequestAssignment(member_id=member_id, assignment=blob)
            for member_id, blob in assignments.items()
        ),
    )


def heartbeat(config: ConsumerConfig, generation: Generation) -> Any:
    """Heartbeat."""
    from ottla.protocol.messages import heartbeat_request

    return heartbeat_request.HeartbeatRequest(
        group_id=config.group_id or "",
        generation_id=generation.number,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
    )


def leave_group(config: ConsumerConfig, member_id: str, reason: str) -> Any:
    """LeaveGroup."""
    from ottla.protocol.messages import leave_group_request

    member = leave_group_request.MemberIdentity(
        member_id=member_id, group_instance_id=config.group_instance_id, reason=reason[:_REASON_LENGTH]
    )
    return leave_group_request.LeaveGroupRequest(group_id=config.group_id or "", members=(member,))
