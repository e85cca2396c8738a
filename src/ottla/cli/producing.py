"""The settings of ``ottla produce``: a client's, as for all commands, and librdkafka's own about producing.

Owns which setting of librdkafka each of a client's settings becomes. Must not know lines or records. Invariant: a setting that
other commands accept has the same effect here or is refused, and what TLS and SASL need is checked before librdkafka sees it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.cli.connecting import patient
from ottla.cli.output import CommandFailed
from ottla.config import ClientConfig, ConsumerConfig, OttlaConfigWarning
from ottla.config.spelling import dotted, spellings

SECURITY = ("ssl.", "sasl.", "security.", "https.", "oauth", "enable.ssl.", "enable.sasl.")
"""How the names begin of what this command, too, takes from the client's settings."""
MOVED = ("bootstrap.servers", "metadata.broker.list")
OBJECTS = ("default.topic.config", "delivery.report.only.error", "logger", "on_delivery")
"""Settings of confluent-kafka that are no strings; so are all that end in ``_cb``."""

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
"""Field of a client's config -> librdkafka's setting and its bounds."""
PAUSES: Mapping[str, tuple[str, int, int]] = {
    "retry_backoff": ("retry.backoff", 1, 300_000),
    "reconnect_backoff": ("reconnect.backoff", 0, 3_600_000),
}
"""The beginning of the fields of a first and of a longest pause -> that of librdkafka's settings, and their bounds."""

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
"""Field of a client's config -> librdkafka's setting with the same values."""

REFUSED: Mapping[str, str] = {
    "max.request.size": "librdkafka's name is message.max.bytes",
    "buffer.memory": "librdkafka's name is queue.buffering.max.kbytes, and it counts kilobytes",
    "max.block.ms": "lines wait while the queue is full",
    "key.serializer": "the bytes of a line are sent as they are",
    "value.serializer": "the bytes of a line are sent as they are",
    "partitioner.class": "a Java class; librdkafka's own are chosen with partitioner",
}
"""Settings of Java's producer -> why they have no place here, or librdkafka's name."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "queue.buffering.max.ms": ("linger.ms",),
    "request.required.acks": ("acks",),
    "message.send.max.retries": ("retries",),
    "message.timeout.ms": ("delivery.timeout.ms",),
    "compression.codec": ("compression.type",),
    "max.in.flight.requests.per.connection": ("max.in.flight",),
}
"""librdkafka's errors name a setting by its first name, whatever it was given as."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """A client's settings; the class has the name that errors show."""


def separated(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of a client, and those that only librdkafka knows. Raises ``CommandFailed`` for one of no use to a command."""
    for name in given:
        if name in OBJECTS or name.endswith("_cb"):
            raise CommandFailed(f"{name} is no setting of a command line: it takes an object of a program")
        if name in REFUSED:
            raise CommandFailed(f"{name} cannot be set: {REFUSED[name]}")
        if name == "transactional.id":
            raise CommandFailed(f"{name}: ottla produce does not produce in transactions; leave it out")
    known = spellings(ConsumerConfig)  # what is a consumer's is refused as such
    ours = {name for name in given if name in known or dotted(name).startswith(SECURITY) or dotted(name) in MOVED}
    return {name: given[name] for name in given if name in ours}, {name: given[name] for name in given if name not in ours}


def as_given(message: str, settings: Mapping[str, str]) -> str:
    """An error of librdkafka about a setting, with the name that the user gave."""
    for name, others in ALIASES.items():
        given = next((other for other in others if other in settings), None)
        if given is not None:
            message = message.replace(f'"{name}"', f'"{given}"')
    return message


def of_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """A client's settings as librdkafka's. Raises ``ConfigError``, and ``CommandFailed`` for one that librdkafka cannot honour."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OttlaConfigWarning)  # the client that checks the connection warns as well
        config = ProducerConfig.parse(patient(settings))
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
    for field, (name, low, high) in PAUSES.items():
        if {f"{field}_ms", f"{field}_max_ms"} & given:  # librdkafka refuses a first one that is longer than the longest
            longest = max(low, min(getattr(config, f"{field}_max_ms"), high))
            found |= {f"{name}.max.ms": longest, f"{name}.ms": max(low, min(getattr(config, f"{field}_ms"), longest))}
    for field, name in NAMES.items():
        if (value := getattr(config, field)) is not None and _counts(config, field):
            found[name] = value
    return found | _tls(config) | _tokens(config)


def _counts(config: ClientConfig, field: str) -> bool:
    """Whether a setting has an effect; what ``sasl.jaas.config`` sets has one without being given itself."""
    if field.startswith("sasl_"):
        return config.uses_sasl
    return config.uses_tls if field.startswith("ssl_") else field in config.given


def _tls(config: ClientConfig) -> dict[str, Any]:
    if not config.uses_tls:
        return {}
    if "ssl_enabled_protocols" in config.given and len(config.ssl_enabled_protocols) == 1:
        only = config.ssl_enabled_protocols[0]
        raise CommandFailed(f"ssl.enabled.protocols={only}: ottla produce cannot restrict the versions of TLS; leave it out")
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
