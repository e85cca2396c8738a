"""The idle clients of a process of Spark's driver or executors, for reuse by later tasks and batches.

Owns the clients between two uses. Must not know what they are used for. Invariants: one task at a time uses a client; a client is
closed after an error; none is used in a process other than the one that created it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ottla.errors import OttlaError

log = logging.getLogger(__name__)

Settings = tuple[tuple[str, str], ...]

ClientT = TypeVar("ClientT")


class ClientPool(Generic[ClientT]):
    """Clients of one kind, of which ``max_idle`` are kept between two uses, whatever their settings. ``reset`` is called after each
    use."""

    def __init__(
        self,
        create: Callable[[Settings], ClientT],
        close: Callable[[ClientT], None],
        *,
        max_idle: int,
        reset: Callable[[ClientT], None] | None = None,
    ) -> None:
        self.max_idle = max_idle
        self._create = create
        self._close_client = close
        self._reset = reset
        self._idle: list[tuple[int, Settings, ClientT]] = []
        self._lock = threading.Lock()  # a driver may run several queries

    @contextlib.contextmanager
    def borrow(self, settings: Settings) -> Iterator[ClientT]:
        """Yield a client with these settings, if possible a connected one of an earlier use."""
        client = self._take(settings) or self._create(settings)
        try:
            yield client
        except GeneratorExit:
            # Spark closes the generator when it has enough rows, as with LIMIT.
            self._keep(settings, client)
            raise
        except BaseException:
            self._close(client)
            raise
        self._keep(settings, client)

    def close(self) -> None:
        """Close the idle clients."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, _, client in idle:
            self._close(client)

    def _take(self, settings: Settings) -> ClientT | None:
        wanted = (os.getpid(), settings)
        with self._lock:
            for position, (pid, given, client) in enumerate(self._idle):
                if (pid, given) == wanted:
                    del self._idle[position]
                    return client
        return None

    def _keep(self, settings: Settings, client: ClientT) -> None:
        """Keep the client for a later use, and close the longest idle ones above ``max_idle``."""
        try:
            if self._reset is not None:
                self._reset(client)
        except OttlaError as error:
            log.info("closing a client that cannot be reused: %s", error)
            self._close(client)
            return
        with self._lock:
            self._idle.append((os.getpid(), settings, client))
            surplus, self._idle = self._idle[: -self.max_idle], self._idle[-self.max_idle :]
        for _, _, each in surplus:
            self._close(each)

    def _close(self, client: ClientT) -> None:
        with contextlib.suppress(OttlaError):  # it may be one of the process that has forked this one
            self._close_client(client)
