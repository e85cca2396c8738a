"""``ottla topic``: topics and their partitions.

Owns what is shown of a topic. Must not know how topics are made. Invariant: nothing is deleted without ``--execute``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

import ottla
from ottla import TopicPartition
from ottla.cli.connecting import connected_admin
from ottla.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Format, OutputFormat, Settings, named, pairs
from ottla.cli.output import CommandFailed, counted, print_rows, say

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
MOST = 2**31 - 1
"""Partitions that the protocol can count."""
Name = Annotated[str, typer.Argument(metavar="TOPIC", callback=named, help="The name of the topic.")]


@app.command(cls=Command)
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("-p", "--partitions", min=1, max=MOST, help="How many; by default the broker decides.")
    ] = None,
    configs: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated.")
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Create a topic."""
    with connected_admin(bootstrap_servers, settings) as admin:
        admin.create_topics({name: -1 if partitions is None else partitions}, configs=pairs(configs, "--config"))
        made = len(admin.describe_topics([name])[name].partitions) if partitions is None else partitions
        say(f"created topic {name} with {counted(made, 'partition')}")


@app.command("list", cls=Command)
def list_topics(
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None, output: OutputFormat = Format.TABLE
) -> None:
    """List the topics, without Kafka's internal ones."""
    with connected_admin(bootstrap_servers, settings) as admin:
        topics = admin.list_topics()
    rows = [{"topic": name, "partitions": len(topics[name].partitions)} for name in sorted(topics)]
    print_rows(rows, ("topic", "partitions"), output)


@app.command(cls=Command)
def describe(
    name: Name, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None, output: OutputFormat = Format.TABLE
) -> None:
    """Show the partitions of a topic: who leads them, and their first and end offsets."""
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


@app.command(cls=Command)
def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("-p", "--partitions", min=1, max=MOST, help="The new total number of partitions; it cannot be decreased."),
    ] = None,
    configs: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated.")
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", callback=named, help="A setting to reset to its default; may be repeated."),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Give a topic more partitions or other settings."""
    wanted = pairs(configs, "--config")
    changes: dict[str, str | None] = {**wanted, **dict.fromkeys(deleted or ())}
    both = sorted(wanted.keys() & set(deleted or ()))
    if both:
        raise typer.BadParameter(f"{both[0]} is set as well", param_hint="--delete-config")
    if not changes and partitions is None:
        raise typer.BadParameter("nothing to change: give -p, --config or --delete-config")
    with connected_admin(bootstrap_servers, settings) as admin:
        _check_known(admin, name, deleted or ())
        if partitions is not None:  # before the settings are changed
            admin.create_partitions({name: partitions}, validate_only=True)
        admin.alter_configs("topic", name, changes)
        for setting, value in changes.items():
            say(f"topic {name}: {setting} has its default again" if value is None else f"topic {name}: {setting}={value}")
        if partitions is not None:
            admin.create_partitions({name: partitions})
            say(f"topic {name} has {counted(partitions, 'partition')}")


def _check_known(admin: ottla.Admin, name: str, settings: Sequence[str]) -> None:
    """Raises ``CommandFailed`` for a name that is no setting of a topic: brokers say nothing when they delete it."""
    known = admin.describe_configs("topic", name) if settings else {}
    for each in settings:
        if each not in known:
            near = difflib.get_close_matches(each, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise CommandFailed(f"topic {name} has no setting {each}{hint}")


@app.command(cls=Command)
def delete(
    name: Name,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this option, only print what would be done.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Delete a topic and all that is in it."""
    with connected_admin(bootstrap_servers, settings) as admin:
        topic = admin.describe_topics([name])[name]
        if topic.is_internal:
            raise CommandFailed(f"topic {name} is internal: it holds the state of groups or transactions, and is not deleted")
        partitions = counted(len(topic.partitions), "partition")
        if execute:
            admin.delete_topics([name])
            say(f"deleted topic {name}")
        else:
            say(f"would delete topic {name} with {partitions}; add --execute to do it")
