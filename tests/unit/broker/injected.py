"""Faults injected into a broker's core, and how often they struck."""

from __future__ import annotations

from typing import Any

from ottla.broker.effects import FaultStruck
from ottla.broker.faults import rules
from ottla.broker.faults.rules import AddFault, Match, RemoveFaults, Rule
from tests.simulation.broker import CoreUnderTest


def add(broker: CoreUnderTest, action: rules.Action, number: int = 1, **fields: Any) -> None:
    match = {name: fields.pop(name) for name in ("apis", "client_id", "group", "topic", "transactional_id") if name in fields}
    if "apis" in match:
        match["apis"] = frozenset(match["apis"])
    broker.take(broker.core.on_command(AddFault(Rule(number, action, Match(**match), **fields)), broker.now)[1])


def remove(broker: CoreUnderTest, number: int | None = None) -> None:
    broker.take(broker.core.on_command(RemoveFaults(number), broker.now)[1])
    broker.run_jobs()


def struck(broker: CoreUnderTest) -> list[int]:
    return [effect.fault for effect in broker.others if isinstance(effect, FaultStruck)]
