"""``ZooKeeperClient`` without a server: what kazoo gets, and when."""

from __future__ import annotations

import socket
import threading

from ottla.runtime.zookeeper import MOST_OUTSTANDING, ZooKeeperClient

LIMIT = 30.0
"""Seconds for what takes none."""


def test_kazoo_wakes_its_thread_without_waiting_for_it() -> None:
    """Kazoo's thread reads nothing while it connects, and wake-ups of operations that it has dropped remain."""
    client = ZooKeeperClient("127.0.0.1:1", 6_000, lambda report: None)
    reader, writer = client._handler.create_socket_pair()

    def wake() -> None:
        for _ in range(10_000):
            assert writer.send(b"\0") == 1
        done.set()

    done = threading.Event()
    threading.Thread(target=wake, daemon=True).start()
    try:
        assert done.wait(LIMIT)
        kept = len(reader.recv(10_000, socket.MSG_PEEK))
        assert kept > MOST_OUTSTANDING, "each operation that kazoo has is sent, whatever was left out"
        assert len(reader.recv(kept)) == kept
        assert writer.send(b"\0") == 1
        assert reader.recv(2) == b"\0"
    finally:
        reader.close()
        writer.close()
