"""Finds out why there is no connection to ZooKeeper.

Owns the questions to a server that tell the causes apart. Must not know kazoo, which only logs them. Invariant: it ends within its
time-out, with a reason for each server.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

from ottla.runtime import clock

SILENT = "it accepts connections, but does not answer as ZooKeeper does"
NOT_SERVING = "it is a ZooKeeper server that serves no clients now: does its ensemble have a leader?"
NO_TIME = "no answer"


def probe(servers: Iterable[tuple[str, int]], timeout: float) -> dict[str, str]:
    """Return for each server, as ``host:port``, why it cannot be used. ``timeout`` is in seconds, for all of them."""
    reasons = {_address(host, port): NO_TIME for host, port in servers}
    threads = [
        threading.Thread(target=_note, args=(reasons, host, port, timeout), name="ottla-zookeeper-probe", daemon=True)
        for host, port in servers
    ]
    for thread in threads:
        thread.start()
    give_up_at = clock.monotonic() + timeout
    for thread in threads:
        thread.join(max(give_up_at - clock.monotonic(), 0))
    return dict(reasons)


def _note(reasons: dict[str, str], host: str, port: int, timeout: float) -> None:
    reasons[_address(host, port)] = _reason(host, port, timeout)


def _reason(host: str, port: int, timeout: float) -> str:
    try:
        # Two steps may each take this long; what is left is for the name.
        with socket.create_connection((host, port), timeout / 3) as connection:
            # Without a leader, a server accepts the connection of a client and closes it; this command it answers.
            connection.sendall(b"srvr")
            return _meaning(connection)
    except OSError as error:
        return str(error.strerror or error)


def _meaning(connection: socket.socket) -> str:
    try:
        answer = connection.recv(1 << 12)
    except OSError:
        return SILENT
    if b"not currently serving" in answer:
        return NOT_SERVING
    if b"Zookeeper version" in answer or b"whitelist" in answer:
        return "it is a ZooKeeper server, and answers now"
    return SILENT


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
