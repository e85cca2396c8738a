"""Names from other users in the output: they cannot control the terminal, nor add lines."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest

from ottla import Admin, Consumer, TopicPartition
from tests.end_to_end.programs import ottla

pytestmark = pytest.mark.slow

STRANGE = "prod:key:orders [red]x[/red]\n\x1b[31mnever\r\u202e\t[/] \x9b2J"
SHOWN = "prod:key:orders [red]x[/red]\\n\\x1b[31mnever\\r\\u202e\\t[/] \\x9b2J"
"""The same without anything that a terminal obeys, rich replaces, or that cannot be seen."""


@pytest.fixture
def group(served: str, topic: Callable[..., str]) -> tuple[str, str]:
    """A group with a hostile name and an offset, and its topic."""
    name = topic(1, "k:v")
    group_id = f"{uuid.uuid4().hex} {STRANGE}"
    with Admin(bootstrap_servers=served) as admin:
        admin.alter_group_offsets(group_id, {TopicPartition(name, 0): 0})
    return group_id, name


def lines_of(served: str, *arguments: str, code: int = 0) -> list[str]:
    ended = ottla(*arguments, bootstrap_servers=served, stdin="line\n")
    assert ended.returncode == code, ended
    for text in (ended.stdout, ended.stderr):
        assert all(line.isprintable() for line in text.split("\n")), text
    return (ended.stdout + ended.stderr).splitlines()


def test_the_name_of_a_group(served: str, group: tuple[str, str]) -> None:
    group_id, name = group
    shown = group_id.replace(STRANGE, SHOWN)
    [listed] = [line for line in lines_of(served, "group", "list") if shown in line]
    assert listed.removeprefix(shown).split() == ["Empty", "classic"]
    assert lines_of(served, "group", "describe", group_id)[0].startswith(f"group {shown}: Empty, ")
    with Consumer(bootstrap_servers=served, group_id=group_id, client_id=STRANGE) as member:
        member.subscribe([name])
        while not member.assignment():
            member.poll(0.1)
        [row] = [line for line in lines_of(served, "group", "describe", group_id) if " 127.0.0.1 " in line.replace("/127", "127")]
        assert f"  {SHOWN}  " in row
        for command in (("delete",), ("reset-offsets", "-o", "end"), ("reset-offsets", "-o", "end", "--execute")):
            [refused] = lines_of(served, "group", command[0], group_id, *command[1:], code=1)
            assert refused == f"error: group {shown} is Stable: its members must leave first"
    assert lines_of(served, "group", "delete", group_id)[0].startswith(f"would delete group {shown} with 1 ")
    assert lines_of(served, "group", "delete", group_id, "--execute") == [f"deleted group {shown}"]
    assert lines_of(served, "group", "delete", group_id, code=1) == [f"error: there is no group {shown}"]


def test_json_has_the_name_itself(served: str, group: tuple[str, str]) -> None:
    listed = ottla("group", "list", "--format", "json", bootstrap_servers=served).stdout
    assert group[0] in [row["group"] for row in json.loads(listed)]
    assert all(line.isprintable() for line in listed.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", STRANGE),
        ("topic", "describe", STRANGE),
        ("topic", "delete", STRANGE),
        ("topic", "alter", STRANGE, "-p", "3"),
        ("topic", "create", "fine", "--config", f"retention.ms={STRANGE}"),
        ("topic", "create", "fine", "--config", f"{STRANGE}=1"),
        ("topic", "list", "-X", f"{STRANGE}=1"),
        ("topic", "list", "-X", f"request.timeout.ms={STRANGE}"),
        ("topic", "list", "-b", STRANGE),
        ("produce", "-t", STRANGE),
        ("consume", "-t", STRANGE, "-e"),
        ("group", "describe", STRANGE),
        ("broker", "start", "--set", f"num.partitions={STRANGE}"),
        ("broker", "start", "--data-dir", f"/dev/null/{STRANGE}"),
        ("demo", "--out", f"/dev/null/{STRANGE}"),
    ],
)
def test_an_error_is_one_printable_line(served: str, arguments: tuple[str, ...]) -> None:
    [line] = lines_of(served, *arguments, code=1)
    assert line.startswith("error: ")
    assert "Kafka port" not in line
