"""Ports that refuse connections."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def closed_ports(count: int) -> Iterator[list[int]]:
    """``count`` ports of 127.0.0.1 that refuse connections.

    They stay bound, and never listen. The port of a closed socket can go to a test that runs at the same time: a
    connection to it was then reset instead of refused.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]


@contextmanager
def closed_port() -> Iterator[int]:
    """One of them."""
    with closed_ports(1) as [port]:
        yield port
