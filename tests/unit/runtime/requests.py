"""Requests to a broker on a socket.

Must not know what an answer should be.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import fetch_request, metadata_request
from ottla.records import NewRecord, encode_batch
from ottla.simulation.requests import creating, produce_message
from tests.raw_client import RawClient
from tests.simulation import requests

METADATA = metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)


def produce(client: RawClient, topic: str, records: bytes, acks: int = 1) -> Any:
    return client.ask(Api.PRODUCE, produce_message(records, topic, acks=acks), 12).responses[0].partition_responses[0]


def fetch_message(topic: str, *, offset: int = 0, wait: int = 0, max_bytes: int = 64 << 20) -> fetch_request.FetchRequest:
    return requests.fetch_message(offset, topic=topic, wait=wait, max_bytes=max_bytes)


def create(client: RawClient, name: str, **configs: str) -> None:
    (result,) = client.ask(Api.CREATE_TOPICS, creating(name, **configs)).topics
    assert result.error_code is ErrorCode.none, result.error_message


def batch(size: int = 100, count: int = 1) -> bytes:
    return encode_batch([NewRecord(None, os.urandom(size), timestamp=time.time_ns() // 1_000_000) for _ in range(count)])
