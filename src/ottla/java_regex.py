r"""Java's regular expressions, as far as Python's ``re`` reads them in the same way.

Owns the decision which patterns those are. Must not know who uses a pattern. Invariants, for names of topics: an accepted pattern
matches in full, and finds, what it does in Java; a pattern that Java refuses is refused.

The names of topics are ASCII letters, digits, ``.``, ``_`` and ``-``. So ``\w``, ``\d``, ``\s``, ``\b`` and ``(?i)`` mean the same,
although Java and Python differ on other text, and there are no line ends, where ``.``, ``^`` and ``$`` differ. ``re.ASCII`` is
Java's default: without it, ``(?i)`` would let the Kelvin sign match ``k``.

Refused is what only one of the two has, what they read differently, and what versions of Python that Ottla supports match wrongly.

Source: ``java.util.regex.Pattern`` of Java 17. ``tests/interop/zookeeper/test_java_regex.py`` compares them.
"""

from __future__ import annotations

import re
from typing import NoReturn

from ottla.errors import ConfigError
from ottla.types import is_utf8, short_repr

_MOST_REPEATS = 1_000
"""The largest count in ``{n,m}``: a name has at most 249 characters."""

_SHOWN = 100

_SETS, _ASSERTIONS = "dDsSwW", "AbB"
"""Escapes that are sets of characters, and that match a position."""

_CHARACTERS = r"[tnrfa]|x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[^a-zA-Z0-9]"

_ESCAPE = re.compile(rf"\\([{_ASSERTIONS}{_SETS}]|{_CHARACTERS})", re.DOTALL)
_ESCAPE_IN_CLASS = re.compile(rf"\\([{_SETS}]|{_CHARACTERS})", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:[:=!]|<[=!]|[ims]+:|[ims]*-[ims]+:)|(?!\?))")
_FLAGS = re.compile(r"\(\?[ims]+\)")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{([0-9]{1,4})(?:,([0-9]{1,4})?)?\})\??")

_CONSTRUCTS = (
    (r"\\Q.*?(?:\\E|$)", r"write a backslash before each character instead, as in \."),
    (r"\\[pP](?:\{[^}]*\}?|.?)", "write the characters, as in [A-Z]"),
    (r"\\[hHvVRXcNeE].?", "names of topics have no such characters"),
    (r"\\[zZG]", "write $ or ^, which mean the same for a name"),
    (r"\\k<|\\[1-9]", "references to groups are not supported: write the text again"),
    (r"\\0[0-7]*|\\x|\\u", r"write the character itself, or \x and two or \u and four hexadecimal digits"),
    (r"\\.?", "only one of Java and Python has it, or only outside of [...]"),
    (r"\(\?(?:P?<\w*|P=|P>)", "Java and Python name groups differently: write (?:...)"),
    (r"\(\?>", "some versions of Python 3.11 match atomic groups wrongly: write (?:...)"),
    (r"\(\?[a-zA-Z]*-?[a-zA-Z]*\)", "flags are i, m and s, at the beginning of the pattern; in the middle write (?i:...)"),
    (r"\(\?[a-zA-Z]*-?[a-zA-Z]*:", "flags are i, m and s"),
    (r"\(\?.?", "only one of Java and Python has it"),
    (r"[*+?]\+|\{[0-9,]*\}\+", "some versions of Python 3.11 match possessive quantifiers wrongly: leave the + out"),
    (r"[*+?]+|\{[^}]*\}?", rf"a quantifier such as * or {{2,3}}, with counts up to {_MOST_REPEATS}, follows what it repeats"),
    (r"\[", r"a class in a class: write one class, or \["),
    (r"\]", r"the first ] of a class is written \]"),
    (r"-", r"write - first or last in the class, or as \-"),
    (r"&&", "an intersection: write the characters that remain"),
    (r"~~|\|\|", "write it once"),
    (r"\(|\)", "the parentheses do not match"),
)
"""A construct -> what to write instead, or why it cannot be used. The first match counts."""

_WHY = tuple((re.compile(construct, re.DOTALL), why) for construct, why in _CONSTRUCTS)


