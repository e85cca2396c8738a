"""One setting of the broker or of a topic: its name, type, default and bounds, and the parsing of its values.

Owns the row of a table and the parsing of one value. Must not know which settings there are. Invariant: ``parse`` returns a value
of the setting's type within its bounds, or raises.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.errors import ConfigError

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
LONG_MIN = -(2**63)

Value = bool | int | float | str


class ConfigType(enum.IntEnum):
    """Types of settings; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Setting(NamedTuple):
    """One row of the table.

    ``broker_name`` is where a topic's setting takes its default from; a ``dynamic`` one of the broker can be changed while it runs;
    with ``any_case`` the ``choices`` may be written in capitals. ``also`` is allowed although it is outside the bounds, and
    each item of a list must match ``item`` (``"*"`` alone is also allowed). ``no_effect`` says why the setting has no effect, if it
    has none.
    """

    name: str
    kind: ConfigType
    default: Value
    doc: str
    minimum: float
    maximum: float
    choices: tuple[str, ...]
    broker_name: str | None
    dynamic: bool
    any_case: bool
    also: int | None
    item: str
    no_effect: str

    def parse(self, value: object) -> Value:
        """Convert a value or its text to the setting's type. Raises ``ConfigError`` if it is invalid or out of bounds."""
        match self.kind:
            case ConfigType.BOOLEAN:
                return self._boolean(value)
            case ConfigType.INT | ConfigType.LONG | ConfigType.DOUBLE:
                return self._number(value)
            case ConfigType.LIST:
                return self._list(value)
        text = str(value).strip()
        text = text.lower() if self.any_case else text
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self._invalid(value)}: it can only be {' or '.join(self.choices)}")
        return text

    def accepts(self, value: object) -> bool:
        """Whether ``parse`` accepts a value."""
        try:
            self.parse(value)
        except ConfigError:
            return False
        return True

    def text(self, value: Value) -> str:
        """Return a value as Kafka prints it."""
        return str(value).lower() if self.kind is ConfigType.BOOLEAN else str(value)

    @property
    def is_list(self) -> bool:
        """Whether items can be added to the value and taken from it."""
        return self.kind is ConfigType.LIST

    def _boolean(self, value: object) -> bool:
        text = str(value).strip().lower()
        if text not in ("true", "false"):
            raise ConfigError(f"{self._invalid(value)}: must be true or false")
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self._invalid(value)}: {self.no_effect}")
        return text == "true"

    def _list(self, value: object) -> str:
        """Return the items, each once, in their order. An empty list is valid."""
        items = [item for item in (part.strip() for part in str(value).split(",")) if item]
        unknown = next((item for item in items if self.choices and item not in self.choices), None)
        if unknown is not None:
            raise ConfigError(f"{self._invalid(value)}: {unknown} is not one of {', '.join(self.choices)}")
        wrong = next((item for item in items if self.item and items != ["*"] and not re.fullmatch(self.item, item)), None)
        if wrong is not None:
            raise ConfigError(f"{self._invalid(value)}: must be '*' or a list of [partitionId]:[brokerId], which {wrong} is not")
        return ",".join(dict.fromkeys(items))

    def _number(self, value: object) -> int | float:
        number: int | float
        try:
            number = float(str(value)) if self.kind is ConfigType.DOUBLE else int(str(value).strip())
        except ValueError:
            raise ConfigError(
                f"{self._invalid(value)}: must be a {'' if self.kind is ConfigType.DOUBLE else 'whole '}number"
            ) from None
        if number != self.also and not self.minimum <= number <= self.maximum:
            alternative = "" if self.also is None else f" or be {self.also}"
            raise ConfigError(f"{self._invalid(number)}: must lie between {self.minimum} and {self.maximum}{alternative}")
        return number

    def _invalid(self, value: object) -> str:
        """Return the beginning of every message about an invalid value: clients look for Kafka's words."""
        return f"Invalid value {value} for configuration {self.name}"


_KINDS: Mapping[type, ConfigType] = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.LONG,
    float: ConfigType.DOUBLE,
    str: ConfigType.STRING,
}


def setting(
    name: str,
    default: Value,
    doc: str,
    *,
    minimum: float = 0,
    maximum: float = LONG_MAX,
    choices: tuple[str, ...] = (),
    kind: ConfigType | None = None,
    broker: str | None = None,
    dynamic: bool = False,
    any_case: bool = False,
    also: int | None = None,
    item: str = "",
    no_effect: str = "",
) -> Any:
    """A field of a table of settings: its type is that of its default, unless ``kind`` says otherwise."""
    kind = _KINDS[type(default)] if kind is None else kind
    if kind is ConfigType.LONG and maximum <= INT_MAX:
        kind = ConfigType.INT
    row = Setting(name, kind, default, doc, minimum, maximum, choices, broker, dynamic, any_case, also, item, no_effect)
    return dataclasses.field(default=default, metadata={"setting": row})
