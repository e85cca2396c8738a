"""Calls on ZooKeeper: each attempt of a call is a generator that yields operations and returns the result.

Owns the steps that all calls are made of. Must not know groups, time, retries or connections. Invariant: a call can be attempted
again after any failure; the state of earlier attempts is in its closure.

An attempt yields a tuple of operations, which are performed in this order, and receives their outcomes: for each the result, or the
``ZooKeeperError``. It is attempted again if it raises an error that is ``retriable``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from ottla.errors import KeeperCode, ZooKeeperError
from ottla.zookeeper.operations import GetChildren, Operation, Stat, Sync

ResultT = TypeVar("ResultT")

Steps = Generator[tuple[Operation[Any], ...], list[Any], ResultT]
Call = Callable[[], Steps[ResultT]]
"""Starts an attempt of a call."""

WINDOW = 500
"""Reads that are in flight at a time. With more, a call is not faster."""

Tree = list[tuple[str, Stat]]
"""Nodes, each after its parent."""


def ask(operation: Operation[ResultT]) -> Steps[ResultT]:
    """Return the result of one operation. Raises its error."""
    (outcome,) = yield (operation,)
    if isinstance(outcome, ZooKeeperError):
        raise outcome
    result: ResultT = outcome
    return result


def read_each(operations: Iterable[Operation[ResultT]]) -> Steps[list[ResultT | None]]:
    """Return the result of each read; ``None`` for a node that does not exist, or no longer. Raises any other error.

    There are at most ``WINDOW`` reads at a time, since what renews the lease waits behind them: 10,000 reads take longer than the
    lease of a short session.
    """
    found: list[ResultT | None] = []
    wanted = tuple(operations)
    for start in range(0, len(wanted), WINDOW):
        for outcome in (yield wanted[start : start + WINDOW]):
            if isinstance(outcome, ZooKeeperError) and outcome.code is not KeeperCode.NONODE:
                raise outcome
            found.append(None if isinstance(outcome, ZooKeeperError) else outcome)
    return found


def read_children(path: str) -> Steps[tuple[str, ...] | None]:
    """Return the names of a node's children, in order; ``None`` if the node does not exist."""
    (found,) = yield from read_each([GetChildren(path)])
    return None if found is None else tuple(sorted(found.names))


def read_tree(roots: Sequence[str]) -> Steps[Tree]:
    """Return these nodes and all below them."""
    tree: Tree = []
    level = list(roots)
    while level:
        found = [(path, node) for path, node in zip(level, (yield from read_each(map(GetChildren, level))), strict=True) if node]
        tree += [(path, node.stat) for path, node in found]
        level = [f"{path}/{name}" for path, node in found for name in node.names]
    return tree


def catch_up() -> Steps[None]:
    """Have the server catch up with the leader: what a member has written before is then seen by this call, too."""
    yield from ask(Sync())


def is_live(stat: Stat) -> bool:
    """Whether a node disappears with the session of a client."""
    return stat.ephemeral_owner != 0
