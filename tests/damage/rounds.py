"""A round: a directory is damaged, a broker starts on it, is read, cleans, ends, and the next one is read.

``python -m tests.damage.rounds 17 100-200`` runs rounds alone. Owns the order of the steps. Must not know what a fault costs.
Invariant: a round depends on nothing but its number.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from ottla.coordinator.effects import ApiError
from ottla.errors import ConfigError, StorageError
from ottla.records import NewRecord, encode_batch, read_header
from ottla.simulation.clock import START
from ottla.types import Now
from tests.damage.directory import HIGH_WATERMARK_CHECKPOINT, MINUTE, PARTITIONS, SETTINGS, Whole, build
from tests.damage.expected import Judge
from tests.damage.faults import Fault, fault_of, strike
from tests.damage.reading import Everything, read_everything
from tests.simulation.broker import CoreUnderTest

SIZES = (200, 700, 1 << 20)
"""Bytes a partition that readers ask for at once."""

MAY_BE_REFUSED = ("properties", "catalog", "copy of catalog")
"""The kinds of files without which a broker may refuse to start (docs/data-directory.md)."""


class Rounds:
    """The undamaged directories and what brokers say of them; ``run`` does a round."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _log_lines():
            self.wholes = {ended: build(path / f"whole-{ended}", ended) for ended in HIGH_WATERMARK_CHECKPOINT}
            self._usual = {ended: tuple(self._sound(whole)) for ended, whole in self.wholes.items()}

    def _sound(self, whole: Whole) -> Iterator[Everything]:
        """The answers before and after cleaning."""
        path = self._path / f"sound-{whole.ended}"
        whole.write(path)
        broker = _started(path, whole.now)
        yield read_everything(broker, 1 << 20)
        _clean(broker)
        yield read_everything(broker, 1 << 20)
        broker.close()

    def run(self, number: int, *, keep: Path | None = None) -> list[str]:
        """Do a round; returns what is wrong, in words. ``keep``: where the directory is left."""
        fault = fault_of(number, self.wholes)
        path = keep or self._path / "round"
        shutil.rmtree(path, ignore_errors=True)
        whole = self.wholes[fault.ended]
        whole.write(path)
        strike(fault, whole, path)
        with _log_lines() as lines:
            try:
                wrong = list(dict.fromkeys(self._steps(fault, whole, path, lines)))
            except Exception:
                wrong = [traceback.format_exc()]
            wrong += [line for line in lines if "Traceback" in line]
        return [f"{fault}:", *wrong, *(f"  logged: {line}" for line in lines)] if wrong else []

    def _steps(self, fault: Fault, whole: Whole, path: Path, lines: list[str]) -> Iterator[str]:
        judge, random = Judge(fault, whole, path, lines), Random(fault.seed)
        before, after = self._usual[fault.ended]
        try:
            broker = _started(path, whole.now)
        except (StorageError, ConfigError) as error:
            if fault.kind not in MAY_BE_REFUSED:
                yield f"the start is refused: {error}"
            return
        lines += broker.warnings
        size = random.choice(SIZES)
        yield from judge.check(read_everything(broker, size), before, now=broker.now.wall, cleaned=False)
        _clean(broker)
        yield from judge.check(read_everything(broker, size), after, now=broker.now.wall, cleaned=True)
        broker.kill() if fault.killed else broker.close()
        again = _started(path, broker.now)
        lines += again.warnings
        found = read_everything(again, size)
        yield from judge.check(found, after, now=again.now.wall, cleaned=True)
        yield from _append(again, found)
        again.close()


def restarted(path: Path) -> CoreUnderTest:
    """A broker on what a round has left."""
    return _started(path, START)


def _started(path: Path, now: Now) -> CoreUnderTest:
    return CoreUnderTest(path, Now(now.mono, now.wall + MINUTE), durable=False, **SETTINGS)


def _clean(broker: CoreUnderTest) -> None:
    """Let retention, compaction and checkpoints have their turns, and what they gave up be removed."""
    for _ in range(4):
        broker.pass_time(MINUTE)
        broker.run_jobs()


def _append(broker: CoreUnderTest, before: Everything) -> Iterator[str]:
    """A record written now is read, behind all others."""
    for topic, number in PARTITIONS:
        read = before.partitions[topic, number]
        try:
            log = broker.core.catalog.log(topic, number)
        except ApiError:
            continue  # offline, which was judged before
        data = encode_batch([NewRecord(b"new", b"new", timestamp=broker.now.wall)])
        appended = broker.core.catalog.append(log, data, read_header(data), broker.now)
        if appended.base_offset != read.end:
            yield f"a record was appended to {topic}-{number} at {appended.base_offset} instead of {read.end}"
    broker.run_jobs()
    for topic, number in PARTITIONS:
        if broker.core.catalog.log(topic, number).read(before.partitions[topic, number].end, 1000, at_least_one=True) is None:
            yield f"the new record of {topic}-{number} cannot be read"


@contextmanager
def _log_lines() -> Iterator[list[str]]:
    """The lines that the broker logs meanwhile."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger, handler = logging.getLogger("ottla.broker"), Lines(logging.WARNING)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _main() -> None:
    failed = count = 0
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder))
        for argument in sys.argv[1:]:
            first, _, last = argument.partition("-")
            for number in range(int(first), int(last or first) + 1):
                wrong = rounds.run(number)
                count, failed = count + 1, failed + bool(wrong)
                if wrong:
                    print("\n".join(wrong), end="\n\n")
    print(f"{failed} of {count} rounds failed")


if __name__ == "__main__":
    _main()
