"""The options ``kafka.*``: settings of the client.

Owns the lists of forbidden settings and of those that are ignored because they cannot change which records are read, and the
validation of all others in ``load()``. Must not do I/O, nor know Spark. Invariant: the clients of planner and tasks accept all
settings that pass the validation.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ottla.errors import ConfigError, OttlaError

log = logging.getLogger(__name__)

E = TypeVar("E", bound=OttlaError)

CLIENT_PREFIX = "kafka."
"""The prefix of these options; Kafka's name of the setting follows."""

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"

DECODE_HINT = "keys and values are bytes: decode the columns in the query"

FORBIDDEN = {
    "auto.offset.reset": "use startingOffsets; Spark stores the offsets of a stream in its checkpoint",
    "key.deserializer": DECODE_HINT,
    "value.deserializer": DECODE_HINT,
    "enable.auto.commit": "set groupId to commit each finished batch",
    "interceptor.classes": "Java classes cannot be used here",
}
"""Settings that Spark's own connector rejects as well -> an alternative."""

FORBIDDEN_IN_SINKS = {
    "key.serializer": "columns are strings or bytes: encode them in the query",
    "value.serializer": "columns are strings or bytes: encode them in the query",
    "transactional.id": "the sink names its transactions itself",
}
"""Settings that a sink decides -> an alternative."""

_IGNORED_BY_BOTH = frozenset(
    {
        # metrics of Kafka's Java clients
        "auto.include.jmx.reporter", "enable.metrics.push", "metrics.num.samples", "metrics.recording.level",
        "metrics.sample.window.ms",
        # the renewal of a login: Ottla renews it before it expires
        "sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
    }
)  # fmt: skip

IGNORED = _IGNORED_BY_BOTH | frozenset(
    {
        # producers
        "acks", "batch.size", "buffer.memory", "compression.gzip.level", "compression.lz4.level", "compression.type",
        "compression.zstd.level", "delivery.timeout.ms", "enable.idempotence", "key.serializer", "linger.ms", "max.block.ms",
        "max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms", "partitioner.class",
        "partitioner.ignore.keys", "retries", "transaction.timeout.ms", "transaction.two.phase.commit.enable", "transactional.id",
        "value.serializer",
    }
)  # fmt: skip
"""Settings that cannot change which records are read. Configurations for Spark's connector have them, often because sources and
sinks share one."""

IGNORED_IF_EMPTY = frozenset({"config.providers", "metric.reporters", "security.providers"})
"""Lists of Java classes: ignored if empty, otherwise an error."""

PLANNER_SETTINGS = {"enable.auto.commit": "false", "auto.offset.reset": "none", "allow.auto.create.topics": "false"}
"""Defaults of the planner's client that the user's settings override. Tasks have them as well."""

_REQUEST_TIMEOUT, _API_TIMEOUT, _REQUEST_TIMEOUT_DEFAULT = "request.timeout.ms", "default.api.timeout.ms", 30_000


def setting_of(option: str) -> str:
    """Return the client's setting for an option ``kafka.*``. Raises ``ConfigError`` for Python's spelling of a setting.

    For the client that is the same setting, but not here: ``kafka.isolation_level`` would have no effect on the plan, and
    ``kafka.max_poll_records`` be a second value beside Ottla's own.
    """
    name = option.lower().removeprefix(CLIENT_PREFIX)
    if "_" in name:
        dotted = CLIENT_PREFIX + name.replace("_", ".")
        raise ConfigError(f"option {option} is not a setting of Kafka", hint=f"did you mean {dotted}?")
    return name


def without_ignored(settings: Mapping[str, str]) -> dict[str, str]:
    """Return ``settings`` without the ignored ones, which it logs in one line."""
    effective = {
        name: value
        for name, value in settings.items()
        if name not in IGNORED and not (name in IGNORED_IF_EMPTY and not value.strip())
    }
    if ignored := sorted(settings.keys() - effective.keys()):
        log.warning("ignored options without an effect on a source: %s", ", ".join(CLIENT_PREFIX + name for name in ignored))
    return effective


