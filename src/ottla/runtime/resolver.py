"""Resolves host names on helper threads, since ``getaddrinfo`` may block for many seconds.

Owns the look-ups; must not know what an address is for. Invariant: each look-up is reported exactly once; none keeps the process
from ending.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ottla.client.effects import Address


@dataclass(frozen=True, slots=True)
class Resolved:
    """The addresses of a host, in the order in which to try them."""

    host: str
    port: int
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class ResolveFailed:
    """Why a host was not resolved."""

    host: str
    port: int
    reason: str


Report = Callable[[Resolved | ResolveFailed], None]


def resolve_in_background(host: str, port: int, report: Report) -> None:
    """Resolve a host on a new thread, and call ``report`` there; if no thread can be started, call it here."""

    def look_up() -> None:
        try:
            outcome = resolve(host, port)
        except BaseException as error:  # connections wait for this report, even if the thread fails
            outcome = ResolveFailed(host, port, repr(error))
        report(outcome)

    try:
        threading.Thread(target=look_up, name=f"ottla-resolve-{host}", daemon=True).start()
    except RuntimeError as error:
        report(ResolveFailed(host, port, str(error)))


def resolve(host: str, port: int) -> Resolved | ResolveFailed:
    """Resolve a host, on the calling thread."""
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, ValueError) as error:  # a ValueError: a name that IDNA cannot encode, or with a null byte
        return ResolveFailed(host, port, getattr(error, "strerror", None) or str(error))
    return Resolved(host, port, tuple(Address(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in results))
