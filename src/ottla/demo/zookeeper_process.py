"""The child process that runs the demo's ZooKeeper, and registers the broker and the topic there as Kafka 0.8 does.

Owns the start and the end of the server. Must not know the group. Invariant: it writes only to its data directory.
"""

from __future__ import annotations

from typing import Any

from ottla.client.admin.zookeeper.calls import Steps, ask
from ottla.demo.processes import Emit
from ottla.runtime import clock
from ottla.runtime.zookeeper_calls import ZooKeeperCalls
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.signals import wait_for_signal
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import encode_broker, encode_topic
from ottla.zookeeper.operations import Create, Exists

BROKER_ID = 1
TIMEOUT = 30_000
"""Milliseconds for each node."""


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Serve until SIGTERM. Reports ``listening`` with ``connect``, ZooKeeper's connect string."""
    with ZooKeeperServer(arguments["data_dir"]) as server:
        calls = ZooKeeperCalls(server.connect_string)
        try:
            nodes = _nodes(arguments["bootstrap_servers"], arguments["topic"], arguments["partitions"])
            calls.run(lambda: _create(nodes), TIMEOUT)
        finally:
            calls.close()
        wait_for_signal(announce=lambda: emit("listening", connect=server.connect_string), meanwhile=server.check)


def _nodes(bootstrap_servers: str, topic: str, partitions: int) -> dict[str, bytes]:
    """The nodes of a broker and of a topic whose partitions it leads. A real broker's node is ephemeral."""
    host, _, port = bootstrap_servers.rpartition(":")
    broker = encode_broker(host.strip("[]"), int(port), clock.now().wall)
    return {paths.broker(BROKER_ID): broker, paths.topic(topic): encode_topic([BROKER_ID] * partitions)}


def _create(nodes: dict[str, bytes]) -> Steps[None]:
    """Create nodes, unless an earlier attempt has, and the nodes above them."""
    for path, data in nodes.items():
        for parent in paths.parents(path):
            if (yield from ask(Exists(parent))) is None:
                yield from ask(Create(parent))
        if (yield from ask(Exists(path))) is None:
            yield from ask(Create(path, data))
