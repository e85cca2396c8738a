"""The settings of Kafka's own consumer that Ottla does not have, each with the reason.

Owns this list. Must not know the settings that Ottla has. Invariant: a setting has an effect, or is refused with a reason; none
is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

LEFT_OUT: Mapping[str, str] = {
    "config.providers": "read secrets with Python and pass the values",
    "enable.metrics.push": "metrics are not pushed to brokers (KIP-714): see consumer.metrics() and ottla.health",
    "interceptor.classes": "Java classes; wrap the calls of the consumer instead",
    "metric.reporters": "Java classes: see consumer.metrics() and ottla.health",
    "metrics.num.samples": "metrics are kept for two samples",
    "metrics.recording.level": "there is one level",
    "metrics.sample.window.ms": "a sample is 30 s",
    "security.providers": "Java classes; TLS is Python's ssl module",
    "ssl.engine.factory.class": "a Java class; give an ssl.SSLContext as ssl_context",
    "ssl.keymanager.algorithm": "Java's; TLS is Python's ssl module",
    "ssl.keystore.password": "PEM files have no password: ssl_key_password is the password of the key",
    "ssl.protocol": "the newest of ssl_enabled_protocols that both sides support is used",
    "ssl.provider": "Java's; TLS is Python's ssl module",
    "ssl.secure.random.implementation": "Java's; TLS is Python's ssl module",
    "ssl.trustmanager.algorithm": "Java's; TLS is Python's ssl module",
    "ssl.truststore.password": "PEM files have none",
    "sasl.client.callback.handler.class": "a Java class",
    "sasl.login.callback.handler.class": "a Java class; a token comes from sasl_oauthbearer_token_provider",
    "sasl.login.class": "a Java class",
}

LEFT_OUT_BY_PREFIX: Mapping[str, str] = {
    "sasl.kerberos.": "Kerberos (GSSAPI) is not supported",
    "sasl.login.": "a token is renewed before its lifetime ends",
    "sasl.oauthbearer.": "tokens come from sasl_oauthbearer_token_provider or client credentials; brokers validate them",
}
"""All other settings with a prefix; the first matching prefix counts."""


def reason(name: str) -> str | None:
    """Why Ottla does not have a setting of Kafka, by its name with dots; ``None``: Kafka does not have it either."""
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    return next((why for prefix, why in LEFT_OUT_BY_PREFIX.items() if name.startswith(prefix)), None)
