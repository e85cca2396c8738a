"""The work of the group ``dispatch``, counted from the members' files.

Owns the parsing of those files. Must not use the members' own counts. Invariant: the incomplete last line of a killed member is not
counted: its offset was not committed, so another member has written it completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tally:
    """``distinct`` flights were handled at least once; ``repeated`` lines are of flights that had been handled before."""

    distinct: int
    repeated: int
    by_carrier: dict[str, int]
    by_member: dict[str, int]


def read(files: Iterable[Path]) -> Tally:
    """Count the flights in ``files``: lines of topic, partition, offset and carrier between tabs, one file a member."""
    carriers: dict[tuple[str, str, str], str] = {}
    by_member: dict[str, int] = {}
    for file in sorted(files):
        lines = file.read_text(encoding="ascii").split("\n")[:-1]  # the text after the last newline is incomplete
        by_member[file.stem] = len(lines)
        for line in lines:
            topic, partition, offset, carrier = line.split("\t")
            carriers[topic, partition, offset] = carrier
    return Tally(
        distinct=len(carriers),
        repeated=sum(by_member.values()) - len(carriers),
        by_carrier=dict(Counter(carriers.values())),
        by_member=by_member,
    )
