"""Each setting of another client is accepted, or refused with Ottla's name for it or the reason why it is not needed."""

from __future__ import annotations

import ctypes
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import aiokafka
import kafka
import pytest

from ottla.config import AdminConfig, ClientConfig, ConsumerConfig
from ottla.config.other_clients import LEFT_OUT, OTHER_CLIENTS, OTHERS_OF, reason
from ottla.config.producer import ProducerConfig
from ottla.config.spelling import spellings, table
from ottla.errors import ConfigError

CONFIGS: Mapping[str, type[ClientConfig]] = {"Consumer": ConsumerConfig, "Producer": ProducerConfig, "Admin": AdminConfig}

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


def settings_of_librdkafka(page: Path, kind: str) -> set[str]:
    """The settings of the librdkafka in the installed confluent-kafka, in the format of its CONFIGURATION.md.

    ``kind`` is C for consumers, P for producers.
    """
    files = importlib.metadata.files("confluent-kafka") or []
    library = next(str(file.locate()) for file in files if re.match(r"librdkafka\b", file.name))
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(str(page).encode(), b"w"))
    ctypes.CDLL(library).rd_kafka_conf_properties_show(stream)
    libc.fclose(stream)
    names = set(re.findall(rf"^([a-z][\w.]+) +\| +[*{kind}] +\|", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"bootstrap.servers", {"C": "enable.auto.offset.store", "P": "linger.ms"}[kind]} <= names
    return names


def settings_of_aiokafka(client: type[object]) -> set[str]:
    parameters = {*inspect.signature(client).parameters}
    assert {"bootstrap_servers", "sasl_plain_username"} <= parameters
    return parameters


def with_dots(*names: Iterable[str]) -> set[str]:
    return {name.replace("_", ".") for some in names for name in some}


@pytest.fixture(scope="module")
def of_others(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """The settings of other clients' consumers and producers."""
    page = tmp_path_factory.mktemp("librdkafka") / "page"
    of_admin = {*kafka.KafkaAdminClient.DEFAULT_CONFIG}
    consumers = settings_of_librdkafka(page, "C") | {*kafka.KafkaConsumer.DEFAULT_CONFIG} | of_admin
    producers = settings_of_librdkafka(page, "P") | {*kafka.KafkaProducer.DEFAULT_CONFIG}
    return {
        "Consumer": consumers | settings_of_aiokafka(aiokafka.AIOKafkaConsumer),
        "Producer": producers | settings_of_aiokafka(aiokafka.AIOKafkaProducer),
    }


@pytest.mark.parametrize("client", OTHERS_OF)
def test_every_setting_of_another_client_is_accepted_or_explained(client: str, of_others: Mapping[str, set[str]]) -> None:
    answered = with_dots(spellings(CONFIGS[client]), OTHER_CLIENTS, OTHERS_OF[client], LEFT_OUT, OF_A_KIND)
    assert sorted(name for name in of_others[client] if not with_dots([name]) & answered) == []


@pytest.mark.parametrize("client", CONFIGS)
def test_no_name_of_any_client_is_unknown(client: str, of_others: Mapping[str, set[str]]) -> None:
    names = set[str]().union(*of_others.values(), OTHER_CLIENTS, *OTHERS_OF.values(), *map(spellings, CONFIGS.values()))
    for name in sorted(names - spellings(CONFIGS[client]).keys()):
        with pytest.raises(ConfigError) as refused:
            CONFIGS[client].parse({"bootstrap.servers": "localhost:1", name: "x"})
        assert str(refused.value).startswith(f"{name} is "), str(refused.value)


@pytest.mark.parametrize("client", OTHERS_OF)
def test_every_row_of_the_tables_has_an_answer(client: str) -> None:
    config, own = CONFIGS[client], OTHERS_OF[client]
    answers = {**OTHER_CLIENTS, **own}
    assert sorted(with_dots(answers) & with_dots(spellings(config), LEFT_OUT)) == []
    assert len(with_dots(answers)) == len(OTHER_CLIENTS) + len(own)
    assert sorted({answer.setting for answer in answers.values() if answer.setting} - table(config).keys()) == []
    assert [name for name, answer in answers.items() if not answer.setting and not answer.why] == []
    assert all(reason(name) for name in OF_A_KIND)


def test_answers_for_all_clients_are_settings_of_an_admin_too() -> None:
    assert {answer.setting for answer in OTHER_CLIENTS.values() if answer.setting} <= table(AdminConfig).keys()


@pytest.mark.parametrize("client", CONFIGS)
@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("ssl_cafile", "ssl_cafile is called ssl_truststore_location here"),
        ("sasl_plain_username", "sasl_plain_username is called sasl_username here"),
        ("ssl_check_hostname", "is called ssl_endpoint_identification_algorithm here .an empty string disables the check."),
        ("api_version", "does not need: Ottla asks each broker which versions it supports .leave it out."),
        ("error_cb", "errors are raised by the call that waits"),
        ("ssl_crlfile", "does not have .pass your own ssl.SSLContext as ssl_context.$"),
        ("config", r"Consumer\(settings\)"),
        ("brokers", "brokers is called bootstrap_servers here"),
        ("loop", "event loop"),
        ("transaction.two.phase.commit.enable", "does not support: brokers do not allow it yet .KIP-939.; Transaction.prepare"),
        ("partitioner_class", "a Java class; partitioner is a callable"),
    ],
)
def test_a_setting_of_another_client_raises_with_the_alternative(client: str, spelling: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIGS[client].parse({"bootstrap.servers": "localhost:1", spelling: "x"})


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("fetch.wait.max.ms", "fetch.wait.max.ms is called fetch.max.wait.ms here"),
        ("autocommit.enable", "autocommit.enable is called enable.auto.commit here"),
        ("fetch_wait_max_ms", "fetch_wait_max_ms is called fetch_max_wait_ms here"),
        ("enable.auto.offset.store", "automatic commits cover only what previous polls returned"),
        ("num.consumer.fetchers", "does not need: the network thread fetches from all brokers at once .leave it out."),
        ("mirror.consumer.numthreads", r"the number of threads goes to streams\(\)"),
        ("message.max.bytes", "it bounds what a producer sends; for fetching see max_partition_fetch_bytes"),
        ("max.in.flight", "at most two fetches in flight"),
        ("topic", r"consumer.subscribe\(\[topic\]\)"),
        ("schema.registry.url", "value_deserializer is a callable that takes bytes"),
        ("linger.ms", "^linger.ms is a setting of Producer, not of Consumer$"),
        ("batch_size", "^batch_size is a setting of Producer, not of Consumer$"),
        (
            "queue.buffering.max.ms",
            "is for a producer, where it is called linger.ms: it is not a setting of Consumer .leave it out.$",
        ),
        ("dr_cb", "^dr_cb is for a producer: it is not a setting of Consumer .leave it out.$"),
    ],
)
def test_a_setting_of_another_clients_consumer_raises_with_the_alternative(spelling: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsumerConfig.parse({"bootstrap.servers": "localhost:1", spelling: "x"})


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("queue.buffering.max.ms", "^queue.buffering.max.ms is called linger.ms here$"),
        ("queue_buffering_max_ms", "^queue_buffering_max_ms is called linger_ms here$"),
        ("queue.buffering.max.kbytes", "is called buffer.memory here .in bytes.$"),
        ("message.timeout.ms", "is called delivery.timeout.ms here$"),
        ("message.send.max.retries", "is called retries here$"),
        ("request.required.acks", "is called acks here$"),
        ("compression.codec", "is called compression.type here$"),
        ("compression.level", "compression_gzip_level, compression_lz4_level, compression_zstd_level"),
        ("message.max.bytes", "is called max.request.size here$"),
        ("max_batch_size", "is called batch_size here$"),
        ("max.in.flight", "is called max.in.flight.requests.per.connection here$"),
        ("bootstrap_timeout_ms", "is called max_block_ms here"),
        ("on_delivery", r"does not have .producer.send\(topic, value, on_delivery=callback\).$"),
        ("sticky.partitioning.linger.ms", "does not need: records without a key .* .leave it out.$"),
        ("allow_auto_create_topics", "does not need: sending to a topic creates it"),
        ("queuing.strategy", r"does not need: the records of a partition are written in the order of send\(\)"),
        ("topic", r"producer.send\(topic, value\)"),
        ("schema.registry.url", "value_serializer is a callable that returns bytes"),
        ("group_id", "^group_id is a setting of Consumer, not of Producer$"),
        ("default.api.timeout.ms", "^default.api.timeout.ms is a setting of Consumer, not of Producer$"),
        ("fetch.wait.max.ms", "is for a consumer, where it is called fetch.max.wait.ms: it is not a setting of Producer"),
        ("enable.auto.offset.store", "^enable.auto.offset.store is for a consumer: it is not a setting of Producer"),
        ("metric.reporters", "does not support: Java classes"),
        ("enable.metrics.push", "does not support: metrics are not pushed"),
        ("interceptor.classes", "does not support: Java classes"),
        ("config.providers", "does not support: read secrets with Python"),
        ("transaction.two.phase.commit.enable", "does not support: brokers do not allow it yet"),
    ],
)
def test_a_setting_of_another_clients_producer_raises_with_the_alternative(spelling: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProducerConfig.parse({"bootstrap.servers": "localhost:1", spelling: "x"})


@pytest.mark.parametrize(("client", "method"), [("Consumer", "subscribe"), ("Producer", "send")])
def test_topics_instead_of_settings_raise(client: str, method: str) -> None:
    with pytest.raises(ConfigError, match=rf"not 'orders'.*topics go to {method}\(\)"):
        CONFIGS[client].parse("orders", bootstrap_servers="localhost:1")  # type: ignore[arg-type]


def test_only_an_error_imports_the_settings_of_a_producer() -> None:
    code = """
import sys, ottla
ottla.Consumer(bootstrap_servers="localhost:1", group_id="g").close()
assert "ottla.config.producer" not in sys.modules
try:
    ottla.Consumer(linger=1)
except ottla.OttlaError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "linger is a setting of Producer, not of Consumer\n"
