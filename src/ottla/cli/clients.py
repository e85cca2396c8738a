"""The clients of the commands.

Owns the command line's default settings. Must not know what a client is used for. Invariant: a command fails within
``DEFAULT_TIMEOUT_MS`` if no broker responds, or ``DELIVERY_TIMEOUT_MS`` if one no longer does, unless ``-X`` sets other timeouts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ottla
from ottla.cli.options import DEFAULT_BOOTSTRAP, client_settings
from ottla.cli.output import CommandFailed
from ottla.config import AdminConfig, OttlaConfigWarning
from ottla.config.old_consumer import NAMES
from ottla.config.producer import ProducerConfig
from ottla.config.spelling import read, spellings, table

DEFAULT_TIMEOUT_MS = 10_000
DELIVERY_TIMEOUT_MS = 30_000
"""The time for the acknowledgement of a record."""
BATCH_SIZE = 1_000_000
"""In bytes. Less than what a topic accepts by default."""
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


def value_of(config: type[Any], field: str, settings: Mapping[str, Any]) -> Any:
    """The value that ``settings``, or the default of a config, have for one of its fields."""
    known = spellings(config)
    for name, value in settings.items():
        if known.get(name, ("", False))[0] == field:
            return read(table(config)[field], name, value, in_seconds=known[name][1])
    return getattr(config, field)


def with_producer_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` with the command line's defaults for a producer: shorter timeouts, and larger batches for speed."""
    known = spellings(ProducerConfig)
    given = {known[name][0] for name in settings if name in known}
    defaults = {"request_timeout_ms": DEFAULT_TIMEOUT_MS, "batch_size": BATCH_SIZE}
    merged = {**{field: value for field, value in defaults.items() if field not in given}, **settings}
    least = value_of(ProducerConfig, "linger_ms", merged) + value_of(ProducerConfig, "request_timeout_ms", merged)
    if "delivery_timeout_ms" not in given:
        merged["delivery_timeout_ms"] = max(DELIVERY_TIMEOUT_MS, least)
    if "max_block_ms" not in given:  # not less: of records that wait for a broker, the error says more than that memory is short
        merged["max_block_ms"] = value_of(ProducerConfig, "delivery_timeout_ms", merged)
    return merged


def check_reachable(settings: Mapping[str, Any]) -> None:
    """Raise ``ConnectionFailedError`` with each address tried if no broker is reachable, before a producer waits for records.

    ``settings`` are the given ones of the producer, which warns of them itself. A given ``max.block.ms`` limits the time, as it
    does for the producer.
    """
    known = spellings(AdminConfig)
    wanted = {name: value for name, value in settings.items() if name in known}
    if "max_block_ms" in {spellings(ProducerConfig).get(name, ("", False))[0] for name in settings}:
        limit = max(1, value_of(ProducerConfig, "max_block_ms", settings))
        wanted = {name: value for name, value in wanted.items() if known[name][0] not in TIMEOUTS} | dict.fromkeys(TIMEOUTS, limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OttlaConfigWarning)
        admin = ottla.Admin(with_default_timeouts(wanted))
    with admin:
        admin.describe_cluster()
