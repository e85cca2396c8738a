"""Write docs/config.md from the tables of settings in ``ottla.config``: ``python tools/write_config_page.py``.

A test compares the page with this tool's output.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.config import ApiConfig, ClientConfig, ConsumerConfig, SecurityConfig
from ottla.config.old_consumer import DEFAULTS, NAMES
from ottla.config.other_clients import (
    LEFT_OUT,
    LEFT_OUT_BY_PREFIX,
    OTHER_CLIENTS,
    OTHER_CONSUMERS,
    OTHER_PRODUCERS,
    Answer,
)
from ottla.config.producer import ProducerConfig
from ottla.config.rows import Setting
from ottla.config.spelling import dotted, table

PAGE = Path(__file__).parents[1] / "docs" / "config.md"

OPENING = """# The settings of clients

This page is written by `tools/write_config_page.py` from the one table of settings, `ottla.config`.

Each setting has Kafka's own name, with dots in a mapping (`Consumer({"max.poll.records": 100})`) or with underscores as a
keyword (`Consumer(max_poll_records=100)`). Durations are milliseconds under that name. Without the suffix `_ms` they are seconds,
or a `datetime.timedelta`: `max_poll_interval=300` is `max_poll_interval_ms=300_000`; giving both is an error. An unknown name
raises an error that names the nearest one, or the client that has it, and a setting that other settings make ineffective, such as
the group or security protocol, causes a warning. `None` is the same as leaving a setting out.

Defaults of durations are in milliseconds.
"""

SECTIONS: tuple[tuple[str, tuple[type[Any], ...], str], ...] = (
    (
        "Groups, polls and records",
        (ConsumerConfig,),
        "The settings of `Consumer` and `AsyncConsumer`, besides those of the cluster and of security.",
    ),
    ("Sending", (ProducerConfig,), "The settings of `Producer` and `AsyncProducer`, besides those of the cluster and of security."),
    (
        "The cluster and the connections",
        (ClientConfig, ApiConfig),
        "All clients have these settings, except `default.api.timeout.ms`: a producer has `max.block.ms`.",
    ),
    ("Security", (SecurityConfig,), "All clients have these settings. librdkafka's names are accepted where they differ."),
)
OTHERS = """
## Settings of other clients

confluent-kafka, kafka-python, aiokafka and old clients of Kafka have settings with other names. Ottla's clients refuse them with
an error that has Ottla's name for the setting, or says why it is not needed.
"""

OTHERS_OF: tuple[tuple[str, Mapping[str, Answer]], ...] = (
    ("All clients", OTHER_CLIENTS),
    ("Consumers", OTHER_CONSUMERS),
    ("Producers", OTHER_PRODUCERS),
)

OLD_CONSUMER = """
## Settings of Kafka 0.8's consumer

A `zookeeper` group reads the settings of Kafka 0.8's consumer as its files have them: with these names and words, and with 0.8's
defaults where those change more than the speed. Without `client.id`, `group.id` is used. Other groups refuse the names, and the
error has today's. The [table of consumers](#consumers) has the names that every group refuses, such as `num.consumer.fetchers`.

| setting | in Ottla |
|---|---|
"""


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the docstring of each field that the class itself defines."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docstrings: dict[str, str] = {}
    for field, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            has_docstring = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            docstrings[field.target.id] = inspect.cleandoc(following.value.value) if has_docstring else ""  # type: ignore[union-attr]
    return docstrings


def expected(setting: Setting) -> str:
    """Return the description of valid values, from the error for an invalid one."""
    try:
        setting.parse(object())
    except ValueError as error:
        return str(error).partition(". A Java")[0]
    return ""


def default(value: Any) -> str:
    """Return a default as a user would write it."""
    match value:
        case None:
            return "none"
        case "" | ():
            return "empty"
        case enum.Enum():
            return f"`{value.name.lower()}`"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return f"`{','.join(map(str, value))}`"
    return f"`{value}`"


def row(field: dataclasses.Field[Any], setting: Setting, meaning: str) -> str:
    """Return one row of a table."""
    notes = [" ".join(meaning.split()).replace("``", "`")] if meaning else []
    if setting.protocols is not None:
        notes.append(f"Used by `{'`, `'.join(sorted(setting.protocols))}` groups.")
    if setting.aliases:
        notes.append(f"Also `{'`, `'.join(setting.aliases)}`.")
    if setting.secret:
        notes.append("Never shown.")
    cells = (f"`{dotted(field.name)}`", default(field.default), expected(setting), " ".join(notes))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """Return the text of the page."""
    parts = [OPENING]
    for title, classes, remark in SECTIONS:
        parts.append(f"\n## {title}\n\n{remark}\n\n| setting | default | value | what it does |\n|---|---|---|---|\n")
        for cls in classes:
            rows, meanings = table(cls), descriptions(cls)
            fields = [field for field in dataclasses.fields(cls) if field.name in meanings and field.name in rows]
            parts += [row(field, rows[field.name], meanings[field.name]) + "\n" for field in fields]
    parts.append("\n## Settings of Kafka's clients that Ottla does not have\n\nAll clients refuse these, with the reason.\n\n")
    parts.append("| setting | why not |\n|---|---|\n")
    parts += [f"| `{name}` | {why} |\n" for name, why in LEFT_OUT.items()]
    parts += [f"| all other `{prefix}*` | {why} |\n" for prefix, why in LEFT_OUT_BY_PREFIX.items()]
    parts.append(OLD_CONSUMER)
    parts += [f"| `{name}` | `{dotted(field)}` |\n" for name, field in sorted(NAMES.items())]
    parts.append("| `auto.offset.reset` `smallest`, `largest` | `earliest`, `latest` |\n")
    parts += [f"| `{dotted(field)}` is not set | {default(value)} |\n" for field, value in DEFAULTS.items()]
    parts.append(OTHERS)
    for title, answers in OTHERS_OF:
        parts.append(f"\n### {title}\n\n| setting | in Ottla |\n|---|---|\n")
        parts += others(answers)
    return "".join(parts)


def others(answers: Mapping[str, Answer]) -> list[str]:
    """Return the rows of a table of other clients' names; names with the same answer share a row."""
    by_answer: dict[Answer, list[str]] = {}
    for name, answer in answers.items():
        by_answer.setdefault(answer, []).append(f"`{name}`")
    rows = []
    for answer, names in by_answer.items():
        here = "" if answer.setting is None else f"`{dotted(answer.setting)}`"
        rows.append(f"| {', '.join(names)} | {'; '.join(filter(None, (here, answer.why)))} |\n")
    return rows


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
