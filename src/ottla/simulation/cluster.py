"""The nodes of a cluster whose one core serves all of them.

Owns which nodes run, who leads a partition, and which node coordinates groups. Must not know connections. Invariant: with one node
no response is changed.

Ottla's broker is a cluster of one. Here several nodes have one core and one catalog: responses name a running node as the leader
of each partition, and one node, the host, as the coordinator. If the host is killed, the core ends like the coordinator on it, and
the next host starts on the same files, as the other replicas have them. Any other node takes only its connections with it.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_response
from ottla.types import Node

ADDRESS = ("127.0.0.1", 9092)
"""That of the first node; the others have the next ports."""


class Cluster:
    """See the module."""

    def __init__(self, count: int, first_id: int = 1) -> None:
        self.nodes = {first_id + number: Node(first_id + number, ADDRESS[0], ADDRESS[1] + number, None) for number in range(count)}
        self.up: set[int] = set()
        self.host = first_id
        """The node on which the core runs, which is the coordinator of all groups."""

    def at(self, host: str, port: int) -> Node:
        """The node with an address."""
        return next(node for node in self.nodes.values() if (node.host, node.port) == (host, port))

    def leader(self, topic: str, partition: int) -> int | None:
        """The leader of a partition: of the running nodes the first after that which is preferred."""
        if not self.up:
            return None
        ids = list(self.nodes)
        preferred = (zlib.crc32(topic.encode()) + partition) % len(ids)
        return next(node_id for node_id in (*ids[preferred:], *ids[:preferred]) if node_id in self.up)

    def rewrite(self, api: Api, response: Any) -> Any:
        """Name the nodes of the cluster in a response of the core, which only knows itself."""
        if len(self.nodes) == 1:
            return response
        if api is Api.METADATA:
            return dataclasses.replace(
                response,
                brokers=tuple(self._broker(self.nodes[node_id]) for node_id in sorted(self.up)),
                controller_id=self.host,
                topics=tuple(self._topic(topic) for topic in response.topics),
            )
        if api is Api.FIND_COORDINATOR:
            host = self.nodes[self.host]
            return dataclasses.replace(
                response,
                coordinators=tuple(
                    one
                    if one.error_code is not ErrorCode.none
                    else dataclasses.replace(one, node_id=host.node_id, host=host.host, port=host.port)
                    for one in response.coordinators
                ),
            )
        return response

    def _broker(self, node: Node) -> metadata_response.MetadataResponseBroker:
        return metadata_response.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=None)

    def _topic(self, topic: Any) -> Any:
        partitions = []
        for one in topic.partitions:
            leader = self.leader(topic.name, one.partition_index)
            partitions.append(dataclasses.replace(one, leader_id=leader, replica_nodes=(leader,), isr_nodes=(leader,)))
        return dataclasses.replace(topic, partitions=tuple(partitions))


def name_of(node_id: int) -> str:
    """The name of a node's host in the network."""
    return f"broker-{node_id}"
