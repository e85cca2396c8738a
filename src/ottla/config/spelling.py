"""The spellings of settings, and the errors for unknown spellings and invalid values.

Owns the spellings of the fields of a config, the search for the nearest name and the error texts. Must not know the meaning of a
setting. Invariant: each spelling means one field of a config.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from ottla.config.old_consumer import NAMES
from ottla.config.other_clients import OTHERS_OF, Answer, answer_to, reason
from ottla.config.rows import Setting
from ottla.errors import ConfigError
from ottla.types import short_repr


def table(cls: type[Any]) -> Mapping[str, Setting]:
    """The rows of a config, by field."""
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(cls) if "setting" in field.metadata}


def spellings(cls: type[Any]) -> Mapping[str, tuple[str, bool]]:
    """Every accepted spelling -> (field, whether the value is in seconds)."""
    fields: dict[str, tuple[str, bool]] = {}
    for name, setting in table(cls).items():
        for alias in (dotted(name), *setting.aliases):
            fields[alias] = fields[alias.replace(".", "_")] = (name, False)
        if setting.duration:
            fields[name.removesuffix("_ms")] = (name, True)
    return fields


def dotted(name: str) -> str:
    """A field in Kafka's spelling."""
    return name.replace("_", ".")


def field_of(cls: type[Any], spelling: str, configs: Callable[[], Iterable[type[Any]]], is_old: bool = False) -> tuple[str, bool]:
    """The field that a spelling means and whether its value is in seconds; ``configs`` returns those whose settings errors name.

    ``is_old`` accepts the names of Kafka 0.8's consumer, with dots as in its files. Raises ``ConfigError`` with the nearest name
    for an unknown spelling.
    """
    known = spellings(cls)
    if spelling in known:
        return known[spelling]
    if is_old and spelling in NAMES:
        return NAMES[spelling], False
    kafkas = dotted(str(spelling))
    answer = answer_to(kafkas, _client(cls))
    if answer is not None:
        raise _answered(spelling, answer)
    for other in configs():
        if spelling in spellings(other):
            raise ConfigError(f"{spelling} is a setting of {_client(other)}, not of {_client(cls)}")
    for client in OTHERS_OF:
        answer = answer_to(kafkas, client)
        if answer is not None:
            raise _answered_for(spelling, answer, client, _client(cls))
    why = reason(kafkas)
    # One or two wrong letters in a long name: "sasl.oauthbearer.token.endpiont.url" is not one of Kafka's.
    if why is not None and not _alike(str(spelling), known, 0.95):
        raise ConfigError(f"{spelling} is a setting of Kafka's clients that Ottla does not support: {why}", hint="leave it out")
    meant = _meant(str(spelling), known)
    hint = f"did you mean {meant}?" if meant is not None else "docs/config.md lists all settings"
    raise ConfigError(f"unknown setting {short_repr(spelling)}", hint=hint)


def _client(cls: type[Any]) -> str:
    return cls.__name__.removesuffix("Config")


def _as_spelled(field: str, spelling: str) -> str:
    """A field with dots for a spelling with dots, or without."""
    return dotted(field) if "." in str(spelling) else field


def _answered(spelling: str, answer: Answer) -> ConfigError:
    """The error for a name that other clients have for a setting of this one."""
    if answer.setting is not None:
        return ConfigError(f"{spelling} is called {_as_spelled(answer.setting, spelling)} here", hint=answer.why or None)
    if answer.needless:
        text = f"{spelling} is a setting of another client that Ottla does not need: {answer.why}"
        return ConfigError(text, hint="leave it out")
    return ConfigError(f"{spelling} is a setting of another client that Ottla does not have", hint=answer.why)


def _answered_for(spelling: str, answer: Answer, owner: str, client: str) -> ConfigError:
    """The error for a name that other clients have for a setting of ``owner``, which is not the client that was given it."""
    text = f"{spelling} is for a {owner.lower()}"
    if answer.setting is not None:
        text = f"{text}, where it is called {_as_spelled(answer.setting, spelling)}"
    return ConfigError(f"{text}: it is not a setting of {client}", hint="leave it out")


def _meant(spelling: str, known: Mapping[str, tuple[str, bool]]) -> str | None:
    """The setting that an unknown name most likely means."""
    in_seconds = re.sub(r"[._](s|secs?|seconds)$", "", spelling)
    if known.get(in_seconds, ("", False))[1]:
        return in_seconds
    if near := _alike(spelling, known, 0.5):
        return near[0]
    containing = [name for name in _same_style(spelling, known) if spelling.lower() in re.split(r"[._]", name)]
    return containing[0] if len(containing) == 1 else None


def _alike(spelling: str, known: Iterable[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(spelling.lower(), _same_style(spelling, known), n=1, cutoff=cutoff)


def _same_style(spelling: str, known: Iterable[str]) -> list[str]:
    """The names with dots for a spelling with dots, or those without."""
    return [name for name in known if ("." in name) == ("." in spelling)]


def read(setting: Setting, spelling: str, value: Any, in_seconds: bool) -> Any:
    """The parsed value of a setting. Raises ``ConfigError`` with the expected one."""
    try:
        return setting.parse(_to_milliseconds(value, in_seconds) if setting.duration else value)
    except ValueError as error:
        unit = (" of seconds, or a timedelta" if in_seconds else ", in milliseconds, or a timedelta") if setting.duration else ""
        expected = "a number" if in_seconds else str(error)
        limits = f" (in milliseconds {error})" if in_seconds else ""
        given = "" if setting.secret else f"={short_repr(value)}"
        raise ConfigError(f"{spelling}{given}: expected {expected}{unit}{limits}") from error.__cause__


def _to_milliseconds(value: Any, in_seconds: bool) -> Any:
    """A duration in whole milliseconds; other values are returned unchanged, for the setting's parser to refuse."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if not in_seconds or isinstance(value, bool | bytes | bytearray):
        return value
    try:
        return round(float(value) * 1000)
    except (TypeError, ValueError, OverflowError):
        return value
