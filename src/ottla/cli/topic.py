"""``ottla topic``: creates, lists, describes, alters and deletes topics.

Owns the output about topics. Must not know the protocol. Invariant: nothing is deleted without ``--execute``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

import ottla
from ottla import TopicPartition
from ottla.cli.clients import connected_admin
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Format,
    OutputFormat,
    Settings,
    SingleValueCommand,
    check_name,
    parse_pairs,
)
from ottla.cli.output import CommandFailed, pluralize, print_line, print_rows

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True, add_completion=False)
MAX_PARTITIONS = 2**31 - 1
"""The protocol's number of partitions is a signed 32-bit integer."""
Name = Annotated[str, typer.Argument(metavar="TOPIC", callback=check_name, help="Name of the topic.")]


@app.command(cls=SingleValueCommand)
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("-p", "--partitions", min=1, max=MAX_PARTITIONS, help="Number of partitions; default: the broker's."),
    ] = None,
    configs: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated.")
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Create a topic."""
    with connected_admin(bootstrap_servers, settings) as admin:
        admin.create_topics({name: -1 if partitions is None else partitions}, configs=parse_pairs(configs, "--config"))
        made = len(admin.describe_topics([name])[name].partitions) if partitions is None else partitions
        print_line(f"created topic {name} with {pluralize(made, 'partition')}")


@app.command("list", cls=SingleValueCommand)
def list_topics(
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None, output: OutputFormat = Format.TABLE
) -> None:
    """List topics, except internal ones."""
    with connected_admin(bootstrap_servers, settings) as admin:
        topics = admin.list_topics()
    rows = [{"topic": name, "partitions": len(topics[name].partitions)} for name in sorted(topics)]
    print_rows(rows, ("topic", "partitions"), output)


@app.command(cls=SingleValueCommand)
def describe(
    name: Name, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None, output: OutputFormat = Format.TABLE
) -> None:
    """Show the leader, beginning offset and end offset of each partition of a topic."""
    with connected_admin(bootstrap_servers, settings) as admin:
        topic = admin.describe_topics([name])[name]
        nodes = {node.node_id: f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes}
        led = [TopicPartition(name, each.partition) for each in topic.partitions if each.leader is not None]
        first, end = (admin.list_offsets(dict.fromkeys(led, edge)) for edge in ("earliest", "latest"))
    rows = []
    for each in topic.partitions:
        edges = [found.get(TopicPartition(name, each.partition)) for found in (first, end)]
        offsets = [None if edge is None else edge.offset for edge in edges]
        leader = None if each.leader is None else nodes.get(each.leader, str(each.leader))
        rows.append({"partition": each.partition, "leader": leader, "beginning": offsets[0], "end": offsets[1]})
    print_rows(rows, ("partition", "leader", "beginning", "end"), output)


@app.command(cls=SingleValueCommand)
def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("-p", "--partitions", min=1, max=MAX_PARTITIONS, help="New total number of partitions; it cannot decrease."),
    ] = None,
    configs: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated.")
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="NAME", callback=check_name, help="Reset a topic config to its default; may be repeated."
        ),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Add partitions to a topic, or change its configuration."""
    wanted = parse_pairs(configs, "--config")
    changes: dict[str, str | None] = {**wanted, **dict.fromkeys(deleted or ())}
    both = sorted(wanted.keys() & set(deleted or ()))
    if both:
        raise typer.BadParameter(f"{both[0]} is also given with --config", param_hint="--delete-config")
    if not changes and partitions is None:
        raise typer.BadParameter("nothing to change: give -p, --config or --delete-config")
    with connected_admin(bootstrap_servers, settings) as admin:
        _check_settings_exist(admin, name, deleted or ())
        if partitions is not None:  # validate first, so that an invalid number changes nothing
            admin.create_partitions({name: partitions}, validate_only=True)
        admin.alter_configs("topic", name, changes)
        for setting, value in changes.items():
            print_line(f"topic {name}: {setting} has its default again" if value is None else f"topic {name}: {setting}={value}")
        if partitions is not None:
            admin.create_partitions({name: partitions})
            print_line(f"topic {name} has {pluralize(partitions, 'partition')}")


def _check_settings_exist(admin: ottla.Admin, name: str, settings: Sequence[str]) -> None:
    """Raise ``CommandFailed`` for an unknown topic config: brokers ignore the deletion of one."""
    known = admin.describe_configs("topic", name) if settings else {}
    for each in settings:
        if each not in known:
            near = difflib.get_close_matches(each, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise CommandFailed(f"topic {name} has no setting {each}{hint}")


@app.command(cls=SingleValueCommand)
def delete(
    name: Name,
    execute: Annotated[bool, typer.Option("--execute", help="Execute the deletion; without this option, only print it.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Delete a topic with all its records."""
    with connected_admin(bootstrap_servers, settings) as admin:
        topic = admin.describe_topics([name])[name]
        if topic.is_internal:
            raise CommandFailed(f"topic {name} is internal and cannot be deleted: it stores the state of groups or transactions")
        partitions = pluralize(len(topic.partitions), "partition")
        if execute:
            admin.delete_topics([name])
            print_line(f"deleted topic {name}")
        else:
            print_line(f"would delete topic {name} with {partitions}; add --execute to do it")
