"""Proxies in front of brokers and of ZooKeeper, through which all that is counted goes.

Owns the connections. Must not know what is counted, or what a frame is. Invariants: both sides get each other's bytes as they are,
and each of them after it was counted; if either side closes, the other one is closed, too; a client of a server that does not run
is closed at once.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from queue import SimpleQueue
from typing import Any

from ottla.comparison.wire import Meter

HOST = "127.0.0.1"
CHUNK = 1 << 16
"""Bytes that are read at once."""


class Proxy:
    """Listens from its creation on. ``target`` is the port of the server; ``create_meter`` makes the meter of a connection."""

    def __init__(self, target: int, create_meter: Callable[[], Meter]) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        self._target, self._create_meter = target, create_meter

    async def handle(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass on what a client and the server send to each other, until one of them closes."""
        with closing(to_client), suppress(asyncio.CancelledError):  # by which the proxies end; asyncio would print it
            try:
                from_server, to_server = await asyncio.open_connection(HOST, self._target)
            except OSError:
                return
            with closing(to_server):
                meter = self._create_meter()
                await _until_one_ends(
                    _pass_on(from_client, to_server, meter.to_server),
                    _pass_on(from_server, to_client, meter.to_client),
                )


@contextmanager
def serving(*proxies: Proxy) -> Iterator[None]:
    """Have a thread of its own serve these proxies during the ``with``; at its end their connections are closed."""
    loops: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()
    ending = asyncio.Event()

    async def serve() -> None:
        loops.put(asyncio.get_running_loop())
        servers = [await asyncio.start_server(proxy.handle, sock=proxy.listener) for proxy in proxies]
        await ending.wait()
        for server in servers:
            server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="proxies", daemon=True)
    thread.start()
    loop = loops.get()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()


async def _until_one_ends(*flows: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(flow) for flow in flows]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, count: Callable[[bytes], None]) -> None:
    with suppress(OSError):  # a reset: the end as well
        while data := await source.read(CHUNK):
            count(data)
            target.write(data)
            await target.drain()
