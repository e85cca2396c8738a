"""The memory of Spark's Python processes while a driver runs."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")

KINDS = {
    "worker": b"pyspark.daemon\0pyspark.worker",
    "stream planner": b"python_streaming_source_runner",
    "planner process": b"ottla.spark.planner",
}
"""Processes with Ottla in them -> a part of their command line."""


class MemorySampler(threading.Thread):
    """Samples the resident memory of the processes below a driver, about three times per second."""

    def __init__(self, home: Path) -> None:
        """``home`` is that of the driver, which its processes have in their environment as ``DRIVER_HOME``."""
        super().__init__(daemon=True)
        self._mark = b"DRIVER_HOME=" + bytes(home) + b"\0"
        self._stopped = threading.Event()
        self._samples: dict[str, list[int]] = defaultdict(list)

    def run(self) -> None:
        while not self._stopped.wait(0.3):
            largest: dict[str, int] = {}
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    words = (process / "cmdline").read_bytes()
                    kind = next((kind for kind, part in KINDS.items() if part in words), None)
                    if kind is None or self._mark not in (process / "environ").read_bytes():
                        continue
                    resident = int((process / "statm").read_text().split()[1]) * PAGE
                except (OSError, IndexError):  # it has just ended
                    continue
                largest[kind] = max(resident, largest.get(kind, 0))
            for kind, resident in largest.items():
                self._samples[kind].append(resident)

    def stop(self) -> dict[str, list[int]]:
        """Return the samples of the largest process of each kind, in MiB."""
        self._stopped.set()
        self.join()
        return {kind: [sample >> 20 for sample in samples] for kind, samples in self._samples.items()}


def thirds(samples: list[int]) -> list[int]:
    """Return the most in each third of the samples."""
    third = max(1, len(samples) // 3)
    return [max(samples[at : at + third], default=0) for at in (0, third, 2 * third)]
