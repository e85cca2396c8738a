"""Every request of every API with each field at its edge values, in any order: an error changes nothing.

The broker is whole but for its sockets. What it has acknowledged survives ``kill -9``.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ottla.broker.effects import CloseConnection, NoReply, Reply, SetTimer
from ottla.broker.slices import SLICE
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_request, decode_response, encode_response
from ottla.protocol.messages import (
    api_versions_request,
    create_topics_request,
    join_group_request,
    offset_commit_request,
    sync_group_request,
)
from tests.edge_case_requests import CENTRAL, LOGIN, Known, frame, messages, one_edge_each
from tests.error_codes import codes
from tests.example_counts import examples
from tests.simulation.broker import CoreUnderTest

API_VERSIONS = api_versions_request.ApiVersionsRequest(client_software_name="edges", client_software_version="1")
SETTINGS = {"offsets.topic.num.partitions": 2}


class Broker:
    """A core with a topic, and a group with a member and a commit; checks each response."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.under_test = CoreUnderTest(path, **SETTINGS)
        self._ticket = 1_000_000
        self._furnish()
        topic = self.core.catalog.topic("t")
        self.known = Known(("t", "g", "range", "consumer", "edge", self.member), (topic.topic_id,), (1, 7))

    @property
    def core(self) -> Any:
        return self.under_test.core

    def ask(self, data: bytes, connection: int = 7) -> Any:
        """The response to a frame; ``None`` if it is parked or refused, or the connection was closed."""
        try:
            header, message = decode_request(data)
        except ProtocolError:
            return None
        self._ticket += 1
        before = self.stored()
        effects = self.core.handle(header, message, self._ticket, connection, "127.0.0.1", self.under_test.now)
        next_slice = SetTimer((SLICE, self._ticket), self.under_test.now.mono + 1)
        while next_slice in effects:
            effects.remove(next_slice)
            effects += self.core.on_timer(next_slice.key, self.under_test.now)
        effects += self.core.write_batches(self.under_test.now)
        self.under_test.take([effect for effect in effects if not isinstance(effect, Reply)])
        self.under_test.run_jobs()
        mine = [
            effect for effect in effects if isinstance(effect, Reply | NoReply | CloseConnection) and effect.ticket == self._ticket
        ]
        assert len(mine) <= 1
        for effect in mine:
            if isinstance(effect, Reply):
                content = b"".join(bytes(piece) for piece in encode_response(header, effect.response) if isinstance(piece, bytes))
                if not any(not isinstance(piece, bytes) for piece in encode_response(header, effect.response)):
                    assert decode_response(header.api, header.version, content[4:])[0] == header.correlation_id
                if is_refusal(effect.response):
                    assert self._without_new_group(header, message, before) == before, (header, effect.response)
                return effect.response
        return None

    def _without_new_group(self, header: RequestHeader, message: Any, before: Any) -> Any:
        """The stored state, without the empty group that a refused JoinGroup for a new group leaves behind, as in Kafka 4.3.1."""
        topics, logs, groups = self.stored()
        if header.api is Api.JOIN_GROUP and message.group_id not in before[2] and message.group_id in groups:
            metadata, offsets = groups.pop(message.group_id)
            assert (metadata.members, metadata.generation, offsets) == ((), 0, {})
        return topics, logs, groups

    def stored(self) -> Any:
        """All state that outlasts the process."""
        topics = {
            topic.name: (topic.topic_id, topic.partition_count, dict(topic.stored().configs)) for topic in self.core.catalog.topics
        }
        logs = {log.topic_partition: log.end_offset for log in self.core.catalog.logs if log.end_offset}
        groups = self.core.state.groups._coordinator.durable_state()
        return topics, {tp: end for tp, end in logs.items() if tp.topic != "__consumer_offsets"}, groups

    def restart(self) -> None:
        """Restart as after kill -9."""
        before = (self.stored(), self.core.catalog.settings, self.core.state.transactions._coordinator.durable_state())
        self.under_test.kill()
        self.under_test = CoreUnderTest(self.path, self.under_test.now, **SETTINGS)
        assert (self.stored(), self.core.catalog.settings, self.core.state.transactions._coordinator.durable_state()) == before

    def _furnish(self) -> None:
        topic = create_topics_request.CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=(), configs=())
        self.under_test.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=(topic,)))
        protocols = (join_group_request.JoinGroupRequestProtocol(name="range", metadata=b""),)
        join = join_group_request.JoinGroupRequest(
            group_id="g",
            session_timeout=timedelta(seconds=30),
            rebalance_timeout=timedelta(seconds=60),
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        self.member = self.under_test.ask(Api.JOIN_GROUP, join, version=3).member_id
        mine = sync_group_request.SyncGroupRequestAssignment(member_id=self.member, assignment=b"")
        sync = sync_group_request.SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=self.member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=(mine,),
        )
        assert not self.under_test.ask(Api.SYNC_GROUP, sync).error_code
        part = offset_commit_request.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
        topics = (offset_commit_request.OffsetCommitRequestTopic(name="t", partitions=(part,)),)
        commit = offset_commit_request.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id=self.member, topics=topics
        )
        self.under_test.ask(Api.OFFSET_COMMIT, commit, version=9)


def is_refusal(response: Any) -> bool:
    """Whether all results in a response are errors."""
    if getattr(response, "error_code", 0):
        return True
    found = list(codes(response))
    top = [response.error_code] if hasattr(response, "error_code") else []
    return len(found) > len(top) and all(code for code in found[len(top) :])


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_edge_values_in_any_order(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder))
        for _ in range(data.draw(st.integers(1, 12))):
            api = data.draw(st.sampled_from(broker.core.state.served))
            version = data.draw(st.integers(*SPOKEN[api]))
            broker.ask(frame(api, version, data.draw(messages(api, version, broker.known))))
            broker.under_test.pass_time(data.draw(st.sampled_from([0, 0, 1_000, 40_000])))
        broker.restart()
        broker.under_test.kill()


@pytest.mark.parametrize("api", sorted(SPOKEN.keys() - LOGIN - CENTRAL), ids=lambda api: api.name.lower())
def test_each_edge_value_by_itself(api: Api, tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    asked = 0
    for version in range(SPOKEN[api].minimum, SPOKEN[api].maximum + 1):
        for message in one_edge_each(api, version, broker.known):
            broker.ask(frame(api, version, message))
            asked += 1
    assert asked > SPOKEN[api].maximum - SPOKEN[api].minimum
    broker.under_test.pass_time(60_000)
    broker.restart()
    assert broker.under_test.ask(Api.API_VERSIONS, API_VERSIONS).error_code is ErrorCode.none
    broker.under_test.kill()


@pytest.mark.parametrize("version", [0, 1, 4, 9])
def test_a_refused_join_leaves_an_empty_group_behind(version: int, tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    request = join_group_request.JoinGroupRequest(
        group_id="edge",
        session_timeout=timedelta(seconds=30),
        rebalance_timeout=timedelta(seconds=60),
        member_id="",
        protocol_type="consumer",
        protocols=(),
    )
    assert broker.ask(frame(Api.JOIN_GROUP, version, request)).error_code is ErrorCode.inconsistent_group_protocol
    assert "edge" in broker.stored()[2]
    broker.restart()
    broker.under_test.kill()
