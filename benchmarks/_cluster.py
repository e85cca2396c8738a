"""The real Kafka that benchmarks run against, and the checkout's tools that they call."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str, *args: str) -> str:
    """What one of the checkout's tools printed."""
    return subprocess.run([TOOLS / name, *args], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def cluster(given: str | None, ports: Sequence[int]) -> Iterator[str]:
    """The servers given, or a real Kafka that ends with this process."""
    if given is not None:
        yield given
        return
    port = str(random.choice(ports))
    os.environ["OTTLA_KAFKA_OWNER"] = str(os.getpid())
    try:
        yield tool("kafka", "start", port)
    finally:
        tool("kafka", "stop", port)
