"""Each setting of topics and of the broker is as in Apache Kafka: name, type, default, sources, and rejected values.

A setting that Kafka has and Ottla lacks fails here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Broker
from ottla.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    create_topics_request,
    describe_configs_request,
    incremental_alter_configs_request,
)
from tests.raw_client import RawClient

TOPIC, BROKER = 2, 4
STATIC = 4
SET = 0

VALUES = (
    *("", " ", "x", "none", "true", "TRUE", "false", "*", "0:1", "0:1, 2:3", "a:b", "0:1,*", "1.5", "0.5"),
    *("-9223372036854775809", "-131073", "-131072", "-3", "-2", "-1", "0", "1", "9", "10", "17", "18", "22", "23"),
    *("1048575", "1048576", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("compact", "delete , compact", "delete,delete", "LogAppendTime", "gzip", "zstd", "uncompressed"),
)

OF_ITS_OWN = {
    "group.consumer.client.assignors.enable",
    "group.consumer.regex.refresh.interval.ms",
    "zookeeper.connect",  # these three: Kafka until 3.9
    "zookeeper.connection.timeout.ms",
    "zookeeper.session.timeout.ms",
}
"""What Ottla's broker has and Kafka does not list."""

OTHER_DEFAULTS = {
    "group.consumer.assignment.interval.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.min.session.timeout.ms",
    "log.flush.interval.ms",  # Kafka's is log.flush.scheduler.interval.ms
    "log.retention.ms",  # Kafka's are hours
    "log.roll.jitter.ms",
    "log.roll.ms",
}
OF_THE_NODE = {"advertised.listeners", "node.id", "group.initial.rebalance.delay.ms"}
"""Settings that the started node gets in addition."""


@pytest.fixture(scope="module")
def kafka(real_kafka: str) -> Iterator[RawClient]:
    with RawClient(real_kafka) as client:
        yield client


@pytest.fixture(scope="module")
def ours() -> Iterator[RawClient]:
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def topic(kafka: RawClient, ours: RawClient) -> str:
    name = f"settings-{uuid.uuid4().hex}"
    for client in (kafka, ours):
        assert created(client, name) is ErrorCode.none
    return name


def created(client: RawClient, name: str, validate_only: bool = False, **configs: str) -> ErrorCode:
    wanted = create_topics_request.CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=tuple(create_topics_request.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
    )
    message = create_topics_request.CreateTopicsRequest(topics=(wanted,), validate_only=validate_only)
    code: ErrorCode = client.ask(Api.CREATE_TOPICS, message).topics[0].error_code
    return code


def described(client: RawClient, kind: int, name: str) -> dict[str, Any]:
    resource = describe_configs_request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    message = describe_configs_request.DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    (result,) = client.ask(Api.DESCRIBE_CONFIGS, message).results
    assert result.error_code is ErrorCode.none, result.error_message
    return {config.name: config for config in result.configs}


def altered(client: RawClient, topic: str, name: str, value: str) -> ErrorCode:
    setting = incremental_alter_configs_request.AlterableConfig(name=name, config_operation=SET, value=value)
    resource = incremental_alter_configs_request.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=(setting,))
    message = incremental_alter_configs_request.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=True)
    code: ErrorCode = client.ask(Api.INCREMENTAL_ALTER_CONFIGS, message).responses[0].error_code
    return code


def test_topics_have_every_setting_that_they_have_in_kafka(kafka: RawClient, ours: RawClient, topic: str) -> None:
    theirs, mine = described(kafka, TOPIC, topic), described(ours, TOPIC, topic)
    assert sorted(mine) == sorted(theirs)
    for name, setting in theirs.items():
        own = mine[name]
        found = (own.value, own.config_source, own.read_only, own.is_sensitive, own.config_type)
        assert found == (setting.value, setting.config_source, setting.read_only, setting.is_sensitive, setting.config_type), name
        if setting.synonyms and not TOPIC_SETTINGS[name][1].no_effect:
            assert own.synonyms == setting.synonyms, name


def test_what_the_broker_has_is_described_as_in_kafka(kafka: RawClient, ours: RawClient) -> None:
    theirs, mine = described(kafka, BROKER, "1"), described(ours, BROKER, "1")
    assert mine.keys() == BROKER_SETTINGS.keys()
    assert mine.keys() - theirs.keys() == OF_ITS_OWN
    for name in sorted(mine.keys() & theirs.keys()):
        own, setting = mine[name], theirs[name]
        assert (own.read_only, own.is_sensitive, own.config_type) == (
            setting.read_only,
            setting.is_sensitive,
            setting.config_type,
        ), name
        if setting.config_source != STATIC and name not in OTHER_DEFAULTS:
            assert (own.value, own.config_source, own.synonyms) == (setting.value, setting.config_source, setting.synonyms), name
        elif name not in OTHER_DEFAULTS | OF_THE_NODE:
            assert own.synonyms == setting.synonyms[-1:], name


def test_the_advertised_listeners_are_those_in_metadata_responses(kafka: RawClient, ours: RawClient) -> None:
    for client in (kafka, ours):
        listeners = described(client, BROKER, "1")["advertised.listeners"]
        assert listeners.value == "PLAINTEXT://{}:{}".format(*client.sock.getpeername())
        assert listeners.config_source == STATIC
        assert [(one.name, one.value, one.source) for one in listeners.synonyms] == [
            ("advertised.listeners", listeners.value, STATIC)
        ]


@pytest.mark.parametrize("name", [*TOPIC_SETTINGS, "no.such.setting", "message.format.version", "message.downconversion.enable"])
def test_values_of_a_topic_s_setting_are_taken_and_refused_as_in_kafka(
    kafka: RawClient, ours: RawClient, topic: str, name: str
) -> None:
    theirs = {value: altered(kafka, topic, name, value) for value in VALUES}
    assert {value: altered(ours, topic, name, value) for value in VALUES} == theirs
    assert set(theirs.values()) <= {ErrorCode.none, ErrorCode.invalid_config}
    for value in ("x", "-3", "1", "true"):
        new = f"new-{uuid.uuid4().hex}"
        assert created(ours, new, True, **{name: value}) is created(kafka, new, True, **{name: value}) is theirs[value]
