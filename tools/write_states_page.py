"""Write docs/states.md from the tables of states in the code: ``python tools/write_states_page.py``.

A test compares the page with this tool's output, and checks that it has all tables.
"""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
from collections.abc import Mapping, Set
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ottla.broker.zookeeper import elector
from ottla.client.connections import node_connections
from ottla.client.fetch import session
from ottla.client.groups.central import channel as central_channel, states as central_member
from ottla.client.groups.classic import states as classic_member
from ottla.client.groups.consumer import client_assignors, states as consumer_member
from ottla.client.groups.zookeeper import states as zookeeper_member
from ottla.client.produce.transactions import states as producer_transactions
from ottla.coordinator.central import flag as central_flag, member as coordinated_member, states as central_group
from ottla.coordinator.classic import machine as classic_group
from ottla.coordinator.consumer import reconcile
from ottla.coordinator.transactions import machine as transaction
from ottla.records import batch_states
from ottla.spark.jobs import supervision
from ottla.zookeeper import session as zookeeper_session

PAGE = Path(__file__).parents[1] / "docs" / "states.md"

OPENING = """# State machines

This page is written by `tools/write_states_page.py` from the tables that the code itself uses, all of them named
`TRANSITIONS`. An arrow is labelled with the event. Arrows to one state from four others or more are drawn once, from a dashed
box that names them. A transition without an arrow does not happen: it would be a bug in Ottla, whatever the peer sends.
"""

COMMON = 4
"""Arrows from at least so many states to the same state are drawn as one arrow from a box."""

Row = Mapping[enum.Enum, enum.Enum] | Set[enum.Enum]
Table = Mapping[enum.Enum, Row]


class Machine(NamedTuple):
    """One machine: its subject, and the module with the table. The first row of the table is the initial state."""

    title: str
    words: str
    module: ModuleType


MACHINES = (
    Machine(
        "A member of a consumer group",
        "The client's side of KIP-848. In RECONCILING the application commits and runs its listeners.",
        consumer_member,
    ),
    Machine(
        "A member that computes the assignment of its consumer group",
        "The client's side of KIP-848's client-side assignors, in addition to the states above.",
        client_assignors,
    ),
    Machine("A member of a classic group", "The client's side of JoinGroup, SyncGroup, Heartbeat and LeaveGroup.", classic_member),
    Machine(
        "A member of a ZooKeeper group",
        "Kafka 0.8's protocol. Each member reads the group, computes the assignment of all, and claims its own share.",
        zookeeper_member,
    ),
    Machine(
        "A member of a central group",
        "Kafka's draft of a consumer coordinator, which sends Stop and Start. In STOPPING the application commits and runs its"
        " listeners.",
        central_member,
    ),
    Machine(
        "The channel of a member of a central group",
        "In addition to the states above: the connection on which the coordinator sends its requests.",
        central_channel,
    ),
    Machine("A connection to a node", "A client's connection to one broker, with or without TLS and a login.", node_connections),
    Machine(
        "A session with ZooKeeper",
        "The client's side. The connection may be lost and come back; the session expires if it does not come back in time.",
        zookeeper_session,
    ),
    Machine("A fetch session", "KIP-227, the client's side.", session),
    Machine("A classic group", "The coordinator's side. Clients see Kafka's names of the states.", classic_group),
    Machine(
        "A member of a consumer group, for its coordinator",
        "Each heartbeat moves the member one step towards its target assignment.",
        reconcile,
    ),
    Machine(
        "The election of the central coordinator",
        "A broker in ZooKeeper. Only in ELECTED does it coordinate groups.",
        elector,
    ),
    Machine(
        "A central group",
        "The side of the one broker that coordinates all central groups. A rebalance begins and ends in STABLE.",
        central_group,
    ),
    Machine(
        "The flag of a central group",
        "Whether it is being rebalanced. A change during a rebalance makes it dirty, and leads to another check at its end.",
        central_flag,
    ),
    Machine("A member of a central group, for its coordinator", "What it was asked, and what it has answered.", coordinated_member),
    Machine("A transactional id", "The coordinator's side of a transactional producer.", transaction),
    Machine(
        "A batch of a producer",
        "From its first record to its outcome: the accumulator closes it, the sender does the rest.",
        batch_states,
    ),
    Machine(
        "A transactional producer",
        "The client's side. Only the end of a transaction, or initialize(), leads out of the states with an error.",
        producer_transactions,
    ),
    Machine(
        "A query of a job",
        "`ottla pipeline run` starts it, and starts it again when it has failed.",
        supervision,
    ),
)


