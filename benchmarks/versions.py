"""A broker without ZooKeeper and a classic consumer: this checkout, and an earlier revision of it.

In each round each version has a broker and consumers of its own, in processes of their own, and the versions take turns to begin.
The broker's clients are those of ``broker.py``, the same for both. Both versions are copies in one directory, with their bytecode
and the extension modules of this checkout. The figures are medians of the rounds.

    python benchmarks/versions.py [REVISION] [--rounds 3] [--records 1000000]

REVISION is by default the last one before several brokers could share a ZooKeeper.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _topics import create
from broker import consume, produce

ROOT = Path(__file__).parents[1]
ROUND = Path(__file__).with_name("_version_round.py")
BEFORE_ZOOKEEPER = "4f93c068~1"
PARTITIONS = 4
SIZE = 100
"""Bytes of a value."""
TITLES = {
    "broker start": ("broker: start", 1e3, "ms"),
    "produced": ("broker: produced", 1e-6, "M records/s"),
    "consumed": ("broker: consumed", 1e-6, "M records/s"),
    "import": ("import of ottla", 1e3, "ms"),
    "first": ("classic consumer: first record after subscribe()", 1e3, "ms"),
    "rate": ("classic consumer: poll()", 1e-6, "M records/s"),
    "median": ("from produce() to poll(), median", 1, "ms"),
    "99 %": ("from produce() to poll(), 99 %", 1, "ms"),
}
"""Figure -> its title, a factor and a unit."""


def extract(revision: str, folder: Path) -> Path:
    """Return the directory of the sources of ``revision``, with the extension modules of this checkout."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", revision, "src"], capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"error: no sources of {revision}: {archive.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    for compiled in (ROOT / "src").rglob("*.so"):
        shutil.copy(compiled, folder / compiled.relative_to(ROOT))
    return folder / "src"


def copies(revision: str, folder: Path) -> Mapping[str, Path]:
    """Return the directories of the sources of both versions. They are equally far from the disk, and compiled."""
    after = shutil.copytree(ROOT / "src", folder / "after", ignore=shutil.ignore_patterns("__pycache__"))
    versions = {"before": extract(revision, folder / "before"), "after": after}
    for sources in versions.values():
        compileall.compile_dir(sources, quiet=1)
    return versions


def start(sources: Path, *args: str) -> subprocess.Popen[str]:
    """Start a measurement of the version in ``sources``."""
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    return subprocess.Popen(
        [sys.executable, ROUND, *args], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def figures_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a measurement prints at its end."""
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"error: a measurement ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@contextmanager
def running_broker(sources: Path, figures: dict[str, Any]) -> Iterator[str]:
    """A broker of a version; afterwards its figures are in ``figures``."""
    process = start(sources, "broker")
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        found = figures_of(process)
    figures["broker start"], figures["broker modules"] = found["start"], found["modules"]


def measure(sources: Path, records: int) -> dict[str, Any]:
    """One round of a version."""
    figures: dict[str, Any] = {}
    with running_broker(sources, figures) as servers:
        create(servers, "read", PARTITIONS)
        create(servers, "late", 1)
        figures["produced"] = records / produce(servers, "read", records, SIZE)
        figures["consumed"] = records / consume(servers, "read", records, PARTITIONS)
        figures |= figures_of(start(sources, "read", servers, "read", str(records)))
        figures |= figures_of(start(sources, "latency", servers, "late"))
    return figures


def report(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Print the table, and the modules that only one version loads."""
    for name, (title, factor, unit) in TITLES.items():
        old, new = ([each[name] * factor for each in rounds] for rounds in (before, after))
        middle = statistics.median(old)
        spread = f"{min(new) / middle:.2f} to {max(new) / middle:.2f}"
        ratio = statistics.median(new) / middle
        print(f"{title:50} before {middle:8.2f}   after {statistics.median(new):8.2f} {unit:12} ratio {ratio:.2f} ({spread})")
    for what, name in (("consumer", "modules"), ("broker", "broker modules")):
        print(f"modules of the {what}: {_difference(before[0][name], after[0][name])}")


def _difference(before: list[str], after: list[str]) -> str:
    more, fewer = sorted(set(after) - set(before)), sorted(set(before) - set(after))
    return ", ".join([f"+{name}" for name in more] + [f"-{name}" for name in fewer]) or "the same"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default=BEFORE_ZOOKEEPER)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        versions = copies(given.revision, Path(folder))
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
        for number in range(given.rounds):
            for name in sorted(versions, reverse=bool(number % 2)):
                found[name].append(measure(versions[name], given.records))
                print(f"round {number + 1} of {given.rounds}: {name}", file=sys.stderr, flush=True)
    report(found["before"], found["after"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