def check_producer_settings(settings: Mapping[str, str], *, in_transactions: bool) -> dict[str, str]:
    """Validate the settings of a sink and return those that producers have. Raises ``ConfigError`` as ``check_client_settings``.

    ``in_transactions``: whether the producers are transactional.

    Configurations are often shared with a source, so what only consumers have is logged in one line, and ignored.
    """
    for name, instead in FORBIDDEN_IN_SINKS.items():
        if name in settings:
            raise ConfigError(f"option kafka.{name} is not supported by a sink", hint=instead)
    from ottla.config import ConsumerConfig
    from ottla.config.producer import ProducerConfig
    from ottla.config.spelling import spellings

    only_consumers = spellings(ConsumerConfig).keys() - spellings(ProducerConfig).keys()
    ignored = sorted(name for name in settings if name in only_consumers or name in _IGNORED_BY_BOTH)
    if ignored:
        log.warning("ignored options without an effect on a sink: %s", ", ".join(CLIENT_PREFIX + name for name in ignored))
    wanted = {name: value for name, value in settings.items() if name not in ignored}
    _parse(ProducerConfig, {"transactional.id": "ottla"} if in_transactions else {}, wanted)
    return wanted


def admin_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a sink's settings that an ``Admin`` has as well."""
    from ottla.config import AdminConfig
    from ottla.config.spelling import spellings

    known = spellings(AdminConfig)
    return {name: value for name, value in settings.items() if name in known}


def check_client_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Validate ``settings`` and return them with derived defaults. Raises ``ConfigError``, which names options (``kafka.*``), for
    an unknown name or invalid value."""
    for name, instead in FORBIDDEN.items():
        if name in settings:
            raise ConfigError(f"option kafka.{name} is not supported", hint=instead)
    from ottla.config import ConsumerConfig

    checked = {**settings, **_request_timeout(settings)}
    _parse(ConsumerConfig, PLANNER_SETTINGS, checked)
    return checked


def _parse(config: Any, defaults: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Have a client's configuration check the settings. Its errors and warnings name options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config.parse({**defaults, **settings})
        except ConfigError as error:
            named = _use_option_names(str(error.args[0]), settings, config)
            raise ConfigError(named, hint=_hint_with_option_names(error, settings, config)) from error.__cause__
    for warning in caught:
        log.warning("%s", _use_option_names(str(warning.message), settings, config))


def _hint_with_option_names(error: ConfigError, given: Mapping[str, str], config: Any) -> str | None:
    if not error.hint:
        return None
    # The client's hint is to pass a callable, which an option of Spark cannot be.
    return DECODE_HINT if "deserializer" in error.hint else _use_option_names(error.hint, given, config)


def _request_timeout(settings: Mapping[str, str]) -> dict[str, str]:
    """Return ``request.timeout.ms`` if it is not set and ``default.api.timeout.ms`` is below its default: the client requires that
    it is not the longer one."""
    api_timeout = settings.get(_API_TIMEOUT, "").strip()
    is_short = api_timeout.isascii() and api_timeout.isdigit() and 0 < int(api_timeout) < _REQUEST_TIMEOUT_DEFAULT
    return {_REQUEST_TIMEOUT: api_timeout} if is_short and _REQUEST_TIMEOUT not in settings else {}


def secrets_in(options: Mapping[str, str]) -> list[str]:
    """Return the names in ``options`` whose values are secret, such as passwords."""
    from ottla.config import ConsumerConfig
    from ottla.config.spelling import spellings, table

    rows, known = table(ConsumerConfig), spellings(ConsumerConfig)
    settings = {name: name.lower().removeprefix(CLIENT_PREFIX) for name in options if name.lower().startswith(CLIENT_PREFIX)}
    return sorted(name for name, setting in settings.items() if setting in known and rows[known[setting][0]].secret)


def with_option_names(error: E, *, of_sink: bool = False) -> E:
    """Return ``error`` of a client, with option names (``kafka.*``) instead of setting names in its hint. ``of_sink``: the client
    may be a producer."""
    if error.hint:
        from ottla.config import ConsumerConfig

        configs: list[Any] = [ConsumerConfig]
        if of_sink:
            from ottla.config.producer import ProducerConfig  # not in tasks that read, where it takes a tenth of a second

            configs.append(ProducerConfig)
        error.hint = _use_option_names(error.hint, (), *configs)
    return error


def _use_option_names(text: str, given: Iterable[str], *configs: Any) -> str:
    """Return ``text`` with the prefix ``kafka.`` before each name of a setting in ``configs`` or in ``given``. Python's spellings
    become Kafka's."""
    from ottla.config.spelling import dotted, spellings

    names = {spelling: dotted(field) for config in configs for spelling, (field, _) in spellings(config).items()}
    names |= {name: name for name in given}
    # A name of one word may be an ordinary word of the text.
    known = sorted((name for name in names if "." in name or "_" in name), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, known))})(?![\w.]*\w)")
    return pattern.sub(lambda found: CLIENT_PREFIX + names[found[0]], text)
