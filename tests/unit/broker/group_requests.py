"""A broker's core with a topic for groups, and the requests with which a group commits and asks.

Must not know what an answer should be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    offset_commit_request,
    offset_fetch_request,
)
from ottla.simulation.requests import creating
from tests.simulation.broker import CoreUnderTest


def commit_message(offset: int, group: str = "g") -> offset_commit_request.OffsetCommitRequest:
    part = offset_commit_request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="note")
    return offset_commit_request.OffsetCommitRequest(
        group_id=group, member_id="", topics=(offset_commit_request.OffsetCommitRequestTopic(name="t", partitions=(part,)),)
    )


def code_of(response: Any) -> ErrorCode:
    code = response.topics[0].partitions[0].error_code
    assert isinstance(code, ErrorCode)
    return code


def commit(broker: CoreUnderTest, offset: int, group: str = "g") -> ErrorCode:
    return code_of(broker.ask(Api.OFFSET_COMMIT, commit_message(offset, group), version=9))


def committed(broker: CoreUnderTest, group: str = "g") -> tuple[int, str]:
    topic = offset_fetch_request.OffsetFetchRequestTopics(name="t", partition_indexes=(0,))
    asked = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=(topic,))
    message = offset_fetch_request.OffsetFetchRequest(groups=(asked,), require_stable=False)
    part = broker.ask(Api.OFFSET_FETCH, message, version=9).groups[0].topics[0].partitions[0]
    return part.committed_offset, part.metadata


def started(path: Path, **settings: Any) -> CoreUnderTest:
    broker = CoreUnderTest(path, **settings)
    if broker.core.catalog.topics.get("t") is None:
        broker.ask(Api.CREATE_TOPICS, creating("t"))
    return broker


def files(path: Path) -> list[Path]:
    return sorted(path.glob("__consumer_offsets-*/*.log"))
