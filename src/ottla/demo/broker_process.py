"""The child process that runs the demo's broker.

Owns the broker's start and end. Must not know what is sent through it. Invariant: it writes only to its data directory.
"""

from __future__ import annotations

from typing import Any

from ottla.demo.dispatch import BROKER_SETTINGS
from ottla.demo.processes import Emit
from ottla.embedded import Broker
from ottla.signals import wait_for_signal


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Serve until SIGTERM, in the ZooKeeper of the arguments if they name one. Reports ``listening`` with ``bootstrap_servers``."""
    zookeeper = arguments["zookeeper"] or None
    with Broker(data_dir=arguments["data_dir"], zookeeper=zookeeper, settings=BROKER_SETTINGS) as broker:
        wait_for_signal(
            announce=lambda: emit("listening", bootstrap_servers=broker.bootstrap_servers),
            meanwhile=lambda: broker.bootstrap_servers,  # raises if the broker has failed
        )
