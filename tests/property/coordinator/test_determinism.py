"""Equal requests get equal replies, in another process too, where sets iterate in another order."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.property.coordinator.client import ReadingClient
from tests.property.coordinator.consumer_client import ConsumerClient
from tests.property.coordinator.with_consumers import SUBSCRIPTIONS
from tests.unit.coordinator.harness import Harness, subscription


def story() -> str:
    """The replies of a coordinator to a hundred requests, most of them of members of both protocols in two groups."""
    harness, dice = Harness(), random.Random(7)
    crowd: list[ReadingClient | ConsumerClient] = []
    for number in range(100):
        group = dice.choice("gh")
        protocols = {"range": subscription("orders"), "sticky": subscription("orders", "bills")}
        match dice.randrange(6):
            case 0:
                crowd.append(ReadingClient(harness, f"c{number}", group, dice.choice([None, "i"]), protocols))
            case 1:
                crowd.append(ConsumerClient(harness, f"m{number}", group, None, dice.choice(SUBSCRIPTIONS)))
            case 2:
                harness.commit({("orders", number % 4): number, ("bills", number % 2): number}, group=group)
                harness.commit_in_transaction({("bills", number % 2): number}, number % 3, group=dice.choice("ghs"))
            case 3:
                harness.sleep(dice.choice([500, 3_000, 6_000]))
                harness.run_jobs()
            case 4:
                harness.end_transaction(number % 3, commit=dice.random() < 0.7)
                harness.change_topics(**{dice.choice(["orders", "bills", "others"]): dice.choice([0, 6])})
            case 5:
                harness.delete("s")
        for one in crowd[-6:] * 2:
            one.step()
    return hashlib.sha256(repr(harness.said).encode()).hexdigest()


def test_another_process_gives_the_same_replies() -> None:
    program = f"from {__name__} import story; print(story())"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop().strip()) == 64
