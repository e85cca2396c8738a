"""Calls a client-side assignor and normalizes its assignment.

Owns the accepted forms of an assignment, and the additional requirement of consumer groups: a complete assignment at once. Must not
know groups or requests. Invariant: the assignments that it returns have strings as member ids, topic names with numbers as
partitions, and bytes as user data.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ottla.assignors.interface import Cluster, ConsumerPartitionAssignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from ottla.types import TopicPartition, as_integer, is_utf8

_INT32 = 2**31 - 1


def assign(
    assignor: ConsumerPartitionAssignor, cluster: Cluster, members: Mapping[str, MemberSubscription]
) -> dict[str, MemberAssignment]:
    """The assignor's assignment, normalized. Raises the assignor's exceptions, and ``InvalidAssignment``."""
    return _plain(assignor.assign(cluster, members))


def assign_whole(
    assignor: ConsumerPartitionAssignor, cluster: Cluster, members: Mapping[str, MemberSubscription]
) -> dict[str, MemberAssignment]:
    """The same for a consumer group, including the partitions that a cooperative assignor leaves out because they move.

    In a classic group the owner revokes them and all members join again, so that the next assignment has them. In a consumer group
    no member joins again; the coordinator itself assigns a partition only after its owner has revoked it.
    """
    answer = assign(assignor, cluster, members)
    if RebalanceProtocol.COOPERATIVE not in assignor.supported_protocols():
        return answer
    given = {tp for share in answer.values() for tp in share.partitions}
    if all(tp in given for member in members.values() for tp in member.owned):
        return answer
    nothing = MemberAssignment(())
    released = {
        member_id: replace(member, owned=answer.get(member_id, nothing).partitions) for member_id, member in members.items()
    }
    return assign(assignor, cluster, released)


class InvalidAssignment(TypeError):
    """An assignor returned an invalid value. The message continues "the assignor 'x' "."""


def user_data_of(value: object) -> bytes | None:
    """The normalized result of ``subscription_user_data()``. Raises ``InvalidAssignment`` if it is not bytes."""
    if not _is_user_data(value):
        raise InvalidAssignment(f"returned {value!r} from subscription_user_data(), not bytes or None")
    return _bytes(value)


def _plain(answer: object) -> dict[str, MemberAssignment]:
    if not isinstance(answer, Mapping):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidAssignment(f"returned {answer!r} from assign(), not a mapping from member ids to partitions")
    plain = {}
    for member_id, share in answer.items():
        if not isinstance(member_id, str):
            raise InvalidAssignment(f"named the member {member_id!r}: a member id is a string")
        partitions, user_data = (share.partitions, share.user_data) if isinstance(share, MemberAssignment) else (share, None)
        if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
            raise InvalidAssignment(f"gave member {member_id} {partitions!r}, not a collection of TopicPartitions")
        if not _is_user_data(user_data):
            raise InvalidAssignment(f"gave member {member_id} user data that is not bytes: {user_data!r}")
        plain[member_id] = MemberAssignment(tuple(_topic_partition(member_id, item) for item in partitions), _bytes(user_data))
    return plain


def _topic_partition(member_id: str, value: Any) -> TopicPartition:
    match value:
        case (str(topic), number) if topic and is_utf8(topic):
            plain = as_integer(number)
            if plain is not None and 0 <= plain <= _INT32:
                return TopicPartition(topic, plain)
            if plain is not None:
                numbers = f"partitions are numbered from 0 to {_INT32}"
                raise InvalidAssignment(f"gave member {member_id} partition {plain} of {topic}: {numbers}")
    raise InvalidAssignment(f"gave member {member_id} {value!r}, which is not a TopicPartition")


def _is_user_data(value: object) -> bool:
    return value is None or isinstance(value, bytes | bytearray | memoryview)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
