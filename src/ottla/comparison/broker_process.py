"""The child process that runs a broker of the cluster.

Owns the broker's start and end. Must not know what is sent through it. Invariant: it writes only to its data directory.
"""

from __future__ import annotations

from typing import Any

from ottla.demo.processes import Emit
from ottla.embedded import Broker
from ottla.signals import wait_for_signal


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Serve until SIGTERM. Reports ``listening`` when the broker is registered in ZooKeeper."""
    with Broker(
        arguments["data_dir"], arguments["port"], zookeeper=arguments["zookeeper"], settings=arguments["settings"]
    ) as broker:
        wait_for_signal(
            announce=lambda: emit("listening"),
            meanwhile=lambda: broker.bootstrap_servers,  # raises if the broker has failed
        )
