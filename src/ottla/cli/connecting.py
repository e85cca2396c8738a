"""Clients as the commands need them.

Owns the timeouts of the command line. Must not know what a client is used for. Invariant: a user who waits at a terminal
learns within ``PATIENCE_MS`` that no broker answers, unless ``-X`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ottla
from ottla.cli.options import client_settings

PATIENCE_MS = 10_000
TIMEOUTS = ("request.timeout.ms", "default.api.timeout.ms")


def patient(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with the command line's timeouts, where none was given."""
    given = [int(settings[name]) for name in TIMEOUTS if str(settings.get(name, "")).isdecimal()]
    return {**dict.fromkeys(TIMEOUTS, given[0] if given else PATIENCE_MS), **settings}


def connected_admin(bootstrap_servers: str, given: Sequence[str] | None) -> ottla.Admin:
    """An ``Admin`` from ``-b`` and each ``-X``."""
    return ottla.Admin(patient(client_settings(bootstrap_servers, given)))


def check_reachable(settings: Mapping[str, Any]) -> None:
    """Raises ``ConnectionFailedError`` with each address tried; for clients that would go on trying without a word."""
    known = {name: settings[name] for name in ("bootstrap.servers", *TIMEOUTS) if name in settings}
    with ottla.Admin(patient(known)) as admin:
        admin.describe_cluster()