def meanings(kind: type[enum.Enum]) -> dict[str, str]:
    """Return the docstring of each member of an enumeration, or its value if it has none."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {member.name: str(member.value) for member in kind}
    for line, below in pairwise(body.body):
        match line, below:
            case ast.Assign(targets=[ast.Name(name)]), ast.Expr(ast.Constant(str(text))) if name in texts:  # not a method
                texts[name] = " ".join(text.split()).rstrip(".")
    return texts


def box(sources: list[str], states: list[str]) -> str:
    """Return the label of a box for several states: a list, or "any but ..." if that is shorter."""
    rest = [state for state in states if state not in sources]
    return ", ".join(sources) if len(sources) <= len(rest) else f"any but {', '.join(rest)}"


def arrows(table: Table) -> dict[tuple[str, str], list[str]]:
    """Return (from, to) -> events; an event without a name is "". ``from`` is a state or the label of a box."""
    sources: dict[tuple[str, str], list[str]] = {}
    for state, row in table.items():
        for target, event in row_of(row):
            sources.setdefault((target, event), []).append(state.name)
    drawn: dict[tuple[str, str], list[str]] = {}
    for (target, event), names in sources.items():
        others = [name for name in names if name != target]
        begins = [box(others, [state.name for state in table])] if len(others) >= COMMON else others
        for begin in begins + [name for name in names if name == target]:
            drawn.setdefault((begin, target), []).append(event)
    return drawn


def row_of(row: Row) -> list[tuple[str, str]]:
    """Return (target, event) for each arrow from one state."""
    if isinstance(row, Mapping):
        return [(target.name, event.name) for event, target in row.items()]
    return [(target.name, "") for target in type(next(iter(row))) if target in row]


def picture(table: Table) -> list[str]:
    """Return the lines of a Mermaid diagram."""
    drawn = arrows(table)
    names = [state.name for state in table]
    boxes = {begin: f"several{number}" for number, begin in enumerate(dict.fromkeys(a for a, _ in drawn if a not in names), 1)}
    lines = ["stateDiagram-v2", f"    [*] --> {names[0]}"]
    lines += [f'    state "{words}" as {name}' for words, name in boxes.items()]
    for (begin, end), events in drawn.items():
        label = f" : {', '.join(events)}" if any(events) else ""
        lines.append(f"    {boxes.get(begin, begin)} --> {end}{label}")
    if boxes:
        lines += ["    classDef several stroke-dasharray: 4", f"    class {','.join(boxes.values())} several"]
    return lines


def legend(title: str, kind: type[enum.Enum]) -> list[str]:
    """Return the lines of a table of names and their meanings."""
    return [f"| {title} | |", "|---|---|", *(f"| {name} | {meaning} |" for name, meaning in meanings(kind).items())]


def page() -> str:
    """Return the text of the page."""
    lines = [OPENING]
    for title, words, module in MACHINES:
        table: Table = module.TRANSITIONS
        where = "/".join(module.__name__.split("."))
        lines += [f"## {title}", "", words, f"The table is in `src/{where}.py`.", "", "```mermaid", *picture(table), "```", ""]
        lines += [*legend("state", type(next(iter(table)))), ""]
        events = {type(event) for row in table.values() if isinstance(row, Mapping) for event in row}
        for kind in events:
            lines += [*legend("event", kind), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
