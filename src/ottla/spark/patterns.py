"""The regular expressions of ``subscribePattern``, which Spark's own connector gives to Java.

Owns the check that Java and Python understand an expression alike. Must not know topics. Invariant: an expression that is accepted
finds a match in the same names in both languages; all names of topics are ASCII.
"""

from __future__ import annotations

import functools
import re

from ottla.errors import ConfigError

HINT = "write it with what Java's regular expressions and Python's have in common"

_ESCAPES = frozenset("dDwWsSbBAZtnrfa")
"""Letters after a backslash with one meaning in both. (``\\v``, for example, is a class in Java and a character in Python.)"""

_CODES = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}")}
_QUANTIFIER = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
_GROUP = re.compile(r"\(\?([:=!>]|<[=!]|[ims]*(-[ims]+)?:)")
_FLAGS = re.compile(r"\(\?[ims]+\)")
"""At the beginning of the expression only: elsewhere Python refuses them."""

_SET_OPERATORS = ("&&", "--", "||", "~~")
"""Java intersects classes with the first of them, and Python reserves all of them."""


@functools.lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile an expression. Raises ``ConfigError`` if Python refuses it, or if it has another meaning in Java, or may have."""
    if found := _difference(pattern):
        position, what = found
        where = f"at character {position + 1} of {pattern!r}"
        text = f"option subscribePattern has {what} {where}, which Java and Python treat differently"
        raise ConfigError(text, hint=HINT)
    try:
        return re.compile(pattern, re.ASCII)  # without this flag, Python also compares other alphabets without regard to case
    except (re.error, OverflowError) as error:
        text, position = getattr(error, "msg", str(error)), getattr(error, "pos", None) or 0
        text = f"option subscribePattern is not a regular expression: {text} at character {position + 1} of {pattern!r}"
        raise ConfigError(text, hint=HINT) from None


def _difference(pattern: str) -> tuple[int, str] | None:
    """Return the position of a construct that is not common to both languages, and what it is."""
    flags = _FLAGS.match(pattern)
    at = flags.end() if flags is not None else 0
    while at < len(pattern):
        match pattern[at]:
            case "\\":
                length = _escape(pattern, at)
            case "[":
                at, what = _character_class(pattern, at)
                if what is not None:
                    return at, what
                continue
            case "(" if pattern.startswith("(?", at):
                group = _GROUP.match(pattern, at)
                length = None if group is None else len(group[0])
            case "{":
                quantifier = _QUANTIFIER.match(pattern, at)
                length = None if quantifier is None else len(quantifier[0])
            case _:
                length = 1
        if length is None:
            return at, repr(pattern[at : at + 3])
        at += length
    return None


def _escape(pattern: str, at: int) -> int | None:
    """Return the length of the escape at a backslash; ``None`` if the languages differ."""
    letter = pattern[at + 1 : at + 2]
    if letter in _CODES:
        code = _CODES[letter].match(pattern, at + 2)
        return None if code is None else 2 + len(code[0])
    if letter in tuple("123456789"):  # a group; in Java, whether a second digit belongs to it depends on the number of groups
        return None if pattern[at + 2 : at + 3].isdigit() else 2
    is_common = letter in _ESCAPES or (letter.isascii() and not letter.isalnum())
    return 2 if letter and is_common else None


def _character_class(pattern: str, at: int) -> tuple[int, str | None]:
    """Return the position after a class in brackets; or the position of a difference, and what it is."""
    at += 2 if pattern.startswith("[^", at) else 1
    if pattern.startswith("]", at):
        return at, "an unescaped ']' at the beginning of a class"
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "[":
            return at, "an unescaped '[' in a class"
        if pattern.startswith(_SET_OPERATORS, at):
            return at, repr(pattern[at : at + 2])
        if pattern[at] != "\\":
            at += 1
            continue
        length = _escape(pattern, at)
        if length is None or pattern[at + 1] in "bBAZ123456789":
            return at, f"{pattern[at : at + 2]!r} in a class"
        at += length
    return at + 1, None
