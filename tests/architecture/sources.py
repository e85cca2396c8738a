"""The source files that the rules of the house are checked against, parsed once.

Owns where sources are; must not know any rule. Invariant: a file that is not ours (built, cached, generated) is not in it.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "src" / "ottla"
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples", "docs", ".ci")
NOT_TEXT = {".so", ".pyd", ".pyc", ".c", ".png", ".gz", ".bin", ".parquet", ".log", ".index", ".timeindex"}


def name(path: Path) -> str:
    """How a file is called in messages and in lists of exceptions: its path inside the checkout."""
    return path.relative_to(CHECKOUT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The parsed source of ``path``.

    All sources are 1.7 million nodes, which stay. The garbage collector went through them again and again: parsing took 17 s
    instead of 5, and each full collection of the tests that followed 3 s. So it never sees them.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    finally:
        gc.freeze()
        gc.enable()


def python_files(*folders: str) -> list[Path]:
    """All our Python sources below ``folders`` of the checkout."""
    return [path for folder in folders for path in _files(CHECKOUT / folder) if path.suffix == ".py"]


def text_files() -> list[Path]:
    """All that we write and commit: sources, documents, settings, scripts."""
    made = (".coverage", ".git\n")  # in a linked work tree .git is a file
    top = [path for path in sorted(CHECKOUT.iterdir()) if path.is_file() and not f"{path.name}\n".startswith(made)]
    return top + [path for folder in FOLDERS for path in _files(CHECKOUT / folder)]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        made = any(part == "__pycache__" or part.startswith(".") or part.endswith(".egg-info") for part in inside)
        if path.is_file() and path.suffix not in NOT_TEXT and not made:
            yield path
