"""The figures of all generations as one table, on a terminal and in Markdown.

Owns the rows and the numbers' form. Must not know where the figures come from. Invariant: both tables have the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ottla.comparison.figures import Figures
from ottla.comparison.life import NAMES, Phase

ALIVE = ("Heartbeat", "ConsumerGroupHeartbeat", "Ping")
"""What only says that a member is alive; with KIP-848 it also carries the changes of the group."""
OFFSETS = ("OffsetCommit", "OffsetFetch")

Cell = Callable[[Figures], str]


def rows() -> Iterator[tuple[str, Cell]]:
    """The name of each row, and its cell for a generation."""
    yield "messages", lambda one: str(one.messages.total())
    yield "- heartbeats and pings", lambda one: str(_sum(one.messages, ALIVE))
    yield "- commits and committed offsets", lambda one: str(_sum(one.messages, OFFSETS))
    yield "- others", lambda one: str(one.messages.total() - _sum(one.messages, (*ALIVE, *OFFSETS)))
    yield "ZooKeeper operations as issued", lambda one: str(one.operations)
    yield "ZooKeeper operations as 0.8 would issue them", lambda one: str(one.single_operations)
    yield "ZooKeeper watches that fired", lambda one: str(one.notifications)
    for phase in Phase:
        yield f"time to stable: {phase}", lambda one, phase=phase: f"{one.of(phase).time_to_stable:.2f} s"  # type: ignore[misc]
    yield "partition-seconds unread", lambda one: f"{one.unread:.1f}"
    for phase in Phase:
        yield f"- {phase}", lambda one, phase=phase: f"{one.of(phase).unread:.1f}"  # type: ignore[misc]
    yield "records processed twice", lambda one: f"{one.repeated} of {one.records}"
    yield "length of the life", lambda one: f"{one.duration:.0f} s"


def _sum(messages: Counter[str], apis: Sequence[str]) -> int:
    return sum(messages[api] for api in apis)


def table(compared: Sequence[Figures]) -> list[dict[str, str]]:
    """The table, as rows of column -> cell. The first column is ``figure``."""
    return [{"figure": name, **{one.generation.value: cell(one) for one in compared}} for name, cell in rows()]


def markdown_table(compared: Sequence[Figures]) -> str:
    """The same table in Markdown."""
    lines = [f"| | {' | '.join(NAMES[one.generation] for one in compared)} |", "|---|" + "---:|" * len(compared)]
    lines += [f"| {name} | {' | '.join(cell(one) for one in compared)} |" for name, cell in rows()]
    return "\n".join(lines)


def markdown_messages(compared: Sequence[Figures]) -> str:
    """The messages of each API in Markdown."""
    apis = sorted({api for one in compared for api in one.messages})
    lines = [f"| | {' | '.join(NAMES[one.generation] for one in compared)} |", "|---|" + "---:|" * len(compared)]
    lines += [f"| {api} | {' | '.join(str(one.messages[api] or '-') for one in compared)} |" for api in apis]
    return "\n".join(lines)
