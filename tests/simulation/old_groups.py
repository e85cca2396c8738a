"""Groups of Kafka 0.8's consumers in a model of ZooKeeper, and an operator's calls on them.

Owns the members' nodes and the run of a call. Must not know what a call does. Invariant: what others do happens between two
operations of a call, never inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ottla.errors import KeeperCode, ZooKeeperError
from ottla.simulation.zookeeper import ZooKeeperModel
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.calls import Call, ResultT
from ottla.zookeeper.nodes import MemberRegistration
from ottla.zookeeper.operations import Create, Delete, Exists, GetChildren, GetData, Multi, Operation, SetData

NOW = Now(0, 0)
SESSION_TIMEOUT = 6000
RETRIES = 20

Between = Callable[[Operation[Any]], str | ZooKeeperError | None]
"""Called before each operation of a call. It may return an error that the operation has instead of being executed, or that the
connection is lost, ``"before"`` or ``"after"`` its execution."""


class OldGroups:
    """See the module."""

    def __init__(self) -> None:
        self.model = ZooKeeperModel()
        self.operator = self.model.open(SESSION_TIMEOUT, NOW)
        self.sessions: dict[tuple[str, str], int] = {}
        """The session of each live member, by group and member id."""
        self.writes: list[Multi] = []
        """The multis of calls that were executed."""
        self.members_at_writes: set[tuple[str, str]] = set()
        """The members that lived when one was executed."""

    # -- others -----------------------------------------------------------------------------------------------------------

    def put(self, path: str, data: bytes = b"", session: int | None = None) -> None:
        """Create a node, an ephemeral one with ``session``, and those above it that are missing. If it exists, replace its data."""
        for parent in paths.parents(path):
            self._execute(Create(parent))
        error = self._execute(Create(path, data, ephemeral=session is not None), session)
        if error is not None:
            assert error.code is KeeperCode.NODEEXISTS
            self._execute(SetData(path, data))

    def remove(self, path: str) -> None:
        """Delete a node."""
        assert self._execute(Delete(path)) is None

    def join(self, group: str, member: str, subscription: Mapping[str, int] | None = None, pattern: str = "static") -> int:
        """Register a live member; returns its session."""
        session = self.sessions[group, member] = self.model.open(SESSION_TIMEOUT, NOW)
        self.put(paths.member(group, member), MemberRegistration(subscription or {"t": 1}, pattern).encode(), session)
        return session

    def leave(self, group: str, member: str) -> None:
        """End the session of a member."""
        self.model.close(self.sessions.pop((group, member)))

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write committed offsets by partition, as a consumer does."""
        for partition, offset in offsets.items():
            self.put(paths.offset(group, topic, partition), str(offset).encode())

    def offsets(self, group: str, topic: str) -> dict[int, bytes]:
        """The data of the committed offsets by partition."""
        found = self.model.execute(self.operator, GetChildren(paths.topic_offsets(group, topic)), NOW)
        names = found.result.names if found.error is None else ()
        return {int(name): self.data(paths.offset(group, topic, int(name))) for name in sorted(names, key=int)}

    def data(self, path: str) -> bytes:
        """The data of a node."""
        data: bytes = self.model.execute(self.operator, GetData(path), NOW).result.data
        return data

    def exists(self, path: str) -> bool:
        """Whether there is such a node."""
        return self.model.execute(self.operator, Exists(path), NOW).result is not None

    def _execute(self, operation: Operation[Any], session: int | None = None) -> ZooKeeperError | None:
        return self.model.execute(self.operator if session is None else session, operation, NOW).error

    # -- calls ------------------------------------------------------------------------------------------------------------

    def run(self, call: Call[ResultT], between: Between | None = None) -> ResultT:
        """The result of a call. After a lost connection it is attempted again, as by the driver."""
        for _ in range(RETRIES):
            try:
                return self._attempt(call, between)
            except ZooKeeperError as error:
                if not error.retriable:
                    raise
        raise AssertionError("the connection is lost all the time")

    def _attempt(self, call: Call[ResultT], between: Between | None) -> ResultT:
        steps = call()
        try:
            operations = next(steps)
            while True:
                operations = steps.send([self._perform(operation, between) for operation in operations])
        except StopIteration as end:
            result: ResultT = end.value
            return result

    def _perform(self, operation: Operation[Any], between: Between | None) -> Any:
        lost = between(operation) if between is not None else None
        if isinstance(lost, ZooKeeperError):
            return lost
        if lost == "before":
            return ZooKeeperError(KeeperCode.CONNECTIONLOSS, operation.path)
        executed = self.model.execute(self.operator, operation, NOW)
        if executed.error is None and isinstance(operation, Multi):
            self.writes.append(operation)
            self.members_at_writes |= {*self.sessions}
        if lost == "after":
            return ZooKeeperError(KeeperCode.CONNECTIONLOSS, operation.path)
        return executed.result if executed.error is None else executed.error
