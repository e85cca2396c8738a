"""The table of settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS, broker_config, topic_config
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
    ],
)
def test_a_bad_value_is_refused_and_named(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        broker_config(settings)


def test_a_topic_takes_from_the_broker_what_it_does_not_set() -> None:
    broker = broker_config({"log.retention.ms": 5, "message.max.bytes": 77, "log.roll.ms": 9})
    config = topic_config({"retention.ms": "6"}, broker)
    assert (config.retention_ms, config.max_message_bytes, config.segment_ms) == (6, 77, 9)


def test_what_is_not_honoured_is_refused() -> None:
    with pytest.raises(ConfigError, match="cleanup"):
        topic_config({"cleanup.policy": "compact"}, broker_config({}))


def test_every_topic_setting_that_names_a_broker_setting_has_the_same_default() -> None:
    for _, setting in TOPIC_SETTINGS.values():
        if setting.broker_name is not None:
            assert BROKER_SETTINGS[setting.broker_name][1].default == setting.default, setting.name


def test_the_documentation_lists_what_is_honoured() -> None:
    text = (Path(__file__).parents[3] / "docs" / "broker.md").read_text()
    listed = re.findall(r"^\| `([a-z.]+)` \|", text, re.MULTILINE)
    assert listed == [*BROKER_SETTINGS, *TOPIC_SETTINGS]
