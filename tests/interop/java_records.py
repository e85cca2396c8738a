"""Kafka's Java consumer and producer, of any version, through ``tools/KafkaRecords.java``.

Owns the translation of its lines. Must not know the tests.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path

from tests.interop.other_clients import Message
from tests.interop.real_kafka import run_tool

PROGRAM = Path(__file__).parents[2] / "tools" / "KafkaRecords.java"
TIMEOUT = 120.0
"""Seconds."""


def read_java(servers: str, topics: Sequence[str], version: str = "") -> dict[str, list[Message]]:
    """All records of each topic, by partition and offset."""
    found: dict[str, list[Message]] = {topic: [] for topic in topics}
    for line in run_tool("run", PROGRAM, "read", servers, *topics, timeout=TIMEOUT, version=version).splitlines():
        topic, partition, offset, timestamp, key, value, *headers = line.split("\t")
        names, values = headers[::2], headers[1::2]
        pairs = tuple(((_bytes(name) or b"").decode(), _bytes(text)) for name, text in zip(names, values, strict=True))
        found[topic].append(Message(int(partition), int(offset), _bytes(key), _bytes(value), int(timestamp), pairs))
    return {topic: sorted(messages, key=lambda one: (one.partition, one.offset)) for topic, messages in found.items()}


def partitions_by_java(servers: str, topic: str, keys: Sequence[bytes], version: str = "") -> list[int]:
    """Write a record for each key, and return its partition."""
    lines = "".join(f"{b64encode(key).decode()}\n" for key in keys)
    return list(map(int, run_tool("run", PROGRAM, "write", servers, topic, stdin=lines, timeout=TIMEOUT, version=version).split()))


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else b64decode(text)
