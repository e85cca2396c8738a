"""All kinds of connections to a real Apache Kafka: TLS, each SASL mechanism, and the renewal of logins."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import uuid
from contextlib import suppress
from typing import Any

import confluent_kafka
import pytest

from ottla import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from ottla.errors import (
    AuthenticationError,
    ClusterAuthorizationFailedError,
    OttlaError,
    TlsError,
    TopicAuthorizationFailedError,
)
from ottla.runtime import sockets
from ottla.runtime.sockets import Sockets
from tests.secure.kafka import LATECOMER, LIFETIME, PASSWORD, READER, STRANGER, USER, Secured
from tests.secure.tokens import unsecured_token

pytestmark = pytest.mark.interop

COUNT = 50


@pytest.fixture(scope="module")
def topic(secured: Secured) -> str:
    """A topic with ``COUNT`` records."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=secured.addresses["PLAINTEXT"]) as admin:
        admin.create_topics({name: 1})
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.addresses["PLAINTEXT"], "log_level": 0})
    for number in range(COUNT):
        producer.produce(name, str(number))
    assert producer.flush(60) == 0
    return name


def login(mechanism: str, **more: Any) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD, **more}


def ways(secured: Secured) -> dict[str, tuple[str, dict[str, Any]]]:
    """For each name, the listener and the settings."""
    authority = secured.authority
    client = authority.issue("client")
    locked = authority.issue("locked", password="open sesame")
    locked_key, locked_chain = locked.read_text().split("-----END ENCRYPTED PRIVATE KEY-----\n")
    trusted = {"ssl_truststore_location": authority.file}
    context = ssl.create_default_context(cadata=authority.pem)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        "tls": ("TLS", {"security_protocol": "SSL", **trusted}),
        "tls, the CA as text": ("TLS", {"security.protocol": "SSL", "ssl.truststore.certificates": authority.pem}),
        "tls, a context of one's own": ("TLS", {"security_protocol": "SSL", "ssl_context": context}),
        "tls, the name does not matter": (
            "ELSEWHERE",
            {"security_protocol": "SSL", "ssl.endpoint.identification.algorithm": "", **trusted},
        ),
        "tls 1.2": ("TLS", {"security_protocol": "SSL", "ssl_enabled_protocols": "TLSv1.2", **trusted}),
        "mutual tls": ("MUTUAL", {"security_protocol": "SSL", "ssl_keystore_location": client, **trusted}),
        "mutual tls, a locked key as text": (
            "MUTUAL",
            {
                "security_protocol": "SSL",
                "ssl_keystore_certificate_chain": locked_chain,
                "ssl_keystore_key": f"{locked_key}-----END ENCRYPTED PRIVATE KEY-----\n",
                "ssl_key_password": "open sesame",
                **trusted,
            },
        ),
        "PLAIN": ("LOGIN", {"security_protocol": "SASL_PLAINTEXT", **login("PLAIN")}),
        "SCRAM-SHA-256": ("LOGIN", {"security_protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-256")}),
        "SCRAM-SHA-512 over tls": ("LOGINTLS", {"security_protocol": "SASL_SSL", **login("SCRAM-SHA-512"), **trusted}),
        "PLAIN over tls, the names of librdkafka": (
            "LOGINTLS",
            {
                "security.protocol": "sasl_ssl",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
                "ssl.ca.location": str(authority.file),
            },
        ),
        "SCRAM by a line of JAAS": (
            "LOGIN",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f'{scram} username="{USER}" password="{PASSWORD}";',
            },
        ),
        "OAUTHBEARER": (
            "TOKEN",
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_provider": lambda: unsecured_token(USER),
            },
        ),
    }


WAYS = [
    "tls",
    "tls, the CA as text",
    "tls, a context of one's own",
    "tls, the name does not matter",
    "tls 1.2",
    "mutual tls",
    "mutual tls, a locked key as text",
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512 over tls",
    "PLAIN over tls, the names of librdkafka",
    "SCRAM by a line of JAAS",
    "OAUTHBEARER",
]


