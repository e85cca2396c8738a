"""Questions to the assignors that Java's consumers use in classic groups, and their answers.

Owns the translation of a group to the lines that ``tools/KafkaClientAssignors.java`` reads. Must not know what ours answer.
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
    """What the assignor of each name gives each group."""
    return [
        {member_id: {TopicPartition(*one) for one in share} for member_id, share in answer["shares"].items()}
        for answer in _ask(kafka_tool, [_question(*one) for one in questions])
    ]


def ask_user_data(kafka_tool: KafkaTool, questions: Sequence[tuple[str, Sequence[TopicPartition], int]]) -> list[bytes]:
    """What a member of an assignor would send along, assigned these partitions in that generation."""
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
