"""ApiVersions, DescribeCluster and DescribeQuorum: what the broker is, and what clients may do (KIP-430).

Owns the answers about the cluster, and the bits of operations. Must not know topics. Invariants: an API is advertised if
and only if it has a handler; there is no authorizer, so every client may do everything, as Kafka reports without one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import ADVERTISED_MINIMUM, SPOKEN, Api, VersionRule
from ottla.protocol.messages import (
    api_versions_request,
    api_versions_response,
    describe_cluster_request,
    describe_cluster_response,
    describe_quorum_request,
    describe_quorum_response,
)
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in range(3, 13)
)

TOPIC_OPERATIONS = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
CLUSTER_OPERATIONS = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE
NOT_ASKED = -(2**31)
"""The value in place of the bits if they are not requested."""


_BROKERS, _CONTROLLERS = 1, 2


@serves(Api.DESCRIBE_CLUSTER)
def describe_cluster(
    state: BrokerState, context: RequestContext, request: describe_cluster_request.DescribeClusterRequest, now: Now
) -> list[BrokerEffect]:
    """Describe the registered brokers; a request for controllers fails."""
    code, message = ErrorCode.none, None
    if request.endpoint_type == _CONTROLLERS:
        code, message = ErrorCode.mismatched_endpoint_type, "The request was sent to a broker, not to a controller."
    elif request.endpoint_type != _BROKERS:
        code, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {request.endpoint_type}."
    brokers = tuple(
        describe_cluster_response.DescribeClusterBroker(
            broker_id=broker.node_id, host=broker.host, port=broker.port, is_fenced=False
        )
        for broker in state.catalog.cluster.brokers.values()
    )
    asked = request.include_cluster_authorized_operations
    response = describe_cluster_response.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        endpoint_type=request.endpoint_type,
        cluster_id=state.catalog.cluster_id,
        controller_id=state.catalog.cluster.controller_id,
        brokers=brokers if code is ErrorCode.none else (),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked and code is ErrorCode.none else NOT_ASKED,
    )
    return [Reply(context.ticket, response)]


METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
LEADER_EPOCH = 1
"""The one leader's epoch: no other was ever elected."""


@serves(Api.DESCRIBE_QUORUM)
def describe_quorum(
    state: BrokerState, context: RequestContext, request: describe_quorum_request.DescribeQuorumRequest, now: Now
) -> list[BrokerEffect]:
    """Describe the quorum of the metadata; a request for any other partition fails as a whole, as in Kafka."""
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


_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)

METADATA_VERSION = 30
"""4.3-IV0: tells clients the release whose versions are served."""
GROUP_VERSION = 1
"""The consumer group protocol (KIP-848) is in force."""

FEATURES = {
    "metadata.version": (7, METADATA_VERSION, METADATA_VERSION),
    "group.version": (0, GROUP_VERSION, GROUP_VERSION),
    "transaction.version": (0, 2, 2),
}
"""Feature -> the lowest and the highest level that are known, and the one in force. ``transaction.version`` 2 is KIP-890."""


@serves(Api.API_VERSIONS)
def api_versions(
    state: BrokerState, context: RequestContext, request: api_versions_request.ApiVersionsRequest, now: Now
) -> list[BrokerEffect]:
    """List the served APIs; INVALID_REQUEST if the client's name or version is not valid."""
    # Versions before 3 do not carry a name; the protocol's default for it is empty.
    named = request.client_software_name or request.client_software_version
    if named and not all(map(_SOFTWARE.fullmatch, (request.client_software_name, request.client_software_version))):
        return [Reply(context.ticket, _response(ErrorCode.invalid_request, ()))]
    response = _response(
        ErrorCode.none,
        state.served,
        supported_features=tuple(
            api_versions_response.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high, _) in FEATURES.items()
            if low or VersionRule.ZERO_FEATURES in context.version_rules
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            api_versions_response.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, (_, _, level) in FEATURES.items()
            if level
        ),
    )
    return [Reply(context.ticket, response)]


def unsupported_version() -> api_versions_response.ApiVersionsResponse:
    """Return the response, in version 0, to an ApiVersions request in an unknown version: the range of this API alone."""
    return _response(ErrorCode.unsupported_version, (Api.API_VERSIONS,))


def _response(code: ErrorCode, apis: tuple[Api, ...], **features: object) -> api_versions_response.ApiVersionsResponse:
    keys = tuple(
        api_versions_response.ApiVersion(
            api_key=int(api),
            min_version=ADVERTISED_MINIMUM.get(api, SPOKEN[api].minimum),
            max_version=SPOKEN[api].maximum,
        )
        for api in apis
    )
    return api_versions_response.ApiVersionsResponse(
        error_code=code,
        api_keys=keys,
        throttle_time=NO_THROTTLE,
        **features,  # type: ignore[arg-type]
    )
