"""A proxy in front of a Kafka of one node that does not know a topic for a moment, or whose coordinator is silent.

Owns these answers. Must not know who asks. Invariant: clients stay with the proxy, since it names itself wherever an answer names
the node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import threading
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from ottla.protocol.apis import Api
from ottla.protocol.conversion import wire_class
from tests.answer_proxy import AnswerProxy

SILENCE = 60.0
"""The most seconds that an answer is held back."""
REWRITTEN = (Api.METADATA, Api.FIND_COORDINATOR, Api.LIST_OFFSETS, Api.FETCH)


class UnluckyProxy(AnswerProxy):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._unknown: dict[Api, int] = {}
        self._silent: dict[Api, tuple[threading.Event, threading.Event]] = {}

    @contextlib.contextmanager
    def unknown_topic(self, api: Api, times: int) -> Iterator[None]:
        """The next ``times`` answers of an API say that the topics are unknown, and within the block there are as many."""
        self._unknown[api] = times
        yield
        assert self._unknown.pop(api) == 0

    @contextlib.contextmanager
    def silence(self, api: Api) -> Iterator[threading.Event]:
        """No answer of an API arrives within the block, nor any later one on its connection. The event is set with the first."""
        begun, ended = self._silent[api] = threading.Event(), threading.Event()
        try:
            yield begun
        finally:
            del self._silent[api]
            ended.set()

    def changed(self, api: Api, version: int, answer: bytes) -> bytes:
        """Return the answer, with the proxy's address."""
        if api in self._silent:
            begun, ended = self._silent[api]
            begun.set()
            ended.wait(SILENCE)
        if api not in REWRITTEN:
            return answer
        kind = wire_class(api, version, "response")
        head, start = entity_reader(kind.__header_schema__)(answer, 0)
        body, _ = entity_reader(kind)(answer, start)
        if self._unknown.get(api):
            self._unknown[api] -= 1
            body = _of_unknown_topics(api, body)
        target = io.BytesIO()
        entity_writer(kind.__header_schema__)(target, head)
        entity_writer(kind)(target, self._here(api, body))
        return target.getvalue()

    def _here(self, api: Api, body: Any) -> Any:
        host, _, port = self.address.rpartition(":")
        name = {Api.METADATA: "brokers", Api.FIND_COORDINATOR: "coordinators"}.get(api)
        if name is None:
            return body
        nodes = (dataclasses.replace(each, host=host, port=i32(int(port))) for each in getattr(body, name))
        return dataclasses.replace(body, **{name: tuple(nodes)})


def _of_unknown_topics(api: Api, body: Any) -> Any:
    """The answer of a broker that does not know the topics."""
    name = "responses" if api is Api.FETCH else "topics"
    more = {"records": None} if api is Api.FETCH else {}
    topics = []
    for topic in getattr(body, name):
        if api is Api.METADATA:
            changed = dataclasses.replace(topic, error_code=ErrorCode.unknown_topic_or_partition, partitions=())
        else:
            partitions = (
                dataclasses.replace(each, error_code=ErrorCode.unknown_topic_or_partition, **more) for each in topic.partitions
            )
            changed = dataclasses.replace(topic, partitions=tuple(partitions))
        topics.append(changed)
    return dataclasses.replace(body, **{name: tuple(topics)})
