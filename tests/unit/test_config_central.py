"""The settings of a consumer in a central group."""

from __future__ import annotations

from typing import Any

import pytest

from ottla import OttlaConfigWarning
from ottla.config import ConsumerConfig
from ottla.errors import ConfigError


def central(settings: dict[str, Any] | None = None, **keywords: Any) -> ConsumerConfig:
    return ConsumerConfig.parse(settings, **{"bootstrap_servers": "b:1", "group_id": "g", "group_protocol": "central", **keywords})


@pytest.mark.parametrize("spelled", ["central", " Central ", "CENTRAL"])
def test_the_protocol_and_its_defaults(spelled: str) -> None:
    config = central(group_protocol=spelled)
    assert config.group_protocol == "central"
    assert config.partition_assignment_strategy == ("range",)
    assert (config.session_timeout_ms, config.enable_auto_commit, config.auto_commit_interval_ms) == (45_000, True, 5_000)
    assert config.poll_interval("central") == config.max_poll_interval_ms
    assert not config.means_classic


def test_a_session_may_be_shorter_than_the_interval_of_heartbeats_that_are_not_sent() -> None:
    assert central(session_timeout=2).session_timeout_ms == 2_000


@pytest.mark.parametrize("strategy", ["sticky", "range,roundrobin", "cooperative-sticky"])
def test_assignors_that_it_does_not_have(strategy: str) -> None:
    with pytest.raises(ConfigError, match="in a central group expected one of range and roundrobin"):
        central(partition_assignment_strategy=strategy)
    assert central(partition_assignment_strategy="roundrobin").partition_assignment_strategy == ("roundrobin",)


@pytest.mark.parametrize("name", ["a/b", "..", "with space", "coordinator", "groups"])
def test_names_that_are_no_nodes_of_groups(name: str) -> None:
    with pytest.raises(ConfigError, match=r"group\.id"):
        central(group_id=name)


@pytest.mark.parametrize("setting", ["group_instance_id", "group_remote_assignor", "zookeeper_connect", "offsets_storage"])
def test_settings_of_other_protocols_are_ignored_with_a_warning(setting: str) -> None:
    value = {"zookeeper_connect": "z:1", "offsets_storage": "kafka"}.get(setting, "x")
    with pytest.warns(OttlaConfigWarning, match=f"group.protocol=central ignores {setting.replace('_', '.')}"):
        central({setting: value})


def test_the_id_of_a_member_may_be_chosen(recwarn: pytest.WarningsRecorder) -> None:
    assert central({"consumer.id": "c1"}).consumer_id == "c1"
    assert not recwarn.list


def test_brokers_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ConsumerConfig.parse(group_id="g", group_protocol="central")


def test_names_of_kafka_0_8_are_not_accepted() -> None:
    with pytest.raises(ConfigError, match=r"auto\.commit\.enable"):
        central({"auto.commit.enable": "true"})
