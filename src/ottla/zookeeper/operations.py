"""ZooKeeper's operations as values, each with the type of its result.

Owns the operations, their results and their limits. Must not know why a node is read or written. Invariant: an operation never
changes after it was made, so it can be performed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

ResultT = TypeVar("ResultT", covariant=True)

ANY_VERSION = -1
"""A write at this version does not compare versions."""


class Stat(NamedTuple):
    """The part of a node's ``Stat`` that Ottla uses."""

    czxid: int = 0
    """The transaction that created the node: another one after a deletion and a creation."""
    version: int = 0
    """The number of changes of the data."""
    cversion: int = 0
    """The number of changes of the children."""
    ephemeral_owner: int = 0
    """The session whose end deletes the node; 0: none."""
    mzxid: int = 0
    """The transaction that has written the data last."""


class Node(NamedTuple):
    """The result of ``GetData``."""

    data: bytes
    stat: Stat


class Children(NamedTuple):
    """The result of ``GetChildren``, without an order."""

    names: tuple[str, ...]
    stat: Stat


class Operation(Generic[ResultT]):
    """One operation whose result is a ``ResultT``."""

    __slots__ = ()
    path: str


@dataclass(frozen=True, slots=True)
class Create(Operation[str]):
    """Create a node, whose parent must exist. The result is its path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete(Operation[None]):
    """Delete a node without children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class SetData(Operation[Stat]):
    """Replace the data of a node."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check(Operation[None]):
    """Part of a ``Multi``: fail unless the node exists, at this version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class GetData(Operation[Node]):
    """Read a node. ``watch``: report its next change or deletion, once."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Exists(Operation[Stat | None]):
    """Look whether a node exists. ``watch``: report its next creation, change or deletion, once."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetChildren(Operation[Children]):
    """Read the names of a node's children. ``watch``: report the next change of the names, or the deletion, once."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Sync(Operation[None]):
    """Have the server catch up with the leader, so that later reads of this session see every write before this."""

    path: str = "/"


Write = Create | Delete | SetData | Check
Read = GetData | Exists | GetChildren


@dataclass(frozen=True, slots=True)
class Multi(Operation[tuple[object, ...]]):
    """Execute all of these, in order, or none. The result has that of each."""

    operations: tuple[Write, ...]

    @property
    def path(self) -> str:  # type: ignore[override]
        """The path of the first operation."""
        return self.operations[0].path if self.operations else "/"
