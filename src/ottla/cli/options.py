"""The options that commands share.

Owns ``-b``, ``-X`` and ``--format``, and the rule that an option with one value is given once. Must not know any command.
Invariant: a short flag has the same meaning in every command; in ``produce`` and ``consume``, that of kcat if kcat has the flag.
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
from ottla.config.producer import ProducerConfig
from ottla.config.spelling import dotted, spellings
from ottla.types import is_utf8

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP_SERVERS"


OFFSET_RESETS = {"beginning": "earliest", "end": "latest"}
"""kcat's names for the ends of a log -> values of ``auto.offset.reset``."""
MAX_OFFSET = 2**63 - 1
"""The greatest offset, and the latest timestamp."""


class Format(enum.StrEnum):
    """The output formats of commands that list something."""

    TABLE = "table"
    JSON = "json"


def check_name(value: Any) -> Any:
    """Validate a name, or a list of names, as the callback of an argument or option. Raises ``typer.BadParameter``."""
    for name in value if isinstance(value, list) else [value]:
        if name == "":
            raise typer.BadParameter("the name is empty")
        if name is not None and not is_utf8(name):
            raise typer.BadParameter(f"{name!r} is not UTF-8")
    return value


Bootstrap = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap-servers",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        callback=check_name,
        help="Bootstrap brokers: the client discovers the other brokers from them.",
        show_default=True,
    ),
]


def compared_with(what: str) -> Any:
    """The option ``-b`` of a command that reads files, and compares them with a cluster only if one is given."""
    return typer.Option(
        "-b",
        "--bootstrap-servers",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help=f"Compare with this cluster: {what}.",
    )


ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,.../CHROOT",
        callback=check_name,
        help="Servers of ZooKeeper, for a group of Kafka 0.8's consumers; the brokers are those that are registered there, or -b.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="Set a client property, such as security.protocol=SSL; may be repeated."),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="Output format.")]


def is_given(context: typer.Context, parameter: str) -> bool:
    """Whether the user has given an option, on the command line or by its environment variable."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def is_on_command_line(context: typer.Context, parameter: str) -> bool:
    """Whether the user has given an option on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def is_offset(text: str) -> bool:
    """Whether ``text`` is an offset, or a timestamp in milliseconds, in ASCII digits."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_OFFSET)) and int(text) <= MAX_OFFSET


def parse_path(given: str) -> Path:
    """Return ``given`` as a path. It must not be empty: ``Path("")`` is the current directory, which a script with an unset
    variable would use by accident."""
    if not given:
        raise typer.BadParameter("the path is empty")
    return Path(given)


class SingleValueCommand(TyperCommand):
    """A command for which a repeated single-value option is a usage error; by default the last one would win silently."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                raise typer.BadParameter(
                    f"the option takes one value and is given {times} times", param_hint=" / ".join(option.opts)
                )
        return super().parse_args(ctx, args)


def parse_pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` arguments as a dictionary; the last one of a name wins. Raises ``typer.BadParameter``."""
    parsed = {}
    for each in given or ():
        name, value = parse_pair(each.lstrip(), flag)
        if not is_utf8(value):
            raise typer.BadParameter(f"the value of {name} is not UTF-8", param_hint=flag)
        parsed[name.rstrip()] = value
    return parsed


def parse_pair(given: str, flag: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``. Raises ``typer.BadParameter``, without the value, which may be secret."""
    name, equals, value = given.partition("=")
    if not equals or not name:
        shown = re.sub(r"[^\w.-].*", "...", given, count=1, flags=re.ASCII | re.DOTALL)
        raise typer.BadParameter(f"{shown!r} is not NAME=VALUE", param_hint=flag)
    if not is_utf8(name):
        raise typer.BadParameter(f"the name {name!r} is not UTF-8", param_hint=flag)
    return name, value


def client_settings(bootstrap_servers: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return the settings of ``-b`` and ``-X``; ``-X`` takes precedence. Underscores in known names become dots."""
    return {"bootstrap.servers": bootstrap_servers, **given_settings(given)}


def given_settings(given: Sequence[str] | None) -> dict[str, str]:
    """Return the settings of ``-X`` alone. Underscores in known names become dots."""
    known = {**spellings(ConsumerConfig), **spellings(ProducerConfig)}
    return {dotted(name) if dotted(name) in known else name: value for name, value in parse_pairs(given, "-X").items()}
