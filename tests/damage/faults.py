"""The faults: which file of which kind is hit in a round, and how.

Owns the kinds of files and of faults, and the order in which rounds take them. Must not know what follows from a fault. Invariants:
the same number is the same round; the first hundred rounds meet every kind of file and every kind of fault.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.damage.batches import batches_in
from tests.damage.directory import HIGH_WATERMARK_CHECKPOINT, Whole

_SEGMENT = r"\d{20}\."
_USERS = r"(?:plain|expiring|trimmed|compacted|former|t)-\d/"
_CHECKPOINTS = ("recovery-point", "log-start", "cleaner", "replication")

FILES = {
    "log": _USERS + _SEGMENT + "log",
    "newest log": _USERS + _SEGMENT + "log",
    "plain log": "plain-0/" + _SEGMENT + "log",
    "compacted log": "(?:compacted|former)-0/" + _SEGMENT + "log",
    "transactional log": "t-0/" + _SEGMENT + "log",
    "groups": r"__consumer_offsets-\d/" + _SEGMENT + "log",
    "transactional ids": r"__transaction_state-\d/" + _SEGMENT + "log",
    "index": ".*" + _SEGMENT + "index",
    "timeindex": ".*" + _SEGMENT + "timeindex",
    "txnindex": ".*" + _SEGMENT + "txnindex",
    "copy of txnindex": ".*" + _SEGMENT + r"txnindex\.copy",
    "snapshot": ".*" + _SEGMENT + "snapshot",
    "swap": ".*" + _SEGMENT + r"log\.swap",
    "index swap": ".*" + _SEGMENT + r"\w*index\.swap",
    "epochs": ".*/leader-epoch-checkpoint",
    "metadata": r".*/partition\.metadata",
    **{f"{name} checkpoint": f"{name}-offset-checkpoint" for name in _CHECKPOINTS},
    **{f"copy of {name} checkpoint": rf"{name}-offset-checkpoint\.copy" for name in _CHECKPOINTS},
    "catalog": r"topics\.json",
    "copy of catalog": r"topics\.json\.copy",
    "properties": r"meta\.properties",
    "clean end": r"\.kafka_cleanshutdown",
    "lock": r"\.lock",
    "folder": ".*/(?=leader-epoch-checkpoint)",
}
"""Kinds of files, and what the names of their files match."""


class Fault(NamedTuple):
    """What is done to which file in which directory, and how the broker ends in between."""

    number: int
    ended: str
    kind: str
    how: str
    file: str
    seed: str
    killed: bool
    """Whether the broker that has found the damage ends with kill -9."""

    def __str__(self) -> str:
        ends = f"broker {self.ended}, then {'killed' if self.killed else 'closed'}"
        return f"round {self.number}: {self.how} in {self.file or 'nothing'} ({self.kind}; {ends})"

    @property
    def folder(self) -> str:
        """The partition that is hit; empty for the files of the directory itself."""
        return self.file.rpartition("/")[0]


def _flip(file: Path, random: Random, _: list[bytes]) -> None:
    content = bytearray(file.read_bytes())
    if not content:
        return
    at = random.randrange(len(content))
    starts = [batch.position for batch in batches_in(bytes(content))] if ".log" in file.name else []
    if starts and random.random() < 0.6:
        at = random.choice(starts) + random.randrange(61)
    content[at] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def _truncate(file: Path, random: Random, _: list[bytes]) -> None:
    content = file.read_bytes()
    ends = [batch.position for batch in batches_in(content)] if ".log" in file.name else []
    at = random.choice(ends) if ends and random.random() < 0.3 else random.randrange(max(1, len(content)))
    file.write_bytes(content[:at])


def _zero_part(file: Path, random: Random, _: list[bytes]) -> None:
    content = bytearray(file.read_bytes())
    start, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    content[start:end] = bytes(end - start)
    file.write_bytes(content)


def _zero(file: Path, random: Random, _: list[bytes]) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _empty(file: Path, random: Random, _: list[bytes]) -> None:
    if file.is_dir():
        for one in file.iterdir():
            one.unlink()
    else:
        file.write_bytes(b"")


def _remove(file: Path, random: Random, _: list[bytes]) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink()


def _by_another(file: Path, random: Random, others: list[bytes]) -> None:
    if others:
        file.write_bytes(random.choice(others))


def _by_random_bytes(file: Path, random: Random, _: list[bytes]) -> None:
    file.write_bytes(random.randbytes(random.choice((file.stat().st_size, random.randrange(1, 2000)))))


def _garbage_part(file: Path, random: Random, _: list[bytes]) -> None:
    content = bytearray(file.read_bytes())
    start, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    content[start:end] = random.randbytes(end - start)
    file.write_bytes(content)


def _grow(file: Path, random: Random, _: list[bytes]) -> None:
    size = random.randrange(1, 400)
    file.write_bytes(file.read_bytes() + (random.randbytes(size) if random.random() < 0.5 else bytes(size)))


HOW: dict[str, Callable[[Path, Random, list[bytes]], None]] = {
    "flipped bit": _flip,
    "truncated": _truncate,
    "part zeroed": _zero_part,
    "zeroed": _zero,
    "emptied": _empty,
    "removed": _remove,
    "replaced by another": _by_another,
    "replaced by random bytes": _by_random_bytes,
    "part random bytes": _garbage_part,
    "more bytes at its end": _grow,
}
"""Kinds of faults. Each gets the file, and the content of other files of its kind."""

FOR_FOLDERS = ("emptied", "removed")


def _combinations() -> list[tuple[str, str]]:
    kinds, ways = list(FILES), list(HOW)
    return [
        (kind, FOR_FOLDERS[shift % 2] if kind == "folder" else ways[(row + shift) % len(ways)])
        for shift in range(len(ways))
        for row, kind in enumerate(kinds)
    ]


COMBINATIONS = _combinations()


def fault_of(number: int, wholes: dict[str, Whole]) -> Fault:
    """The fault of a round."""
    kind, how = COMBINATIONS[number % len(COMBINATIONS)]
    random = Random(f"damage {number}")
    able = [ended for ended in HIGH_WATERMARK_CHECKPOINT if candidates(kind, wholes[ended])]
    if not able:
        kind, able = "log", list(HIGH_WATERMARK_CHECKPOINT)
    ended = random.choice(able)
    file = random.choice(candidates(kind, wholes[ended]))
    return Fault(number, ended, kind, how, file, f"bytes {number}", random.random() < 0.5)


def candidates(kind: str, whole: Whole) -> list[str]:
    """The files of a kind."""
    found = [match[0] for name in whole.files if (match := re.match(FILES[kind], name)) and (kind == "folder" or match[0] == name)]
    if kind == "newest log":
        found = [
            max(name for name in found if name.startswith(folder)) for folder in sorted({one.partition("/")[0] for one in found})
        ]
    return found


def strike(fault: Fault, whole: Whole, path: Path) -> None:
    """Do the damage in a copy at ``path``."""
    others = [] if fault.kind == "folder" else [whole.files[name] for name in candidates(fault.kind, whole) if name != fault.file]
    HOW[fault.how](path / fault.file, Random(fault.seed), others)
