"""The clients of the commands.

Owns the command line's default timeouts. Must not know what a client is used for. Invariant: a command fails within
``DEFAULT_TIMEOUT_MS`` if no broker responds, unless ``-X`` sets other timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ottla
from ottla.cli.options import DEFAULT_BOOTSTRAP, client_settings
from ottla.cli.output import CommandFailed
from ottla.config import AdminConfig
from ottla.config.old_consumer import NAMES
from ottla.config.spelling import read, spellings, table

DEFAULT_TIMEOUT_MS = 10_000
TIMEOUTS = ("request_timeout_ms", "default_api_timeout_ms")


def with_default_timeouts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` with the command line's default timeouts. If one of the two is set, the other one gets its value."""
    known = {**spellings(AdminConfig), **{name: (field, False) for name, field in NAMES.items()}}
    given = {known[name][0]: name for name in settings if name in known and known[name][0] in TIMEOUTS}
    timeout_ms = DEFAULT_TIMEOUT_MS
    for field, name in given.items():
        timeout_ms = read(table(AdminConfig)[field], name, settings[name], in_seconds=known[name][1])
    return {**{field: timeout_ms for field in TIMEOUTS if field not in given}, **settings}


def connected_admin(bootstrap_servers: str, given: Sequence[str] | None) -> ottla.Admin:
    """Return an ``Admin`` with the settings of ``-b`` and ``-X``."""
    return ottla.Admin(with_default_timeouts(client_settings(bootstrap_servers, given)))


def connected_zookeeper(zookeeper: str, given: Sequence[str] | None) -> ottla.ZooKeeperAdmin:
    """Return a ``ZooKeeperAdmin`` with the timeout of ``-X``."""
    timeout = _admin_config(given).default_api_timeout_ms
    return ottla.ZooKeeperAdmin(zookeeper, default_api_timeout=timeout / 1000)


def registered_brokers(zookeeper: ottla.ZooKeeperAdmin, given: Sequence[str] | None) -> str:
    """Return the bootstrap servers that are registered in ZooKeeper, for the security protocol of ``-X``."""
    protocol = _admin_config(given).security_protocol
    brokers = zookeeper.brokers(listener=protocol)
    if not brokers:
        raise CommandFailed(f"no broker with a {protocol} listener is registered in ZooKeeper; name the brokers with -b")
    return ",".join(f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}" for each in brokers)


def _admin_config(given: Sequence[str] | None) -> AdminConfig:
    # The bootstrap servers only complete the settings: ZooKeeper knows the brokers.
    return AdminConfig.parse(with_default_timeouts(client_settings(DEFAULT_BOOTSTRAP, given)))


def check_reachable(settings: Mapping[str, Any]) -> None:
    """Raise ``ConnectionFailedError`` with each address tried if no broker is reachable. librdkafka itself retries silently."""
    with ottla.Admin(with_default_timeouts(settings)) as admin:
        admin.describe_cluster()
