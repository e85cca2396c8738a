"""The settings of ``ottla produce``, and what librdkafka says to them."""

from __future__ import annotations

import confluent_kafka
import pytest

from ottla.cli.clients import with_default_timeouts
from ottla.cli.librdkafka_settings import BACKOFFS, RANGES, split_settings, to_librdkafka
from ottla.cli.output import CommandFailed
from ottla.config import AdminConfig
from ottla.config.spelling import dotted
from ottla.errors import ConfigError

QUIET = {"log_level": 0}
HERE = {"bootstrap.servers": "127.0.0.1:1"}
FIELDS = [*RANGES, *(f"{field}_{which}" for field in BACKOFFS for which in ("ms", "max_ms"))]


@pytest.mark.parametrize("field", FIELDS)
def test_librdkafka_takes_every_number_that_a_client_takes(field: str) -> None:
    given = {**HERE, dotted(field): str(2**31 - 1)}
    if field == "request_timeout_ms":
        given["default.api.timeout.ms"] = str(2**31 - 1)
    confluent_kafka.Producer({**QUIET, **to_librdkafka(given)})
    least = next(number for number in (-1, 0, 1) if _is_taken({**HERE, dotted(field): str(number)}))
    confluent_kafka.Producer({**QUIET, **to_librdkafka({**HERE, dotted(field): str(least)})})


def _is_taken(settings: dict[str, str]) -> bool:
    try:
        AdminConfig.parse(with_default_timeouts(settings))
    except ConfigError:
        return False
    return True


def test_of_two_pauses_that_contradict_each_other_the_longest_counts() -> None:
    """As in ``ExponentialBackoff``."""
    found = to_librdkafka({**HERE, "reconnect.backoff.ms": "20000", "retry.backoff.max.ms": "60"})
    assert (found["reconnect.backoff.ms"], found["reconnect.backoff.max.ms"]) == (1_000, 1_000)
    assert (found["retry.backoff.ms"], found["retry.backoff.max.ms"]) == (60, 60)
    assert "reconnect.backoff.ms" not in to_librdkafka(HERE)


@pytest.mark.parametrize(
    "name",
    [
        "error_cb",
        "stats_cb",
        "throttle_cb",
        "oauth_cb",
        "on_delivery",
        "logger",
        "default.topic.config",
        "delivery.report.only.error",
        "transactional.id",
    ],
)
def test_settings_with_python_objects_raise(name: str) -> None:
    with pytest.raises(CommandFailed, match=name):
        split_settings({**HERE, name: "x"})


def test_other_settings_of_librdkafka_stay_as_they_are() -> None:
    assert split_settings({**HERE, "linger.ms": "5", "acks": "all"}) == (HERE, {"linger.ms": "5", "acks": "all"})
