"""The figures of all generations as one table, on a terminal and in Markdown.

Owns the rows and the numbers' form. Must not know where the figures come from. Invariant: both tables have the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ottla.comparison.figures import Figures
from ottla.comparison.life import NAMES, Phase

ALIVE = ("Heartbeat", "ConsumerGroupHeartbeat", "Ping")
"""What only says that a member is alive; with KIP-848 it also carries the changes of the group."""
OFFSETS = ("OffsetCommit", "OffsetFetch")
LOOK_UPS = ("FindCoordinator", "Consult")

Cell = Callable[[Figures], str]


def rows() -> Iterator[tuple[str, Cell]]:
    """The name of each row, and its cell for a generation."""
    kinds = (*ALIVE, *OFFSETS, *LOOK_UPS)
    yield "messages", lambda one: _number(sum(one.messages.values()))
    yield "- heartbeats and pings", lambda one: _number(sum_of(one.messages, ALIVE))
    yield "- commits and committed offsets", lambda one: _number(sum_of(one.messages, OFFSETS))
    yield "- look-ups of the coordinator", lambda one: _number(sum_of(one.messages, LOOK_UPS))
    yield "- joins, leaves and assignments", lambda one: _number(sum(one.messages.values()) - sum_of(one.messages, kinds))
    yield "ZooKeeper operations as issued", lambda one: _number(one.operations)
    yield "- commits and committed offsets", lambda one: _number(one.offset_operations)
    yield "ZooKeeper operations as 0.8 would issue them", lambda one: _number(one.single_operations)
    yield "ZooKeeper watches that fired", lambda one: _number(one.notifications)
    for phase in Phase:
        yield f"time to stable: {phase}", lambda one, phase=phase: f"{one.of(phase).time_to_stable:.2f} s"  # type: ignore[misc]
    yield "partition-seconds unread", lambda one: f"{one.unread:.1f}"
    for phase in Phase:
        yield f"- {phase}", lambda one, phase=phase: f"{one.of(phase).unread:.1f}"  # type: ignore[misc]
    yield "records processed twice", lambda one: f"{one.repeated:.1f} of {one.records:.0f}"
    yield "length of the life", lambda one: f"{one.duration:.0f} s"


def sum_of(messages: Mapping[str, float], apis: Sequence[str]) -> float:
    """The messages of some APIs."""
    return sum(messages.get(api, 0) for api in apis)


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
    apis = sorted({api for one in compared for api in one.messages})
    cells = [(api, [_number(one.messages[api]) if api in one.messages else "-" for one in compared]) for api in apis]
    return _markdown("messages by API", compared, cells)


def _markdown(title: str, compared: Sequence[Figures], body: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| {title} | {' | '.join(NAMES[one.generation] for one in compared)} |", "|---|" + "---:|" * len(compared)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in body)])
