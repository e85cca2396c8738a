"""``ottla group``: lists, describes, resets and deletes consumer groups.

Owns the output about groups. Must not know how a group works. Invariants: a partition without a committed offset has no lag;
nothing changes without ``--execute``.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import ottla
from ottla import TopicPartition
from ottla.cli.clients import connected_admin
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    OFFSET_RESETS,
    Bootstrap,
    Format,
    OutputFormat,
    Settings,
    SingleValueCommand,
    check_name,
    is_offset,
)
from ottla.cli.output import CommandFailed, pluralize, print_json, print_line, print_rows, print_table
from ottla.types import OffsetAndTimestamp

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)
MEMBER_COLUMNS = ("member_id", "client_id", "host", "instance_id", "partitions")
RESET_COLUMNS = ("topic", "partition", "committed", "new_offset")
Name = Annotated[str, typer.Argument(metavar="GROUP", callback=check_name, help="Id of the group.")]
Execute = Annotated[bool, typer.Option("--execute", help="Execute the change; without this option, only print it.")]
PARTITION_COLUMNS = ("topic", "partition", "committed", "end_offset", "lag", "member_id")


@app.command("list", cls=SingleValueCommand)
def list_groups(
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None, output: OutputFormat = Format.TABLE
) -> None:
    """List all groups."""
    with connected_admin(bootstrap_servers, settings) as admin:
        groups = admin.list_groups()
    rows = [{"group": each.group_id, "state": each.state, "protocol": each.group_type.lower()} for each in groups]
    print_rows(rows, ("group", "state", "protocol"), output)


@app.command(cls=SingleValueCommand)
def describe(
    name: Name,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the state, members, committed offsets and lag of a group."""
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
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Reset the committed offsets of a group without members."""
    with connected_admin(bootstrap_servers, settings) as admin:
        _check_no_members(admin, name, has_offsets=True)
        committed = admin.group_offsets(name)
        partitions = sorted(committed)
        if topics:
            found = admin.describe_topics(topics)
            partitions = [TopicPartition(topic, each.partition) for topic in found for each in found[topic].partitions]
        if not partitions:
            raise CommandFailed(f"group {name} has no committed offsets; name the topics to reset with -t")
        offsets = _clamped_offsets(admin, partitions, offset)
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
        print("nothing was changed; add --execute to do it", file=sys.stderr)


@app.command(cls=SingleValueCommand)
def delete(
    name: Name, execute: Execute = False, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None
) -> None:
    """Delete a group without members, and its committed offsets."""
    with connected_admin(bootstrap_servers, settings) as admin:
        if not _check_no_members(admin, name):
            raise CommandFailed(f"there is no group {name}")
        if execute:
            admin.delete_groups([name])
            print_line(f"deleted group {name}")
        else:
            offsets = pluralize(len(admin.group_offsets(name)), "committed offset")
            print_line(f"would delete group {name} with {offsets}; add --execute to do it")


def _check_no_members(admin: ottla.Admin, name: str, *, has_offsets: bool = False) -> bool:
    """Whether the group exists. Raises ``CommandFailed`` if it has members, or, with ``has_offsets``, if it is a share group."""
    found = next((each for each in admin.list_groups() if each.group_id == name), None)
    state = None if found is None else found.state
    if has_offsets and found is not None and found.group_type.lower() == "share":
        raise CommandFailed(f"group {name} is a share group, which has no committed offsets")
    if state not in (None, "", "Empty", "Dead"):
        raise CommandFailed(f"group {name} is {state}: its members must leave first")
    return state is not None


def _clamped_offsets(admin: ottla.Admin, partitions: list[TopicPartition], offset: str) -> dict[TopicPartition, int]:
    """Return the new offset of each partition, limited to the beginning and end of its log."""
    first, end = (admin.list_offsets(dict.fromkeys(partitions, edge)) for edge in ("earliest", "latest"))
    wanted: dict[TopicPartition, OffsetAndTimestamp | None] = {"beginning": first, "end": end}.get(offset, {})
    if offset.startswith("s@"):
        wanted = admin.list_offsets(dict.fromkeys(partitions, int(offset.removeprefix("s@"))))
    offsets = {}
    for each in partitions:
        low, high = (found.offset if (found := edge.get(each)) is not None else 0 for edge in (first, end))
        at = wanted.get(each)
        number = int(offset) if offset.isdecimal() else high if at is None else at.offset
        offsets[each] = max(low, min(number, high))
    return offsets


def describe_group(admin: ottla.Admin, name: str) -> dict[str, Any]:
    """Return the description of a group, as for JSON."""
    group = admin.describe_groups([name])[name]
    committed = admin.group_offsets(name)
    owners = {partition: member.member_id for member in group.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
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


def _partition_row(partition: TopicPartition, committed: Any, end: Any, member_id: str | None) -> dict[str, Any]:
    known = committed is not None and end is not None
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed": None if committed is None else committed.offset,
        "end_offset": None if end is None else end.offset,
        "lag": end.offset - committed.offset if known else None,
        "member_id": member_id,
    }
