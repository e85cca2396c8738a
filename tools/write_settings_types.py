"""Write src/ottla/settings.py from the tables of settings in ``ottla.config``: ``python tools/write_settings_types.py``.

A test compares the module with what this would write.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ottla.config import AdminConfig, ApiConfig, ClientConfig, ConsumerConfig, SecurityConfig
from ottla.config.producer import ProducerConfig
from ottla.config.rows import OneOf, Setting
from ottla.config.spelling import table

MODULE = Path(__file__).parents[1] / "src" / "ottla" / "settings.py"

OPENING = '''\
"""The types of settings, for type checkers and editors, as in ``def __init__(self, **settings: Unpack[ConsumerSettings])``.

Written by ``tools/write_settings_types.py`` from the one table of settings, ``ottla.config``; not edited by hand. Owns the types
of values. Must not know clients, nor what else a value must be. Invariant: each setting of the table is here, in each spelling
that can be a keyword.

The two deserializers of a consumer are separate parameters, since the types of keys and values follow from them. In a mapping,
settings may have Kafka's names with dots as well: see ``docs/config.md``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

from ottla.assignors import ConsumerPartitionAssignor
from ottla.types import IsolationLevel, OAuthToken

Assignor: TypeAlias = str | ConsumerPartitionAssignor | type[ConsumerPartitionAssignor]
"""The name of an assignor, or your own assignor."""
'''

CLASSES = (
    ("ClientSettings", "TypedDict", (SecurityConfig, ClientConfig), "The settings of all clients."),
    ("AdminSettings", "ClientSettings", (ApiConfig, AdminConfig), "The settings of ``Admin``."),
    (
        "ConsumerSettings",
        "ClientSettings",
        (ApiConfig, ConsumerConfig),
        "The settings of ``Consumer`` and ``AsyncConsumer``, except the deserializers.",
    ),
    ("ProducerSettings", "ClientSettings", (ProducerConfig,), "The settings of ``Producer`` and ``AsyncProducer``."),
)

OF_THE_CLASS = frozenset({"key_deserializer", "value_deserializer"})
"""Settings that are separate parameters."""


def written_types(cls: type[Any]) -> dict[str, str]:
    """Return the fields that a class itself defines, with the source text of their types."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        item.target.id: ast.unparse(item.annotation)
        for item in body.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def accepted(setting: Setting, written: str) -> str:
    """Return the source text of the type that a setting accepts."""
    if setting.accepts is not None:
        return setting.accepts
    if isinstance(setting.parse, OneOf):
        choices = ", ".join(f'"{choice}"' for choice in setting.parse.choices)
        return f"Literal[{choices}]"
    return written.removesuffix(" | None")


def keys(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield each spelling that can be a keyword, with the type of its value. ``None`` is the same as not set."""
    rows = table(cls)
    for name, written in written_types(cls).items():
        if name not in rows or name in OF_THE_CLASS:
            continue
        setting = rows[name]
        kind = accepted(setting, written)
        if setting.duration:
            yield name, "int | timedelta | None"
            yield name.removesuffix("_ms"), "float | timedelta | None"
        else:
            yield name, f"{kind} | None"
        for alias in setting.aliases:
            yield alias.replace(".", "_"), f"{kind} | None"


def module() -> str:
    """Return the source text of the module."""
    parts = [OPENING]
    for name, base, configs, meaning in CLASSES:
        parts.append(f'\n\nclass {name}({base}, total=False):\n    """{meaning}"""\n')
        lines = [f"    {key}: {kind}\n" for config in configs for key, kind in keys(config)]
        parts += ["\n", *lines] if lines else []
    return "".join(parts)


if __name__ == "__main__":
    MODULE.write_text(module(), encoding="utf-8")
