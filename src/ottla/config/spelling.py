"""How settings are spelled, and what a spelling or a value that is not known is answered with.

Owns the spellings of the fields of a config, the search for the nearest name and the texts of refusals. Must not know what a
setting is for. Invariant: each spelling means one field of a config.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from ottla.config.left_out import reason
from ottla.config.other_clients import answer_to
from ottla.config.rows import Setting
from ottla.errors import ConfigError


def table(cls: type[Any]) -> Mapping[str, Setting]:
    """The rows of a config, by field."""
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(cls) if "setting" in field.metadata}


def spellings(cls: type[Any]) -> Mapping[str, tuple[str, bool]]:
    """Every accepted spelling -> (field, whether the value is in seconds)."""
    found: dict[str, tuple[str, bool]] = {}
    for name, setting in table(cls).items():
        for alias in (dotted(name), *setting.aliases):
            found[alias] = found[alias.replace(".", "_")] = (name, False)
        if setting.duration:
            found[name.removesuffix("_ms")] = (name, True)
    return found


def dotted(name: str) -> str:
    """A field as Kafka spells it."""
    return name.replace("_", ".")


def field_of(cls: type[Any], spelling: str, others: Iterable[type[Any]]) -> tuple[str, bool]:
    """The field that a spelling means and whether its value is in seconds; ``others`` are configs whose settings are named too.

    Raises ``ConfigError`` with the nearest name for one that is unknown.
    """
    known = spellings(cls)
    if spelling in known:
        return known[spelling]
    kafkas = dotted(str(spelling))
    answer = answer_to(kafkas)
    if answer is not None and answer.setting is not None:
        here = dotted(answer.setting) if "." in str(spelling) else answer.setting
        raise ConfigError(f"{spelling} is called {here} here", hint=answer.why or None)
    if answer is not None:
        raise ConfigError(f"{spelling} is a setting of another client that Ottla does not need: {answer.why}", hint="leave it out")
    why = reason(kafkas)
    if why is not None:
        raise ConfigError(f"{spelling} is a setting of Kafka's clients that Ottla does not honour: {why}", hint="leave it out")
    owner = next((other for other in others if spelling in spellings(other)), None)
    if owner is not None:
        raise ConfigError(
            f"{spelling} is a setting of {owner.__name__.removesuffix('Config')}, not of {cls.__name__.removesuffix('Config')}"
        )
    candidates = [item for item in known if ("." in item) == ("." in str(spelling))]
    near = difflib.get_close_matches(str(spelling), candidates, n=1, cutoff=0.5)
    raise ConfigError(f"unknown setting {spelling!r}", hint=f"did you mean {near[0]}?" if near else None)


def read(setting: Setting, spelling: str, value: Any, in_seconds: bool) -> Any:
    """The value of a setting; raises ``ConfigError`` with what was expected."""
    try:
        return setting.parse(_to_milliseconds(value, in_seconds) if setting.duration else value)
    except ValueError as error:
        unit = (" in seconds, or a timedelta" if in_seconds else " of milliseconds") if setting.duration else ""
        expected = "a number" if in_seconds else str(error)
        limits = f" (in milliseconds {error})" if in_seconds else ""
        shown = "" if setting.secret else f"={value!r}"
        raise ConfigError(f"{spelling}{shown}: expected {expected}{unit}{limits}") from None


def _to_milliseconds(value: Any, in_seconds: bool) -> Any:
    """A duration in whole milliseconds; what can not be one is left for the setting's own check to refuse."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if not in_seconds or isinstance(value, bool):
        return value
    try:
        return round(float(value) * 1000)
    except (TypeError, ValueError, OverflowError):
        return value
