"""The settings of TLS and SASL: accepted forms, errors and warnings; no text shows a secret."""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest

from ottla import OttlaConfigWarning
from ottla.config import AdminConfig, ConsumerConfig
from ottla.errors import ConfigError

SECRET = "hunter2"
PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": SECRET}
JAAS = "org.apache.kafka.common.security"


def parse(settings: dict[str, Any] | None = None, /, **keywords: Any) -> ConsumerConfig:
    return ConsumerConfig.parse({"bootstrap.servers": "kafka:9092", **(settings or {})}, **keywords)


def test_an_admin_has_the_same_settings() -> None:
    assert AdminConfig.parse({"bootstrap.servers": "kafka:9092", **LOGIN}).sasl_username == "alice"


@pytest.mark.parametrize(
    ("line", "username", "password"),
    [
        (f'{JAAS}.plain.PlainLoginModule required username="alice" password="{SECRET}";', "alice", SECRET),
        (f"  {JAAS}.plain.PlainLoginModule  required\n username='alice'\n password='{SECRET}' ; ", "alice", SECRET),
        (f'PlainLoginModule required username=alice password="a\\"b;c=d";', "alice", 'a"b;c=d'),  # noqa: F541
        (f'{JAAS}.plain.PlainLoginModule required password="{SECRET}" username="alice" serviceName="kafka"', "alice", SECRET),
    ],
)
def test_a_jaas_line_with_a_password(line: str, username: str, password: str) -> None:
    config = parse({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": line})
    assert (config.sasl_username, config.sasl_password) == (username, password)


def test_a_jaas_line_for_tokens() -> None:
    client = f'clientId="billing" clientSecret="{SECRET}" scope="kafka"'
    line = f'{JAAS}.oauthbearer.OAuthBearerLoginModule required {client} extension_logicalCluster="lkc-1";'
    url = "https://login.example/token"
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": line}
    config = parse({**settings, "sasl.oauthbearer.token.endpoint.url": url})
    assert config.sasl_oauthbearer_client_credentials_client_id == "billing"
    assert config.sasl_oauthbearer_client_credentials_client_secret == SECRET
    assert config.sasl_oauthbearer_scope == "kafka"
    assert config.sasl_oauthbearer_extensions == (("logicalCluster", "lkc-1"),)


def test_names_of_librdkafka() -> None:
    config = parse({**LOGIN, "ssl.ca.location": "ca.pem", "ssl.certificate.location": "c.pem", "ssl.key.location": "k.pem"})
    assert (config.ssl_truststore_location, config.ssl_keystore_location, config.ssl_key_location) == ("ca.pem", "c.pem", "k.pem")
    assert parse(security_protocol="SSL", ssl_ca_location=Path("ca.pem")).ssl_truststore_location == "ca.pem"


def test_values_of_java() -> None:
    config = parse(
        {
            "bootstrap.servers": "SASL_SSL://kafka:9092",
            **LOGIN,
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.3,TLSv1.2",
            "ssl.truststore.type": "pem",
            "ssl.cipher.suites": "A,B",
        }
    )
    assert config.ssl_endpoint_identification_algorithm == ""
    assert config.ssl_enabled_protocols == ("TLSv1.2", "TLSv1.3")
    assert config.ssl_cipher_suites == ("A", "B")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({**LOGIN, "sasl.mechanism": "GSSAPI"}, "Kerberos"),
        ({**LOGIN, "sasl.mechanism": "DIGEST-MD5"}, "PLAIN, SCRAM-SHA-256"),
        ({**LOGIN, "sasl.password": None}, "needs sasl.username and sasl.password"),
        ({**LOGIN, "sasl.mechanism": "OAUTHBEARER"}, "needs a source of tokens"),
        ({**LOGIN, "sasl.jaas.config": "PlainLoginModule required username=bob;"}, r"sasl\.username is given twice"),
        ({**LOGIN, "sasl.jaas.config": "PlainLoginModule"}, "expected a line such as"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": "ScramLoginModule required tokenauth=true;",
            },
            "does not support: tokenauth",
        ),
        ({**LOGIN, "sasl.oauthbearer.extensions": "logicalCluster"}, "name=value"),
        ({**LOGIN, "sasl.jaas.config": "Krb5LoginModule required a=b;"}, "names Krb5LoginModule"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "ScramLoginModule required username=a password=b;",
            },
            "but sasl.mechanism is PLAIN",
        ),
        ({**LOGIN, "ssl.truststore.location": "store.jks"}, "keytool -importkeystore"),
        ({**LOGIN, "ssl.keystore.location": "client.p12"}, "PEM"),
        ({**LOGIN, "ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
        ({**LOGIN, "ssl.truststore.certificates": "ca.pem"}, "PEM text"),
        ({**LOGIN, "ssl.truststore.certificates": PEM, "ssl.truststore.location": "ca.pem"}, "are given"),
        ({**LOGIN, "ssl.keystore.key": PEM}, "without its certificate"),
        ({**LOGIN, "ssl.enabled.protocols": "TLSv1.1"}, r"TLSv1\.2 or TLSv1\.3"),
        ({**LOGIN, "ssl.endpoint.identification.algorithm": "ldaps"}, "https"),
        ({**LOGIN, "ssl.context": ssl.create_default_context(), "ssl.truststore.location": "ca.pem"}, "ssl_context is given"),
        ({**LOGIN, "ssl.context": "default"}, "an ssl.SSLContext"),
        ({**LOGIN, "sasl.oauthbearer.token.endpoint.url": "login.example"}, "a URL"),
    ],
)
def test_settings_that_cannot_work_raise(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as raised:
        parse(settings)
    assert SECRET not in str(raised.value)


def test_two_sources_of_tokens_raise() -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": str}
    with pytest.raises(ConfigError, match="a token provider and a token endpoint"):
        parse({**settings, "sasl.oauthbearer.token.endpoint.url": "https://login.example"})


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({**LOGIN, "security.protocol": "SSL"}, "security.protocol=SSL ignores sasl.mechanism, sasl.password, sasl.username"),
        ({"ssl.truststore.location": "ca.pem"}, "security.protocol=PLAINTEXT ignores ssl.truststore.location"),
    ],
)
def test_settings_without_an_effect_warn_once(settings: dict[str, Any], ignored: str) -> None:
    with pytest.warns(OttlaConfigWarning) as caught:
        parse(settings)
    assert [str(warning.message) for warning in caught] == [ignored]


def test_no_secret_is_shown() -> None:
    config = parse({**LOGIN, "ssl.key.password": SECRET})
    assert "alice" in repr(config)
    assert SECRET not in repr(config)
    line = f'PlainLoginModule required username="alice" password="{SECRET}";'
    by_jaas = parse({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": line})
    assert SECRET not in repr(by_jaas)
    with pytest.raises(ConfigError) as raised:
        parse({**LOGIN, "sasl.password": [SECRET]})
    assert SECRET not in str(raised.value)


def test_valid_settings_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse({**LOGIN, "ssl.truststore.certificates": PEM})
