"""How an assignor that members run is asked, and its answer in one form.

Owns the shape of an answer, and what a consumer group needs beside it: the whole assignment at once. Must not know groups or
requests. Invariant: what is returned here names members by strings, partitions by a topic's name and a number, and user data by
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import Any

from ottla.assignors.interface import Cluster, ConsumerPartitionAssignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from ottla.types import TopicPartition


def assign(
    assignor: ConsumerPartitionAssignor, cluster: Cluster, members: Mapping[str, MemberSubscription]
) -> dict[str, MemberAssignment]:
    """The assignor's answer. Raises whatever the assignor raises, and ``TypeError`` or ``ValueError`` for what is no answer."""
    return _plain(assignor.assign(cluster, members))


def assign_whole(
    assignor: ConsumerPartitionAssignor, cluster: Cluster, members: Mapping[str, MemberSubscription]
) -> dict[str, MemberAssignment]:
    """The same, for a consumer group: what a cooperative assignor leaves out because it changes hands is assigned, too.

    In a classic group its owner would give it up and everybody join again. In a consumer group nobody joins again, and the
    coordinator does not give a partition to one member before another has given it up.
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


def user_data_of(value: object) -> bytes | None:
    """What an assignor returned as user data. Raises ``TypeError`` for what is no bytes."""
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return None if value is None else bytes(value)
    raise TypeError(f"user data must be bytes or None, not {value!r}")


def _plain(answer: object) -> dict[str, MemberAssignment]:
    if not isinstance(answer, Mapping):
        raise TypeError(f"an assignment must be a mapping from member ids to partitions, not {answer!r}")
    plain = {}
    for member_id, share in answer.items():
        if not isinstance(member_id, str):
            raise TypeError(f"a member id must be a string, not {member_id!r}")
        partitions, user_data = (share.partitions, share.user_data) if isinstance(share, MemberAssignment) else (share, None)
        plain[member_id] = MemberAssignment(tuple(_topic_partition(one) for one in partitions), user_data_of(user_data))
    return plain


def _topic_partition(value: Any) -> TopicPartition:
    topic, number = value
    if not isinstance(topic, str):
        raise TypeError(f"a partition must be a topic's name and a number, not {value!r}")
    return TopicPartition(topic, index(number))
