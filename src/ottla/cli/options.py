"""The options that every noun shares, and what they mean.

Owns ``-b``, ``-X`` and ``--format``, and the rule that an option with one value is given once. Must not know any command.
Invariant: a short flag means the same in every command; those of ``produce`` and ``consume`` mean what they mean in kcat, if it has
them.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from ottla.config import ConsumerConfig
from ottla.config.spelling import dotted, spellings
from ottla.types import is_utf8

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP_SERVERS"


EDGES = {"beginning": "earliest", "end": "latest"}
"""What the ends of the log are called here -> the values of ``auto.offset.reset``."""
MOST = 2**63 - 1
"""The largest offset, and the latest timestamp."""


class Format(enum.StrEnum):
    """How a command that lists something prints it."""

    TABLE = "table"
    JSON = "json"


def named(value: Any) -> Any:
    """The callback of arguments and options that are names, or lists of names: raises ``typer.BadParameter`` for what cannot be
    one."""
    for each in value if isinstance(value, list) else [value]:
        if each == "":
            raise typer.BadParameter("it is empty")
        if each is not None and not is_utf8(each):
            raise typer.BadParameter(f"{each!r} is not UTF-8")
    return value


Bootstrap = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap-servers",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        callback=named,
        help="Brokers to begin with.",
        show_default=True,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="A setting of the client by Kafka's name; may be repeated."),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print it.")]


def is_offset(text: str) -> bool:
    """Whether ``text`` is an offset, or a timestamp in milliseconds, in ASCII digits."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MOST)) and int(text) <= MOST


def folder(given: str) -> Path:
    """A folder. ``Path("")`` would be the current one, which a script with an unset variable hardly means."""
    if not given:
        raise typer.BadParameter("it is empty")
    return Path(given)


class Command(TyperCommand):
    """A command that refuses a single-value option that is given several times: the others would be silently ignored."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                raise typer.BadParameter(f"it is given {times} times and takes one value", param_hint=" / ".join(option.opts))
        return super().parse_args(ctx, args)


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """``NAME=VALUE`` arguments as a dictionary; the last of a name wins. Raises ``typer.BadParameter`` for one without ``=``."""
    parsed = {}
    for each in given or ():
        name, value = pair(each.lstrip(), flag)
        if not is_utf8(value):
            raise typer.BadParameter(f"the value of {name} is not UTF-8", param_hint=flag)
        parsed[name.rstrip()] = value
    return parsed


def pair(given: str, flag: str) -> tuple[str, str]:
    """The two sides of ``NAME=VALUE``. Raises ``typer.BadParameter``, which shows nothing of the value: it may be secret."""
    name, equals, value = given.partition("=")
    if not equals or not name:
        shown = re.sub(r"[^\w.-].*", "...", given, count=1, flags=re.ASCII | re.DOTALL)
        raise typer.BadParameter(f"{shown!r} is not NAME=VALUE", param_hint=flag)
    if not is_utf8(name):
        raise typer.BadParameter(f"the name {name!r} is not UTF-8", param_hint=flag)
    return name, value


def client_settings(bootstrap_servers: str, given: Sequence[str] | None) -> dict[str, str]:
    """The configuration of a client: ``-b`` and each ``-X``, which wins. Known names with underscores have dots in it."""
    known = spellings(ConsumerConfig)
    settings = {dotted(name) if dotted(name) in known else name: value for name, value in pairs(given, "-X").items()}
    return {"bootstrap.servers": bootstrap_servers, **settings}
