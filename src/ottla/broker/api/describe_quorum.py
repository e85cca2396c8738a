"""DescribeQuorum (55): this broker is its own controller, so the quorum that keeps the metadata is a quorum of one (KIP-595).

There is no metadata log: its end is reported as the number of changes of topics since the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_quorum_request, describe_quorum_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
LEADER_EPOCH = 1
"""The one leader's epoch: no other was ever elected."""


@serves(Api.DESCRIBE_QUORUM)
def describe_quorum(
    state: BrokerState, context: RequestContext, request: describe_quorum_request.DescribeQuorumRequest, now: Now
) -> list[Effect]:
    """The quorum of the metadata; a request for any other partition is refused as a whole, as by Kafka."""
    asked = [(topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in request.topics]
    valid = asked == [(METADATA_TOPIC, [METADATA_PARTITION])]
    topics = tuple(
        describe_quorum_response.TopicData(
            topic_name=name, partitions=tuple(_metadata(state, now) if valid else _nowhere(partition) for partition in partitions)
        )
        for name, partitions in asked
    )
    listener = describe_quorum_response.Listener(
        name="PLAINTEXT", host=state.catalog.endpoint.host, port=state.catalog.endpoint.port
    )
    node = describe_quorum_response.Node(node_id=state.catalog.node_id, listeners=(listener,))
    response = describe_quorum_response.DescribeQuorumResponse(
        error_code=ErrorCode.none, error_message="", topics=topics, nodes=(node,) if valid else ()
    )
    return [Reply(context.ticket, response)]


def _metadata(state: BrokerState, now: Now) -> describe_quorum_response.PartitionData:
    end = state.catalog.topics.version
    voter = describe_quorum_response.ReplicaState(
        replica_id=state.catalog.node_id,
        replica_directory_id=None,
        log_end_offset=end,
        last_fetch_timestamp=now.wall,
        last_caught_up_timestamp=now.wall,
    )
    return describe_quorum_response.PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=ErrorCode.none,
        error_message="",
        leader_id=state.catalog.node_id,
        leader_epoch=LEADER_EPOCH,
        high_watermark=end,
        current_voters=(voter,),
        observers=(),
    )


def _nowhere(partition: int) -> describe_quorum_response.PartitionData:
    return describe_quorum_response.PartitionData(
        partition_index=partition,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message=f"There is no quorum but that of {METADATA_TOPIC}-{METADATA_PARTITION}.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=(),
        observers=(),
    )
