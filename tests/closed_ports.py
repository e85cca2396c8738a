"""Ports that refuse connections."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def closed_ports(count: int) -> Iterator[list[int]]:
    """Yield ``count`` ports of 127.0.0.1 that refuse connections.

    The ports stay bound, but do not listen. A closed socket's port could be reused by a test that runs at the same time: a
    connection to it would then be reset instead of refused.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield one port of 127.0.0.1 that refuses connections."""
    with closed_ports(1) as [port]:
        yield port
