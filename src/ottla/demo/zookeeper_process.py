"""The child process that runs the demo's ZooKeeper.

Owns the start and the end of the server. Must not know the broker or the group. Invariant: it writes only to its data directory.
"""

from __future__ import annotations

from typing import Any

from ottla.demo.processes import Emit
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.signals import wait_for_signal


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Serve until SIGTERM. Reports ``listening`` with ``connect``, ZooKeeper's connect string."""
    with ZooKeeperServer(arguments["data_dir"]) as server:
        wait_for_signal(announce=lambda: emit("listening", connect=server.connect_string), meanwhile=server.check)