@pytest.mark.parametrize("way", WAYS)
def test_a_group_reads_all_records(secured: Secured, topic: str, way: str) -> None:
    listener, settings = ways(secured)[way]
    config = {"bootstrap_servers": secured.addresses[listener], "group_id": f"g-{uuid.uuid4().hex[:8]}", **settings}
    with Consumer(config, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        values: list[bytes | None] = []
        give_up_at = time.monotonic() + 60
        while len(values) < COUNT and time.monotonic() < give_up_at:
            values += [record.value for record in consumer.poll(1.0)]
        consumer.commit()
    assert values == [str(number).encode() for number in range(COUNT)]


def new_topic(secured: Secured) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=secured.addresses["PLAINTEXT"]) as admin:
        admin.create_topics({name: 1})
    return name


def stored(secured: Secured, topic: str) -> list[bytes | None]:
    tp = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    with Consumer(bootstrap_servers=secured.addresses["PLAINTEXT"], auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            found += [record.value for record in consumer.poll(1.0)]
    return found


async def _write(config: dict[str, Any], topic: str, values: list[bytes]) -> None:
    async with AsyncProducer(config) as producer:
        for value in values:
            await producer.send(topic, value)


@pytest.mark.parametrize("way", WAYS)
def test_producers_write_all_records(secured: Secured, way: str) -> None:
    listener, settings = ways(secured)[way]
    topic, values = new_topic(secured), [b"%d" % number for number in range(COUNT)]
    config = {"bootstrap_servers": secured.addresses[listener], **settings}
    with Producer(config) as producer:
        producer.send_many(topic, values)
    asyncio.run(_write(config, topic, values))
    assert stored(secured, topic) == [*values, *values]


@pytest.mark.parametrize(
    ("listener", "settings", "error", "text"),
    [
        ("LOGIN", login("PLAIN", sasl_password="wrong"), AuthenticationError, "login was refused"),
        ("LOGIN", login("SCRAM-SHA-512", sasl_password="wrong"), AuthenticationError, "login was refused"),
        ("LOGIN", login("PLAIN", sasl_username=STRANGER), TopicAuthorizationFailedError, "WRITE"),
        ("LOGIN", login("PLAIN", sasl_username=READER), ClusterAuthorizationFailedError, "enable_idempotence=False"),
        (
            "LOGIN",
            {**login("PLAIN", sasl_username=READER), "enable_idempotence": False},
            TopicAuthorizationFailedError,
            "WRITE",
        ),
        ("EXPIRED", {}, TlsError, "the broker's certificate has expired"),
        ("ELSEWHERE", {}, TlsError, "is not for 127.0.0.1"),
    ],
)
def test_a_producer_that_is_refused_says_why(
    secured: Secured, listener: str, settings: dict[str, Any], error: type[OttlaError], text: str
) -> None:
    topic = new_topic(secured)
    protocol = "SASL_PLAINTEXT" if settings else "SSL"
    trusted = {} if settings else {"ssl_truststore_location": secured.authority.file}
    config = {"bootstrap_servers": secured.addresses[listener], "security_protocol": protocol, **settings, **trusted}
    began = time.monotonic()
    with Producer(config, max_block=30) as producer, pytest.raises(error, match=text):
        producer.send(topic, b"").result(30)
    assert time.monotonic() - began < 25, "at once, not at the timeout"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_producer_goes_on_when_its_login_expires(secured: Secured, mechanism: str) -> None:
    topic = new_topic(secured)
    config = {"bootstrap_servers": secured.addresses["SHORT"], "security_protocol": "SASL_PLAINTEXT", **login(mechanism)}
    sent = 0
    with Producer(config) as producer:
        until = time.monotonic() + 2.5 * LIFETIME / 1000
        while time.monotonic() < until:
            producer.send(topic, b"%d" % sent).result(60)
            sent += 1
            time.sleep(0.02)
    assert stored(secured, topic) == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("way", ["SCRAM-SHA-512 over tls", "OAUTHBEARER", "mutual tls"])
def test_an_admin_connects_with_the_same_settings(secured: Secured, topic: str, way: str) -> None:
    listener, settings = ways(secured)[way]
    with Admin({"bootstrap_servers": secured.addresses[listener], **settings}) as admin:
        assert topic in admin.list_topics()


@pytest.mark.parametrize(
    "settings",
    [
        login("SCRAM-SHA-256"),
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": lambda: unsecured_token(USER)},
    ],
    ids=lambda settings: settings["sasl_mechanism"],
)
def test_a_login_is_renewed_on_the_same_connection(
    secured: Secured, topic: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[float] = []
    connect = Sockets.connect

    def noted(self: Sockets, *more: Any) -> None:
        connected.append(time.monotonic())
        connect(self, *more)

    monkeypatch.setattr(Sockets, "connect", noted)
    config = {"bootstrap_servers": secured.addresses["SHORT"], "security_protocol": "SASL_PLAINTEXT", **settings}
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.poll(1.0)
        give_up_at = time.monotonic() + 60
        # A broker closes a connection on the first request after the end of its login, so a connection without a renewal never gets
        # twice as old as a login. If a busy machine renews it too late, the client opens a new one, whose age starts at zero.
        while time.monotonic() - connected[-1] < 2.2 * LIFETIME / 1000:
            assert time.monotonic() < give_up_at, f"{len(connected)} connections"
            consumer.seek(TopicPartition(topic, 0), 0)
            got = 0
            while not got and time.monotonic() < give_up_at:
                got = len(consumer.poll(0.2))
            assert got


def test_much_data_over_tls_in_small_portions(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "READ_BUDGET", 100_000)
    name, count, size = f"t-{uuid.uuid4().hex[:8]}", 1_500, 8_000
    with Admin(bootstrap_servers=secured.addresses["PLAINTEXT"]) as admin:
        admin.create_topics({name: 1})
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.addresses["PLAINTEXT"], "log_level": 0})
    for number in range(count):
        producer.produce(name, number.to_bytes(4, "big") * (size // 4))
    assert producer.flush(60) == 0
    config = {"bootstrap_servers": secured.addresses["TLS"], "security_protocol": "SSL"}
    with Consumer(config, ssl_truststore_location=secured.authority.file, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(name, 0)])
        seen = 0
        give_up_at = time.monotonic() + 60
        while seen < count and time.monotonic() < give_up_at:
            for record in consumer.poll(1.0):
                assert record.value == seen.to_bytes(4, "big") * (size // 4)
                seen += 1
    assert seen == count


def test_polls_succeed_once_the_password_is_right(secured: Secured, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla")
    settings = {**login("SCRAM-SHA-256"), "sasl_username": LATECOMER, "security_protocol": "SASL_PLAINTEXT"}
    config = {"bootstrap_servers": secured.addresses["LOGIN"], **settings}
    with Consumer(config, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(5):
            with pytest.raises(AuthenticationError):
                _poll_for(consumer, 10)
        complaints = [message for message in caplog.messages if "login was refused" in message]
        assert len(complaints) == 1, "logged once, however often it is tried"
        secured.let_in(LATECOMER)
        give_up_at = time.monotonic() + 60
        got = 0
        while not got and time.monotonic() < give_up_at:
            with suppress(AuthenticationError):
                got = len(consumer.poll(0.5))
    assert got
    assert [message for message in caplog.messages if "answers again" in message]


def _poll_for(consumer: Consumer, seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        consumer.poll(0.5)


async def _read(config: dict[str, Any], topic: str) -> int:
    async with AsyncConsumer(config, auto_offset_reset="earliest") as consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        give_up_at = time.monotonic() + 60
        while seen < COUNT and time.monotonic() < give_up_at:
            seen += len(await consumer.poll(1.0))
        return seen


def test_an_async_consumer_connects_with_the_same_settings(secured: Secured, topic: str) -> None:
    listener, settings = ways(secured)["SCRAM-SHA-512 over tls"]
    assert asyncio.run(_read({"bootstrap_servers": secured.addresses[listener], **settings}, topic)) == COUNT
