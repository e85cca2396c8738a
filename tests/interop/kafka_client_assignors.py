"""The assignors of Kafka's Java consumer for classic groups, called through ``tools/KafkaClientAssignors.java``.

Owns the translation of groups and assignments to and from the lines of that program. Must not know the results of Ottla's
assignors.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.assignors import Cluster, MemberSubscription
from ottla.types import TopicPartition
from tests.interop.real_kafka import KafkaTool

PROGRAM = Path(__file__).parents[2] / "tools" / "KafkaClientAssignors.java"
Members = Mapping[str, MemberSubscription]
Shares = dict[str, set[TopicPartition]]


def ask(kafka_tool: KafkaTool, questions: Sequence[tuple[str, Cluster, Members]]) -> list[Shares]:
    """Return the assignment of each group by the assignor of that name."""
    return [
        {member_id: {TopicPartition(*one) for one in share} for member_id, share in answer["shares"].items()}
        for answer in _ask(kafka_tool, [_question(*one) for one in questions])
    ]


def ask_user_data(kafka_tool: KafkaTool, questions: Sequence[tuple[str, Sequence[TopicPartition], int]]) -> list[bytes]:
    """Return the user data of a member with these partitions in that generation."""
    lines = [{"assignor": name, "assigned": assigned, "generation": generation} for name, assigned, generation in questions]
    return [b64decode(answer["userData"]) for answer in _ask(kafka_tool, lines)]


def _ask(kafka_tool: KafkaTool, questions: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    answers = [json.loads(line) for line in kafka_tool(str(PROGRAM), stdin=lines, timeout=100).splitlines()]
    assert len(answers) == len(questions)
    wrong = [answer["error"] for answer in answers if "error" in answer]
    assert not wrong, wrong[0]
    return answers


def _question(name: str, cluster: Cluster, members: Members) -> dict[str, Any]:
    topics = {
        topic: [sorted(cluster.racks_of(TopicPartition(topic, number))) for number in range(count)]
        for topic, count in cluster.partitions.items()
    }
    return {"assignor": name, "topics": topics, "members": [_member(*one) for one in members.items()]}


def _member(member_id: str, member: MemberSubscription) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": member_id,
        "topics": member.topics,
        "owned": member.owned,
        "generation": member.generation,
        "instance": member.instance_id,
        "rack": member.rack,
        "userData": None if member.user_data is None else b64encode(member.user_data).decode(),
    }
    return {key: value for key, value in fields.items() if value is not None}
