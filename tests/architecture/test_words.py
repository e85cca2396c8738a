"""Rules for the text of all files: what each module says, places that no file names, and words that our prose does not use."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import CHECKOUT, FOLDERS, name, python_files, text_files, tree

# Written in two parts, so that this file does not contain what it forbids.
REGISTRIES = [("pypi", "org"), ("pythonhosted", "org"), ("repo.maven.apache", "org"), ("repo1.maven", "org")]
REGISTRIES += [("registry.npmjs", "org"), ("crates", "io"), ("deb.debian", "org")]
PLACES = [("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/wo", "rk/"), ("../sha", "red")]
BANNED = re.compile(
    "|".join(
        [rf"\b{re.escape(host)}\.{domain}\b" for host, domain in REGISTRIES]
        + [rf"(?<![\w.]){re.escape(first + second)}" for first, second in PLACES]
    )
)
LITERAL = [f"{host}.{domain}" for host, domain in REGISTRIES] + [first + second for first, second in PLACES]
"""A part of each match of ``BANNED``: to look for these first takes a tenth of the time."""

AVOIDED = re.compile(
    r"\b(anew|can\s+not|lest|mend(s|ed)?|thereby|whoever|whomever|anybody|nobody|(is|are|was|were|be|been|being)\s+told)\b",
    re.IGNORECASE,
)
"""Words that our prose does not use: archaic ones, riddles about persons, and passives that hide who tells what to whom."""


def banned(text: str) -> list[str]:
    """The places and registries that ``text`` names, each with its line."""
    if not any(literal in text for literal in LITERAL):
        return []
    lines = enumerate(text.splitlines(), start=1)
    return [f"{number}: {match[0]}" for number, line in lines for match in BANNED.finditer(line)]


def avoided(path: Path, text: str) -> list[str]:
    """The avoided words in the prose of a file, each with its line. Names, and the strings of tests, are not prose."""
    if not AVOIDED.search(text):
        return []
    parts = prose(text, with_strings=name(path).startswith("src/")) if path.suffix == ".py" else [(1, text)]
    return [
        f"{start + part.count(chr(10), 0, match.start())}: {match[0]}" for start, part in parts for match in AVOIDED.finditer(part)
    ]


def prose(source: str, *, with_strings: bool) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, and all its strings if ``with_strings``, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        constant = node if with_strings else node.value if isinstance(node, ast.Expr) else None
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            yield constant.lineno, constant.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_every_module_opens_with_a_docstring() -> None:
    others = [path for path in python_files(*FOLDERS) if not path.read_text(encoding="utf-8").startswith('"""')]  # few are parsed
    silent = [name(path) for path in others if tree(path).body and not ast.get_docstring(tree(path))]
    assert silent == [], "say what it owns, what it must not know, what it keeps true"


def test_every_package_has_a_docstring() -> None:
    packages = [path for path in python_files("src") if path.name == "__init__.py"]
    assert [name(path) for path in packages if not ast.get_docstring(tree(path))] == []


def test_no_file_names_a_place_of_one_machine_or_a_registry() -> None:
    found = {name(path): banned(path.read_text(encoding="utf-8")) for path in text_files()}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_no_file_uses_an_avoided_word() -> None:
    found = {name(path): avoided(path, path.read_text(encoding="utf-8")) for path in text_files()}
    assert {file: lines for file, lines in found.items() if lines} == {}, "use plain words: subject, verb, object"


@pytest.mark.parametrize("parts", PLACES, ids=range(len(PLACES)))
def test_a_place_of_one_machine_is_found(parts: tuple[str, str]) -> None:
    assert banned(f"see {''.join(parts)}somewhere")


@pytest.mark.parametrize("parts", REGISTRIES, ids=range(len(REGISTRIES)))
def test_a_registry_is_found(parts: tuple[str, str]) -> None:
    assert banned(f"https://{'.'.join(parts)}/simple")


@pytest.mark.parametrize("words", ["src/home/page", "frame/work/load", "crates.iota", "maven.apache.org"])
def test_a_harmless_word_is_not(words: str) -> None:
    assert not banned(words)


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        ("docs/page.md", "One line.\nThe port can not be had, and the\nmember is told\n", ["2: can not", "3: is told"]),
        ("src/ottla/a.py", '"""Owns nothing.\n\nWhoever asks."""\nx = 1  # it begins anew\n', ["3: Whoever", "4: anew"]),
        ("src/ottla/a.py", 'raise ValueError(f"{x}: nobody listens")\n', ["1: nobody"]),
        ("tests/a.py", 'group = "nobody"\nassert group, "it was told"\n', []),
        ("tests/a.py", "def test_nobody_is_told() -> None:\n    x = 1  # mended\n", ["2: mended"]),
    ],
)
def test_an_avoided_word_is_found(path: str, text: str, lines: list[str]) -> None:
    assert avoided(CHECKOUT / path, text) == lines
