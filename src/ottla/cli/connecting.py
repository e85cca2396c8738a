"""Clients as the commands need them.

Owns the timeouts of the command line. Must not know what a client is used for. Invariant: a user who waits at a terminal
learns within ``PATIENCE_MS`` that no broker answers, unless ``-X`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ottla
from ottla.cli.options import client_settings
from ottla.config import ClientConfig
from ottla.config.spelling import read, spellings, table

PATIENCE_MS = 10_000
TIMEOUTS = ("request_timeout_ms", "default_api_timeout_ms")


def patient(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with the command line's timeouts, where none was given: one that was given alone counts for both."""
    known = spellings(ClientConfig)
    given = {known[name][0]: name for name in settings if name in known and known[name][0] in TIMEOUTS}
    patience = PATIENCE_MS
    for field, name in given.items():
        patience = read(table(ClientConfig)[field], name, settings[name], in_seconds=known[name][1])
    return {**{field: patience for field in TIMEOUTS if field not in given}, **settings}


def connected_admin(bootstrap_servers: str, given: Sequence[str] | None) -> ottla.Admin:
    """An ``Admin`` from ``-b`` and each ``-X``."""
    return ottla.Admin(patient(client_settings(bootstrap_servers, given)))


def check_reachable(settings: Mapping[str, Any]) -> None:
    """Raises ``ConnectionFailedError`` with each address tried, for a producer that would go on trying without a word."""
    with ottla.Admin(patient(settings)) as admin:
        admin.describe_cluster()
