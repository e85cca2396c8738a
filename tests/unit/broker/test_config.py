"""The table of settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.assignors import GroupSpec
from ottla.broker.config import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, broker_config, topic_config
from ottla.broker.group_coordinator_service import configured_assignors
from ottla.errors import ConfigError


def test_values_may_be_text_or_what_they_are() -> None:
    config = broker_config({"num.partitions": "3", "auto.create.topics.enable": "False", "log.retention.ms": -1})
    assert (config.num_partitions, config.auto_create_topics_enable, config.log_retention_ms) == (3, False, -1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.partition", "did you mean num.partitions?"),
        ("segment.bytes", "the broker's default for it is log.segment.bytes"),
        ("flush.messages", "the broker's default for it is log.flush.interval.messages"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint.replace("?", r"\?")):
        broker_config({name: 1})


@pytest.mark.parametrize(
    "settings",
    [
        {"num.partitions": 0},
        {"num.partitions": "many"},
        {"num.partitions": None},
        {"auto.create.topics.enable": "yes"},
        {"log.segment.bytes": 1024},
        {"log.message.timestamp.type": "Now"},
        {"log.message.timestamp.type": "createtime"},
        {"group.consumer.migration.policy": "both"},
    ],
)
def test_a_bad_value_is_refused_and_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        broker_config(settings)


@pytest.mark.parametrize("policy", ["BIDIRECTIONAL", "Upgrade", " downgrade "])
def test_the_migration_policy_may_be_written_in_capitals(policy: str) -> None:
    config = broker_config({"group.consumer.migration.policy": policy})
    assert config.group_consumer_migration_policy == policy.strip().lower()


def test_a_topic_takes_from_the_broker_what_it_does_not_set() -> None:
    broker = broker_config(
        {"log.retention.ms": 5, "message.max.bytes": 77, "log.flush.interval.ms": 8, "log.roll.ms": 9, "log.roll.jitter.ms": 3}
    )
    config = topic_config({"retention.ms": "6"}, broker)
    assert (config.retention_ms, config.max_message_bytes) == (6, 77)
    assert (config.flush_ms, config.segment_ms, config.segment_jitter_ms) == (8, 9, 3)


@pytest.mark.parametrize(
    "overrides",
    [
        {"cleanup.policy": "shred"},
        {"cleanup.policy": "delete,shred"},
        {"remote.storage.enable": "true"},
        {"min.cleanable.dirty.ratio": "1.5"},
        {"min.cleanable.dirty.ratio": "nan"},
        {"compression.type": "brotli"},
        {"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 5},
    ],
)
def test_what_is_not_honoured_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(overrides))):
        topic_config(overrides, broker_config({}))


@pytest.mark.parametrize(
    ("policy", "compacted", "expiring"),
    [("delete", False, True), (" compact , delete ", True, True), ("compact,compact", True, False), ("", False, False)],
)
def test_a_cleanup_policy_is_a_list(policy: str, compacted: bool, expiring: bool) -> None:
    config = topic_config({"cleanup.policy": policy}, broker_config({}))
    assert (config.compacted, config.expiring) == (compacted, expiring)


def test_every_topic_setting_that_names_a_broker_setting_has_the_same_default() -> None:
    for _, setting in [*TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values()]:
        if setting.broker_name is not None:
            assert BROKER_SETTINGS[setting.broker_name][1].default == setting.default, setting.name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group.consumer.session.timeout.ms": 500}, "does not lie between 1000 and 60000"),
        ({"group.consumer.session.timeout.ms": 90_000}, "does not lie between 1000 and 60000"),
        ({"group.consumer.heartbeat.interval.ms": 50}, "does not lie between 100 and 15000"),
        (
            {"group.consumer.heartbeat.interval.ms": 6_000, "group.consumer.session.timeout.ms": 6_000},
            "heartbeat.interval.ms=6000 must be less than",
        ),
    ],
)
def test_times_of_consumer_groups_must_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        broker_config(settings)


def test_the_assignors_of_consumer_groups() -> None:
    def own(group: GroupSpec) -> dict[str, dict[UUID, tuple[int, ...]]]:
        return {}

    assert list(configured_assignors(broker_config({}), {})) == ["uniform", "range"]
    assert list(configured_assignors(broker_config({}), {"own": own})) == ["uniform", "range", "own"]
    chosen = broker_config({"group.consumer.assignors": "own, range"})
    assert list(configured_assignors(chosen, {"own": own})) == ["own", "range"]
    for names in ("own,sticky", "", " , "):
        with pytest.raises(ConfigError, match=r"group\.consumer\.assignors="):
            configured_assignors(broker_config({"group.consumer.assignors": names}), {})


def test_the_documentation_lists_what_is_honoured() -> None:
    text = (Path(__file__).parents[3] / "docs" / "broker.md").read_text()
    listed = re.findall(r"^\| `([a-z0-9.]+)` \|", text, re.MULTILINE)
    assert listed == [*BROKER_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS]
    for _, setting in [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values()]:
        (row,) = re.findall(rf"^\| `{re.escape(setting.name)}` \| [^|]* \| {re.escape(setting.doc)}(.*) \|$", text, re.MULTILINE)[
            -1:
        ]
        assert (f"No effect: {setting.no_effect}." in row) is bool(setting.no_effect), setting.name
