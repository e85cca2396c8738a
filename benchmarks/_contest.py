"""What the benchmarks of clients share: the brokers, the rounds in which the clients take turns, and the lines of the table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from _cluster import TOOLS, cluster
from _nodes import OttlaNode


class Verdict(NamedTuple):
    """One line of the table: the measurement, Ottla's figure, the other client's, their ratio, and its target."""

    what: str
    ours: str
    theirs: str
    ratio: float
    target: float | None
    """``None``: there is none."""
    least: bool = True
    """Whether the target is a minimum; otherwise it is a maximum."""

    @property
    def reached(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.least else self.ratio <= self.target

    def __str__(self) -> str:
        line = f"{self.what:44} {self.ours:>24} {self.theirs:>28}   {self.ratio:5.2f}x"
        if self.target is None:
            return line
        sign = "at least" if self.least else "at most"
        return f"{line} ({sign} {self.target:g}x) {'reached' if self.reached else 'MISSED'}"


def alternating(contenders: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[Any]]:
    """Return the figures of each client in each round except an additional first one."""
    found: dict[Any, list[Any]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, measure in contenders.items():
            result = measure()
            if number:
                found[name].append(result)
    return found


def brokers(names: list[str], given: str | None, ports: Sequence[int]) -> Generator[tuple[str, str], None, None]:
    """Yield the name and address of each broker. It stops before the next one starts, so that only one runs during a
    measurement."""
    if given is not None:
        yield given, given
        return
    for name in names:
        with ExitStack() as stack:
            if name == "kafka":
                yield "Apache Kafka", stack.enter_context(cluster(None, ports))
            else:
                node = OttlaNode(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=TOOLS.parent))), 0)
                stack.callback(node.close)
                yield "Ottla", node.servers
