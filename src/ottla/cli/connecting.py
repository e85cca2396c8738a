"""Clients as the commands need them.

Owns how patient the command line is. Must not know what a client is used for. Invariant: somebody who waits at a terminal
learns within ``PATIENCE_MS`` that no broker answers, unless ``-X`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ottla import Admin
from ottla.cli.options import client_settings

PATIENCE_MS = 10_000
TIMEOUTS = ("request.timeout.ms", "default.api.timeout.ms")


def patient(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with the command line's timeouts, where none was given."""
    if any(name in settings for name in TIMEOUTS):
        return dict(settings)
    return {**dict.fromkeys(TIMEOUTS, PATIENCE_MS), **settings}


def connected_admin(bootstrap_servers: str, given: Sequence[str] | None) -> Admin:
    """An ``Admin`` from ``-b`` and each ``-X``."""
    return Admin(patient(client_settings(bootstrap_servers, given)))


def check_reachable(bootstrap_servers: str) -> None:
    """Raises ``ConnectionFailedError`` with each address tried; for clients that would go on trying without a word."""
    with Admin(patient({"bootstrap.servers": bootstrap_servers})) as admin:
        admin.describe_cluster()
