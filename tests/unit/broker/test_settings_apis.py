"""Settings described and altered: of topics and of the broker. The answers are those of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.catalog import Endpoint
from ottla.broker.stored_settings import StoredGroupConfigs
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    alter_configs_request,
    consumer_group_describe_request,
    consumer_group_heartbeat_request,
    describe_configs_request,
    incremental_alter_configs_request,
    list_config_resources_request,
)
from ottla.types import TopicPartition
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import create, produce
from tests.unit.broker.setting_requests import APPEND, BROKER, DELETE, GROUP, SET, SUBTRACT, TOPIC, change


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    create(core, "orders", 2)
    yield core
    core.close()


def replace(broker: CoreUnderTest, kind: int, name: str, **configs: str | None) -> Any:
    """One resource through AlterConfigs."""
    given = tuple(alter_configs_request.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items())
    resource = alter_configs_request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=given)
    message = alter_configs_request.AlterConfigsRequest(resources=(resource,), validate_only=False)
    return broker.ask(Api.ALTER_CONFIGS, message).responses[0]


def described(broker: CoreUnderTest, kind: int, name: str, *keys: str) -> dict[str, Any]:
    """What DescribeConfigs says, by name."""
    resource = describe_configs_request.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    message = describe_configs_request.DescribeConfigsRequest(
        resources=(resource,), include_synonyms=True, include_documentation=True
    )
    (result,) = broker.ask(Api.DESCRIBE_CONFIGS, message).results
    assert result.error_code is ErrorCode.none
    return {config.name: config for config in result.configs}


def places(config: Any) -> list[tuple[str, str, int]]:
    return [(one.name, one.value, one.source) for one in config.synonyms]


def test_a_change_holds_at_once_on_live_logs_and_after_a_restart(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1, retention_ms="5000")
    produce(broker, batch())
    log = next(iter(broker.core.catalog.logs))
    assert log.topic_partition == TopicPartition("orders", 0)
    assert change(broker, TOPIC, "orders", ("max.message.bytes", SET, "100"), ("retention.ms", DELETE, None)).error_code == 0
    assert (log.config.max_message_bytes, log.config.retention_ms) == (100, 604_800_000)
    broker.close()
    again = CoreUnderTest(tmp_path)
    assert next(iter(again.core.catalog.logs)).config.max_message_bytes == 100
    assert places(described(again, TOPIC, "orders", "max.message.bytes")["max.message.bytes"]) == [
        ("max.message.bytes", "100", 1),
        ("message.max.bytes", "1048588", 5),
    ]
    again.close()


def test_lists_are_added_to_and_taken_from(broker: CoreUnderTest) -> None:
    def policy_after(op: int, value: str) -> str:
        assert change(broker, TOPIC, "orders", ("cleanup.policy", op, value)).error_code is ErrorCode.none
        policy: str = described(broker, TOPIC, "orders", "cleanup.policy")["cleanup.policy"].value
        return policy

    assert policy_after(APPEND, "compact") == "delete,compact"
    assert policy_after(APPEND, "compact") == "delete,compact"
    assert policy_after(SUBTRACT, "delete") == "compact"
    assert policy_after(SET, "") == ""


@pytest.mark.parametrize(
    ("kind", "name", "op", "code"),
    [
        (TOPIC, "nowhere", ("retention.ms", SET, "1"), ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.invalid_request),
        (TOPIC, "orders", ("retention.ms", SET, None), ErrorCode.invalid_request),
        (TOPIC, "orders", ("retention.ms", SET, "soon"), ErrorCode.invalid_config),
        (TOPIC, "orders", ("retention.ms", SET, "-5"), ErrorCode.invalid_config),
        (TOPIC, "orders", ("retention.ms", APPEND, "5"), ErrorCode.invalid_config),
        (TOPIC, "orders", ("retention.ms", 9, "5"), ErrorCode.invalid_request),
        (TOPIC, "orders", ("no.such", SET, "5"), ErrorCode.invalid_config),
        (TOPIC, "orders", ("no.such", APPEND, "5"), ErrorCode.invalid_config),
        (TOPIC, "orders", ("no.such", DELETE, None), ErrorCode.none),
        (TOPIC, "orders", ("cleanup.policy", APPEND, "shred"), ErrorCode.invalid_config),
        (BROKER, "1", ("num.partitions", SET, "8"), ErrorCode.invalid_request),
        (BROKER, "2", ("log.retention.ms", SET, "8"), ErrorCode.invalid_request),
        (BROKER, "x", ("log.retention.ms", SET, "8"), ErrorCode.invalid_request),
        (BROKER, "1", ("log.retention.ms", SET, "x"), ErrorCode.invalid_request),
        (BROKER, "1", ("no.such", SET, "8"), ErrorCode.invalid_request),
        (BROKER, "1", ("min.insync.replicas", SET, "1"), ErrorCode.invalid_config),
        (BROKER, "1", ("min.insync.replicas", DELETE, None), ErrorCode.invalid_config),
        (BROKER, "", ("min.insync.replicas", DELETE, None), ErrorCode.invalid_config),
        (BROKER, "", ("min.insync.replicas", SET, "0"), ErrorCode.invalid_request),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "46000"), ErrorCode.invalid_request),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "600"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "61000"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "x"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.session.timeout.ms", APPEND, "46000"), ErrorCode.invalid_config),
        (GROUP, "g", ("share.session.timeout.ms", SET, "46000"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.heartbeat.interval.ms", DELETE, None), ErrorCode.none),
        (99, "x", ("log.retention.ms", SET, "8"), ErrorCode.invalid_request),
    ],
)
def test_what_cannot_be_changed_is_refused_and_nothing_changes(
    broker: CoreUnderTest, kind: int, name: str, op: tuple[str, int, str | None], code: ErrorCode
) -> None:
    before = (broker.core.catalog.topics.get("orders"), broker.core.catalog.settings)
    answer = change(broker, kind, name, op)
    assert answer.error_code is code
    assert bool(answer.error_message) == bool(code)
    if code:
        assert (broker.core.catalog.topics.get("orders"), broker.core.catalog.settings) == before


def test_a_setting_or_a_resource_named_twice_is_refused(broker: CoreUnderTest) -> None:
    twice = change(broker, TOPIC, "orders", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    assert (twice.error_code, twice.error_message) == (ErrorCode.invalid_request, "Error due to duplicate config keys")
    resource = incremental_alter_configs_request.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=())
    message = incremental_alter_configs_request.IncrementalAlterConfigsRequest(resources=(resource, resource), validate_only=False)
    answers = broker.ask(Api.INCREMENTAL_ALTER_CONFIGS, message).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.invalid_request] * 2


def test_only_validating_changes_nothing(broker: CoreUnderTest) -> None:
    assert change(broker, TOPIC, "orders", ("retention.ms", SET, "5"), validate_only=True).error_code is ErrorCode.none
    assert change(broker, BROKER, "1", ("log.retention.ms", SET, "5"), validate_only=True).error_code is ErrorCode.none
    assert described(broker, TOPIC, "orders", "retention.ms")["retention.ms"].value == "604800000"


def test_alter_configs_lets_all_other_settings_go(broker: CoreUnderTest) -> None:
    assert replace(broker, TOPIC, "orders", retention_ms="5", cleanup_policy="compact").error_code is ErrorCode.none
    assert replace(broker, TOPIC, "orders", retention_ms="6").error_code is ErrorCode.none
    found = described(broker, TOPIC, "orders", "retention.ms", "cleanup.policy")
    assert {name: config.value for name, config in found.items()} == {"retention.ms": "6", "cleanup.policy": "delete"}
    assert replace(broker, TOPIC, "orders", retention_ms=None).error_code is ErrorCode.invalid_request


def test_settings_of_the_broker_have_two_levels_and_reach_topics(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"log.retention.ms": 999})
    create(broker, "orders", 1)
    produce(broker, batch())
    assert change(broker, BROKER, "", ("log.retention.ms", SET, "888")).error_code is ErrorCode.none
    assert change(broker, BROKER, "1", ("log.retention.ms", SET, "777")).error_code is ErrorCode.none
    assert next(iter(broker.core.catalog.logs)).config.retention_ms == 777
    broker.close()
    broker = CoreUnderTest(tmp_path, **{"log.retention.ms": 999})
    assert broker.core.catalog.config.log_retention_ms == 777
    retention = described(broker, BROKER, "1", "log.retention.ms")["log.retention.ms"]
    assert places(retention) == [
        ("log.retention.ms", "777", 2),
        ("log.retention.ms", "888", 3),
        ("log.retention.ms", "999", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (retention.read_only, described(broker, BROKER, "1", "node.id")["node.id"].read_only) == (False, True)
    assert described(broker, TOPIC, "orders", "retention.ms")["retention.ms"].config_source == 2
    assert list(described(broker, BROKER, "")) == ["min.insync.replicas", "log.retention.ms"]
    assert change(broker, BROKER, "1", ("log.retention.ms", DELETE, None)).error_code is ErrorCode.none
    assert next(iter(broker.core.catalog.logs)).config.retention_ms == 888
    broker.close()


def test_a_cluster_is_born_with_one_setting_of_its_own(tmp_path: Path) -> None:
    """As Kafka's is: every topic shows it as set for the cluster, and it stays whatever else is set there."""
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1)
    of_topic = described(broker, TOPIC, "orders", "min.insync.replicas")["min.insync.replicas"]
    assert places(of_topic) == [("min.insync.replicas", "1", 3), ("min.insync.replicas", "1", 5)]
    assert places(described(broker, BROKER, "")["min.insync.replicas"]) == [("min.insync.replicas", "1", 3)]
    assert replace(broker, BROKER, "", log_retention_ms="5").error_code is ErrorCode.invalid_config
    assert replace(broker, BROKER, "", log_retention_ms="5", min_insync_replicas="1").error_code is ErrorCode.none
    broker.close()
    again = CoreUnderTest(tmp_path)
    assert list(described(again, BROKER, "")) == ["min.insync.replicas", "log.retention.ms"]
    again.close()


