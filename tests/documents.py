"""The blocks of the documents, for the tests that run them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    """Return the text of all blocks of a language."""
    return [text for found, text in BLOCK.findall(document.read_text()) if found == language]


def with_blocks(language: str) -> list[Path]:
    """Return the documents with a block of a language."""
    return [document for document in DOCUMENTS if blocks(document, language)]


def programs() -> Iterator[tuple[Path, int, str]]:
    """Each Python program: its document, its number there, and its text."""
    for document in DOCUMENTS:
        for number, text in enumerate(blocks(document, "python")):
            yield document, number, text


def is_for_spark(program: str) -> bool:
    """Whether a program starts Spark, which takes long: a test gives it a session that runs."""
    return "SparkSession" in program


def name_of(document: Path) -> str:
    """Return the path of a document in the project."""
    return str(document.relative_to(ROOT))