def compile_java_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of Java, for ``fullmatch`` or ``search`` in names of topics.

    Raises ``ConfigError`` with the first construct that Java refuses, that ``re`` would read in another way, or that it lacks.
    """
    if not is_utf8(pattern):
        raise ConfigError(f"the Java pattern {short_repr(pattern)} has half of a character")
    _Reader(pattern).read()
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, RecursionError) as error:
        raise ConfigError(f"Python cannot compile the Java pattern {short_repr(pattern)}: {error}") from error


class _Reader:
    """Reads a pattern from left to right, up to the first construct that is not accepted."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._groups: list[int] = []
        """Where the open groups begin."""

    def read(self) -> None:
        flags = _FLAGS.match(self._pattern)
        self._at = flags.end() if flags is not None else 0
        is_repeatable = False
        while self._at < len(self._pattern):
            is_repeatable = self._read_one(is_repeatable)
        if self._groups:
            self._refuse(self._groups[-1])

    def _read_one(self, is_repeatable: bool) -> bool:
        """Read a character, a class, the beginning or end of a group, or a quantifier; return whether a quantifier may follow."""
        character = self._pattern[self._at]
        if character == "\\":
            return self._take(_ESCAPE)[1] not in _ASSERTIONS
        if character == "[":
            self._read_class()
            return True
        if character in "*+?{":
            self._read_quantifier(is_repeatable)
            return False
        if character == "(":
            self._groups.append(self._at)
            self._take(_GROUP)
            return False
        if character == ")":
            if not self._groups:
                self._refuse(self._at)
            self._groups.pop()
        self._at += 1
        return character not in "|^$"

    def _read_quantifier(self, is_allowed: bool) -> None:
        begin = self._at
        if not is_allowed:
            self._refuse(begin)
        low, high = self._take(_QUANTIFIER).groups()
        if self._pattern.startswith("+", self._at) or not int(low or 0) <= int(high or low or 0) <= _MOST_REPEATS:
            self._refuse(begin)

    def _read_class(self) -> None:
        """Read a class: characters, ranges and sets, with a hyphen first or last. The two read other hyphens differently."""
        begin = self._at
        self._at += 2 if self._pattern.startswith("[^", begin) else 1
        if self._pattern.startswith("]", self._at):
            self._refuse(self._at)
        self._at += self._pattern.startswith("-", self._at)
        while not self._pattern.startswith("]", self._at):
            if self._pattern.startswith("-]", self._at):
                self._at += 1
                continue
            is_set = self._read_member(begin)
            hyphen = self._at
            if self._pattern.startswith("-", hyphen) and not self._pattern.startswith("-]", hyphen):
                self._at += 1
                if is_set or self._read_member(begin):
                    self._refuse(hyphen)
        self._at += 1

    def _read_member(self, begin: int) -> bool:
        """Read a character or a set in the class that begins at ``begin``; return whether it is a set."""
        rest = self._pattern[self._at : self._at + 2]
        if not rest:
            self._refuse(begin, "the class is not closed")
        if rest[0] == "\\":
            return self._take(_ESCAPE_IN_CLASS)[1] in _SETS
        if rest[0] in "[-" or rest in ("&&", "||", "~~"):
            self._refuse(self._at)
        self._at += 1
        return False

    def _take(self, expected: re.Pattern[str]) -> re.Match[str]:
        """Read what is expected, or refuse what is there."""
        found = expected.match(self._pattern, self._at)
        if found is None:
            self._refuse(self._at)
        self._at = found.end()
        return found

    def _refuse(self, at: int, why: str = "") -> NoReturn:
        construct, reason = next((found[0], why) for rule, why in _WHY if (found := rule.match(self._pattern, at)))
        what = f"{_quoted(construct)} at position {at}"
        raise ConfigError(f"the Java pattern {_quoted(self._pattern)} cannot be used: {what}", hint=why or reason)


def _quoted(text: str) -> str:
    """A part of a pattern for an error, with its own backslashes only."""
    return f"'{text}'" if text.isprintable() and len(text) <= _SHOWN else short_repr(text)
