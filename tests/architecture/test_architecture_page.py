"""ARCHITECTURE.md names only files and definitions that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
NAMED_IN = re.compile(r"`([A-Za-z_.]+)`\s*(?:in\s|\()\s*`(src/ottla/[a-z_/]+\.py)`")


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:src|tools|docs|tests)/[\w./-]+)`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_is_defined_in_the_file_given_for_it() -> None:
    wrong = []
    pairs = NAMED_IN.findall(PAGE)
    for name, path in pairs:
        source = (ROOT / path).read_text()
        last = name.split(".")[-1]
        if not re.search(rf"(?:def|class) {last}\b|^\s*{last}\b\s*[:=]", source, re.MULTILINE):
            wrong.append(f"{name} is not in {path}")
    assert len(pairs) > 20
    assert wrong == []
