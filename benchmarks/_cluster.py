"""Apache Kafka for the benchmarks, and the checkout's tools."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str, *args: str) -> str:
    """Run one of the checkout's tools and return its output."""
    return subprocess.run([TOOLS / name, *args], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def cluster(given: str | None, ports: Sequence[int]) -> Iterator[str]:
    """Yield the given servers, or those of an Apache Kafka that ends with this process."""
    if given is not None:
        yield given
        return
    port = str(random.choice(ports))
    os.environ["OTTLA_KAFKA_OWNER"] = str(os.getpid())
    try:
        yield tool("kafka", "start", port)
    finally:
        tool("kafka", "stop", port)
