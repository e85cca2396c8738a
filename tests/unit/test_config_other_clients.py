"""Each setting of another client is accepted, or refused with Ottla's name for it or the reason why it is not needed."""

from __future__ import annotations

import ctypes
import importlib.metadata
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import aiokafka
import kafka
import pytest

from ottla.config import AdminConfig, ConsumerConfig
from ottla.config.other_clients import LEFT_OUT, OTHER_CLIENTS, reason
from ottla.config.spelling import spellings, table
from ottla.errors import ConfigError

KNOWN = spellings(ConsumerConfig)

OF_A_KIND = {
    "sasl.kerberos.domain.name",
    "sasl.kerberos.keytab",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.name",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.grant.type",
    "sasl.oauthbearer.metadata.authentication.type",
    "sasl.oauthbearer.sub.claim.name",
}
"""Settings that share one answer with others of their kind: Kerberos, and OAuth grants other than client credentials."""


def settings_of_librdkafka(page: Path) -> set[str]:
    """The settings of the librdkafka in the installed confluent-kafka, in the format of its CONFIGURATION.md."""
    files = importlib.metadata.files("confluent-kafka") or []
    library = next(str(file.locate()) for file in files if re.match(r"librdkafka\b", file.name))
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(str(page).encode(), b"w"))
    ctypes.CDLL(library).rd_kafka_conf_properties_show(stream)
    libc.fclose(stream)
    names = set(re.findall(r"^([a-z][\w.]+) +\| +[*CP] +\|", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"bootstrap.servers", "enable.auto.offset.store", "linger.ms"} <= names
    return names


def settings_of_kafka_python() -> set[str]:
    return {*kafka.KafkaConsumer.DEFAULT_CONFIG, *kafka.KafkaAdminClient.DEFAULT_CONFIG}


def settings_of_aiokafka() -> set[str]:
    parameters = {*inspect.signature(aiokafka.AIOKafkaConsumer).parameters}
    assert {"bootstrap_servers", "sasl_plain_username"} <= parameters
    return parameters


def with_dots(*names: Iterable[str]) -> set[str]:
    return {name.replace("_", ".") for some in names for name in some}


def test_every_setting_of_another_client_is_accepted_or_explained(tmp_path: Path) -> None:
    names = settings_of_librdkafka(tmp_path / "page") | settings_of_kafka_python() | settings_of_aiokafka()
    answered = with_dots(KNOWN, OTHER_CLIENTS, LEFT_OUT, OF_A_KIND)
    assert sorted(name for name in names if not with_dots([name]) & answered) == []


def test_every_row_of_the_table_has_an_answer() -> None:
    assert sorted(with_dots(OTHER_CLIENTS) & with_dots(KNOWN, LEFT_OUT)) == []
    assert len(with_dots(OTHER_CLIENTS)) == len(OTHER_CLIENTS)
    assert sorted({answer.setting for answer in OTHER_CLIENTS.values() if answer.setting} - table(ConsumerConfig).keys()) == []
    assert [name for name, answer in OTHER_CLIENTS.items() if not answer.setting and not answer.why] == []
    assert all(reason(name) for name in OF_A_KIND)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("ssl_cafile", "ssl_cafile is called ssl_truststore_location here"),
        ("sasl_plain_username", "sasl_plain_username is called sasl_username here"),
        ("fetch.wait.max.ms", "fetch.wait.max.ms is called fetch.max.wait.ms here"),
        ("autocommit.enable", "autocommit.enable is called enable.auto.commit here"),
        ("fetch_wait_max_ms", "fetch_wait_max_ms is called fetch_max_wait_ms here"),
        ("ssl_check_hostname", "is called ssl_endpoint_identification_algorithm here .an empty string disables the check."),
        ("enable.auto.offset.store", "automatic commits cover only what previous polls returned"),
        ("api_version", "does not need: Ottla asks each broker which versions it supports .leave it out."),
        ("num.consumer.fetchers", "does not need: the network thread fetches from all brokers at once .leave it out."),
        ("mirror.consumer.numthreads", r"the number of threads goes to streams\(\)"),
        ("error_cb", "errors are raised by the call that waits"),
        ("linger.ms", "linger.ms is a setting of another client that Ottla does not have .it is for producers"),
        ("ssl_crlfile", "does not have .pass your own ssl.SSLContext as ssl_context.$"),
        ("config", r"Consumer\(settings\)"),
        ("brokers", "brokers is called bootstrap_servers here"),
        ("topic", r"consumer.subscribe\(\[topic\]\)"),
        ("schema.registry.url", "value_deserializer is a callable that takes bytes"),
        ("loop", "event loop"),
    ],
)
def test_a_setting_of_another_client_raises_with_the_alternative(spelling: str, message: str) -> None:
    for config in (ConsumerConfig, AdminConfig):
        with pytest.raises(ConfigError, match=message):
            config.parse({"bootstrap.servers": "localhost:1", spelling: "x"})


def test_topics_instead_of_settings_raise() -> None:
    with pytest.raises(ConfigError, match=r"not 'orders'.*topics go to subscribe\(\)"):
        ConsumerConfig.parse("orders", bootstrap_servers="localhost:1")  # type: ignore[arg-type]
