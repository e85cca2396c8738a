"""The assignors of Apache Kafka's group coordinator, called through ``tools/KafkaAssignors.java``.

Owns the translation of groups and assignments to and from the lines of that program. Must not know the results of Ottla's
assignors.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from ottla.assignors import Assignment, GroupSpec
from tests.interop.real_kafka import KafkaTool

PROGRAM = Path(__file__).parents[2] / "tools" / "KafkaAssignors.java"


def ask(kafka_tool: KafkaTool, questions: Sequence[tuple[str, GroupSpec]]) -> list[dict[str, Assignment] | str]:
    """Return the assignment of each group by the assignor of that name, or its error. Members are in the order of their ids."""
    lines = "\n".join(json.dumps(_question(name, group)) for name, group in questions) + "\n"
    return [_answer(json.loads(line)) for line in kafka_tool(str(PROGRAM), stdin=lines, timeout=100).splitlines()]


def _question(name: str, group: GroupSpec) -> dict[str, Any]:
    members = [
        {
            "id": member_id,
            "instance": member.instance_id,
            "topics": [_text(topic_id) for topic_id in member.topics],
            "assignment": {_text(topic_id): numbers for topic_id, numbers in group.assignments.get(member_id, {}).items()},
        }
        for member_id, member in sorted(group.members.items())
    ]
    topics = {_text(topic_id): topic.partitions for topic_id, topic in group.topics.items()}
    return {"assignor": name, "topics": topics, "members": members}


def _answer(line: dict[str, Any]) -> dict[str, Assignment] | str:
    match line:
        case {"error": str(error)}:
            return error
        case {"targets": dict(targets)}:
            return {
                member_id: {
                    UUID(bytes=urlsafe_b64decode(topic + "==")): tuple(numbers) for topic, numbers in target.items() if numbers
                }
                for member_id, target in targets.items()
            }
    raise AssertionError(line)


def _text(topic_id: UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
