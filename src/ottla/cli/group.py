"""``ottla group``: lists, describes, resets, deletes and migrates consumer groups.

Owns the options of the commands, and the output about groups in Kafka. Must not know how a group works. Invariants: a partition
without a committed offset has no lag; nothing changes without ``--execute``; ``--zookeeper`` disables the default of ``-b``.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import ottla
from ottla import TopicPartition
from ottla.cli import migrate as migration, zookeeper_groups
from ottla.cli.clients import connected_admin
from ottla.cli.migration_plan import Store
from ottla.cli.offsets import clamped_offsets, ends_of
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    OFFSET_RESETS,
    Bootstrap,
    Format,
    OutputFormat,
    Settings,
    SingleValueCommand,
    ZooKeeper,
    check_name,
    is_given,
    is_offset,
)
from ottla.cli.output import CommandFailed, pluralize, print_json, print_line, print_rows, print_table
from ottla.cli.zookeeper_groups import DRY_RUN, Servers

app = typer.Typer(help="List, describe, reset, delete and migrate consumer groups.", no_args_is_help=True, add_completion=False)
MEMBER_COLUMNS = ("member_id", "client_id", "host", "instance_id", "partitions")
RESET_COLUMNS = ("topic", "partition", "committed", "new_offset")
Name = Annotated[str, typer.Argument(metavar="GROUP", callback=check_name, help="Id of the group.")]
Execute = Annotated[bool, typer.Option("--execute", help="Execute the change; without this option, only print it.")]
PARTITION_COLUMNS = ("topic", "partition", "committed", "end_offset", "lag", "member_id")


@app.command("list", cls=SingleValueCommand)
def list_groups(
    context: typer.Context,
    zookeeper: ZooKeeper = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """List all groups: those in Kafka, or with --zookeeper those of Kafka 0.8's consumers."""
    if zookeeper is not None:
        zookeeper_groups.list_groups(_servers(context, zookeeper, settings), output)
        return
    with connected_admin(bootstrap_servers, settings) as admin:
        groups = admin.list_groups()
    rows = [{"group": each.group_id, "state": each.state, "protocol": each.group_type.lower()} for each in groups]
    print_rows(rows, ("group", "state", "protocol"), output)


@app.command(cls=SingleValueCommand)
def describe(
    context: typer.Context,
    name: Name,
    zookeeper: ZooKeeper = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the state, members, committed offsets and lag of a group."""
    if zookeeper is not None:
        zookeeper_groups.describe(_servers(context, zookeeper, settings), name, output)
        return
    with connected_admin(bootstrap_servers, settings) as admin:
        document = describe_group(admin, name)
    if output is Format.JSON:
        print_json(document)
        return
    assignor = f", assignor {document['assignor']}" if document["assignor"] else ""
    print_line(
        f"group {name}: {document['state']}, protocol {document['protocol']}{assignor}, coordinator {document['coordinator']}"
    )
    print()
    print_table(
        [
            {**member, "partitions": [f"{each['topic']}-{each['partition']}" for each in member["partitions"]]}
            for member in document["members"]
        ],
        MEMBER_COLUMNS,
    )
    print()
    print_table(document["partitions"], PARTITION_COLUMNS)


def _offset(value: str) -> str:
    if value not in OFFSET_RESETS and not is_offset(value.removeprefix("s@")):
        raise typer.BadParameter(f"{value!r} is none of beginning, end, N and s@MS")
    return value


@app.command("reset-offsets", cls=SingleValueCommand)
def reset_offsets(
    context: typer.Context,
    name: Name,
    offset: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="beginning|end|N|s@MS",
            callback=_offset,
            help="New offset; s@MS: that of the first record with a timestamp of at least MS (milliseconds since 1970, UTC).",
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            callback=check_name,
            help="Topic to reset; may be repeated. Default: all topics with committed offsets.",
        ),
    ] = None,
    execute: Execute = False,
    zookeeper: ZooKeeper = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Reset the committed offsets of a group without members."""
    if zookeeper is not None:
        servers = _servers(context, zookeeper, settings)
        zookeeper_groups.reset_offsets(servers, name, offset, topics, execute=execute, output=output)
        return
    with connected_admin(bootstrap_servers, settings) as admin:
        _check_no_members(admin, name, has_offsets=True)
        committed = admin.group_offsets(name)
        partitions = sorted(committed)
        if topics:
            found = admin.describe_topics(topics)
            partitions = [TopicPartition(topic, each.partition) for topic in found for each in found[topic].partitions]
        if not partitions:
            raise CommandFailed(f"group {name} has no committed offsets; name the topics to reset with -t")
        offsets = clamped_offsets(admin, partitions, offset)
        if execute:
            admin.alter_group_offsets(name, offsets)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "committed": committed[each].offset if each in committed else None,
            "new_offset": offsets[each],
        }
        for each in partitions
    ]
    print_rows(rows, RESET_COLUMNS, output)
    if not execute:
        print(DRY_RUN, file=sys.stderr)


