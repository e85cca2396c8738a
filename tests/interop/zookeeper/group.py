"""One group on the stage, with who should own what, and with what Kafka's tools and Ottla's say about it.

Owns the comparisons. Must not import the package. Invariant: the owners are read from ZooKeeper, and not from a tool that is
compared with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.end_to_end.programs import ottla
from tests.interop.zookeeper.formula import Owners, actual_owners, children, expected_owners
from tests.interop.zookeeper.members import Member, Stage, until

Partition = tuple[str, int]
Offsets = Mapping[Partition, int | None]


class Group:
    """The members of a group, and what is known about it. ``gone``: members that have left or were killed."""

    def __init__(self, stage: Stage, name: str, strategy: str = "range") -> None:
        self.stage, self.name, self.strategy = stage, name, strategy
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def join(self, name: str, topic: str = "", **more: Any) -> Member:
        """Start a member."""
        self.members.append(Member(self.stage, self.name, name, topic, partition_assignment_strategy=self.strategy, **more))
        return self.members[-1]

    def leave(self, member: Member) -> None:
        """Let a member leave."""
        member.leave()
        self._remove(member)

    def kill(self, member: Member) -> None:
        """Kill a member, which others notice when its session is over."""
        member.kill()
        self._remove(member)

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)

    def read(self) -> set[str]:
        """The values of all records that members have read."""
        return {value for member in (*self.members, *self.gone) for value in member.read()}

    def owners(self) -> Owners:
        """The owners in ZooKeeper."""
        return actual_owners(self.stage.client, self.name)

    def settle(self, *stopped: Member) -> None:
        """Wait until exactly the members are registered, without the ``stopped`` ones, and the owners are those of the formula."""
        client = self.stage.client
        ids = sorted(member.id for member in self.members if member not in stopped)

        def is_settled() -> bool:
            if children(client, f"/consumers/{self.name}/ids") != ids:
                return False
            owners = self.owners()
            return owners == expected_owners(client, self.name, self.strategy) and bool(owners) is bool(ids)

        until(
            is_settled,
            lambda: (
                f"members {ids}, registered {children(client, f'/consumers/{self.name}/ids')}, owners {self.owners()}, "
                f"expected {expected_owners(client, self.name, self.strategy)}"
            ),
        )

    def check_tools(self) -> None:
        """Wait until Kafka's three tools and Ottla's agree with each other, and with ZooKeeper.

        Members commit meanwhile: the tools of Kafka see offsets between those that Ottla's sees before and after them. A tool that
        is slower than a member's next rebalance asks again.
        """
        differences: list[str] = []

        def do_agree() -> bool:
            differences[:] = self._differences()
            return not differences

        until(do_agree, lambda: "\n".join(differences))

    def described(self) -> list[dict[str, Any]]:
        """The partitions by ``ottla group describe``."""
        done = ottla("group", "describe", self.name, "--zookeeper", self.stage.zookeeper, "--format", "json")
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)["partitions"]
        return rows

    def _differences(self) -> list[str]:
        owners, before = self.owners(), self.described()
        members = {partition: owner.rpartition("-")[0] for partition, owner in owners.items()}
        verified = self.stage.programs(
            "kafka.tools.VerifyConsumerRebalance", "--zookeeper.connect", self.stage.zookeeper, "--group", self.name
        )
        command, command_owners = self._by_group_command()
        checker, checker_owners = self._by_offset_checker()
        after = self.described()
        ours = [{key(row): row["owner"] for row in rows if row["owner"]} for rows in (before, after)]
        found = [
            *([] if "Rebalance operation successful" in verified else [f"VerifyConsumerRebalance: {verified}"]),
            *_unlike("ottla group describe", ours[0], owners),
            *_unlike("ottla group describe", ours[1], owners),
            *_unlike("kafka-consumer-groups", command_owners, members),
            *_unlike("ConsumerOffsetChecker", checker_owners, owners),
            *_unlike("ZooKeeper, afterwards", self.owners(), owners),
        ]
        for partition in owners:
            least, most = (next((row["committed"] for row in rows if key(row) == partition), None) or 0 for rows in (before, after))
            for tool, offsets in (("kafka-consumer-groups", command), ("ConsumerOffsetChecker", checker)):
                if not least <= (offsets.get(partition) or 0) <= most:
                    found.append(f"{tool}: {partition} at {offsets.get(partition)}, not from {least} to {most}")
        return found

    def _by_group_command(self) -> tuple[Offsets, Owners]:
        """Committed offsets, and the members that are owners, by ``kafka-consumer-groups`` of 1.1.1."""
        arguments = ("--zookeeper", self.stage.zookeeper, "--describe", "--group", self.name)
        lines = self.stage.programs("kafka.admin.ConsumerGroupCommand", *arguments).splitlines()
        # A member without partitions has a row without a topic.
        rows = [line.split() for line in lines if len(line.split()) == 6 and not line.startswith(("TOPIC", "-"))]
        owners = {(row[0], int(row[1])): row[5] for row in rows if row[5] != "-"}
        return {(row[0], int(row[1])): number(row[2]) for row in rows}, owners

    def _by_offset_checker(self) -> tuple[Offsets, Owners]:
        """Committed offsets, and the threads that are owners, by ``ConsumerOffsetChecker`` of 0.8.2.2."""
        arguments = ("--zookeeper", self.stage.zookeeper, "--group", self.name)
        lines = self.stage.oldest_programs("kafka.tools.ConsumerOffsetChecker", *arguments).splitlines()
        rows = [line.split() for line in lines if line.startswith(f"{self.name} ")]
        owners = {(row[1], int(row[2])): row[6] for row in rows if row[6] != "none"}
        return {(row[1], int(row[2])): number(row[3]) for row in rows}, owners


def key(row: Mapping[str, Any]) -> Partition:
    return row["topic"], row["partition"]


def number(cell: str) -> int | None:
    return None if cell in ("-", "-1", "unknown") else int(cell)


def _unlike(tool: str, said: Owners, owners: Owners) -> list[str]:
    return [] if said == owners else [f"{tool}: {said}, but the owners are {owners}"]
