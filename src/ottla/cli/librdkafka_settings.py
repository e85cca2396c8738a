"""The settings of ``ottla produce``: the client settings of all commands, and librdkafka's producer settings.

Owns the mapping from client settings to librdkafka's settings. Must not know lines or records. Invariant: a setting that other
commands accept has the same effect here or is an error; settings of TLS and SASL are validated by Ottla before librdkafka gets
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.cli.clients import with_default_timeouts
from ottla.cli.output import CommandFailed
from ottla.config import ApiConfig, ClientConfig, ConsumerConfig, OttlaConfigWarning
from ottla.config.spelling import dotted, spellings

SECURITY = ("ssl.", "sasl.", "security.", "https.", "oauth", "enable.ssl.", "enable.sasl.")
"""The prefixes of settings that are validated as client settings, in this command as in others."""
ADDRESS_SETTINGS = ("bootstrap.servers", "metadata.broker.list")
OBJECT_SETTINGS = ("default.topic.config", "delivery.report.only.error", "logger", "on_delivery")
"""Settings of confluent-kafka that are objects, as all are whose names end in ``_cb``."""

RANGES: Mapping[str, tuple[str, int, int]] = {
    "request_timeout_ms": ("socket.timeout.ms", 10, 300_000),
    "default_api_timeout_ms": ("message.timeout.ms", 1, 2**31 - 1),
    "socket_connection_setup_timeout_ms": ("socket.connection.setup.timeout.ms", 1_000, 2**31 - 1),
    "connections_max_idle_ms": ("connections.max.idle.ms", 0, 2**31 - 1),
    "metadata_max_age_ms": ("metadata.max.age.ms", 1, 86_400_000),
    "metadata_recovery_rebootstrap_trigger_ms": ("metadata.recovery.rebootstrap.trigger.ms", 0, 2**31 - 1),
    "send_buffer_bytes": ("socket.send.buffer.bytes", 0, 100_000_000),
    "receive_buffer_bytes": ("socket.receive.buffer.bytes", 0, 100_000_000),
}
"""Field of a client config -> librdkafka's setting, and the range of values that librdkafka accepts."""
BACKOFFS: Mapping[str, tuple[str, int, int]] = {
    "retry_backoff": ("retry.backoff", 1, 300_000),
    "reconnect_backoff": ("reconnect.backoff", 0, 3_600_000),
}
"""The prefix of the fields ``_ms`` and ``_max_ms`` -> that of librdkafka's ``.ms`` and ``.max.ms``, and the range of values."""

NAMES: Mapping[str, str] = {
    "metadata_recovery_strategy": "metadata.recovery.strategy",
    "sasl_mechanism": "sasl.mechanisms",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
    "sasl_oauthbearer_token_endpoint_url": "sasl.oauthbearer.token.endpoint.url",
    "sasl_oauthbearer_client_credentials_client_id": "sasl.oauthbearer.client.id",
    "sasl_oauthbearer_client_credentials_client_secret": "sasl.oauthbearer.client.secret",
    "sasl_oauthbearer_scope": "sasl.oauthbearer.scope",
    "ssl_truststore_location": "ssl.ca.location",
    "ssl_truststore_certificates": "ssl.ca.pem",
    "ssl_keystore_location": "ssl.certificate.location",
    "ssl_keystore_certificate_chain": "ssl.certificate.pem",
    "ssl_key_location": "ssl.key.location",
    "ssl_keystore_key": "ssl.key.pem",
    "ssl_key_password": "ssl.key.password",
}
"""Field of a client config -> librdkafka's setting with the same values."""

REFUSED: Mapping[str, str] = {
    "max.request.size": "librdkafka's name is message.max.bytes",
    "buffer.memory": "librdkafka's name is queue.buffering.max.kbytes, and it counts kilobytes",
    "max.block.ms": "lines wait while the queue is full",
    "key.serializer": "the bytes of a line are sent as they are",
    "value.serializer": "the bytes of a line are sent as they are",
    "partitioner.class": "it is a Java class; librdkafka's setting is partitioner",
}
"""Settings of the Java producer that are rejected -> the reason, or librdkafka's name."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "queue.buffering.max.ms": ("linger.ms",),
    "request.required.acks": ("acks",),
    "message.send.max.retries": ("retries",),
    "message.timeout.ms": ("delivery.timeout.ms",),
    "compression.codec": ("compression.type",),
    "max.in.flight.requests.per.connection": ("max.in.flight",),
}
"""librdkafka's name of a setting -> its aliases. librdkafka's errors have the name, even if the user set the alias."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ApiConfig):
    """The client settings. Errors show the name of this class."""