@app.command(cls=SingleValueCommand)
def delete(
    context: typer.Context,
    name: Name,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", callback=check_name, help="With --zookeeper: delete only what the group has of this topic."),
    ] = None,
    execute: Execute = False,
    zookeeper: ZooKeeper = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
) -> None:
    """Delete a group without members, and its committed offsets."""
    if zookeeper is not None:
        zookeeper_groups.delete(_servers(context, zookeeper, settings), name, topic, execute=execute)
        return
    if topic is not None:
        raise typer.BadParameter("a single topic can be deleted only with --zookeeper", param_hint="-t")
    with connected_admin(bootstrap_servers, settings) as admin:
        if not _check_no_members(admin, name):
            raise CommandFailed(f"there is no group {name}")
        if execute:
            admin.delete_groups([name])
            print_line(f"deleted group {name}")
        else:
            offsets = pluralize(len(admin.group_offsets(name)), "committed offset")
            print_line(f"would delete group {name} with {offsets}; add --execute to do it")


@app.command(cls=SingleValueCommand)
def migrate(
    context: typer.Context,
    name: Name,
    source: Annotated[Store, typer.Option("--from", help="Where the committed offsets are.")],
    target: Annotated[Store, typer.Option("--to", help="Where they are copied to.")],
    zookeeper: Annotated[
        str,
        typer.Option(
            "--zookeeper",
            metavar="HOST:PORT,.../CHROOT",
            callback=check_name,
            help="Servers of ZooKeeper; the brokers are those that are registered there, or -b.",
        ),
    ],
    backwards: Annotated[
        bool, typer.Option("--allow-backwards", help="Replace offsets of the target that are greater than those of the source.")
    ] = False,
    skip_malformed: Annotated[
        bool, typer.Option("--skip-malformed", help="Leave out offsets of the source that cannot be understood.")
    ] = False,
    execute: Execute = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Copy the committed offsets of a group without members from ZooKeeper to Kafka, or back."""
    if source is target:
        raise typer.BadParameter(f"--from and --to are both {source}", param_hint="--to")
    servers = _servers(context, zookeeper, settings)
    migration.migrate(
        servers, name, source, target, backwards=backwards, skip_malformed=skip_malformed, execute=execute, output=output
    )


def _servers(context: typer.Context, zookeeper: str, settings: list[str] | None) -> Servers:
    """Return where to look for a group in ZooKeeper. The default of ``-b`` may be another cluster, so it is not used."""
    given = is_given(context, "bootstrap_servers")
    return Servers(zookeeper, context.params["bootstrap_servers"] if given else None, settings)


def _check_no_members(admin: ottla.Admin, name: str, *, has_offsets: bool = False) -> bool:
    """Whether the group exists. Raises ``CommandFailed`` if it has members, or, with ``has_offsets``, if it is a share group."""
    found = next((each for each in admin.list_groups() if each.group_id == name), None)
    state = None if found is None else found.state
    if has_offsets and found is not None and found.group_type.lower() == "share":
        raise CommandFailed(f"group {name} is a share group, which has no committed offsets")
    if state not in (None, "", "Empty", "Dead"):
        raise CommandFailed(f"group {name} is {state}: its members must leave first")
    return state is not None


def describe_group(admin: ottla.Admin, name: str) -> dict[str, Any]:
    """Return the description of a group, as for JSON."""
    group = admin.describe_groups([name])[name]
    committed = admin.group_offsets(name)
    owners = {partition: member.member_id for member in group.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = ends_of(admin, partitions)
    return {
        "group": name,
        "state": group.state,
        "protocol": group.group_type,
        "assignor": group.assignor or None,
        "coordinator": f"{group.coordinator.host}:{group.coordinator.port}",
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in sorted(member.partitions)],
            }
            for member in group.members
        ],
        "partitions": [_partition_row(each, committed.get(each), ends.get(each), owners.get(each)) for each in partitions],
    }


def _partition_row(partition: TopicPartition, committed: Any, end: int | None, member_id: str | None) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed": None if committed is None else committed.offset,
        "end_offset": end,
        "lag": None if committed is None or end is None else end - committed.offset,
        "member_id": member_id,
    }