def test_resources_are_listed(broker: CoreUnderTest) -> None:
    def listed(*types: int, version: int = 1) -> Any:
        message = list_config_resources_request.ListConfigResourcesRequest(resource_types=types)
        answer = broker.ask(Api.LIST_CONFIG_RESOURCES, message, version=version)
        return answer.error_code, [(one.resource_type, one.resource_name) for one in answer.config_resources]

    assert listed() == (ErrorCode.none, [(TOPIC, "orders"), (BROKER, "1")])
    assert listed(TOPIC) == (ErrorCode.none, [(TOPIC, "orders")])
    assert change(broker, GROUP, "billing", ("consumer.session.timeout.ms", SET, "46000")).error_code is ErrorCode.none
    assert listed(GROUP) == (ErrorCode.none, [(GROUP, "billing")])
    assert listed(16) == (ErrorCode.none, [])
    assert listed(99) == (ErrorCode.unsupported_version, [])
    assert listed(version=0) == (ErrorCode.none, [])


def test_settings_of_a_group_are_kept_and_stay_within_the_brokers_bounds(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    assert change(broker, GROUP, "billing", ("consumer.session.timeout.ms", SET, "46000")).error_code is ErrorCode.none
    assert places(described(broker, GROUP, "billing")["consumer.session.timeout.ms"]) == [
        ("consumer.session.timeout.ms", "46000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    assert described(broker, GROUP, "unheard of")["consumer.session.timeout.ms"].value == "45000"
    broker.close()
    again = CoreUnderTest(tmp_path, **{"group.consumer.max.session.timeout.ms": 45_500})
    assert StoredGroupConfigs(lambda: again.core.catalog.settings, lambda: again.core.catalog.config).of_group("billing") == {
        "consumer.session.timeout.ms": 45_500
    }
    assert change(again, GROUP, "billing", ("consumer.session.timeout.ms", DELETE, None)).error_code is ErrorCode.none
    assert again.core.catalog.settings.groups == {}
    again.close()


INTERVAL, OF_GROUP = "group.consumer.assignment.interval.ms", "consumer.assignment.interval.ms"


def keeps_assignment(broker: CoreUnderTest, group: str) -> bool:
    """Whether a member that joins right after another one has to wait until there is an assignment for both."""
    for member in ("a", "b"):
        beat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=0,
            rebalance_timeout=timedelta(seconds=60),
            subscribed_topic_names=("orders",),
            topic_partitions=(),
        )
        assert broker.ask(Api.CONSUMER_GROUP_HEARTBEAT, beat).error_code is ErrorCode.none
    message = consumer_group_describe_request.ConsumerGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
    (found,) = broker.ask(Api.CONSUMER_GROUP_DESCRIBE, message).groups
    assert found.error_code is ErrorCode.none
    return bool(found.assignment_epoch < found.group_epoch)


def test_the_assignment_interval_of_all_groups_changes_at_once_and_outlasts_a_restart(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 2)
    assert not keeps_assignment(broker, "at first")
    assert change(broker, BROKER, "", (INTERVAL, SET, "3000")).error_code is ErrorCode.none
    assert keeps_assignment(broker, "of all brokers")
    assert change(broker, BROKER, "1", (INTERVAL, SET, "0")).error_code is ErrorCode.none
    assert not keeps_assignment(broker, "of this broker")
    assert change(broker, BROKER, "1", (INTERVAL, SET, "15001")).error_code is ErrorCode.invalid_request
    assert change(broker, BROKER, "1", (INTERVAL, SET, "-1")).error_code is ErrorCode.invalid_request
    assert change(broker, BROKER, "1", (INTERVAL, SET, "2000")).error_code is ErrorCode.none
    broker.close()
    broker = CoreUnderTest(tmp_path)
    assert keeps_assignment(broker, "after a restart")
    assert change(broker, GROUP, "of a group", (OF_GROUP, SET, "0")).error_code is ErrorCode.none
    assert not keeps_assignment(broker, "of a group")
    broker.close()


def test_the_assignment_interval_is_described_with_all_places_that_it_can_come_from(broker: CoreUnderTest) -> None:
    assert change(broker, BROKER, "", (INTERVAL, SET, "3000")).error_code is ErrorCode.none
    assert change(broker, BROKER, "1", (INTERVAL, SET, "2000")).error_code is ErrorCode.none
    of_broker = [(INTERVAL, "2000", 2), (INTERVAL, "3000", 3), (INTERVAL, "0", 5)]
    assert places(described(broker, BROKER, "1", INTERVAL)[INTERVAL]) == of_broker
    assert not described(broker, BROKER, "1", INTERVAL)[INTERVAL].read_only
    assert places(described(broker, BROKER, "", INTERVAL)[INTERVAL]) == [(INTERVAL, "3000", 3)]
    assert places(described(broker, GROUP, "g", OF_GROUP)[OF_GROUP]) == of_broker
    assert change(broker, GROUP, "g", (OF_GROUP, SET, "1500")).error_code is ErrorCode.none
    assert places(described(broker, GROUP, "g", OF_GROUP)[OF_GROUP]) == [(OF_GROUP, "1500", 8), *of_broker]
    for kind, name, key in ((GROUP, "g", OF_GROUP), (BROKER, "1", INTERVAL)):
        assert change(broker, kind, name, (key, DELETE, None)).error_code is ErrorCode.none
    assert places(described(broker, GROUP, "g", OF_GROUP)[OF_GROUP]) == of_broker[1:]


def test_a_setting_that_was_given_is_static_though_it_is_the_default(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"num.partitions": 1, "log.segment.bytes": "1073741824"})
    found = described(broker, BROKER, "1", "num.partitions", "log.segment.bytes", "log.roll.ms")
    assert {name: config.config_source for name, config in found.items()} == {
        "num.partitions": 4,
        "log.segment.bytes": 4,
        "log.roll.ms": 5,
    }
    assert places(found["num.partitions"]) == [("num.partitions", "1", 4), ("num.partitions", "1", 5)]
    broker.close()


@pytest.mark.parametrize(
    ("host", "listener"), [("broker.example", "PLAINTEXT://broker.example:9092"), ("::1", "PLAINTEXT://[::1]:9092")]
)
def test_the_advertised_listener_is_static_and_cannot_be_altered(broker: CoreUnderTest, host: str, listener: str) -> None:
    broker.core.catalog.endpoint = Endpoint(host, 9092)
    found = described(broker, BROKER, "1", "advertised.listeners")["advertised.listeners"]
    assert (found.value, found.config_source, found.read_only) == (listener, 4, True)
    assert places(found) == [("advertised.listeners", listener, 4)]
    refused = change(broker, BROKER, "1", ("advertised.listeners", SET, "PLAINTEXT://elsewhere:1"))
    assert refused.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("remote.storage.enable", "true", "there is no tiered storage"),
        ("leader.replication.throttled.replicas", "0:1,x", "a list of [partitionId]:[brokerId], which x is not"),
        ("compression.gzip.level", "0", "must lie between 1 and 9 or be -1"),
        ("compression.zstd.level", "23", "must lie between -131072 and 22"),
        ("segment.jitter.ms", "-1", "must lie between 0 and"),
        ("preallocate", "yes", "must be true or false"),
    ],
)
def test_a_bad_value_of_a_setting_without_effect_is_refused_all_the_same(
    broker: CoreUnderTest, name: str, value: str, reason: str
) -> None:
    refused = change(broker, TOPIC, "orders", (name, SET, value))
    assert refused.error_code is ErrorCode.invalid_config
    assert refused.error_message.startswith(f"Invalid value {value} for configuration {name}: ")
    assert reason in refused.error_message
    assert create(broker, "new", 1, **{name.replace(".", "_"): value}).error_code is ErrorCode.invalid_config


def test_throttled_replicas_are_a_list_that_can_be_added_to(broker: CoreUnderTest) -> None:
    name = "follower.replication.throttled.replicas"
    assert change(broker, TOPIC, "orders", (name, SET, "0:1")).error_code is ErrorCode.none
    assert change(broker, TOPIC, "orders", (name, APPEND, "1:1")).error_code is ErrorCode.none
    assert described(broker, TOPIC, "orders", name)[name].value == "0:1,1:1"
    assert change(broker, TOPIC, "orders", (name, SET, "*")).error_code is ErrorCode.none
