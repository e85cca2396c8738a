"""The figures of all generations as one table, on a terminal and in Markdown.

Owns the rows and the numbers' form. Must not know where the figures come from. Invariant: both tables have the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from ottla.comparison.figures import Figures
from ottla.comparison.life import COUNTED, NAMES, Phase

ALIVE = ("Heartbeat", "ConsumerGroupHeartbeat", "Ping")
"""What only says that a member is alive; with KIP-848 it also carries the changes of the group."""
OFFSETS = ("OffsetCommit", "OffsetFetch")
LOOK_UPS = ("FindCoordinator", "Consult")

Cell = Callable[[Figures], str]


def rows() -> Iterator[tuple[str, Cell]]:
    """The name of each row, and its cell for a generation."""
    yield "messages", lambda one: _number(one.traffic.total())
    yield "- heartbeats and pings", lambda one: _number(one.traffic.total(*ALIVE))
    yield "- commits and committed offsets", lambda one: _number(one.traffic.total(*OFFSETS))
    yield "- look-ups of the coordinator", lambda one: _number(one.traffic.total(*LOOK_UPS))
    rest = frozenset(COUNTED.values()) - {*ALIVE, *OFFSETS, *LOOK_UPS}
    yield "- joins, leaves and assignments", lambda one: _number(one.traffic.total(*rest))
    yield "ZooKeeper operations as issued", lambda one: _number(one.traffic.operations)
    yield "- commits and committed offsets", lambda one: _number(one.traffic.offset_operations)
    yield "ZooKeeper operations as 0.8 would issue them", lambda one: _number(one.traffic.single_operations)
    yield "ZooKeeper watches that fired", lambda one: _number(one.traffic.notifications)
    for phase in Phase:
        yield f"time to stable: {phase}", lambda one, phase=phase: f"{one.of(phase).time_to_stable:.2f} s"  # type: ignore[misc]
    yield "partition-seconds unread", lambda one: f"{one.unread:.1f}"
    for phase in Phase:
        yield f"- {phase}", lambda one, phase=phase: f"{one.of(phase).unread:.1f}"  # type: ignore[misc]
    yield "records processed twice", lambda one: f"{one.repeated:.1f} of {one.records:.0f}"
    yield "length of the life", lambda one: f"{one.duration:.0f} s"


def _number(count: float) -> str:
    return f"{count:.0f}"


def table(compared: Sequence[Figures]) -> list[dict[str, str]]:
    """The table, as rows of column -> cell. The first column is ``figure``."""
    return [{"figure": name, **{one.generation.value: cell(one) for one in compared}} for name, cell in rows()]


def markdown_table(compared: Sequence[Figures]) -> str:
    """The same table in Markdown."""
    return _markdown("", compared, [(name, [cell(one) for one in compared]) for name, cell in rows()])


def markdown_messages(compared: Sequence[Figures]) -> str:
    """The messages of each API in Markdown."""
    messages = [one.traffic.messages for one in compared]
    cells = [(api, [_number(one[api]) if api in one else "-" for one in messages]) for api in sorted({*chain(*messages)})]
    return _markdown("messages by API", compared, cells)


def _markdown(title: str, compared: Sequence[Figures], body: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| {title} | {' | '.join(NAMES[one.generation] for one in compared)} |", "|---|" + "---:|" * len(compared)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in body)])