def split_settings(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split ``given`` into client settings and settings that only librdkafka has. Raises ``CommandFailed`` for unsupported ones."""
    for name in given:
        if name in OBJECT_SETTINGS or name.endswith("_cb"):
            raise CommandFailed(f"{name} cannot be set on the command line: its value is a Python object")
        if name in REFUSED:
            raise CommandFailed(f"{name} cannot be set: {REFUSED[name]}")
        if name == "transactional.id":
            raise CommandFailed(f"{name} cannot be set: ottla produce does not use transactions")
    known = spellings(ConsumerConfig)  # a consumer's setting counts as a client setting, and ProducerConfig rejects it by name
    client = {name for name in given if name in known or dotted(name).startswith(SECURITY) or dotted(name) in ADDRESS_SETTINGS}
    return {name: given[name] for name in given if name in client}, {name: given[name] for name in given if name not in client}


def use_given_name(message: str, settings: Mapping[str, str]) -> str:
    """Return an error of librdkafka about a setting with the name that the user has given."""
    for name, others in ALIASES.items():
        given = next((other for other in others if other in settings), None)
        if given is not None:
            message = message.replace(f'"{name}"', f'"{given}"')
    return message


def to_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """Convert client settings to librdkafka's. Raises ``ConfigError``, and ``CommandFailed`` for settings that librdkafka lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OttlaConfigWarning)  # check_reachable() shows the same warnings
        config = ProducerConfig.parse(with_default_timeouts(settings))
    known = spellings(ProducerConfig)
    given = {known[name][0] for name in settings}
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(map(str, config.bootstrap_servers)),
        "client.id": config.client_id,
        "security.protocol": config.security_protocol.lower(),
    }
    for field, (name, low, high) in RANGES.items():
        if field in given:
            found[name] = max(low, min(getattr(config, field), high))
    for field, (name, low, high) in BACKOFFS.items():
        if {f"{field}_ms", f"{field}_max_ms"} & given:  # librdkafka rejects a minimum above the maximum
            longest = max(low, min(getattr(config, f"{field}_max_ms"), high))
            found |= {f"{name}.max.ms": longest, f"{name}.ms": max(low, min(getattr(config, f"{field}_ms"), longest))}
    for field, name in NAMES.items():
        if (value := getattr(config, field)) is not None and _has_effect(config, field):
            found[name] = value
    return found | _tls(config) | _tokens(config)


def _has_effect(config: ClientConfig, field: str) -> bool:
    """Whether a setting has an effect. Those that ``sasl.jaas.config`` sets have one, though the user has not given them."""
    if field.startswith("sasl_"):
        return config.uses_sasl
    return config.uses_tls if field.startswith("ssl_") else field in config.given


def _tls(config: ClientConfig) -> dict[str, Any]:
    if not config.uses_tls:
        return {}
    if "ssl_enabled_protocols" in config.given and len(config.ssl_enabled_protocols) == 1:
        only = config.ssl_enabled_protocols[0]
        raise CommandFailed(f"ssl.enabled.protocols={only}: ottla produce cannot restrict the TLS version; remove the setting")
    check = config.ssl_endpoint_identification_algorithm
    found: dict[str, Any] = {"ssl.endpoint.identification.algorithm": check or "none"}
    if config.ssl_cipher_suites:
        found["ssl.cipher.suites"] = ":".join(config.ssl_cipher_suites)
    if config.ssl_keystore_location and not config.ssl_key_location and not config.ssl_keystore_key:
        found["ssl.key.location"] = config.ssl_keystore_location
    return found


def _tokens(config: ClientConfig) -> dict[str, Any]:
    if not config.uses_sasl or config.sasl_mechanism != "OAUTHBEARER":
        return {}
    found: dict[str, Any] = {"sasl.oauthbearer.method": "oidc"}
    if config.sasl_oauthbearer_extensions:
        found["sasl.oauthbearer.extensions"] = ",".join(f"{name}={value}" for name, value in config.sasl_oauthbearer_extensions)
    if config.ssl_truststore_location:
        found["https.ca.location"] = config.ssl_truststore_location
    if config.ssl_truststore_certificates:
        found["https.ca.pem"] = config.ssl_truststore_certificates
    return found
