"""The options ``kafka.*``: settings of the client.

Owns which of them are refused, which are ignored since they cannot change what is read, and their check when a table is loaded.
Must not do I/O, nor know Spark. Invariant: what passes the check is accepted by the clients of planner and tasks alike.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

from ottla.errors import ConfigError, OttlaError

log = logging.getLogger(__name__)

E = TypeVar("E", bound=OttlaError)

CLIENT_PREFIX = "kafka."
"""The prefix of these options; Kafka's own name of the setting follows."""

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"

DECODE_HINT = "keys and values are bytes: decode the columns in the query"

FORBIDDEN = {
    "auto.offset.reset": "use startingOffsets; Spark itself stores where to begin",
    "key.deserializer": DECODE_HINT,
    "value.deserializer": DECODE_HINT,
    "enable.auto.commit": "set groupId to have each finished batch committed",
    "interceptor.classes": "Java classes cannot be used here",
}
"""Settings of the client that Spark's own connector refuses, too."""

IGNORED = frozenset(
    {
        # metrics of Kafka's Java clients
        "auto.include.jmx.reporter", "enable.metrics.push", "metrics.num.samples", "metrics.recording.level",
        "metrics.sample.window.ms",
        # when a login is renewed: Ottla does so before it expires
        "sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        # producers
        "acks", "batch.size", "buffer.memory", "compression.gzip.level", "compression.lz4.level", "compression.type",
        "compression.zstd.level", "delivery.timeout.ms", "enable.idempotence", "key.serializer", "linger.ms", "max.block.ms",
        "max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms", "partitioner.class",
        "partitioner.ignore.keys", "retries", "transaction.timeout.ms", "transaction.two.phase.commit.enable", "transactional.id",
        "value.serializer",
    }
)  # fmt: skip
"""Settings that configurations of Spark's connector have, often since one configuration serves sources and sinks, and that
cannot change which records are read."""

IGNORED_IF_EMPTY = frozenset({"config.providers", "metric.reporters", "security.providers"})
"""Lists of Java classes: refused, unless they are empty."""

PLANNER_SETTINGS = {"enable.auto.commit": "false", "auto.offset.reset": "none", "allow.auto.create.topics": "false"}
"""Settings of the planner's client, before the user's; tasks have these, too."""

_REQUEST_TIMEOUT, _API_TIMEOUT, _REQUEST_TIMEOUT_DEFAULT = "request.timeout.ms", "default.api.timeout.ms", 30_000


def without_ignored(settings: Mapping[str, str]) -> dict[str, str]:
    """``settings`` that have an effect; one log line names the others."""
    left = {
        name: value
        for name, value in settings.items()
        if name not in IGNORED and not (name in IGNORED_IF_EMPTY and not value.strip())
    }
    if ignored := sorted(settings.keys() - left.keys()):
        log.warning("ignored, since they have no effect on a source: %s", ", ".join(CLIENT_PREFIX + name for name in ignored))
    return left


def check_client_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of the client, with what follows from them. Raises ``ConfigError`` for a wrong name or value, in the names of
    the options."""
    for name, instead in FORBIDDEN.items():
        if name in settings:
            raise ConfigError(f"option kafka.{name} is not supported", hint=instead)
    from ottla.config import ConsumerConfig

    checked = {**settings, **_request_timeout(settings)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ConsumerConfig.parse({**PLANNER_SETTINGS, **checked})
        except ConfigError as error:
            named = _use_option_names(str(error.args[0]), checked)
            raise ConfigError(named, hint=_hint_with_option_names(error, checked)) from error.__cause__
    for warning in caught:
        log.warning("%s", _use_option_names(str(warning.message), checked))
    return checked


def _hint_with_option_names(error: ConfigError, given: Mapping[str, str]) -> str | None:
    if not error.hint:
        return None
    # A callable is no option of Spark's.
    return DECODE_HINT if "deserializer" in error.hint else _use_option_names(error.hint, given)


def _request_timeout(settings: Mapping[str, str]) -> dict[str, str]:
    """The time-out of a request, where only that of a whole call was given, and is shorter than a request's default."""
    call = settings.get(_API_TIMEOUT, "").strip()
    short = call.isascii() and call.isdigit() and 0 < int(call) < _REQUEST_TIMEOUT_DEFAULT
    return {_REQUEST_TIMEOUT: call} if short and _REQUEST_TIMEOUT not in settings else {}


def secrets_in(options: Mapping[str, str]) -> list[str]:
    """The options among ``options`` whose values must not be shown."""
    from ottla.config import ConsumerConfig
    from ottla.config.spelling import spellings, table

    rows, known = table(ConsumerConfig), spellings(ConsumerConfig)
    settings = {name: name.lower().removeprefix(CLIENT_PREFIX) for name in options if name.lower().startswith(CLIENT_PREFIX)}
    return sorted(name for name, setting in settings.items() if setting in known and rows[known[setting][0]].secret)


def with_option_names(error: E) -> E:
    """The error of a client, with a hint that names options instead of the client's settings."""
    if error.hint:
        error.hint = _use_option_names(error.hint, ())
    return error


def _use_option_names(text: str, given: Any) -> str:
    """``text`` with the names of settings as options: those of a client's, and of whatever was ``given``."""
    from ottla.config import ConsumerConfig
    from ottla.config.spelling import dotted, table

    fields = table(ConsumerConfig)
    names = {spelling: dotted(name) for name in fields for spelling in (name, dotted(name))} | {name: name for name in given}
    # Names of one word may be words of the sentence.
    known = sorted((name for name in names if "." in name or "_" in name), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, known))})(?![\w.]*\w)")
    return pattern.sub(lambda found: CLIENT_PREFIX + names[found[0]], text)
