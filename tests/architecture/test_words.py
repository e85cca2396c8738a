"""What every file says, and what none may say."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.sources import FOLDERS, name, python_files, text_files, tree

# Written in two parts, so that this file does not say what no file may say.
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
"""What each match of ``BANNED`` contains: to look for these first takes a tenth of the time."""


def banned(text: str) -> list[str]:
    """What ``text`` says and may not say, with its line."""
    if not any(literal in text for literal in LITERAL):
        return []
    lines = enumerate(text.splitlines(), start=1)
    return [f"{number}: {match[0]}" for number, line in lines for match in BANNED.finditer(line)]


def test_every_module_opens_with_a_docstring() -> None:
    others = [path for path in python_files(*FOLDERS) if not path.read_text(encoding="utf-8").startswith('"""')]  # few are parsed
    silent = [name(path) for path in others if tree(path).body and not ast.get_docstring(tree(path))]
    assert silent == [], "say what it owns, what it must not know, what it keeps true"


def test_every_room_says_what_it_is() -> None:
    rooms = [path for path in python_files("src") if path.name == "__init__.py"]
    assert [name(path) for path in rooms if not ast.get_docstring(tree(path))] == []


def test_no_file_names_a_place_of_one_machine_or_a_registry() -> None:
    found = {name(path): banned(path.read_text(encoding="utf-8")) for path in text_files()}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize("parts", PLACES, ids=range(len(PLACES)))
def test_a_place_of_one_machine_is_found(parts: tuple[str, str]) -> None:
    assert banned(f"see {''.join(parts)}somewhere")


@pytest.mark.parametrize("parts", REGISTRIES, ids=range(len(REGISTRIES)))
def test_a_registry_is_found(parts: tuple[str, str]) -> None:
    assert banned(f"https://{'.'.join(parts)}/simple")


@pytest.mark.parametrize("words", ["src/home/page", "frame/work/load", "crates.iota", "maven.apache.org"])
def test_a_harmless_word_is_not(words: str) -> None:
    assert not banned(words)
