"""``ottla group migrate``: copies a group's committed offsets from ZooKeeper to Kafka, or back.

Owns the order of the checks, the writes and the verification. Must not know how a store keeps offsets. Invariants: nothing changes
while the group has members in either store, nor without ``--execute``, nor while an offset of the source cannot be understood,
unless the user leaves it out; what was written is read back; a migration that ended in the middle can be repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

import ottla
from ottla import TopicPartition
from ottla.cli.migration_plan import Action, Step, Store, plan, written
from ottla.cli.offsets import logs_of
from ottla.cli.options import Format
from ottla.cli.output import CommandFailed, pluralize, print_rows, print_warning
from ottla.cli.zookeeper_groups import DRY_RUN, Servers, check_no_members, progress_of
from ottla.errors import GroupIdNotFoundError

COLUMNS = ("topic", "partition", "source", "target", "new_offset", "action", "note")
SHOWN = 5
"""The number of partitions that an error names."""

Offsets = Mapping[TopicPartition, int]


class Committed(NamedTuple):
    """What a store has of the group: its committed offsets, and the errors of those that cannot be understood."""

    offsets: Offsets
    malformed: Mapping[TopicPartition, str]


class Stores:
    """One group in both stores."""

    def __init__(self, name: str, zookeeper: ottla.ZooKeeperAdmin, admin: ottla.Admin) -> None:
        self._name, self._zookeeper, self._admin = name, zookeeper, admin

    def check_no_members(self) -> None:
        """Raise ``CommandFailed`` if the group has members in either store."""
        check_no_members(self._zookeeper, self._name)
        found = next((each for each in self._admin.list_groups() if each.group_id == self._name), None)
        if found is not None and found.group_type.lower() == "share":
            raise CommandFailed(f"group {self._name} in Kafka is a share group, which has no committed offsets")
        if found is not None and found.group_type == "central":
            text = f"group {self._name} is a central group: the brokers keep its offsets in ZooKeeper"
            raise CommandFailed(f"{text}; give the group in Kafka another name, and set its offsets with ottla group reset-offsets")
        # Brokers before 2.6 list groups without their states.
        state = "" if found is None else found.state or self._described_state()
        if state not in ("", "Empty", "Dead"):
            raise CommandFailed(f"group {self._name} is {state} in Kafka: its members must leave first")

    def _described_state(self) -> str:
        try:
            return self._admin.describe_groups([self._name])[self._name].state
        except GroupIdNotFoundError:
            return "Dead"

    def committed(self, store: Store) -> Committed:
        """What a store has of the group."""
        if store is Store.KAFKA:
            return Committed({each: found.offset for each, found in self._admin.group_offsets(self._name).items()}, {})
        try:
            partitions = self._zookeeper.describe_group(self._name).partitions
        except GroupIdNotFoundError:
            return Committed({}, {})
        found = {TopicPartition(each.topic, each.partition): each for each in partitions}
        offsets = {each: one.offset for each, one in found.items() if one.offset is not None}
        return Committed(offsets, {each: one.offset_error for each, one in found.items() if one.offset_error is not None})

    def write(self, store: Store, offsets: Offsets, before: Offsets) -> None:
        """Commit offsets. In ZooKeeper, those before must still be the same."""
        if store is Store.KAFKA:
            self._admin.alter_group_offsets(self._name, offsets)
        else:
            progress = progress_of("wrote", "offset")
            self._zookeeper.alter_group_offsets(self._name, offsets, expected=before, progress=progress)


def migrate(
    servers: Servers,
    name: str,
    source: Store,
    target: Store,
    *,
    backwards: bool,
    skip_malformed: bool,
    execute: bool,
    output: Format,
) -> None:
    """Copy the committed offsets of a group."""
    with servers.connected() as zookeeper, servers.brokers_of(zookeeper) as admin:
        stores = Stores(name, zookeeper, admin)
        stores.check_no_members()
        (from_source, malformed), in_target = stores.committed(source), stores.committed(target).offsets
        if not from_source and not malformed:
            there = f"; it has {pluralize(len(in_target), 'committed offset')} in {target}" if in_target else ""
            raise CommandFailed(f"group {name} has no committed offsets in {source}{there}")
        logs = logs_of(admin, {**from_source, **malformed})
        steps = plan(from_source, malformed, in_target, logs, target, backwards=backwards)
        offsets = written(steps)
        refused = None if skip_malformed else _why_refused(steps, source)
        if execute and offsets and refused is None:
            stores.write(target, offsets, in_target)
            _verify(stores, name, source, target, from_source, offsets)
    print_rows([_row(step) for step in steps], COLUMNS, output)
    _warn(steps, source, target)
    if execute and refused is not None:
        raise CommandFailed(f"nothing was written: {refused}")
    if refused is not None:
        print_warning(f"--execute would refuse: {refused}")
    if not execute:
        print(DRY_RUN, file=sys.stderr)
    elif offsets:
        print(f"wrote {pluralize(len(offsets), 'offset')} to {target} and read them back", file=sys.stderr)
    else:
        print(f"there was nothing to write to {target}", file=sys.stderr)


def _verify(stores: Stores, name: str, source: Store, target: Store, before: Offsets, wanted: Offsets) -> None:
    """Raise ``CommandFailed`` if the target has not what was written, or if the group was at work meanwhile."""
    again = "; look at the group, then migrate it again"
    found = stores.committed(target).offsets
    wrong = [each for each in wanted if found.get(each) != wanted[each]]
    if wrong:
        raise CommandFailed(f"{target} has other offsets than those that were written: {_listed(wrong, wanted, found)}{again}")
    now = stores.committed(source).offsets
    changed = [each for each in {**before, **now} if now.get(each) != before.get(each)]
    if changed:
        text = f"group {name} has committed to {source} during the migration: {_listed(changed, before, now)}"
        raise CommandFailed(f"{text}; stop its members{again}")
    stores.check_no_members()


def _listed(partitions: list[TopicPartition], before: Offsets, now: Offsets) -> str:
    shown = [f"{each} was {before.get(each, 'none')}, is {now.get(each, 'none')}" for each in sorted(partitions)[:SHOWN]]
    return ", ".join(shown) + (", ..." if len(partitions) > SHOWN else "")


def _row(step: Step) -> dict[str, object]:
    return {
        "topic": step.partition.topic,
        "partition": step.partition.partition,
        "source": step.source,
        "target": step.target,
        "new_offset": step.new_offset,
        "action": str(step.action),
        "note": step.note,
    }


def _why_refused(steps: list[Step], source: Store) -> str | None:
    """Why nothing may be written: a consumer of the target would begin at another position. ``None``: it may."""
    malformed = [str(step.partition) for step in steps if step.action is Action.MALFORMED]
    if not malformed:
        return None
    shown = ", ".join(malformed[:SHOWN]) + (", ..." if len(malformed) > SHOWN else "")
    offsets = f"{pluralize(len(malformed), 'committed offset')} in {source} cannot be understood ({shown})"
    return f"{offsets}; reset these offsets, or leave them out with --skip-malformed"


def _warn(steps: list[Step], source: Store, target: Store) -> None:
    skipped = sorted({step.partition.topic for step in steps if step.action is Action.SKIP})
    for topic in skipped:
        print_warning(f"partitions of topic {topic} do not exist any more: skipped")
    outside = sum(step.outside for step in steps)
    if outside:
        print_warning(f"{pluralize(outside, 'offset')} outside the log: a consumer applies auto.offset.reset there")
    malformed = sum(step.action is Action.MALFORMED for step in steps)
    if malformed:
        print_warning(f"{pluralize(malformed, 'malformed offset')} in {source}: not copied")
    kept = sum(step.action is Action.KEEP for step in steps)
    if kept:
        text = f"{pluralize(kept, 'partition')} keep{'s' * (kept == 1)} the greater offset in {target}"
        print_warning(f"{text}; --allow-backwards writes that of the source")
