"""``ottla group``: consumer groups, their members and how far behind they are.

Owns what is shown of a group. Must not know how a group works. Invariant: a lag is only shown where an offset was committed.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

import ottla
from ottla import TopicPartition
from ottla.cli.connecting import connected_admin
from ottla.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, Settings
from ottla.cli.output import print_json, print_rows, print_table

app = typer.Typer(help="List and describe consumer groups.", no_args_is_help=True)
MEMBER_COLUMNS = ("member_id", "client_id", "host", "instance_id", "partitions")
PARTITION_COLUMNS = ("topic", "partition", "committed", "end_offset", "lag", "member_id")


@app.command("list")
def list_groups(
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, settings: Settings = None, output: OutputFormat = Format.TABLE
) -> None:
    """List the groups that the brokers know."""
    with connected_admin(bootstrap_servers, settings) as admin:
        groups = admin.list_groups()
    rows = [{"group": each.group_id, "state": each.state, "protocol": each.group_type.lower()} for each in groups]
    print_rows(rows, ("group", "state", "protocol"), output)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The id of the group.")],
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show a group: its state, its members, what it has committed and how far that is from the end."""
    with connected_admin(bootstrap_servers, settings) as admin:
        document = described(admin, name)
    if output is Format.JSON:
        print_json(document)
        return
    assignor = f", assignor {document['assignor']}" if document["assignor"] else ""
    print(f"group {name}: {document['state']}, protocol {document['protocol']}{assignor}, coordinator {document['coordinator']}")
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


def described(admin: ottla.Admin, name: str) -> dict[str, Any]:
    """All that is known of a group, ready for JSON."""
    group = admin.describe_groups([name])[name]
    committed = admin.group_offsets(name)
    owners = {partition: member.member_id for member in group.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    return {
        "group": name,
        "state": group.state,
        "protocol": "classic",
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
